"""Spike-and-slab regression: the posterior over subsets of columns.

    z ~ rate^|z| (1 − rate)^(p − |z|),    b_j ~ Normal(0, τ²),    y ~ family(intercept + X (z · b))

Columns are standardized, and so is the target of a Gaussian, whose noise has a HalfNormal(1) prior. The rate is
given, or has a uniform prior; τ is given, or one of a grid. Slopes are integrated out (`subset_evidence`): exactly
for a Gaussian, else by Laplace's approximation. Up to 10 columns all subsets are enumerated. Above, subsets are drawn
from the paired guide (`paired_ascent`) of several starts and weighed by p(y, z) / q(z), and twice more from the
weighed answer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import betaln, expit, logit, logsumexp

from legrad.diagnostics.psis import LIMIT, smoothed_weights
from legrad.standard.paired_ascent import Hyper, Paired, ascend, compressed
from legrad.standard.subset_evidence import LIKELIHOODS, GaussianEvidence, LaplaceEvidence, Slopes

FAMILIES = ("gaussian", *LIKELIHOODS)
SLABS = {  # of a slab that is not given, for a standard deviation of the column: in sds, logits, logs of the mean
    "gaussian": np.array([0.15, 0.4, 1.0]),
    "bernoulli": np.array([0.2, 0.6, 1.8]),
    "poisson": np.array([0.15, 0.4, 1.0]),
}
_ENUMERATED = 10  # columns of which all subsets are tried
_DRAWS = 2000  # subsets of one round
_ROUNDS = 3
_NEWTON = 8


@dataclass(frozen=True)
class SpikeSlabPosterior:
    """The posterior over subsets of columns, in standardized units.

    Attributes:
        inclusion: the probability of each column.
        intercept: the posterior mean of the intercept.
        slopes: the posterior mean of each slope, zero where its column is not included.
        noise: the posterior mean of the noise of a Gaussian; else 0.
        draws: draws of the slopes, with zeros.
        intercept_draws: draws of the intercept.
        noise_draws: draws of the noise.
        sizes: the probability of each number of columns.
        khat: the PSIS k-hat of the weights; -inf if all subsets were enumerated.
        status: a sentence that says what was done, and whether to trust it.
    """

    inclusion: np.ndarray
    intercept: float
    slopes: np.ndarray
    noise: float
    draws: np.ndarray
    intercept_draws: np.ndarray
    noise_draws: np.ndarray
    sizes: np.ndarray
    khat: float
    status: str

    @property
    def trusted(self) -> bool:
        """Whether the weights can be trusted."""
        return self.khat <= LIMIT


def fit_spike_slab(
    X: np.ndarray,
    y: np.ndarray,
    family: str,
    *,
    rate: float | None,
    slab: float | None,
    rng: np.random.Generator,
    restarts: int = 4,
    draws: int = 1000,
) -> SpikeSlabPosterior:
    """Fit spike-and-slab regression to standardized data.

    Args:
        X: the columns, each with mean 0 and standard deviation 1 (or 0).
        y: the target: standardized, labels 0 and 1, or counts.
        family: one of `FAMILIES`.
        rate: the prior probability that a column is included; None for a uniform prior over it.
        slab: the standard deviation of a slope that is included; None to average over `SLABS`.
        rng: the random generator.
        restarts: how many starts the guide has.
        draws: how many draws to keep.
    """
    p = X.shape[1]
    slabs = SLABS[family] if slab is None else np.array([slab])
    working, target, hyper = _working(X, y, family, rate, slab)
    rows = max(len(X) - 1, 1)
    guides = _guides(working, target, rows, hyper, restarts, rng) if p > _ENUMERATED else []
    log_noise = np.zeros(1)
    noises = np.ones(1)
    evidence: Any
    if family == "gaussian":
        noises, log_noise = _noise_grid(working, target, rows, hyper)
        evidence = GaussianEvidence(working, target, len(X), slabs, noises)
    else:
        evidence = LaplaceEvidence(X, y, family, slabs)

    def weighed(subsets: np.ndarray) -> tuple[list[Slopes], np.ndarray, np.ndarray]:
        """Return the subsets' slopes, their points of the grid, and the log of p(y, z)."""
        found = evidence.of(subsets)
        grid = np.stack([one.log_evidence for one in found]) + log_noise - math.log(len(slabs))
        return found, grid, logsumexp(grid, axis=(1, 2)) + _log_prior(subsets.sum(1), p, rate)

    if p <= _ENUMERATED:
        subsets = (np.arange(2**p)[:, None] >> np.arange(p) & 1).astype(bool)
        found, grid, log_p = weighed(subsets)
        weights, khat = np.exp(log_p - logsumexp(log_p)), -math.inf
        status = f"all {len(subsets):,} subsets of {p} columns enumerated"
    else:
        subsets, found, grid, weights, khat = _explore(guides, weighed, p, rng)
        status = f"{len(subsets):,} distinct subsets of {p} columns, weighed; k-hat is {khat:.2f}"
        if khat > LIMIT:
            status += (
                f", above {LIMIT}: the posterior has more, or more strongly dependent, subsets than were found. Take "
                "the probabilities as a ranking; or leave out columns that are nearly copies of others"
            )
    return _averaged(subsets, found, grid, weights, noises, family, draws, rng, khat, status)


