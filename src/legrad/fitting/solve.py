"""Fits of `Structured` to continuous latents without a learning rate: the mode, then the ELBO with fixed draws.

The number of draws is doubled until fresh draws confirm the answer. A location-scale site below a latent scale (a
funnel) is tried as loc + scale · x if the fit of the model as written is not close to the posterior. Several starts
are climbed from only where their modes differ, and their evidence by Laplace's approximation is not much worse.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from threadpoolctl import threadpool_limits

from legrad.diagnostics.psis import LIMIT
from legrad.fitting.density import Density
from legrad.fitting.exchangeable import exchangeable_sites
from legrad.fitting.fixed_draws import FixedDraws, Gaussian, moment_matched
from legrad.fitting.mode import Mode, curvature, find_mode, search_elsewhere
from legrad.fitting.moved_draws import MOST, Mixture, cover
from legrad.fitting.reweigh import reweigh, shift_of
from legrad.fitting.scale_start import scale_start
from legrad.fitting.telling import tell
from legrad.guides.structured import Structured
from legrad.model.precision import as_double, in_double

MUCH_WORSE = 10.0  # nats: a mode with exp(-10) of the mass does not matter
_DRAWS, _MOST_DRAWS = 128, 8192
_CONFIRMED = 0.05  # standard deviations that fresh draws may move the optimum
_CLIMB = 200  # the largest number of gradients of the objective in one climb
_WORK = 100_000  # gradients of the model in all climbs of one start, after which no climb with more draws begins
_CLOSE = 0.5  # a k-hat below which a fit is not compared with a non-centred one
_COVERED = 0.4  # a k-hat below which weighed draws need no mixture
_MANY = 100  # latents above which the correlations of the mode are kept at first
_CURVED = 400  # latents above which no mode is sought at fixed scales
_STARTS = 100  # places to look for a finite start
_SAME = 0.1  # standard deviations: modes this close are one mode
_EQUAL = 0.01  # nats: modes of exchangeable components with equal evidence differ by their labels
_PROBES = 3  # short searches for another mode
_SEVERAL = 4  # starts of a model that may have several modes


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
        khat: the PSIS k-hat of the weighed draws.
        shift: how far means and sds are from the posterior's by weighed draws, in its standard deviations.
        moments: the posterior's moments by weighed draws; None if they do not tell.
        mixture: a mixture that covers the posterior better than its moments do, if it was looked for.
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
    shift: float
    moments: Gaussian | None
    mode: bool
    history: list[float]
    gradients: dict[str, int]
    notes: tuple[str, ...] = ()
    mixture: Mixture | None = None


@dataclass(frozen=True)
class _Start:
    """A start that has been followed to a mode, if there is one."""

    x: np.ndarray
    mode: Mode
    gradients: int
    note: str

    @property
    def evidence(self) -> float:
        """The log evidence by Laplace's approximation, without constants; -inf without a mode."""
        if not self.mode.found:
            return -math.inf
        return self.mode.value + float(np.sum(np.log(np.diagonal(self.mode.tril))))

    def is_same(self, other: _Start) -> bool:
        """Whether two starts lead to the same mode."""
        if not (self.mode.found and other.mode.found):
            return False
        apart = np.linalg.solve(other.mode.tril, self.mode.x - other.mode.x)
        return bool(np.abs(apart).max() < _SAME)


