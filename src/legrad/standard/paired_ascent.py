"""The paired guide of spike-and-slab regression, fitted by coordinate ascent (Titsias and Lázaro-Gredilla, 2011).

    q(z, b) = Π_j q(z_j) q(b_j | z_j),      q(z_j = 1) = α_j,      q(b_j | z_j = 1) = Normal(μ_j, s_j²)

Each factor in turn is set to its optimum given the others, which has a closed form; so does the local expectation of
z_j, and no gradient is needed:

    s_j² = 1 / (x_jᵀx_j/σ² + 1/τ²),   μ_j = s_j²/σ² · x_jᵀ(y − Σ_{k≠j} α_k μ_k x_k),
    logit α_j = logit π + ½ log(s_j²/τ²) + μ_j²/(2 s_j²)

The noise σ, the slab's scale τ and the rate π are set to their best values between sweeps, within bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, logit

_SWEEPS = 200
_STILL = 1e-4  # of the probabilities: a sweep that moves none by more is the last


@dataclass(frozen=True)
class Hyper:
    """What the factors are given: the noise σ, the slab's scale τ, the rate π; and whether each may move."""

    noise: float
    slab: float
    rate: float
    fit_noise: bool
    fit_slab: bool
    fit_rate: bool


@dataclass(frozen=True)
class Paired:
    """A fitted guide: the probability of each column, and the Normal of its slope where it is included."""

    alpha: np.ndarray
    mu: np.ndarray
    sd: np.ndarray
    hyper: Hyper


def compressed(X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a table of at most as many rows as columns, plus one, with the same products XᵀX, Xᵀy and yᵀy."""
    if len(X) <= X.shape[1] + 1:
        return X, y
    r = np.asarray(np.linalg.qr(np.column_stack([X, y]), mode="r"))
    return r[:, :-1], r[:, -1]


def ascend(
    X: np.ndarray, y: np.ndarray, rows: int, hyper: Hyper, alpha: np.ndarray, mu: np.ndarray, order: np.ndarray
) -> Paired:
    """Climb from a start to a local optimum of the ELBO.

    Args:
        X: the columns, centred; `compressed` or not.
        y: the target, centred.
        rows: the degrees of freedom of the data.
        hyper: the start of the hyperparameters.
        alpha: the start of the probabilities.
        mu: the start of the slopes.
        order: the order in which the factors are set.
    """
    alpha, mu = alpha.copy(), mu.copy()
    size = np.einsum("ij,ij->j", X, X)
    columns = np.ascontiguousarray(X.T)
    sigma2, tau2, rate = hyper.noise**2, hyper.slab**2, hyper.rate
    p = len(mu)
    for sweep in range(_SWEEPS):
        before = alpha.copy()
        s2 = 1 / (size / sigma2 + 1 / tau2)
        rest = y - X @ (alpha * mu)
        base = float(logit(rate)) + 0.5 * np.log(s2 / tau2)
        for j in order:
            column = columns[j]
            old = alpha[j] * mu[j]
            mu[j] = s2[j] / sigma2 * (column @ rest + size[j] * old)
            alpha[j] = expit(base[j] + 0.5 * mu[j] ** 2 / s2[j])
            change = alpha[j] * mu[j] - old
            if change:
                rest -= change * column
        mean, second = alpha * mu, alpha * (mu**2 + s2)
        if hyper.fit_noise:
            error = float(rest @ rest + size @ (second - mean**2))
            sigma2 = min(max(error / rows, 1e-6), 4.0)
        if hyper.fit_slab:
            tau2 = min(max((float(second.sum()) + 0.1) / (float(alpha.sum()) + 1.0), 1e-3), 25.0)
        if hyper.fit_rate:
            rate = (float(alpha.sum()) + 1.0) / (p + 2.0)
        if sweep > 2 and np.abs(alpha - before).max() < _STILL:
            break
    s2 = 1 / (size / sigma2 + 1 / tau2)
    found = Hyper(math.sqrt(sigma2), math.sqrt(tau2), rate, hyper.fit_noise, hyper.fit_slab, hyper.fit_rate)
    return Paired(alpha, mu, np.sqrt(s2), found)
