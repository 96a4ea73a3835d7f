"""Predictions of a logistic regression, stacked over the scale of its prior.

For each scale τ there are two ways to predict: by the mode w of the coefficients, and by an average over the Gaussian
Normal(w, H⁻¹) around it, H the curvature. A row n sees either through its own linear predictors η_n, and so does its
leaving out: with the score g_n and the curvature S_n of the row at the mode, and V_n the covariance of η_n,

    V₋ₙ = (V_n⁻¹ − S_n)⁻¹,    η₋ₙ = η_n − V₋ₙ g_n,    p₋ₙ = softmax(η₋ₙ), or E[softmax(η)], η ~ Normal(η₋ₙ, V₋ₙ)

(Rad and Maleki 2020; Opper and Winther 2000). The weights of all the ways maximize Σ_n log Σ_c weight_c p₋ₙ,c(y_n)
(Yao, Vehtari, Simpson and Gelman 2018). Only rows of the training data are looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit, softmax

from legrad.standard.softmax_density import SoftmaxDensity

_NEWTON = 50  # steps to a mode
_STILL = 1e-8  # of the log-density: a step that gains less is the last
_LEAST = 1e-12  # of a probability
_LEVERAGE = 0.02  # the least that is left of a row's variance if the row is left out
_ROUNDS = 2000  # of expectation maximization
_COUNTS = 1e-4  # the least weight that is kept


@dataclass(frozen=True)
class Way:
    """One way to predict: the Gaussian of one scale, or its mode alone if `root` is None.

    Attributes:
        mode: the coefficients, intercepts first: (rows of coefficients, 1 + columns).
        root: a root of the covariance of the coefficients: (rows of coefficients, 1 + columns, numbers).
    """

    mode: np.ndarray
    root: np.ndarray | None


@dataclass(frozen=True)
class Stacked:
    """Weighted ways to predict.

    Attributes:
        ways: the ways that count.
        weights: their weights.
        nodes: the nodes of the quadrature over linear predictors, in standard coordinates.
        shares: the weights of the nodes.
        by_mode: the weight of modes, the rest being that of averages.
    """

    ways: list[Way]
    weights: np.ndarray
    nodes: np.ndarray
    shares: np.ndarray
    by_mode: float

    def probabilities(self, X: np.ndarray) -> np.ndarray:
        """Return the probability of each class for each row of standardized columns."""
        x = np.column_stack([np.ones(len(X)), X])
        total: np.ndarray | float = 0.0
        for way, weight in zip(self.ways, self.weights, strict=True):
            eta = x @ way.mode.T
            if way.root is None:
                total = total + weight * class_probabilities(eta)
            else:
                total = total + weight * averaged(eta, covariances(x, way.root), self.nodes, self.shares)
        return np.asarray(total)


def class_probabilities(eta: np.ndarray) -> np.ndarray:
    """Return the probabilities of all classes by linear predictors; two classes have only one."""
    return np.concatenate([expit(-eta), expit(eta)], axis=-1) if eta.shape[-1] == 1 else softmax(eta, axis=-1)


def covariances(x: np.ndarray, root: np.ndarray) -> np.ndarray:
    """Return the covariance of the linear predictors of each row."""
    roots = (x @ root).swapaxes(0, 1)
    return np.asarray(roots @ roots.swapaxes(1, 2))


def averaged(mean: np.ndarray, cov: np.ndarray, nodes: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Return class probabilities averaged over Gaussian linear predictors."""
    root = _roots(cov)
    parts = (share * class_probabilities(mean + root @ node) for node, share in zip(nodes, shares, strict=True))
    return np.asarray(sum(parts))


def _roots(cov: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(cov)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :])


def mode(density: SoftmaxDensity, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mode of the coefficients by Newton's method, and the curvature there.

    Args:
        density: the log-density.
        start: where to start.
    """
    w, value = start, float(density.many(start[None])[0])
    for _ in range(_NEWTON):
        gradient, curvature = density.derivatives(w)
        step, rate, new = np.linalg.solve(curvature, gradient), 1.0, w
        while rate > 1e-6:
            new = w + rate * step
            found = float(density.many(new[None])[0])
            if found >= value:
                break
            rate *= 0.5
        else:
            break
        w, gain, value = new, found - value, found
        if gain < _STILL:
            break
    return w, density.derivatives(w)[1]


def left_out(density: SoftmaxDensity, w: np.ndarray, root: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the probability of each row's class by the other rows: by the mode, and by the average; (2, rows)."""
    eta, p, spread = density.rows(w)
    outer = _roots(covariances(density.x, root))
    values, vectors = np.linalg.eigh(np.eye(eta.shape[1]) - outer.swapaxes(1, 2) @ spread @ outer)
    cavity = (outer @ vectors) / np.sqrt(np.maximum(values, _LEVERAGE))[:, None, :]
    cov = cavity @ cavity.swapaxes(1, 2)
    mean = eta - (cov @ (density.hot - p)[..., None])[..., 0]
    both = (class_probabilities(mean), averaged(mean, cov, density.nodes, density.shares))
    return np.stack([np.maximum(found[np.arange(len(y)), y], _LEAST) for found in both])


def stacking_weights(held_out: np.ndarray) -> np.ndarray:
    """Return the weights that maximize Σ_n log Σ_c weight_c held_out[c, n], by expectation maximization."""
    weights = np.full(len(held_out), 1 / len(held_out))
    for _ in range(_ROUNDS):
        joint = weights[:, None] * held_out
        new = np.mean(joint / joint.sum(0), axis=1)
        still = np.abs(new - weights).max() < 1e-7
        weights = new
        if still:
            break
    return weights


def fit_stacked(X: np.ndarray, y: np.ndarray, classes: int, scales: np.ndarray) -> Stacked:
    """Fit the modes of all scales to standardized columns, and weigh them and the averages around them.

    Args:
        X: the columns.
        y: the class of each row, from 0 on.
        classes: the number of classes.
        scales: the standard deviations of the coefficients' prior, from small to large.
    """
    ways, held_out = [], []
    w = np.zeros((1 if classes == 2 else classes) * (X.shape[1] + 1))
    for scale in scales:
        density = SoftmaxDensity(X, y, classes, float(scale))
        w, curvature = mode(density, w)
        # H = L Lᵀ, so L⁻ᵀ is a root of the covariance
        root = np.linalg.inv(np.linalg.cholesky(curvature)).T.reshape(density.outputs, X.shape[1] + 1, -1)
        held_out.append(left_out(density, w, root, y))
        ways.append([Way(w.reshape(density.outputs, -1), way) for way in (None, root)])
    weights = stacking_weights(np.concatenate(held_out)).reshape(-1, 2)
    kept = [(i, j) for i, j in np.ndindex(*weights.shape) if weights[i, j] > _COUNTS]
    share = np.array([weights[i, j] for i, j in kept])
    share /= share.sum()
    by_mode = float(sum(s for s, (_, j) in zip(share, kept, strict=True) if j == 0))
    return Stacked([ways[i][j] for i, j in kept], share, density.nodes, density.shares, by_mode)
