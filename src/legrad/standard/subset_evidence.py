"""The evidence of subsets of columns with their slopes integrated out, many subsets at a time.

For a Gaussian target with noise σ and slopes Normal(0, τ²), with X_zᵀX_z = V diag(λ) Vᵀ and u = VᵀX_zᵀy, exactly

    log p(y | z, τ, σ) = −m log σ − ½ Σ log(1 + λτ²/σ²) − (yᵀy − Σ τ²u²/(σ² + τ²λ)) / 2σ² − ½ m log 2π

(m = rows − 1, as the intercept has a flat prior and the columns are centred), on a grid of τ and σ. For other
targets, by Laplace's approximation at the mode of slopes and intercept, which Newton's method finds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit, gammaln

_NUMBERS = 2_000_000  # numbers of one batch
_NEWTON = 50
_FLAT = 5.0  # the standard deviation of the intercept's prior, for targets that are not Gaussian


@dataclass(frozen=True)
class Slopes:
    """The Normals of the slopes of one subset: means and Cholesky factors for each point of the grid.

    Attributes:
        columns: the columns that the subset includes.
        log_evidence: for each slab and noise.
        draw: returns a draw of (intercept, slopes), given indices of slab and noise and a random generator.
        mean: returns the mean of (intercept, slopes), given indices of slab and noise.
    """

    columns: np.ndarray
    log_evidence: np.ndarray
    draw: Callable[[int, int, np.random.Generator], tuple[float, np.ndarray]]
    mean: Callable[[int, int], tuple[float, np.ndarray]]


def padded(subsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return for each row of flags the positions of its columns, and which of these are real, not padding."""
    most = max(1, int(subsets.sum(1).max(initial=0)))
    places = np.argsort(~subsets, axis=1, kind="stable")[:, :most]
    return places, np.take_along_axis(subsets, places, axis=1)


