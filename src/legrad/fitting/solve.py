"""Fits of `Structured` to continuous latents without a learning rate: the mode, then the ELBO with fixed draws.

The number of draws is doubled until fresh draws confirm the answer. A location-scale site below a latent scale (a
funnel) is tried as loc + scale · x if the fit of the model as written is not close to the posterior.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from legrad.diagnostics.psis import LIMIT, smoothed_weights
from legrad.fitting.density import Density
from legrad.fitting.fixed_draws import FixedDraws, Gaussian, moment_matched
from legrad.fitting.mode import curvature, find_mode
from legrad.guides.structured import Structured
from legrad.model.precision import as_double, double

_DRAWS, _MOST_DRAWS = 128, 8192
_CONFIRMED = 0.05  # standard deviations that fresh draws may move the optimum
_CLIMB = 200  # the largest number of gradients of the objective in one climb
_JUDGED = 4096  # draws for k-hat
_CLOSE = 0.5  # a k-hat below which a fit is not compared with a non-centred one
_STARTS = 100  # places to look for a finite start


@dataclass(frozen=True)
class Attempt:
    """What came out of one start.

    Attributes:
        guide: the guide.
        q: its Gaussian.
        converged: whether the climb ended at an optimum that fresh draws confirm.
        error: how far fresh draws would move the optimum, in standard deviations.
        draws: the number of fixed draws at the end.
        elbo: the ELBO by other draws.
        khat: the PSIS k-hat of as many draws.
        mode: whether the climb began at a mode.
        history: the ELBO at each gradient of the objective.
        gradients: how many gradients of the model the mode took, and of the objective the climb.
        notes: sentences on what else was done.
    """

    guide: Structured
    q: Gaussian
    converged: bool
    error: float
    draws: int
    elbo: float
    khat: float
    mode: bool
    history: list[float]
    gradients: dict[str, int]
    notes: tuple[str, ...] = ()


class Solver:
    """The solver of one model with its data.

    Args:
        guide: the guide, with all its latents in one Gaussian.
        args: positional arguments of the model.
        kwargs: keyword arguments of the model.
        key: the random key.
        deadline: the `time.perf_counter()` after which no new climb begins.
    """

    def __init__(
        self, guide: Structured, args: tuple[Any, ...], kwargs: Mapping[str, Any], key: jax.Array, deadline: float
    ) -> None:
        self.guide, self.deadline = guide, deadline
        self.seed = int(np.asarray(jax.random.key_data(key)).ravel()[-1])
        self._given = args, dict(kwargs)
        self.double = True
        self._densities: dict[tuple[str, ...], Density] = {}

    def run(self, restarts: int) -> list[Attempt]:
        """Return an attempt for each start; the first begins at the prior's median, the others at random places."""
        space = self.guide.space(*self._given[0], **self._given[1])
        try:
            return [self._attempt(start, space.start) for start in range(restarts)]
        except TypeError:  # a program with float32 written into it, such as the carry of a scan
            self.double = False
            self._densities.clear()
            return [self._attempt(start, space.start) for start in range(restarts)]

    def _attempt(self, start: int, first: np.ndarray) -> Attempt:
        rng = np.random.default_rng([self.seed, start])
        place = first if start == 0 else first + rng.uniform(-2, 2, len(first))
        with double(True if self.double else bool(jax.config.read("jax_enable_x64"))):
            found = self._fit(self.guide, place, rng)
            if found.converged and found.khat < _CLOSE:
                return found
            args, kwargs = self._arguments()
            funnels = self.guide.space(*args, **kwargs).funnels(args, kwargs)
            if not funnels or time.perf_counter() > self.deadline:
                return found
            other = Structured(self.guide.model, noncentered=funnels, prefix=self.guide.prefix)
            space = other.space(*args, **kwargs)
            moved = self._fit(other, place if start else space.start, rng)
            return _better(found, moved, ", ".join(funnels))

    def _arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return as_double(self._given) if self.double else self._given

    def _density(self, guide: Structured) -> Density:
        args, kwargs = self._arguments()
        if guide.noncentered not in self._densities:
            self._densities[guide.noncentered] = Density(guide.space(*args, **kwargs), args, kwargs)
        return self._densities[guide.noncentered]

    def _fit(self, guide: Structured, start: np.ndarray, rng: np.random.Generator) -> Attempt:
        density = self._density(guide)
        before = density.gradients
        start, note = _finite_start(density, start, rng)
        mode = find_mode(density, start)
        of_mode = density.gradients - before
        climber = FixedDraws(density)
        q = Gaussian(mode.x, mode.tril)
        if not mode.found:
            q = _around(density, start)
        number = max(_DRAWS, 1 << math.ceil(math.log2(2 * density.size)))
        draws, limit = moment_matched(number, density.size, self.seed), _CLIMB
        while True:
            q, ended = climber.climb(q, draws, limit)
            number = len(draws)
            error = climber.error(q, moment_matched(number, density.size, self.seed + number))
            late = time.perf_counter() > self.deadline
            if (ended and error <= _CONFIRMED) or 2 * number > _MOST_DRAWS or late:
                break
            draws = moment_matched(2 * number, density.size, self.seed + 1 + number)
        e = np.random.default_rng([self.seed, 1]).normal(size=(_JUDGED, density.size))
        elbo, k = _judge(density, q, e)
        gradients = {"model": of_mode, "objective": climber.gradients}
        done = ended and error <= _CONFIRMED
        return Attempt(
            guide, q, done, error, number, elbo, k, mode.found, climber.history, gradients, (note,) if note else ()
        )