def _log_prior(size: np.ndarray, p: int, rate: float | None) -> np.ndarray:
    if rate is None:
        return betaln(1 + size, 1 + p - size)
    return size * math.log(rate) + (p - size) * math.log1p(-rate)


def _noise_grid(X: np.ndarray, y: np.ndarray, rows: int, hyper: Hyper) -> tuple[np.ndarray, np.ndarray]:
    """Return values of the noise, dense where the posterior is narrow, and the log prior mass of each.

    The noise of the best subset is between that of all columns and that of none; the posterior of its logarithm is
    about 1/√(2m) wide.
    """
    coefficients = np.linalg.lstsq(X, y, rcond=None)[0]
    error = float(np.sum((y - X @ coefficients) ** 2)) / rows
    width = 1 / math.sqrt(2 * rows)
    low, high = 0.5 * math.log(max(error, 1e-8)), 0.5 * math.log(max(float(y @ y) / rows, 1e-8))
    least_noise = 1e-4 if X.shape[1] < rows else 0.02  # as many columns as rows can fit anything
    low, high = max(low - 6 * width, math.log(least_noise)), high + 6 * width
    number = int(np.clip((high - low) / (0.5 * width), 30, 120))
    edges = np.linspace(low, high, number)
    noises = np.exp(edges)
    return noises, -0.5 * noises**2 + edges + math.log((high - low) / number)


def _working(
    X: np.ndarray, y: np.ndarray, family: str, rate: float | None, slab: float | None
) -> tuple[np.ndarray, np.ndarray, Hyper]:
    """Return a Gaussian regression for the guide: the data themselves, or the Newton step of a ridge fit."""
    first = float(SLABS[family][1]) if slab is None else slab
    share = min(0.5, 5 / X.shape[1]) if rate is None else rate
    if family == "gaussian":
        return *compressed(X, y), Hyper(0.7, first, share, True, slab is None, rate is None)
    n, p = X.shape
    eta = np.full(n, _link(family, y.mean()))
    for _ in range(_NEWTON):
        _, slope, weight = LIKELIHOODS[family](y, eta)
        weight = np.maximum(weight, 1e-4 * max(1e-8, float(weight.max())))
        response = eta + slope / weight
        root = np.sqrt(weight)
        center = float(weight @ response / weight.sum())
        middle = weight @ X / weight.sum()
        scaled, target = root[:, None] * (X - middle), root * (response - center)
        if p <= n:
            b = np.linalg.solve(scaled.T @ scaled + np.eye(p) / first**2, scaled.T @ target)
        else:
            b = first**2 * scaled.T @ np.linalg.solve(np.eye(n) + first**2 * scaled @ scaled.T, target)
        eta = np.clip(center + (X - middle) @ b, -8.0, 8.0)
    return *compressed(scaled, target), Hyper(1.0, first, share, False, slab is None, rate is None)


def _link(family: str, mean: float) -> float:
    mean = max(mean, 1e-3)
    return float(logit(min(mean, 1 - 1e-3))) if family == "bernoulli" else math.log(mean)


def _guides(
    X: np.ndarray, y: np.ndarray, rows: int, hyper: Hyper, restarts: int, rng: np.random.Generator
) -> list[Paired]:
    """Fit the paired guide from several starts: nothing included, then each column at random, in random order."""
    p = X.shape[1]
    strength = np.abs(X.T @ y)
    found = [ascend(X, y, rows, hyper, np.full(p, 1e-3), np.zeros(p), np.argsort(-strength))]
    for _ in range(restarts - 1):
        start = np.asarray(rng.uniform(0, 0.3, p))
        found.append(ascend(X, y, rows, hyper, start, np.zeros(p), rng.permutation(p)))
    return found