class Solver:
    """The solver of one model with its data.

    Args:
        guide: the guide, with all its latents in one Gaussian.
        args: positional arguments of the model.
        kwargs: keyword arguments of the model.
        key: the random key.
        deadline: the `time.perf_counter()` after which no new climb begins.

    Attributes:
        exchangeable: the sites whose components can be relabelled without changing the density.
    """

    def __init__(
        self, guide: Structured, args: tuple[Any, ...], kwargs: Mapping[str, Any], key: jax.Array, deadline: float
    ) -> None:
        self.guide, self.deadline = guide, deadline
        self.seed = int(np.asarray(jax.random.key_data(key)).ravel()[-1])
        self._given = args, dict(kwargs)
        self.double = True
        self._densities: dict[tuple[str, ...], Density] = {}
        self.exchangeable: tuple[str, ...] = ()

    def run(self, restarts: int | None) -> list[Attempt]:
        """Return an attempt for each start; the first begins at the prior's median, the others at draws of the prior.

        Args:
            restarts: the number of starts; if None, four if the model has exchangeable components, or if the first
                start led over a saddle; else one, and one for each other mode that short searches find.
        """
        with threadpool_limits(
            1, user_api="blas"
        ):  # on matrices this small BLAS's threads wait, and take XLA's cores
            try:
                return in_double(lambda: self._run(restarts))
            except TypeError:  # a program with float32 written into it, such as the carry of a scan
                self.double = False
                return self._run(restarts)

    def _run(self, restarts: int | None) -> list[Attempt]:
        self._densities.clear()
        args, kwargs = self._arguments()
        density = self._density(self.guide)
        self.exchangeable = exchangeable_sites(density.space, args, kwargs, density=density.value)
        density.gradients = 0  # those were no steps
        starts = [self._start(0)]
        if restarts is None and not self.exchangeable and not starts[0].mode.left_a_saddle:
            starts = self._with_other_modes(starts[0])
        else:
            starts += [self._start(i) for i in range(1, restarts or _SEVERAL)]
        restarts = len(starts)
        best = max(range(restarts), key=lambda i: starts[i].evidence)
        done: dict[int, Attempt] = {best: self._best_form(starts[best], best)}
        for i, start in enumerate(starts):
            if i == best:
                continue
            same = next((j for j in done if self._is_same(start, starts[j])), None)
            if same is not None:
                done[i] = done[same]
            elif start.evidence > starts[best].evidence - MUCH_WORSE:
                done[i] = self._best_form(start, i)
            else:
                done[i] = self._left_out(start)
        return [done[i] for i in range(restarts)]

    def _is_same(self, one: _Start, other: _Start) -> bool:
        if one.is_same(other):
            return True
        gap = abs(one.evidence - other.evidence) if math.isfinite(one.evidence) else math.inf
        return bool(self.exchangeable) and gap < _EQUAL

    def _left_out(self, start: _Start) -> Attempt:
        """Return the attempt of a start that is not climbed from: its mode is much worse, or it found none."""
        q = Gaussian(start.mode.x, start.mode.tril)
        note = "not climbed from: the mode that it leads to is much worse" if start.mode.found else "found no mode"
        return Attempt(
            self.guide, q, False, math.inf, 0, start.evidence, math.inf, math.nan, None, start.mode.found, [],
            {"model": start.gradients, "objective": 0}, (note,),
        )  # fmt: skip

    def _start(self, number: int) -> _Start:
        args, kwargs = self._arguments()
        space, density = self.guide.space(*args, **kwargs), self._density(self.guide)
        tell("looking for the mode" if number == 0 else f"looking for the mode from start {number + 1}")
        rng = np.random.default_rng([self.seed, number])
        before = density.gradients
        x, note = _finite_start(density, space.start if number == 0 else space.other_start(rng), rng)
        mode = find_mode(density, x)
        return _Start(x, mode, density.gradients - before, note)

    def _with_other_modes(self, first: _Start) -> list[_Start]:
        """Return a start, which counts the work, and one for each other mode that short searches point to."""
        if not first.mode.found or time.perf_counter() > self.deadline:
            return [first]
        args, kwargs = self._arguments()
        space, density = self.guide.space(*args, **kwargs), self._density(self.guide)
        tell("looking for other modes")
        rng = np.random.default_rng([self.seed, 0, 2])
        others: list[_Start] = []
        before = density.gradients
        places = [2 * space.start - first.mode.x, *(space.other_start(rng) for _ in range(_PROBES - 1))]
        for place in places:
            x = search_elsewhere(density, first.mode, place, 2 * MUCH_WORSE)
            if x is not None:
                start = _Start(x, find_mode(density, x), 0, "")
                if start.mode.found and not any(start.is_same(other) for other in (first, *others)):
                    others.append(start)
        total = first.gradients + density.gradients - before  # whichever mode is taken, all of it was needed
        return [replace(start, gradients=total) for start in (first, *others)]

    def _best_form(self, start: _Start, number: int) -> Attempt:
        """Climb from a start; where a Gaussian is not close to the posterior, look for a mixture that covers it."""
        found = self._best_gaussian(start, number)
        density = self._density(found.guide)
        if not found.khat > _COVERED or density.size > MOST or time.perf_counter() > self.deadline:
            return found
        tell("looking for a mixture that covers the posterior")
        covered = cover(density, found.q, found.moments or found.q, self.seed)
        if covered is None or not covered.khat < found.khat:
            return found
        note = f"weighed draws come from a mixture of {len(covered.mixture.weights)} Student-t's that covers it"
        shift = shift_of(found.q, covered.mean, covered.sd)
        return replace(found, khat=covered.khat, shift=shift, mixture=covered.mixture, notes=(*found.notes, note))

    def _best_gaussian(self, start: _Start, number: int) -> Attempt:
        """Climb from a start; if the fit is not close to the posterior, try funnels non-centred."""
        found = self._climb(self.guide, start)
        if found.converged and found.khat < _CLOSE:
            return found
        args, kwargs = self._arguments()
        funnels = self.guide.space(*args, **kwargs).funnels(args, kwargs)
        if not funnels or time.perf_counter() > self.deadline:
            return found
        other = Structured(self.guide.model, noncentered=funnels, prefix=self.guide.prefix)
        density, rng = self._density(other), np.random.default_rng([self.seed, number, 1])
        before = density.gradients
        x, note = _finite_start(density, other.space(*args, **kwargs).start, rng)
        mode = find_mode(density, x)
        moved = self._climb(other, _Start(x, mode, density.gradients - before, note))
        return _better(found, moved, ", ".join(funnels))

    def _arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return as_double(self._given) if self.double else self._given

    def _density(self, guide: Structured) -> Density:
        args, kwargs = self._arguments()
        if guide.noncentered not in self._densities:
            self._densities[guide.noncentered] = Density(guide.space(*args, **kwargs), args, kwargs)
        return self._densities[guide.noncentered]

    def _climb(self, guide: Structured, start: _Start) -> Attempt:
        """Climb with more and more draws; where latents are many, first with the correlations of the mode."""
        density = self._density(guide)
        q = Gaussian(start.mode.x, start.mode.tril) if start.mode.found else self._without_mode(guide, start)
        many = density.size > _MANY
        found = self._climb_from(guide, start, q, diagonal=many)
        if not many or not found.converged or found.khat <= LIMIT or time.perf_counter() > self.deadline:
            return found
        other = self._climb_from(guide, start, found.q, diagonal=False)
        better = other.elbo > found.elbo if other.converged == found.converged else other.converged
        total = found.gradients["objective"] + other.gradients["objective"]
        return replace(other if better else found, gradients=found.gradients | {"objective": total})

    def _without_mode(self, guide: Structured, start: _Start) -> Gaussian:
        """Return the Gaussian to climb from where no mode was found: at the best scales of funnels, if it has any."""
        args, kwargs = self._arguments()
        density = self._density(guide)
        if density.size > _CURVED:
            return _around(density, start.x)
        scales = self.guide.space(*args, **kwargs).funnel_scales(args, kwargs)  # non-centred sites are no funnels
        return scale_start(density, start.x, scales) or _around(density, start.x)

    def _climb_from(self, guide: Structured, start: _Start, q: Gaussian, diagonal: bool) -> Attempt:
        density = self._density(guide)
        climber = FixedDraws(density)
        draws = moment_matched(max(_DRAWS, 1 << math.ceil(math.log2(2 * density.size))), density.size, self.seed)
        work, far = 0, ""
        while True:
            before, number = climber.gradients, len(draws)
            tell(f"climbing the ELBO of {number} draws{far}")
            q = climber.climb(q, draws, max(10, min(_CLIMB, (_WORK - work) // number)), diagonal)
            work += number * (climber.gradients - before)
            error = climber.error(q, moment_matched(number, density.size, self.seed + number))
            late = time.perf_counter() > self.deadline or 2 * work > _WORK
            if error <= _CONFIRMED or 2 * number > _MOST_DRAWS or late:
                break
            far = f"; fresh ones moved the optimum by {error:.1g} sd (tolerance {_CONFIRMED})"
            draws = moment_matched(2 * number, density.size, self.seed + 1 + number)
        tell("weighing draws")
        found = reweigh(density, q, self.seed)
        return Attempt(
            guide=guide,
            q=q,
            converged=error <= _CONFIRMED,
            error=error,
            draws=number,
            elbo=found.elbo,
            khat=found.khat,
            shift=found.shift,
            moments=found.moments,
            mode=start.mode.found,
            history=climber.history,
            gradients={"model": start.gradients, "objective": climber.gradients},
            notes=(start.note,) if start.note else (),
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
    return replace(best, gradients=total, notes=(*best.notes, note))
