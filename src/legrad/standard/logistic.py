"""Bayesian logistic regression: the posterior of the coefficients, averaged over the scale of their prior.

    τ ~ HalfNormal(2),   w ~ Normal(0, τ²),   intercepts ~ Normal(0, 10²),   y ~ Categorical(softmax(intercept + X w))

Two classes have one row of coefficients, more have one row each. For each τ of a grid Newton's method finds the mode,
and Laplace's approximation its evidence. For a τ that counts, draws around the mode are weighed by the posterior; if
their k-hat is high, draws of the Gaussian with full covariance that maximizes the ELBO (`FixedDraws`) are weighed
instead. With more than 80 coefficients the draws are those of the Gaussian at the mode.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, gammaln, logsumexp, softmax

from legrad.diagnostics.psis import LIMIT, smoothed_weights
from legrad.fitting.fixed_draws import FixedDraws, Gaussian, moment_matched

SCALES = np.geomspace(0.03, 6.0, 9)  # of a prior whose scale is not given, for columns of standard deviation one
_FLAT = 10.0  # the standard deviation of an intercept's prior
_CLIMBED = 80  # coefficients up to which the ELBO is climbed
_COUNTS = 0.02  # the least probability of a scale that is kept
_NUMBERS = 4_000_000  # numbers of one batch
_TAILS = 5.0  # degrees of freedom of the draws with heavy tails
_CLIMB = 50  # gradients of the ELBO
_CLOSE = 0.5  # a k-hat below which the ELBO is not climbed
_NEWTON = 100
_PRIOR = 2.0  # the scale of the prior of τ


@dataclass(frozen=True)
class LogisticPosterior:
    """The posterior of a logistic regression.

    Attributes:
        draws: draws of the coefficients, (draws, rows of coefficients, columns).
        intercept_draws: draws of the intercepts, (draws, rows of coefficients).
        scale: the posterior mean of the prior's scale.
        log_evidence: the log evidence, by Laplace's approximation and averaged over the grid.
        khat: the PSIS k-hat of the draws' weights, the largest of all scales that count; NaN if none were weighed.
        status: a sentence that says what was done.
    """

    draws: np.ndarray
    intercept_draws: np.ndarray
    scale: float
    log_evidence: float
    khat: float
    status: str


class SoftmaxDensity:
    """The log-density of the coefficients of a logistic regression, with what a solver asks for.

    Args:
        X: the columns.
        y: the class of each row, from 0 on.
        classes: the number of classes.
        scale: the standard deviation of the coefficients' prior.
    """

    def __init__(self, X: np.ndarray, y: np.ndarray, classes: int, scale: float) -> None:
        self.rows_of = 1 if classes == 2 else classes
        self._x = np.column_stack([np.ones(len(X)), X])
        self._hot = (y == 1)[:, None].astype(float) if classes == 2 else np.eye(classes)[y]
        self._precision = np.full((self.rows_of, self._x.shape[1]), scale**-2.0)
        self._precision[:, 0] = _FLAT**-2.0
        self.size, self.gradients = self._precision.size, 0
        self._constant = 0.5 * float(np.sum(np.log(self._precision / (2 * math.pi))))

    def many_gradients(self, xs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the log-density at each row of a matrix, and its gradients."""
        step = max(1, _NUMBERS // self._hot.size)
        parts = [self._some(xs[i : i + step]) for i in range(0, len(xs), step)]
        return np.concatenate([v for v, _ in parts]), np.concatenate([g for _, g in parts])

    def _some(self, xs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        w = xs.reshape(-1, *self._precision.shape)
        eta = self._x @ w.swapaxes(1, 2)  # (points, rows, rows of coefficients)
        if self.rows_of == 1:
            p, total = expit(eta), np.logaddexp(0.0, eta)[..., 0]
        else:
            p, total = softmax(eta, axis=-1), logsumexp(eta, axis=-1)
        value = np.einsum("snk,nk->s", eta, self._hot) - total.sum(1)
        value += self._constant - 0.5 * np.sum(self._precision * w**2, axis=(1, 2))
        gradient = (self._hot - p).swapaxes(1, 2) @ self._x - self._precision * w
        return value, gradient.reshape(len(xs), -1)

    def many(self, xs: np.ndarray) -> np.ndarray:
        """Return the log-density at each row of a matrix."""
        return self.many_gradients(xs)[0]

    def value(self, x: np.ndarray) -> float:
        """Return the log-density at a point."""
        return float(self.many(x[None])[0])

    def gradient(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the log-density at a point, and its gradient."""
        self.gradients += 1
        value, gradient = self.many_gradients(x[None])
        return float(value[0]), gradient[0]

    def hessian(self, x: np.ndarray) -> np.ndarray:
        """Return the Hessian at a point: −Σ_n (diag(p_n) − p_n p_nᵀ) ⊗ x_n x_nᵀ, less the prior's precision."""
        w = x.reshape(self._precision.shape)
        eta = self._x @ w.T
        p = expit(eta) if self.rows_of == 1 else softmax(eta, axis=-1)
        d = self._x.shape[1]
        both = (p[:, :, None] * self._x[:, None, :]).reshape(len(p), -1)
        found = both.T @ both - np.diag(self._precision.ravel())
        for k in range(self.rows_of):
            found[k * d : (k + 1) * d, k * d : (k + 1) * d] -= self._x.T @ (p[:, k, None] * self._x)
        return np.asarray(found)


def mode_of(density: SoftmaxDensity, x: np.ndarray) -> tuple[float, Gaussian]:
    """Return the log-density at the mode, and the Gaussian there, by Newton's method: the log-density is concave."""
    value, gradient = density.gradient(x)
    for _ in range(_NEWTON):
        step = np.linalg.solve(-density.hessian(x), gradient)
        gain, length = float(gradient @ step), 1.0
        if gain < 1e-9:
            break
        while density.value(x + length * step) < value + 1e-4 * length * gain and length > 1e-6:
            length *= 0.4
        x = x + length * step
        value, gradient = density.gradient(x)
    return value, Gaussian(x, np.linalg.cholesky(np.linalg.inv(-density.hessian(x))))


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
    modes, evidence = [], []
    start = np.zeros((1 if classes == 2 else classes) * (X.shape[1] + 1))
    for one in scales:
        density = SoftmaxDensity(X, y, classes, float(one))
        value, q = mode_of(density, start)
        start = q.loc
        modes.append((density, q))
        spread = float(np.sum(np.log(np.diagonal(q.tril)))) + 0.5 * len(start) * math.log(2 * math.pi)
        evidence.append(value + spread)
    prior = np.log(scales) - 0.5 * (scales / _PRIOR) ** 2  # on the logarithm of the scale
    joint = np.array(evidence) + prior - logsumexp(prior)
    log_evidence = float(logsumexp(joint))
    share = np.exp(joint - log_evidence)
    counted = np.flatnonzero(share >= _COUNTS)
    numbers = rng.multinomial(draws, share[counted] / share[counted].sum())
    kept, khats = [], []
    for i, number in zip(counted, numbers, strict=True):
        density, q = modes[i]
        if density.size > _CLIMBED:
            kept.append(q.at(rng.normal(size=(number, density.size))))
            continue
        found, khat = _weighed(density, q, int(number), rng)
        kept.append(found)
        khats.append(khat)
    each = np.concatenate(kept).reshape(draws, -1, X.shape[1] + 1)
    worst = max(khats, default=math.nan)
    how = "Gaussians at the mode" if not khats else f"weighed draws, whose k-hat is {worst:.2f}"
    status = f"{len(start)} coefficients, {len(counted)} of {len(scales)} prior scales: {how}"
    return LogisticPosterior(each[..., 1:], each[..., 0], float(share @ scales), log_evidence, worst, status)


def _weighed(density: SoftmaxDensity, q: Gaussian, number: int, rng: np.random.Generator) -> tuple[np.ndarray, float]:
    """Return draws of the posterior, and the k-hat of their weights; draws of the Gaussian if it is too far away."""
    x, weights, khat = _weigh(density, q, number, rng)
    if khat > _CLOSE:
        fixed = max(128, 1 << math.ceil(math.log2(2 * density.size)))
        climber = FixedDraws(density)  # type: ignore[arg-type]
        q, _ = climber.climb(q, moment_matched(fixed, density.size, int(rng.integers(2**31))), _CLIMB)
        x, weights, khat = _weigh(density, q, number, rng)
    if khat > LIMIT:
        return q.at(rng.normal(size=(number, density.size))), khat
    return x[rng.choice(len(x), number, p=weights)], khat


def _weigh(
    density: SoftmaxDensity, q: Gaussian, number: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return draws, half of them of a Gaussian and half of a Student-t, with their weights and k-hat."""
    d, many = density.size, max(2 * number, 1000)
    spread = np.ones((2, many))
    spread[1] = rng.chisquare(_TAILS, size=many) / _TAILS
    e = (rng.normal(size=(2, many, d)) / np.sqrt(spread)[..., None]).reshape(-1, d)
    square = np.sum(e**2, axis=1)
    student = gammaln((_TAILS + d) / 2) - gammaln(_TAILS / 2) - 0.5 * d * math.log(_TAILS / 2)
    log_q = np.logaddexp(-0.5 * square, student - 0.5 * (_TAILS + d) * np.log1p(square / _TAILS))
    x = q.at(e)
    weights, khat = smoothed_weights(density.many(x) - log_q)
    return x, weights / weights.sum(), khat
