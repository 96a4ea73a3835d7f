"""Where to climb from if a posterior with funnels has no mode: the best scales, by Laplace's approximation.

A density such as Π_j Normal(θ_j; μ, s) rises without end as s → 0, or as s → ∞ with θ_j = μ + s z_j. At fixed scales
all others have a mode, and what the scales say by themselves is bounded:

    evidence(s) = max_x log p(x, s) − ½ log |H(s)|,      H the Hessian of −log p in x at its maximum

It climbs along one scale at a time, by steps in unconstrained space that are halved when none helps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import numpy as np

from legrad.fitting.density import Density
from legrad.fitting.fixed_draws import Gaussian
from legrad.fitting.mode import curvature, find_mode

_FIRST, _LAST = 1.5, 0.3  # steps in the unconstrained scale
_MOST = 60  # evaluations of the evidence
_SD = 0.3  # of the scales in the Gaussian that is returned


@dataclass
class _AtScales:
    """A density of the other latents, at fixed scales; what `find_mode` needs of a `Density`."""

    density: Density
    at: np.ndarray
    others: np.ndarray

    @property
    def size(self) -> int:
        return len(self.others)

    def _whole(self, x: np.ndarray) -> np.ndarray:
        whole = self.at.copy()
        whole[self.others] = x
        return whole

    def value(self, x: np.ndarray) -> float:
        return self.density.value(self._whole(x))

    def gradient(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = self.density.gradient(self._whole(x))
        return value, gradient[self.others]

    def hessian(self, x: np.ndarray) -> np.ndarray:
        return self.density.hessian(self._whole(x))[np.ix_(self.others, self.others)]


def scale_start(density: Density, start: np.ndarray, scales: np.ndarray) -> Gaussian | None:
    """Return a Gaussian at the best scales that were found, with the curvature of the others; None if there is none.

    Args:
        density: the log-density of all latents.
        start: a place where it is finite.
        scales: the positions of the scales.
    """
    others = np.setdiff1d(np.arange(density.size), scales)
    if not len(scales) or not len(others):
        return None

    def evidence(at: np.ndarray) -> tuple[float, np.ndarray]:
        here = _AtScales(density, at, others)
        if not math.isfinite(here.value(at[others])):
            return -math.inf, at
        mode = find_mode(cast(Density, here), at[others])
        whole = here._whole(mode.x)
        if not mode.found:
            return -math.inf, whole
        return mode.value + float(np.sum(np.log(np.diagonal(mode.tril)))), whole

    best, x = evidence(start)
    step, tried = _FIRST, 1
    while step > _LAST / 2 and tried < _MOST:
        before = best
        for i in scales:
            for move in (step, -step):
                there = x.copy()
                there[i] += move
                found, at = evidence(there)
                tried += 1
                if found > best:
                    best, x = found, at
                    break
        if best <= before:
            step /= 2
    if not math.isfinite(best):
        return None
    hessian = -density.hessian(x)
    hessian[scales, :] = hessian[:, scales] = 0.0
    hessian[scales, scales] = _SD**-2
    return Gaussian(x, curvature(hessian).tril())
