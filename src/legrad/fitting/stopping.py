"""Deciding when a fit is done: phases of smaller and smaller steps, until a smaller step would change nothing.

After RAABBVI (Welandawe et al., "A framework for improving the reliability of black-box variational inference"). The
step size is constant within a phase. A phase ends when its iterates are stationary: the split R-hat of the parameters
is low, or the drift that raises R-hat means nothing to the guide. The average of the iterates is the phase's answer
and the start of the next phase, whose steps are `shrink` times as large. The fit is done when

    the guide would move less than the tolerance in all later phases together, if each moves the guide by `shrink`
    times as much as the phase before (the error of the average is proportional to the step size),
    the Monte Carlo error of the average is within the tolerance (averages of halves of the blocks agree), and
    the ELBO gained less than half a percent of what was gained since the start.

Distances are those of `guide_comparison`, in standard deviations of q: nothing depends on how the guide is
parameterized, or on the noise of the ELBO. All decisions are made at steps that do not depend on the clock, so that a
fit can be repeated.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

import jax
import numpy as np

from legrad.fitting import iterates
from legrad.fitting.compiled_loop import State
from legrad.fitting.data import Loaded
from legrad.fitting.guide_comparison import GuideComparison
from legrad.fitting.iterates import NUMBER, Blocks

_LOOKS = (4, 6, 8, 10, 12, 14, 16)  # numbers of filled blocks at which the iterates are examined
_FIRST = _LOOKS.index(8)  # the first phase may begin far away, and is not examined earlier
_DIRECT, _NEAR = 0.7, 5.0  # no drift: less far than this fraction of the path, and than this many tolerances
_MERGED = _LOOKS.index(NUMBER // 2) + 1  # after the last look, pairs of blocks are merged


@dataclass(frozen=True)
class AutoStop:
    """Settings of `stop="auto"`.

    Args:
        tolerance: how far the guide may be from the limit of the fit, in standard deviations of the guide.
        rhat: the largest split R-hat at which the iterates count as stationary.
        shrink: the step size of a phase relative to that of the phase before.
        gain: the share of the ELBO's gain since the start that a phase must bring to make another phase worthwhile.
        block: steps per block of iterates at first; the first check comes after eight blocks.
    """

    tolerance: float = 0.02
    rhat: float = 1.1
    shrink: float = 0.25
    gain: float = 0.005
    block: int = 8

    def __post_init__(self) -> None:
        wrong = {
            "tolerance": not self.tolerance > 0,
            "rhat": not self.rhat > 1,
            "shrink": not 0 < self.shrink < 1,
            "gain": not 0 < self.gain < 1,
            "block": not (isinstance(self.block, int) and self.block >= 2),
        }
        for name in (name for name, bad in wrong.items() if bad):
            raise ValueError(f"AutoStop({name}={getattr(self, name)!r}) makes no sense: the default is "
                             f"{AutoStop.__dataclass_fields__[name].default}")  # fmt: skip


@dataclass
class Phase:
    """A phase of one step size.

    Attributes:
        rate: the factor that multiplied the optimizer's updates.
        start: the first step of the phase.
        stop: the step after the last one of the phase; -1 while the phase lasts.
        averaged: the first step of the iterates that were averaged.
        rhat: the split R-hat of the worst parameter at the last check.
        flat: whether R-hat was high, but from a drift that means nothing to the guide.
        error: the Monte Carlo error of the average, in standard deviations of q.
        moved: the distance to the average of the phase before.
        gained: the ELBO of this phase minus that of the phase before.
        worse: whether this phase ended so far below the one before that the next phase began where this one had.
    """

    rate: float
    start: int
    stop: int = -1
    averaged: int = -1
    rhat: float = math.inf
    flat: bool = False
    error: float = math.inf
    moved: float = math.inf
    gained: float = math.nan
    worse: bool = False


@dataclass
class PhaseRecord:
    """What is remembered about one start: plain numbers, and two sets of unconstrained parameters."""

    phases: list[Phase]
    length: int
    look: int = _FIRST  # which of _LOOKS comes next
    previous: Any = None  # the average of the phase before
    average: Any = None  # the answer so far
    error: Any = None  # its Monte Carlo error, by parameter

    @property
    def done(self) -> bool:
        """Whether the start has converged: its last phase has ended and no other has begun."""
        return self.phases[-1].stop >= 0

    def to_json(self) -> dict[str, Any]:
        """Return the plain numbers."""
        return {
            "phases": [asdict(phase) for phase in self.phases],
            "length": self.length,
            "look": self.look,
            "has": [name for name in _TREES if getattr(self, name) is not None],
        }

    @classmethod
    def from_json(cls, numbers: dict[str, Any], trees: dict[str, Any]) -> PhaseRecord:
        """Invert `to_json`."""
        phases = [Phase(**phase) for phase in numbers["phases"]]
        return cls(phases, numbers["length"], numbers["look"], **trees)


_TREES = ("previous", "average", "error")


def answer(record: PhaseRecord, state: State) -> tuple[Any, int | None]:
    """Return the parameters of the result and the first step of their average; None for the last iterate.

    A fit that has converged, or whose last phase is stationary, has an average. A later phase that is not stationary
    began at the average of one that was: the iterates that such a phase has so far are averaged, too.
    """
    phase, blocks = record.phases[-1], state.blocks
    assert blocks is not None
    if math.isfinite(phase.error):
        return record.average, phase.averaged
    filled = int(blocks.seen) // int(blocks.length)
    if record.previous is None:
        return state.unconstrained, None
    if filled < 4:
        return record.previous, [before.averaged for before in record.phases[:-1] if not before.worse][-1]
    return iterates.average(
        blocks, iterates.mask(range(filled // 4, filled))
    ), phase.start + filled // 4 * record.length


@dataclass
class Stopping:
    """The stopping rule of one start: it examines the iterates, and decides when the start is done.

    Attributes:
        settings: the settings that the user gave.
        comparison: compares parameters of the fit.
        key: the random key of the comparison's draws.
        start: the parameters at the beginning, unconstrained.
        record: what the rule remembers between two checks.
    """

    settings: AutoStop
    comparison: GuideComparison
    key: jax.Array
    start: Any
    record: PhaseRecord = field(init=False)

    def __post_init__(self) -> None:
        self.record = PhaseRecord([Phase(1.0, 0)], self.settings.block)

    @property
    def done(self) -> bool:
        """Whether the start has converged."""
        return self.record.done

    @property
    def next_look(self) -> float:
        """The step at which `look` must be called next."""
        record = self.record
        return math.inf if self.done else record.phases[-1].start + _LOOKS[record.look] * record.length

    def look(self, step: int, state: State, loaded: Loaded) -> State:
        """Judge the iterates, and return the state to continue with."""
        record = self.record = replace(self.record, phases=[replace(phase) for phase in self.record.phases])
        blocks = state.blocks
        assert blocks is not None
        filled = _LOOKS[record.look]
        key = jax.random.fold_in(self.key, step)
        window = self._stationary(state, filled, key, loaded)
        if window is not None:
            state, blocks = self._settle(step, state, window, key, loaded)
            if self.done or record.phases[-1].start == step:
                return state
        record.look += 1
        if record.look == len(_LOOKS):
            record.look, record.length = _MERGED, 2 * record.length
            blocks = iterates.merged(blocks)
        return state._replace(blocks=blocks)

    def _stationary(self, state: State, filled: int, key: jax.Array, loaded: Loaded) -> range | None:
        """The longest last part of the phase that is stationary; None if no part is."""
        phase, blocks = self.record.phases[-1], state.blocks
        assert blocks is not None
        least = math.inf
        for skipped in (0, filled // 4, filled // 2):
            window = range(skipped + (filled - skipped) % 2, filled)
            half = (window.start + window.stop) // 2
            found = iterates.split_rhat(
                blocks, iterates.mask(range(window.start, half)), iterates.mask(range(half, filled))
            )
            rhat = max(float(value) for value in found.values())
            least = min(least, rhat)
            if rhat <= self.settings.rhat:
                phase.rhat, phase.flat = rhat, False
                return window
        phase.rhat = least
        window = range(min(filled // 2, filled - 4), filled)
        phase.flat = self._leads_nowhere(state, window, key, loaded)
        return window if phase.flat else None

    def _leads_nowhere(self, state: State, window: range, key: jax.Array, loaded: Loaded) -> bool:
        """Whether the drift that R-hat sees in the parameters means nothing to the guide, now and later.

        Judged by the averages of four parts of the window. Either no site drifts: the distance from the first average
        to the last is less than the path through the other two (on a straight path the two are equal). Or the drift
        slows down: if successive averages are r^k d apart, for k = 0, 1, ..., the distance left is a geometric sum.
        """
        blocks, comparison, tolerance = state.blocks, self.comparison, self.settings.tolerance
        assert blocks is not None
        edges = np.linspace(window.start, window.stop, 5).astype(int)

        def part(first: int, last: int) -> Any:
            return iterates.average(blocks, iterates.mask(range(edges[first], edges[last])))

        gained, unsure = comparison.gain(part(0, 2), part(2, 4), key, loaded)
        if gained - 2.0 * unsure > tolerance:  # nats also see the model's parameters, which are in no factor of q
            return False
        parts = [part(k, k + 1) for k in range(4)]
        ways = [comparison.distances(one, other, key, loaded) for one, other in pairwise(parts)]
        apart = comparison.distances(parts[0], parts[3], key, loaded)
        way = {name: sum(step[name] for step in ways) for name in apart}
        if all(apart[k] <= max(tolerance / 5, min(_DIRECT * way[k], _NEAR * tolerance)) for k in apart):
            return True
        first, last = (max(ways[i].values(), default=0.0) for i in (0, 2))
        if not last < first:
            return last == 0.0
        ratio = math.sqrt(last / first)
        return last * ratio / (1.0 - ratio) <= tolerance

    def _settle(self, step: int, state: State, window: range, key: jax.Array, loaded: Loaded) -> tuple[State, Blocks]:
        """End a stationary phase: average it, then go on to smaller steps, or stop, or stay for a better average."""
        record, settings, blocks = self.record, self.settings, state.blocks
        assert blocks is not None
        phase, comparison = record.phases[-1], self.comparison
        half = len(window) // 2
        pairs = (window[0::2], window[1::2]), (window[:half], window[half:])
        record.average = iterates.average(blocks, iterates.mask(window))
        record.error = iterates.monte_carlo_error(blocks, iterates.mask(window))
        # Averages of half the blocks differ by twice the error of the whole average: odd against even blocks, where
        # slow wandering cancels, and early against late ones, where it shows.
        averages = [[iterates.average(blocks, iterates.mask(part)) for part in pair] for pair in pairs]
        phase.error = 0.5 * max(comparison.spread(one, other, key, loaded) for one, other in averages)
        phase.averaged = phase.start + window.start * record.length
        if record.previous is None:
            return self._next(step, state), blocks
        phase.moved = comparison.distance(record.previous, record.average, key, loaded)
        noise = math.hypot(phase.error, record.phases[-2].error)
        moved = math.sqrt(max(0.0, phase.moved**2 - noise**2)) if math.isfinite(phase.moved) else math.inf
        phase.gained, unsure = comparison.gain(record.previous, record.average, key, loaded)
        since_start, _ = comparison.gain(self.start, record.average, key, loaded)
        left = moved * settings.shrink / (1.0 - settings.shrink)  # if the steps were reduced again and again
        little = settings.gain * abs(since_start)
        worth = phase.gained - 2.0 * unsure > little
        if phase.gained + 3.0 * unsure < -little:  # smaller steps from a good place ended at a worse one
            record.average = record.previous
            phase.worse = True
            return self._next(step, state), blocks
        if left > settings.tolerance or worth:
            return self._next(step, state), blocks
        if phase.error > settings.tolerance:
            return state, blocks
        phase.stop = step
        return state, blocks

    def _next(self, step: int, state: State) -> State:
        record = self.record
        record.phases[-1].stop = step
        rate = record.phases[-1].rate * self.settings.shrink
        record.phases.append(Phase(rate, step))
        # A quarter of the step size needs four times the steps to cover a distance: a short phase would look still.
        record.previous, record.length, record.look = record.average, round(self.settings.block / rate), 0
        average = jax.tree.map(lambda a, x: a.astype(x.dtype), record.average, state.unconstrained)
        return state._replace(
            rate=state.rate * 0 + rate,
            unconstrained=average,
            blocks=Blocks.empty(average, record.length),
        )
