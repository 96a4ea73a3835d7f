"""How close a Gaussian is to a posterior, and the posterior's moments, by draws with heavier tails that are weighed.

    r(x) = ⅓ Normal(x; loc, L Lᵀ) + ⅓ Normal(x; m, S) + ⅓ Student-t(x; 5, m, S),      w = p(x) / r(x)

At first m and S are those of the Gaussian itself; its weighed draws give better ones, which the second round uses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln, logsumexp

from legrad.diagnostics.psis import smoothed_weights
from legrad.fitting.density import Density
from legrad.fitting.fixed_draws import Gaussian

_EACH = 2048  # draws of each part
_TAILS = 5.0  # degrees of freedom
_ENOUGH = 10  # effective draws for each latent that a covariance needs


@dataclass(frozen=True)
class Reweighed:
    """What weighed draws say about a Gaussian and a posterior.

    Attributes:
        elbo: the ELBO of the Gaussian, by its own draws.
        khat: the PSIS k-hat of the weights; NaN without ArviZ.
        shift: how far the Gaussian's means and sds are from the posterior's, at worst, in its standard deviations;
            NaN if too few draws count.
        moments: the mean of the posterior, and the Cholesky factor of its covariance; None if too few draws count.
    """

    elbo: float
    khat: float
    shift: float
    moments: Gaussian | None


def reweigh(density: Density, q: Gaussian, seed: int) -> Reweighed:
    """Weigh draws around a Gaussian by the posterior."""
    rng = np.random.default_rng([seed, 1])
    wide, elbo, khat = q, -math.inf, math.inf
    for _ in range(2):
        parts = [_normal(q, rng), _normal(wide, rng), _student(wide, rng)]
        x = np.concatenate(parts)
        log_p = density.many(x)
        log_p = np.where(np.isfinite(log_p), log_p, -math.inf)
        log_q = _log_normal(x, q)
        log_r = logsumexp([log_q, _log_normal(x, wide), _log_student(x, wide)], axis=0) - math.log(3)
        if np.isneginf(log_p).all():
            return Reweighed(-math.inf, math.inf, math.nan, None)
        own = (log_p - log_q)[:_EACH]
        elbo = float(own[np.isfinite(own)].mean()) if np.isfinite(own).any() else -math.inf
        try:
            weights, khat = smoothed_weights(log_p - log_r)
        except ImportError:
            return Reweighed(elbo, math.nan, math.nan, None)
        found = _moments(x, weights / weights.sum())
        if found is None:
            return Reweighed(elbo, khat, _shift(q, wide), None if wide is q else wide)
        wide = found
    return Reweighed(elbo, khat, _shift(q, wide), wide)


def _shift(q: Gaussian, posterior: Gaussian) -> float:
    if q is posterior:
        return math.nan
    return shift_of(q, posterior.loc, np.sqrt(np.sum(posterior.tril**2, axis=1)))


def shift_of(q: Gaussian, mean: np.ndarray, sd: np.ndarray) -> float:
    """Return how far a Gaussian's means and sds are from others, at worst, in units of the latter sds."""
    mine = np.sqrt(np.sum(q.tril**2, axis=1))
    return float(max(np.max(np.abs(q.loc - mean) / sd), np.max(np.abs(mine / sd - 1))))


def _moments(x: np.ndarray, weights: np.ndarray) -> Gaussian | None:
    """Return the weighed moments; None if too few draws count."""
    if 1 / np.sum(weights**2) < _ENOUGH * x.shape[1]:
        return None
    mean = weights @ x
    rest = (x - mean) * np.sqrt(weights)[:, None]
    lower = np.asarray(np.linalg.qr(rest, mode="r")).T  # by QR, as a product would lose half of the digits
    lower = lower * np.sign(np.where(np.diagonal(lower) == 0, 1.0, np.diagonal(lower)))
    return Gaussian(mean, lower) if (np.diagonal(lower) > 0).all() else None


def _normal(q: Gaussian, rng: np.random.Generator) -> np.ndarray:
    return q.at(rng.normal(size=(_EACH, len(q.loc))))


def _student(q: Gaussian, rng: np.random.Generator) -> np.ndarray:
    spread = np.sqrt(_TAILS / rng.chisquare(_TAILS, size=(_EACH, 1)))
    return q.at(rng.normal(size=(_EACH, len(q.loc))) * spread)


def _distance(x: np.ndarray, q: Gaussian) -> np.ndarray:
    return np.sum(np.linalg.solve(q.tril, (x - q.loc).T) ** 2, axis=0)


def _log_normal(x: np.ndarray, q: Gaussian) -> np.ndarray:
    return -0.5 * _distance(x, q) - np.sum(np.log(np.diagonal(q.tril))) - 0.5 * len(q.loc) * math.log(2 * math.pi)


def _log_student(x: np.ndarray, q: Gaussian) -> np.ndarray:
    d, df = len(q.loc), _TAILS
    constant = gammaln((df + d) / 2) - gammaln(df / 2) - 0.5 * d * math.log(df * math.pi)
    spread = np.sum(np.log(np.diagonal(q.tril)))
    return constant - spread - 0.5 * (df + d) * np.log1p(_distance(x, q) / df)
