"""The mode of a posterior, and its curvature there: L-BFGS to come near, then Newton steps.

A Newton step goes along −|H|⁻¹g, with the absolute eigenvalues of the Hessian H, after the scaling that makes its
diagonal one: so units do not matter, and a saddle repels. The length of a step is found by trying. Where the gradient
vanishes at a saddle (components that start equal stay equal), the next step is along its most negative curvature.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular
from scipy.optimize import minimize

from legrad.fitting.density import Density

_NEAR = 40  # gradients that L-BFGS may take
_NEWTON = 100  # the largest number of Newton steps
_SMALLEST = 1e-15  # eigenvalues are at least this part of the largest
_ARRIVED = 1e-6  # squared distance from the mode, in standard deviations
_PROBE, _BESIDE = 30, 2.0  # gradients of a short search; standard deviations from a mode that are still beside it
_FAR = 1e300
_Point = tuple[np.ndarray, float, np.ndarray]  # a place, the log-density there, and its gradient


@dataclass(frozen=True)
class Mode:
    """A mode.

    Attributes:
        x: where it is.
        tril: a lower triangular W with W Wᵀ the inverse of the Hessian of -log p there.
        found: whether x is a mode; if not, the log-density rises without end, or the search was given up.
        distance: the squared distance that another Newton step would go, in standard deviations.
        value: the log-density there.
        left_a_saddle: whether the search came to a saddle on its way.
    """

    x: np.ndarray
    tril: np.ndarray
    found: bool
    distance: float
    value: float = -math.inf
    left_a_saddle: bool = False


@dataclass(frozen=True)
class Curvature:
    """The Hessian of -log p as scaled eigenvectors: H = S⁻¹ V diag(λ) Vᵀ S⁻¹."""

    scale: np.ndarray
    values: np.ndarray
    vectors: np.ndarray
    positive: bool

    def step(self, gradient: np.ndarray) -> np.ndarray:
        """Return |H|⁻¹ times the gradient."""
        along = self.vectors.T @ (self.scale * gradient)
        return self.scale * (self.vectors @ (along / self.values))

    def lowest(self) -> np.ndarray:
        """Return the direction of the lowest curvature, in its standard deviations."""
        return self.scale * self.vectors[:, 0] / math.sqrt(self.values[0])

    def tril(self) -> np.ndarray:
        """Return a lower triangular W with W Wᵀ = |H|⁻¹; by QR, as a product would lose half of the digits."""
        root = (self.scale[:, None] * self.vectors) / np.sqrt(self.values)
        lower = np.asarray(np.linalg.qr(root.T, mode="r")).T
        return lower * np.sign(np.where(np.diagonal(lower) == 0, 1.0, np.diagonal(lower)))


def curvature(hessian: np.ndarray) -> Curvature:
    """Return the eigenvalues of a Hessian, absolute and none too small, with its diagonal scaled to one."""
    size = np.abs(np.diagonal(hessian))
    floor = max(float(size.max()), 1e-300) * 1e-30
    scale = 1 / np.sqrt(np.maximum(size, floor))
    values, vectors = np.linalg.eigh((hessian + hessian.T) / 2 * scale[:, None] * scale)
    least = _SMALLEST * max(float(np.abs(values).max()), 1e-300)
    return Curvature(scale, np.maximum(np.abs(values), least), vectors, bool(values.min() > 0))


def find_mode(density: Density, start: np.ndarray) -> Mode:
    """Find a mode of the log-density from a start where value and gradient are finite."""
    x = _near(density, start)
    value, gradient = density.gradient(x)
    bend = _curvature_at(density, x)
    if bend is None:
        return Mode(start, np.eye(len(start)), False, math.inf)
    distance, saddle = math.inf, False
    for _ in range(_NEWTON):
        step = bend.step(gradient)
        distance = float(gradient @ step)
        if distance < _ARRIVED and bend.positive:
            return Mode(x, bend.tril(), True, distance, value, saddle)
        if distance < _ARRIVED:
            moved, saddle = _leave(density, x, value, bend.lowest()), True
        else:
            moved = _search(density, x, value, step, distance)
        if moved is None:  # no digit is left to gain
            break
        new, new_value, new_gradient = moved
        new_bend = _curvature_at(density, new) if np.isfinite(new_gradient).all() else None
        if new_bend is None or not math.isfinite(new_value):
            break
        x, value, gradient, bend = new, new_value, new_gradient, new_bend
    return Mode(x, bend.tril(), bool(bend.positive and distance < 1e-3), distance, value, saddle)


def _near(density: Density, start: np.ndarray) -> np.ndarray:
    best = [-math.inf, start]

    def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = density.gradient(x)
        if not (math.isfinite(value) and np.isfinite(gradient).all()):
            return _FAR, np.zeros_like(x)
        if value > best[0]:  # type: ignore[operator]
            best[:] = [value, x.copy()]
        return -value, -gradient

    with np.errstate(all="ignore"):
        minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxfun": _NEAR, "maxiter": _NEAR})
    return np.asarray(best[1])


def search_elsewhere(density: Density, mode: Mode, start: np.ndarray, worse: float) -> np.ndarray | None:
    """Search from another place, in coordinates that the mode whitens; return what may be near another mode.

    Args:
        density: the log-density.
        mode: the mode that is known.
        start: where the search begins.
        worse: how much lower another mode may be.

    Returns:
        The best place of a short search by L-BFGS; None if it is near the mode, or much lower.
    """
    best: list = [-math.inf, start]

    def loss(u: np.ndarray) -> tuple[float, np.ndarray]:
        x = mode.x + mode.tril @ u
        value, gradient = density.gradient(x)
        if not (math.isfinite(value) and np.isfinite(gradient).all()):
            return _FAR, np.zeros_like(u)
        if value > best[0]:
            best[:] = [value, x]
        if value > mode.value - 1 and np.abs(u).max() < _BESIDE:
            raise StopIteration
        return -value, -(mode.tril.T @ gradient)

    options = {"maxfun": _PROBE, "maxiter": _PROBE}
    with np.errstate(all="ignore"), suppress(StopIteration):
        minimize(
            loss,
            solve_triangular(mode.tril, start - mode.x, lower=True),
            jac=True,
            method="L-BFGS-B",
            options=options,
        )
    away = np.abs(solve_triangular(mode.tril, best[1] - mode.x, lower=True)).max()
    return best[1] if away > _BESIDE and best[0] > mode.value - worse else None


def _curvature_at(density: Density, x: np.ndarray) -> Curvature | None:
    hessian = -density.hessian(x)
    return curvature(hessian) if np.isfinite(hessian).all() else None


def _search(density: Density, x: np.ndarray, value: float, step: np.ndarray, distance: float) -> _Point | None:
    """Return the first point along a step where the log-density rises enough; None if there is none."""
    length = 1.0
    for _ in range(40):
        new = x + length * step
        there, slope = density.gradient(new)
        gain = there - value if math.isfinite(there) else -math.inf
        if gain >= 1e-4 * length * distance and gain > 1e-14 * abs(value):
            return new, there, slope
        length *= 0.3
    return None


def _leave(density: Density, x: np.ndarray, value: float, lowest: np.ndarray) -> _Point | None:
    """Return the best of some points along the lowest curvature of a saddle; None if none is better."""
    lengths = [sign * length for length in (3.0, 1.0, 0.3, 0.1) for sign in (1.0, -1.0)]
    places = [x + length * lowest for length in lengths]
    found = [density.gradient(place) for place in places]
    gains = [there - value if math.isfinite(there) else -math.inf for there, _ in found]
    best = int(np.argmax(gains))
    return (places[best], *found[best]) if gains[best] > 1e-12 * abs(value) else None
