"""Bayesian logistic regression: a Gaussian with full covariance for each scale of the prior, averaged over scales.

    log τ ~ Uniform,   w ~ Normal(0, τ²),   intercepts ~ Normal(0, 10²),   y ~ Categorical(softmax(intercept + X w))

Two classes have one row of coefficients, more have one row each. A row of data sees the Gaussian q(w) = Normal(m, Σ)
only through its own linear predictors η_n, which have as many dimensions as there are rows of coefficients: so
expectations are quadratures there, and the optimum of the ELBO is the fixed point of

    m ← m + ρ P⁻¹ ∇,    Σ⁻¹ ← (1 − ρ) Σ⁻¹ + ρ P,      ∇ = Σ_n (y_n − E[p(η_n)]) ⊗ x_n − Λ m,
    P = Λ + Σ_n E[diag(p) − p pᵀ] ⊗ x_n x_nᵀ          Λ: the precision of the prior

from the mode, with ρ halved where the ELBO would fall. The ELBO of a scale is its weight. With up to 80 coefficients,
draws are weighed by the posterior.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln, logsumexp

from legrad.diagnostics.psis import LIMIT, smoothed_weights
from legrad.fitting.fixed_draws import Gaussian
from legrad.standard.softmax_density import SoftmaxDensity

SCALES = np.geomspace(0.03, 30.0, 10)  # of a prior whose scale is not given, for columns of standard deviation one
_WEIGHED = 80  # coefficients up to which draws are weighed
_SWEEPS = 60
_STILL = 3e-3  # nats: a step that gains less is the last
_MUCH_WORSE = 15.0  # nats: where scales are this much worse than a smaller one, larger ones are not tried
_COUNTS = 0.02  # the least probability of a scale that is kept
_TAILS = 5.0  # degrees of freedom of the draws with heavy tails


@dataclass(frozen=True)
class LogisticPosterior:
    """The posterior of a logistic regression.

    Attributes:
        draws: draws of the coefficients, (draws, rows of coefficients, columns).
        intercept_draws: draws of the intercepts, (draws, rows of coefficients).
        scale: the posterior mean of the prior's scale.
        log_evidence: a lower bound on the log evidence: ELBOs, averaged over the grid.
        khat: the PSIS k-hat of the draws' weights, the largest of all scales that count; NaN if none were weighed.
        status: a sentence that says what was done.
    """

    draws: np.ndarray
    intercept_draws: np.ndarray
    scale: float
    log_evidence: float
    khat: float
    status: str


def best_gaussian(density: SoftmaxDensity, start: Gaussian) -> tuple[float, Gaussian]:
    """Return the largest ELBO of a Gaussian with full covariance, and that Gaussian."""
    q = start
    inverse = _inverse(q.tril @ q.tril.T)
    elbo, gradient, precision = density.expected(q)
    rate = 1.0
    for _ in range(_SWEEPS):
        gain = -math.inf
        for size in _rates(min(1.0, 2 * rate)):
            rate = size
            moved = (1 - rate) * inverse + rate * precision
            new = Gaussian(q.loc + rate * np.linalg.solve(precision, gradient), np.linalg.cholesky(_inverse(moved)))
            found = density.expected(new)
            gain = found[0] - elbo
            if gain > -1e-9 * abs(elbo):
                break
        if gain <= -1e-9 * abs(elbo):
            break
        q, inverse, (elbo, gradient, precision) = new, moved, found
        if gain < _STILL * rate:
            break
    return elbo, q


def _rates(first: float) -> list[float]:
    """Return the step sizes to try: where one step had to be short, the next search begins there, not at one."""
    shorter = [first * 0.5**i for i in range(10) if first * 0.5**i > 1e-3]
    return shorter + [0.5**i for i in range(10) if 0.5**i > first]


def _inverse(matrix: np.ndarray) -> np.ndarray:
    found = np.linalg.inv(matrix)
    return np.asarray((found + found.T) / 2)


def fit_logistic(
    X: np.ndarray, y: np.ndarray, classes: int, *, scale: float | None, draws: int, rng: np.random.Generator
) -> LogisticPosterior:
    """Fit a logistic regression to standardized columns.

    Args:
        X: the columns.
        y: the class of each row, from 0 on.
        classes: the number of classes.
        scale: the standard deviation of the coefficients' prior; None to average over `SCALES`.
        draws: how many draws to keep.
        rng: the random generator.
    """
    scales = SCALES if scale is None else np.array([scale])
    size = (1 if classes == 2 else classes) * (X.shape[1] + 1)
    q = Gaussian(np.zeros(size), 0.1 * min(1.0, float(scales[0])) * np.eye(size))
    fits: list[tuple[SoftmaxDensity, Gaussian]] = []
    joint: list[float] = []
    for one in scales:
        density = SoftmaxDensity(X, y, classes, float(one))
        elbo, q = best_gaussian(density, q)
        fits.append((density, q))
        joint.append(elbo - math.log(len(scales)))
        if joint[-1] < max(joint) - _MUCH_WORSE:
            break
    tried, evidence = scales[: len(joint)], float(logsumexp(joint))
    share = np.exp(np.array(joint) - evidence)
    counted = np.flatnonzero(share >= _COUNTS)
    numbers = rng.multinomial(draws, share[counted] / share[counted].sum())
    kept, khats = [], []
    for i, number in zip(counted, numbers, strict=True):
        density, q = fits[i]
        if size > _WEIGHED:
            kept.append(q.at(rng.normal(size=(number, size))))
            continue
        found, khat = _weighed(density, q, int(number), rng)
        kept.append(found)
        khats.append(khat)
    each = np.concatenate(kept).reshape(draws, -1, X.shape[1] + 1)
    worst = max(khats, default=math.nan)
    how = "draws of the best Gaussians" if not khats else f"weighed draws, whose k-hat is {worst:.2f}"
    status = f"{size} coefficients, {len(counted)} of {len(scales)} prior scales: {how}"
    return LogisticPosterior(each[..., 1:], each[..., 0], float(share @ tried), evidence, worst, status)


def _weighed(density: SoftmaxDensity, q: Gaussian, number: int, rng: np.random.Generator) -> tuple[np.ndarray, float]:
    """Return draws of the posterior, and the k-hat of their weights; draws of the Gaussian if it is too far away.

    Half of the draws that are weighed are those of the Gaussian, half those of a Student-t.
    """
    d, many = density.size, max(2 * number, 1000)
    spread = np.ones((2, many))
    spread[1] = rng.chisquare(_TAILS, size=many) / _TAILS
    e = (rng.normal(size=(2, many, d)) / np.sqrt(spread)[..., None]).reshape(-1, d)
    square = np.sum(e**2, axis=1)
    student = gammaln((_TAILS + d) / 2) - gammaln(_TAILS / 2) - 0.5 * d * math.log(_TAILS / 2)
    log_q = np.logaddexp(-0.5 * square, student - 0.5 * (_TAILS + d) * np.log1p(square / _TAILS))
    x = q.at(e)
    weights, khat = smoothed_weights(density.many(x) - log_q)
    if khat > LIMIT:
        return q.at(rng.normal(size=(number, d))), khat
    return x[rng.choice(len(x), number, p=weights / weights.sum())], khat