def _explore(
    guides: list[Paired], weighed: Any, p: int, rng: np.random.Generator
) -> tuple[np.ndarray, list[Slopes], np.ndarray, np.ndarray, float]:
    """Return distinct subsets, their slopes and grids, and their smoothed weights, with the k-hat of the last round.

    Every draw is weighed by the mixture of all proposals so far, so that no early draw counts for too much.
    """
    least = 0.2 / p
    proposals = [np.clip(guide.alpha, least, 1 - least) for guide in guides]
    proposals += [np.clip(expit(0.5 * logit(a)), least, min(0.5, 10 / p)) for a in proposals[:1]]
    known: dict[bytes, int] = {}
    kept: list[np.ndarray] = []
    found: list[Slopes] = []
    grids: list[np.ndarray] = []
    log_ps: list[float] = []
    drawn, counts = [], []
    for _ in range(_ROUNDS):
        share = _DRAWS // len(proposals)
        subsets = np.concatenate([rng.random((share, p)) < a for a in proposals])
        new = {z.tobytes(): z for z in subsets if z.tobytes() not in known}
        if new:
            some, grid, log_p = weighed(np.stack(list(new.values())))
            for flags, slopes, points, value in zip(new, some, grid, log_p, strict=True):
                known[flags] = len(kept)
                kept.append(new[flags])
                found.append(slopes)
                grids.append(points)
                log_ps.append(float(value))
        drawn.append(np.array([known[z.tobytes()] for z in subsets]))
        counts.append((np.stack(proposals), share))
        z = np.stack(kept)
        log_q = _mixture(counts, z)
        which = np.concatenate(drawn)
        weights, khat = smoothed_weights(np.array(log_ps)[which] - log_q[which])
        proposals = _next(weights / weights.sum(), z[which], least)
    each = np.bincount(which, weights / weights.sum(), len(kept))
    return np.stack(kept), found, np.stack(grids), each, khat


def _mixture(counts: list[tuple[np.ndarray, int]], z: np.ndarray) -> np.ndarray:
    """Return the log-probability of subsets under the mixture of all proposals, by the number of their draws."""
    alphas = np.concatenate([a for a, _ in counts])
    share = np.concatenate([np.full(len(a), n) for a, n in counts])
    log_q = z @ np.log(alphas).T + ~z @ np.log1p(-alphas).T
    return logsumexp(log_q + np.log(share / share.sum()), axis=1)


def _next(weights: np.ndarray, z: np.ndarray, least: float) -> list[np.ndarray]:
    """Return new proposals: the weighed probabilities, and those given each of the most uncertain columns or not."""
    total = weights @ z
    found = [total]
    for j in np.argsort(np.abs(total - 0.5))[:3]:
        for side in (z[:, j], ~z[:, j]):
            if weights @ side > 0.05:
                found.append((weights * side) @ z / (weights @ side))
    # Half way to all together, so that no proposal is certain of what few draws say.
    return [np.clip(0.8 * a + 0.2 * total, least, 1 - least) for a in found]


def _averaged(
    subsets: np.ndarray, found: list[Slopes], grid: np.ndarray, weights: np.ndarray, noises: np.ndarray,
    family: str, number: int, rng: np.random.Generator, khat: float, status: str,
) -> SpikeSlabPosterior:  # fmt: skip
    """Average over subsets and over the grid, and draw from them."""
    p = subsets.shape[1]
    shares = np.exp(grid - logsumexp(grid, axis=(1, 2), keepdims=True))
    intercept, slopes = 0.0, np.zeros(p)
    for i in np.flatnonzero(weights > 1e-9 * weights.max()):
        flat = shares[i].ravel()
        for point in np.flatnonzero(flat > 1e-4 * flat.max()):
            a, b = found[i].mean(*divmod(int(point), grid.shape[2]))
            intercept += weights[i] * flat[point] * a
            slopes[found[i].columns] += weights[i] * flat[point] * b
    at, a_draws, b_draws = np.empty(number, int), np.empty(number), np.zeros((number, p))
    for d, i in enumerate(rng.choice(len(found), number, p=weights / weights.sum())):
        slab, at[d] = divmod(int(rng.choice(shares[i].size, p=shares[i].ravel())), grid.shape[2])
        a_draws[d], b_draws[d, found[i].columns] = found[i].draw(slab, int(at[d]), rng)
    of_noise = np.einsum("s,sjt->t", weights, shares)
    gaussian = family == "gaussian"
    return SpikeSlabPosterior(
        inclusion=np.clip(weights @ subsets, 0.0, 1.0),
        intercept=intercept,
        slopes=slopes,
        noise=float(of_noise @ noises) if gaussian else 0.0,
        draws=b_draws,
        intercept_draws=a_draws,
        noise_draws=noises[at] if gaussian else np.zeros(number),
        sizes=np.bincount(subsets.sum(1), weights, p + 1),
        khat=khat,
        status=status,
    )
