"""The log-density of a logistic regression's coefficients, its derivatives, and its expectations under a Gaussian.

    log p(w, y) = Σ_n log softmax(η_n)[y_n] + log Normal(w; 0, Λ⁻¹),    η_n = W x_n, with an intercept

Two classes have one row of coefficients, W, more have one row each. Expectations are quadratures over η_n.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import expit

from legrad.fitting.fixed_draws import Gaussian, moment_matched

FLAT = 10.0  # the standard deviation of an intercept's prior
_POINTS = 64  # of the quadrature with more than two classes; a power of two
_NODES = 24  # of the quadrature with two classes
_NUMBERS = 4_000_000  # numbers of one batch


class SoftmaxDensity:
    """The log-density of the coefficients of a logistic regression, and its expectations under a Gaussian.

    Args:
        X: the columns.
        y: the class of each row, from 0 on.
        classes: the number of classes.
        scale: the standard deviation of the coefficients' prior.
    """

    def __init__(self, X: np.ndarray, y: np.ndarray, classes: int, scale: float) -> None:
        self.outputs = 1 if classes == 2 else classes
        self.x = np.column_stack([np.ones(len(X)), X])
        self.hot = (y == 1)[:, None].astype(float) if classes == 2 else np.eye(classes)[y]
        self.precision = np.full((self.outputs, self.x.shape[1]), scale**-2.0)
        self.precision[:, 0] = FLAT**-2.0
        self.size = self.precision.size
        self._constant = 0.5 * float(np.sum(np.log(self.precision / (2 * math.pi))))
        if classes == 2:
            nodes, shares = np.polynomial.hermite_e.hermegauss(_NODES)
            self.nodes, self.shares = nodes[:, None], shares / shares.sum()
        else:
            self.nodes, self.shares = moment_matched(_POINTS, classes, 0), np.full(_POINTS, 1 / _POINTS)

    def many(self, xs: np.ndarray) -> np.ndarray:
        """Return the log-density at each row of a matrix."""
        step = max(1, _NUMBERS // self.hot.size)
        return np.concatenate([self._some(xs[i : i + step]) for i in range(0, len(xs), step)])

    def _some(self, xs: np.ndarray) -> np.ndarray:
        w = xs.reshape(-1, *self.precision.shape)
        eta = self.x @ w.swapaxes(1, 2)  # (points, rows, outputs)
        prior = self._constant - 0.5 * np.sum(self.precision * w**2, axis=(1, 2))
        return np.asarray(prior + (np.sum(eta * self.hot, axis=-1) - self._total(eta)).sum(1))

    def _total(self, eta: np.ndarray) -> np.ndarray:
        """Return the log of what normalizes the probabilities."""
        return _total_and_probabilities(eta)[0]

    def rows(self, w: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return what each row sees of coefficients: its η, the probabilities p, and diag(p) − p pᵀ."""
        eta = self.x @ w.reshape(self.precision.shape).T
        p = _total_and_probabilities(eta)[1]
        return eta, p, _spread(p, p[:, :, None] * p[:, None, :])

    def derivatives(self, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the gradient of the log-density, and its curvature, minus the matrix of second derivatives."""
        _, p, spread = self.rows(w)
        gradient = (self.hot - p).T @ self.x - self.precision * w.reshape(self.precision.shape)
        return gradient.ravel(), self._curvature(spread)

    def expected(self, q: Gaussian) -> tuple[float, np.ndarray, np.ndarray]:
        """Return the ELBO of a Gaussian, the ∇ and P of `standard.logistic`."""
        k, d = self.precision.shape
        m = q.loc.reshape(k, d)
        roots = (self.x @ q.tril.reshape(k, d, -1)).swapaxes(0, 1)
        cov = roots @ roots.swapaxes(1, 2)  # of the linear predictors of each row
        root = np.linalg.cholesky(cov + 1e-12 * np.eye(k))
        mean = self.x @ m.T
        p, second, total = self._averaged(mean, root)
        spread = _spread(p, second)
        var = np.sum(q.tril**2, axis=1).reshape(k, d)
        prior = self._constant - 0.5 * float(np.sum(self.precision * (m**2 + var)))
        elbo = float(np.sum(mean * self.hot) - total) + prior + q.entropy
        gradient = (self.hot - p).T @ self.x - self.precision * m
        return elbo, gradient.ravel(), self._curvature(spread)

    def _averaged(self, mean: np.ndarray, root: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        """Return E[p] and E[p pᵀ] of each row, and what normalizes them, summed; all nodes of some rows at a time."""
        p, second, total = np.empty_like(mean), np.empty_like(root), 0.0
        step = max(1, _NUMBERS // self.nodes.size)
        for i in range(0, len(mean), step):
            rows = slice(i, i + step)
            eta = mean[rows, None] + self.nodes @ root[rows].swapaxes(1, 2)  # (rows, nodes, outputs)
            logs, here = _total_and_probabilities(eta)
            total += float(np.sum(logs @ self.shares))
            weighed = here * self.shares[:, None]
            p[rows] = weighed.sum(1)
            second[rows] = weighed.swapaxes(1, 2) @ here
        return p, second, total

    def _curvature(self, spread: np.ndarray) -> np.ndarray:
        """Return Λ + Σ_n spread_n ⊗ x_n x_nᵀ."""
        k, d = self.precision.shape
        found = np.diag(self.precision.ravel())
        for i in range(k):
            for j in range(i + 1):
                block = self.x.T @ (spread[:, i, j, None] * self.x)
                found[i * d : (i + 1) * d, j * d : (j + 1) * d] += block
                if j < i:
                    found[j * d : (j + 1) * d, i * d : (i + 1) * d] += block
        return found


def _total_and_probabilities(eta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the log of what normalizes the probabilities, and the probabilities; of one output, those of class 1."""
    if eta.shape[-1] == 1:
        return np.logaddexp(0.0, eta[..., 0]), expit(eta)
    # With the outputs first, every operation runs over long rows: scipy's softmax takes several times as long.
    columns = np.ascontiguousarray(np.moveaxis(eta, -1, 0))
    top = columns.max(0)
    parts = np.exp(columns - top)
    whole = parts.sum(0)
    return top + np.log(whole), np.moveaxis(parts / whole, 0, -1)


def _spread(p: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return diag(p) minus a second moment, for each row."""
    spread, k = -second, np.arange(p.shape[1])
    spread[:, k, k] += p
    return np.asarray(spread)
