"""The ELBO of a Gaussian with fixed draws: a deterministic objective, which L-BFGS climbs without a learning rate.

    x_i = center + W (m + T e_i),    ELBO = mean_i log p(x_i) + Σ_j log T_jj + log|W| + n/2 (1 + log 2π)

W whitens, so the optimum is near m = 0, T = 1. The draws e_i are a Sobol sequence with exactly the mean and
covariance of a standard Normal: for a Gaussian posterior they have no error. Fresh draws tell whether there are
enough of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import minimize
from scipy.special import ndtri
from scipy.stats import qmc

from legrad.fitting.density import CHUNK, Density

_TOLERANCE = 1e-3  # a component of the gradient, in whitened coordinates
_FAR = 1e300
SMALLEST = 1e-6  # of the diagonal of T


def moment_matched(number: int, size: int, seed: int) -> np.ndarray:
    """Return Sobol draws of a standard Normal, with exactly its mean and covariance."""
    uniform = qmc.Sobol(size, scramble=True, rng=np.random.default_rng(seed)).random(number)
    z = ndtri(np.clip(uniform, 1e-12, 1 - 1e-12))
    z -= z.mean(0)
    tril = np.linalg.cholesky(z.T @ z / number)
    return np.linalg.solve(tril, z.T).T


@dataclass(frozen=True)
class Gaussian:
    """A Gaussian by its mean and Cholesky factor."""

    loc: np.ndarray
    tril: np.ndarray

    def at(self, e: np.ndarray) -> np.ndarray:
        """Return the points of standard Normal draws."""
        return self.loc + e @ self.tril.T

    @property
    def entropy(self) -> float:
        """The entropy."""
        n = len(self.loc)
        return float(np.sum(np.log(np.diagonal(self.tril)))) + 0.5 * n * (1 + math.log(2 * math.pi))


@dataclass
class FixedDraws:
    """The climb from a Gaussian to the best one.

    Attributes:
        density: the log-density of the latents.
        gradients: how many gradients of the objective were computed.
        history: the ELBO at each of them.
    """

    density: Density
    gradients: int = 0
    history: list[float] = field(default_factory=list)

    def elbo_gradient(self, q: Gaussian, e: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Return the ELBO of a Gaussian, and its gradients in m and T, in q's own coordinates."""
        self.gradients += 1
        value, g_loc, g_tril = 0.0, np.zeros(len(q.loc)), np.zeros_like(q.tril)
        for start in range(0, len(e), CHUNK):
            part = e[start : start + CHUNK]
            values, gradients = self.density.many_gradients(q.at(part))
            value += float(values.sum())
            g_loc += gradients.sum(0)
            g_tril += gradients.T @ part
        n = len(e)
        return value / n + q.entropy, g_loc / n, g_tril / n

    def climb(self, q: Gaussian, e: np.ndarray, limit: int, diagonal: bool = False) -> Gaussian:
        """Maximize the ELBO with fixed draws from q; return the best Gaussian that was met.

        Args:
            q: where to start; its coordinates are the whitened ones.
            e: the draws.
            limit: the largest number of gradients of the objective.
            diagonal: whether T is diagonal: the correlations stay those of q.
        """
        size = len(q.loc)
        rows, columns = (np.arange(size), np.arange(size)) if diagonal else np.tril_indices(size)
        on_diagonal = rows == columns
        best: list = [-math.inf, q]

        def gaussian(theta: np.ndarray) -> tuple[Gaussian, np.ndarray]:
            t = np.zeros((size, size))
            t[rows, columns] = theta[size:]
            return Gaussian(q.loc + q.tril @ theta[:size], q.tril @ t), t

        def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
            here, t = gaussian(theta)
            elbo, g_loc, g_tril = self.elbo_gradient(here, e)
            g_t = np.tril(q.tril.T @ g_tril) + np.diag(1 / np.diagonal(t))
            gradient = np.concatenate([q.tril.T @ g_loc, g_t[rows, columns]])
            if not (math.isfinite(elbo) and np.isfinite(gradient).all()):
                return _FAR, np.zeros_like(theta)
            self.history.append(elbo)
            if elbo > best[0]:
                best[:] = [elbo, here]
            return -elbo, -gradient

        start = np.concatenate([np.zeros(size), on_diagonal.astype(float)])
        bounds = [(None, None)] * size + [(SMALLEST, None) if d else (None, None) for d in on_diagonal]
        options = {"maxfun": limit, "maxiter": limit, "gtol": _TOLERANCE, "ftol": 1e-13, "maxcor": 20}
        with np.errstate(all="ignore"):
            minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        return best[1]

    def error(self, q: Gaussian, e: np.ndarray) -> float:
        """Return how far fresh draws would move the optimum: the largest shift of mean or sd, in standard deviations.

        In q's own whitened coordinates the curvature of the ELBO is about one in the mean, and two in the sds.
        """
        elbo, g_loc, g_tril = self.elbo_gradient(q, e)
        mean = q.tril.T @ g_loc
        sd = (np.diagonal(q.tril.T @ g_tril) + 1) / 2
        if not math.isfinite(elbo):
            return math.inf
        return float(max(np.abs(mean).max(), np.abs(sd).max()))