@dataclass
class GaussianEvidence:
    """The evidence of subsets for a Gaussian target.

    Args:
        X: the centred columns, `compressed` or not.
        y: the centred target.
        rows: the number of rows of the data.
        slabs: the grid of the slab's scale.
        noises: the grid of the noise.
    """

    X: np.ndarray
    y: np.ndarray
    rows: int
    slabs: np.ndarray
    noises: np.ndarray

    def __post_init__(self) -> None:
        self._gram, self._cross = self.X.T @ self.X, self.X.T @ self.y
        self._total = float(self.y @ self.y)

    def of(self, subsets: np.ndarray) -> list[Slopes]:
        """Return what is known about each subset."""
        places, real = padded(subsets)
        each = places.shape[1] ** 2 + len(self.slabs) * len(self.noises) * places.shape[1]
        found: list[Slopes] = []
        for start in range(0, len(subsets), max(1, _NUMBERS // each)):
            cut = slice(start, start + max(1, _NUMBERS // each))
            found += self._batch(places[cut], real[cut])
        return found

    def _batch(self, places: np.ndarray, real: np.ndarray) -> list[Slopes]:
        both = real[:, :, None] & real[:, None, :]
        gram = np.where(both, self._gram[places[:, :, None], places[:, None, :]], 0.0)
        values, vectors = np.linalg.eigh(gram)
        values = np.maximum(values, 0.0)
        u = np.einsum("skl,sk->sl", vectors, np.where(real, self._cross[places], 0.0))
        tau2, sigma2 = self.slabs[:, None, None] ** 2, self.noises[None, :, None] ** 2
        m = max(self.rows - 1, 1)
        scaled = values[:, None, None, :] * tau2
        volume = np.log1p(scaled / sigma2).sum(-1)
        explained = (tau2 * u[:, None, None, :] ** 2 / (sigma2 + scaled)).sum(-1)
        sigma2 = sigma2[..., 0]
        log_p = -0.5 * (m * np.log(2 * math.pi * sigma2) + volume + np.maximum(self._total - explained, 0.0) / sigma2)
        return [
            self._slopes(p[r], values[i], vectors[i], u[i], r, log_p[i])
            for i, (p, r) in enumerate(zip(places, real, strict=True))
        ]

    def _slopes(
        self, columns: np.ndarray, values: np.ndarray, vectors: np.ndarray, u: np.ndarray, real: np.ndarray,
        log_p: np.ndarray,
    ) -> Slopes:  # fmt: skip
        def mean(slab: int, noise: int) -> tuple[float, np.ndarray]:
            tau2, sigma2 = self.slabs[slab] ** 2, self.noises[noise] ** 2
            return 0.0, (vectors @ (tau2 * u / (tau2 * values + sigma2)))[real]

        def draw(slab: int, noise: int, rng: np.random.Generator) -> tuple[float, np.ndarray]:
            tau2, sigma2 = self.slabs[slab] ** 2, self.noises[noise] ** 2
            sd = np.sqrt(tau2 * sigma2 / (tau2 * values + sigma2))
            intercept = self.noises[noise] / math.sqrt(self.rows) * rng.normal()
            moved = (vectors @ (sd * rng.normal(size=len(sd))))[real]
            return float(intercept), mean(slab, noise)[1] + moved

        return Slopes(columns, log_p, draw, mean)


def bernoulli(y: np.ndarray, eta: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the log-density of labels 0 and 1, its derivative in the logits, and minus the second one."""
    p = expit(eta)
    return y * eta - np.logaddexp(0.0, eta), y - p, p * (1 - p)


def poisson(y: np.ndarray, eta: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the log-density of counts, its derivative in the log of the mean, and minus the second one."""
    mean = np.exp(np.minimum(eta, 30.0))
    return y * eta - mean - gammaln(y + 1), y - mean, mean


LIKELIHOODS: dict[str, Any] = {"bernoulli": bernoulli, "poisson": poisson}


@dataclass
class LaplaceEvidence:
    """The evidence of subsets for a target whose log-density is concave in the linear predictor.

    Args:
        X: the centred columns.
        y: the target.
        family: "bernoulli" or "poisson".
        slabs: the grid of the slab's scale.
    """

    X: np.ndarray
    y: np.ndarray
    family: str
    slabs: np.ndarray

    def of(self, subsets: np.ndarray) -> list[Slopes]:
        """Return what is known about each subset."""
        places, real = padded(subsets)
        n, k = len(self.X), places.shape[1] + 1
        each = len(self.slabs) * (n * k + k * k) * 2
        found: list[Slopes] = []
        for start in range(0, len(subsets), max(1, _NUMBERS // each)):
            cut = slice(start, start + max(1, _NUMBERS // each))
            found += self._batch(places[cut], real[cut])
        return found

    def _batch(self, places: np.ndarray, real: np.ndarray) -> list[Slopes]:
        s, k, j = len(places), places.shape[1] + 1, len(self.slabs)
        design = np.ones((s, 1, len(self.X), k))
        design[:, 0, :, 1:] = np.where(real[:, None, :], self.X.T[places].transpose(0, 2, 1), 0.0)
        precision = np.empty((s, j, k))
        precision[..., 0] = 1 / _FLAT**2
        precision[..., 1:] = 1 / self.slabs[None, :, None] ** 2
        w = np.zeros((s, j, k))
        rise = LIKELIHOODS[self.family]
        value, gradient, hessian = _posterior(design, self.y, precision, w, rise)
        for _ in range(_NEWTON):
            step = np.linalg.solve(hessian, gradient[..., None])[..., 0]
            gain = np.einsum("sjk,sjk->sj", gradient, step)
            if gain.max() < 1e-8:
                break
            length = np.ones((s, j))
            for _ in range(30):
                new = _posterior(design, self.y, precision, w + length[..., None] * step, rise)
                short = new[0] < value + 1e-4 * length * gain - 1e-9 * (1 + np.abs(value))
                if not short.any():
                    break
                length = np.where(short, 0.4 * length, length)
            w = w + length[..., None] * step
            value, gradient, hessian = new
        tril = np.linalg.cholesky(np.linalg.inv(hessian))
        spread = np.log(np.diagonal(tril, axis1=-2, axis2=-1)).sum(-1) + 0.5 * np.log(precision).sum(-1)
        log_p = (value + spread)[..., None]
        return [_laplace(p[r], w[i], tril[i], r, log_p[i]) for i, (p, r) in enumerate(zip(places, real, strict=True))]


def _posterior(
    design: np.ndarray, y: np.ndarray, precision: np.ndarray, w: np.ndarray, rise: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the log-posterior of coefficients up to the prior's constant, its gradient, and minus its Hessian."""
    eta = (design @ w.swapaxes(-1, -2)[:, None])[:, 0].swapaxes(-1, -2)  # (subsets, slabs, rows)
    value, first, second = rise(y, eta)
    x = design[:, 0]
    gradient = first @ x - precision * w
    hessian = x.swapaxes(-1, -2)[:, None] @ (second[..., None] * x[:, None])
    hessian += precision[..., None] * np.eye(w.shape[-1])
    return value.sum(-1) - 0.5 * (precision * w**2).sum(-1), gradient, hessian


def _laplace(columns: np.ndarray, w: np.ndarray, tril: np.ndarray, real: np.ndarray, log_p: np.ndarray) -> Slopes:
    def mean(slab: int, noise: int) -> tuple[float, np.ndarray]:
        return float(w[slab, 0]), w[slab, 1:][real]

    def draw(slab: int, noise: int, rng: np.random.Generator) -> tuple[float, np.ndarray]:
        x = w[slab] + tril[slab] @ rng.normal(size=w.shape[1])
        return float(x[0]), x[1:][real]

    return Slopes(columns, log_p, draw, mean)