def _finite_start(density: Density, start: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, str]:
    """Return a start where log-density and gradient are finite, and a sentence if it is not the given one."""

    def finite(x: np.ndarray) -> bool:
        value, gradient = density.gradient(x)
        return math.isfinite(value) and bool(np.isfinite(gradient).all())

    if finite(start):
        return start, ""
    zero = np.zeros_like(start)
    for i in range(_STARTS):
        x = zero if i == 0 else rng.uniform(-2, 2, len(start)) + (start if i % 2 else zero)
        if finite(x):
            return x, "the first start has no finite log-density, and was replaced by a place that has"
    raise ValueError(
        f"the log-density of the model is not finite at any of {_STARTS} starts: check the data, and the priors of "
        "the latents that the data rule out; legrad.MeanField(model, init=...) takes initial values"
    )


def _around(density: Density, start: np.ndarray) -> Gaussian:
    """Return a Gaussian at a start from which no mode was found, with the curvature there, at most one wide."""
    hessian = -density.hessian(start)
    if not np.isfinite(hessian).all():
        return Gaussian(start, 0.1 * np.eye(len(start)))
    tril = curvature(hessian + np.diag(np.ones(len(start)))).tril()
    return Gaussian(start, tril)


def _judge(density: Density, q: Gaussian, e: np.ndarray) -> tuple[float, float]:
    """Return the ELBO and the k-hat of a Gaussian; without ArviZ k-hat is NaN."""
    log_p = density.many(q.at(e))
    log_p = np.where(np.isfinite(log_p), log_p, -math.inf)
    log_q = -0.5 * (e**2).sum(1) - np.sum(np.log(np.diagonal(q.tril))) - 0.5 * e.shape[1] * math.log(2 * math.pi)
    log_w = log_p - log_q
    elbo = float(log_w[np.isfinite(log_w)].mean()) if np.isfinite(log_w).any() else -math.inf
    if np.isneginf(log_w).all():
        return elbo, math.inf
    try:
        return elbo, smoothed_weights(log_w)[1]
    except ImportError:
        return elbo, math.nan


def _better(written: Attempt, moved: Attempt, names: str) -> Attempt:
    """Return the better of a fit as the model is written, and one with sites non-centred; and say so."""
    total = {what: written.gradients[what] + moved.gradients[what] for what in written.gradients}
    good = moved.converged >= written.converged and moved.elbo > written.elbo
    if written.khat > LIMIT >= moved.khat:
        good = True
    best = moved if good else written
    note = (
        f"{names} non-centred (an ELBO of {moved.elbo:.4g}, against {written.elbo:.4g} as written)"
        if good
        else f"{names} left as written (an ELBO of {written.elbo:.4g}, against {moved.elbo:.4g} non-centred)"
    )
    fields = {name: getattr(best, name) for name in Attempt.__dataclass_fields__}
    return Attempt(**(fields | {"gradients": total, "notes": (*best.notes, note)}))
