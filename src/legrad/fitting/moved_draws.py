"""A proposal for a posterior that no Gaussian is close to: a mixture fitted to draws that HMC moves.

    u ← u + ε v,  v ← v + ε ∇ log p(x(u)),  accepted with the change of energy;     x = m + S u
    r(x) = Σ_k π_k Student-t(x; 5, m_k, S_k S_kᵀ),  fitted to the moved draws by EM

The draws start as those of a Gaussian, weighed and resampled, and all move at once, in coordinates that the Gaussian
whitens. Whether they have arrived is not assumed: draws of the mixture are weighed by the posterior, and their k-hat
says whether it covers the posterior.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import gammaln, logsumexp

from legrad.diagnostics.psis import smoothed_weights
from legrad.fitting.density import CHUNK, Density
from legrad.fitting.fixed_draws import Gaussian

TAILS = 5.0  # degrees of freedom
MOST = 60  # latents, above which a mixture would need too many draws
_DRAWS = 4 * CHUNK  # draws that move
_MOVES, _KEPT, _LEAPS = 30, 8, (4, 13)  # moves, the last of which are kept, and the number of steps of one
_COMPONENTS, _EM = 8, 20
_ROUNDS = 3  # fits of the mixture to the same moves
_SEARCHES, _GOOD = 3, 0.6  # the largest number of all that; a k-hat that ends it
_WEIGHED = 4096


@dataclass(frozen=True)
class Mixture:
    """A mixture of Student-t's: weights (K,), locations (K, n), Cholesky factors (K, n, n)."""

    weights: np.ndarray
    loc: np.ndarray
    tril: np.ndarray

    def draw(self, number: int, rng: np.random.Generator) -> np.ndarray:
        """Draw points."""
        k = rng.choice(len(self.weights), number, p=self.weights)
        spread = np.sqrt(TAILS / rng.chisquare(TAILS, size=(number, 1)))
        z = rng.normal(size=(number, self.loc.shape[1])) * spread
        x = self.loc[k]
        for component, tril in enumerate(self.tril):
            x[k == component] += z[k == component] @ tril.T
        return x

    def log_density(self, x: np.ndarray) -> np.ndarray:
        """Return the log-density at each point."""
        d, df = x.shape[1], TAILS
        constant = gammaln((df + d) / 2) - gammaln(df / 2) - 0.5 * d * math.log(df * math.pi)
        parts = []
        for weight, loc, tril in zip(self.weights, self.loc, self.tril, strict=True):
            away = np.sum(solve_triangular(tril, (x - loc).T, lower=True) ** 2, axis=0)
            spread = np.sum(np.log(np.diagonal(tril)))
            parts.append(math.log(weight) + constant - spread - 0.5 * (df + d) * np.log1p(away / df))
        return np.asarray(logsumexp(parts, axis=0))


@dataclass(frozen=True)
class Covered:
    """What weighed draws of a mixture say.

    Attributes:
        mixture: the mixture.
        khat: the PSIS k-hat of the weights of its draws.
        mean: the posterior's mean by weighed draws.
        sd: its standard deviations.
    """

    mixture: Mixture
    khat: float
    mean: np.ndarray
    sd: np.ndarray


def cover(density: Density, q: Gaussian, wide: Gaussian, seed: int) -> Covered | None:
    """Fit a mixture to moved draws; None if they cannot be moved.

    Args:
        density: the log-density of the latents.
        q: the Gaussian of the fit: part of the proposal.
        wide: what is known of the posterior's moments: the coordinates to move in.
        seed: seeds the draws.
    """
    rng = np.random.default_rng([seed, 3])
    x, found = _first(density, q, rng), None
    for _ in range(_SEARCHES):
        if x is None:
            break
        with np.errstate(all="ignore"):  # a step that is too long is not accepted
            u, wide = _moved(density, x, wide, rng)
        for _ in range(_ROUNDS):  # the last is taken, not that of the lowest k-hat, which may not have seen its tail
            covered, x = _weighed(density, q, _fitted(u, wide, rng), rng)
            # Draws by weight reach where the moved ones have not come yet: the next round is fitted to both.
            if x is None:
                break
            u = np.concatenate([u, _whitened(x, wide)])
        if covered is not None and (found is None or covered.khat < found.khat):
            found = covered
        if found is not None and found.khat < _GOOD:
            break
        x = None if x is None else x[:_DRAWS]
    return found


def _weighed(
    density: Density, q: Gaussian, mixture: Mixture, rng: np.random.Generator
) -> tuple[Covered | None, np.ndarray | None]:
    """Weigh draws of a mixture and of the Gaussian; return what they say, and some resampled by weight."""
    x = np.concatenate([mixture.draw(_WEIGHED, rng), q.at(rng.normal(size=(_WEIGHED // 2, len(q.loc))))])
    log_p = density.many(x)
    log_p = np.where(np.isfinite(log_p), log_p, -math.inf)
    log_r = np.logaddexp(math.log(2 / 3) + mixture.log_density(x), math.log(1 / 3) + _log_normal(x, q))
    if np.isneginf(log_p).all():
        return None, None
    weights, khat = smoothed_weights(log_p - log_r)
    weights = weights / weights.sum()
    mean = weights @ x
    chosen = rng.choice(len(x), _WEIGHED // 2, p=weights)
    return Covered(mixture, khat, mean, np.sqrt(weights @ (x - mean) ** 2)), x[chosen]


def _log_normal(x: np.ndarray, q: Gaussian) -> np.ndarray:
    away = np.sum(solve_triangular(q.tril, (x - q.loc).T, lower=True) ** 2, axis=0)
    return -0.5 * away - np.sum(np.log(np.diagonal(q.tril))) - 0.5 * len(q.loc) * math.log(2 * math.pi)


def _whitened(x: np.ndarray, by: Gaussian) -> np.ndarray:
    return np.asarray(solve_triangular(by.tril, (x - by.loc).T, lower=True).T)


def _first(density: Density, q: Gaussian, rng: np.random.Generator) -> np.ndarray | None:
    """Return draws of the Gaussian, resampled; None if none has a density."""
    x = q.at(rng.normal(size=(_DRAWS, len(q.loc))))
    value = density.many(x)
    log_w = np.where(np.isfinite(value), value, -math.inf) - _log_normal(x, q)
    if np.isneginf(log_w).all():
        return None
    # Half of the draws by weight, so that none with a large weight stands for all of them.
    w = np.exp(0.5 * (log_w - log_w.max()))
    return x[rng.choice(_DRAWS, _DRAWS, p=w / w.sum())]


def _moved(density: Density, x: np.ndarray, wide: Gaussian, rng: np.random.Generator) -> tuple[np.ndarray, Gaussian]:
    """Return draws after many moves, and the Gaussian that whitens them."""

    def at(u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        parts = [density.many_gradients(wide.at(part)) for part in np.split(u, len(u) // CHUNK)]
        value, gradient = np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])
        return np.where(np.isfinite(value), value, -math.inf), np.nan_to_num(gradient @ wide.tril)

    u = _whitened(x, wide)
    value, gradient = at(u)
    step, kept = 0.7 * u.shape[1] ** -0.25, []
    for i in range(_MOVES):
        v = rng.normal(size=u.shape)
        energy = value - 0.5 * np.sum(v**2, 1)
        there, new, slope = u, value, gradient
        for _ in range(rng.integers(*_LEAPS)):
            v = v + 0.5 * step * slope
            there = there + step * v
            new, slope = at(there)
            v = v + 0.5 * step * slope
        gain = np.where(np.isneginf(new), -math.inf, new - 0.5 * np.sum(v**2, 1)) - energy
        accepted = np.log(rng.random(_DRAWS)) < np.nan_to_num(gain, nan=-math.inf, posinf=math.inf, neginf=-math.inf)
        u = np.where(accepted[:, None], there, u)
        value, gradient = np.where(accepted, new, value), np.where(accepted[:, None], slope, gradient)
        step *= math.exp(0.5 * (accepted.mean() - 0.75))
        if i == _MOVES // 2:  # in coordinates that the draws themselves whiten
            x = wide.at(u)
            spread = np.asarray(np.linalg.qr((x - x.mean(0)) / math.sqrt(_DRAWS), mode="r")).T
            wide = Gaussian(x.mean(0), spread * np.sign(np.diagonal(spread)))
            u = _whitened(x, wide)
            value, gradient = at(u)
        if i >= _MOVES - _KEPT:
            kept.append(u)
    return np.concatenate(kept), wide


def _fitted(u: np.ndarray, wide: Gaussian, rng: np.random.Generator) -> Mixture:
    """Fit a mixture to whitened draws by EM, and return it in the space of x."""
    n, d = u.shape
    whole = np.cov(u.T).reshape(d, d) + 1e-9 * np.eye(d)
    held = 2.0 * d  # draws' worth of the whole covariance in each component's
    far = u[rng.choice(n, 1)]
    while len(far) < _COMPONENTS:  # centers that are spread out, as in k-means++
        away = np.min(np.sum((u[:, None] - far) ** 2, -1), 1)
        far = np.concatenate([far, u[rng.choice(n, 1, p=away / away.sum())]])
    weights, loc = np.full(_COMPONENTS, 1 / _COMPONENTS), far
    tril = np.broadcast_to(np.linalg.cholesky(whole), (_COMPONENTS, d, d))
    for _ in range(_EM):
        logs = [
            math.log(w) + _log_normal(u, Gaussian(m, root)) for w, m, root in zip(weights, loc, tril, strict=True)
        ]
        share = np.exp(logs - logsumexp(logs, axis=0))
        size = share.sum(1) + 1e-9
        weights = (size + 0.01 * n) / (size + 0.01 * n).sum()
        loc = share @ u / size[:, None]
        scaled = [np.sqrt(part)[:, None] * (u - m) for part, m in zip(share, loc, strict=True)]
        spread = np.stack([part.T @ part for part in scaled])
        tril = np.linalg.cholesky((spread + held * whole) / (size + held)[:, None, None])
    return Mixture(weights, wide.loc + loc @ wide.tril.T, wide.tril @ tril)
