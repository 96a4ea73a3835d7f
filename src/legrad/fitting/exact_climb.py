"""A fit whose ELBO has no noise: no steps of a guessed size, but a climb (`natural.ascent`) from each start.

All starts climb side by side in one program. Every start is moved by a twentieth of a standard deviation at random:
without noise, components that begin alike would stay alike.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import handlers
from tqdm.auto import tqdm

from legrad._compiled import jit_once
from legrad.estimators import Exact, LocalExpectation
from legrad.fitting.compiled_loop import CompiledLoop
from legrad.fitting.conclusion import checked
from legrad.fitting.guide_comparison import GuideComparison
from legrad.fitting.result import FitResult
from legrad.fitting.telling import is_hidden, quiet
from legrad.model.log_density import LogDensity
from legrad.model.messages import warn
from legrad.model.problem import Noise, Problem
from legrad.model.threads import one_at_a_time
from legrad.natural.ascent import CLIMBING, CONVERGED, NOWHERE, ROUNDING, SPENT, Ascent, Climb, beginning
from legrad.natural.guide_map import GuideMap
from legrad.natural.metric import Metric
from legrad.singlesite.report import listening
from legrad.trace.concrete import compiled_for

MOST = 2000  # gradients
_NUDGE = 0.05  # standard deviations
_CHUNK = 64  # gradients between two looks at the clock
_APART = 0.5  # standard deviations: guides this far apart are not the same
_MUCH_WORSE = 10.0  # nats: a mode with exp(-10) of the mass does not matter


@one_at_a_time
def has_no_noise(problem: Problem, estimator: Any) -> bool:
    """Whether an estimate of the ELBO is the ELBO itself, whatever the random key.

    Args:
        problem: model, guide, parameters and data.
        estimator: the estimator.
    """
    if not isinstance(estimator, LocalExpectation | Exact):
        return False
    fixed: list[bool] = []

    def look(params: Any, key: jax.Array) -> None:
        here = replace(problem, params=params)
        if isinstance(estimator, LocalExpectation):
            estimator.arrange(here, Noise(*jax.random.split(key)))
        fixed.append(sees_everything(here))

    with listening() as found:
        jax.eval_shape(look, dict(problem.params), jax.random.key(0))
    return (isinstance(estimator, Exact) or found.deterministic) and all(fixed)


def sees_everything(problem: Problem) -> bool:
    """Whether model and guide have no state, no randomness of their own, and all members of their plates."""
    data = dict(problem.params)
    for program in (problem.guide, problem.model):
        if isinstance(program, LogDensity):
            continue
        with (
            numpyro.validation_enabled(False),
            handlers.block(),
            handlers.seed(rng_seed=0),
            handlers.trace() as trace,
        ):
            handlers.substitute(program, data)(*problem.args, **problem.kwargs)
        data |= {name: site["value"] for name, site in trace.items() if site["type"] == "sample"}
        for site in trace.values():
            if site["type"] in ("mutable", "prng_key"):
                return False
            if site["type"] == "plate" and len(site["value"]) < site["args"][0]:
                return False
    return True


class Climbed(NamedTuple):
    """Where climbs are, with a leading axis for the starts: state and parameters, unconstrained and constrained."""

    climbs: Climb
    unconstrained: Any
    params: Any


class ExactClimb:
    """The climbs of one fit, as one compiled program.

    Args:
        program: the parts of the fit: model, guide, parameters, estimator and data.
        starts: unconstrained parameters to climb from.
    """

    def __init__(self, program: CompiledLoop, starts: Sequence[dict[str, Any]]) -> None:
        self.program, self.starts = program, [jax.tree.map(np.asarray, start) for start in starts]
        self._go_on = jit_once(self._go_on_all)  # a climb has few steps

    def run(self, seconds: float, bar: tqdm) -> tuple[Climbed, float]:
        """Climb from all starts; return where they ended, and the seconds that this took after compiling."""
        arrays, ran = self.program.feed.load(0).arrays, 0.0
        starts = jax.tree.map(lambda *leaves: np.stack(leaves), *self.starts)
        first = beginning(self.starts[0], MOST)
        climbs = jax.tree.map(lambda x: np.broadcast_to(x, (len(self.starts), *x.shape)), first)
        now = self._go_on(starts, climbs, self.program.keys, np.asarray(0, np.int32), arrays)  # compiles
        while bool(np.any(np.asarray(now.climbs.end) == CLIMBING)) and ran < seconds:
            begun = time.perf_counter()
            upto = np.asarray(int(np.max(np.asarray(now.climbs.evaluations))) + _CHUNK, np.int32)
            now = self._go_on(starts, now.climbs, self.program.keys, upto, arrays)
            counts = np.asarray(now.climbs.evaluations)  # waits for the program
            ran += time.perf_counter() - begun
            if not bar.disable:
                best = int(np.argmin(np.nan_to_num(np.asarray(now.climbs.loss), nan=np.inf)))
                elbo, length = -float(now.climbs.loss[best]), float(now.climbs.length[best])
                words = f"ELBO {elbo:,.6g}, a step moves the guide by {length:.1g} sd" if np.isfinite(elbo) else ""
                bar.set_postfix_str(words, refresh=False)
                bar.update(int(counts.max()) - bar.n)
        return now, ran

    def _go_on_all(self, starts: Any, climbs: Climb, keys: jax.Array, upto: jax.Array, arrays: Any) -> Climbed:
        program = self.program
        with compiled_for(arrays, program.feed.arrays):
            given = program.feed.at(program.feed.load(0)._replace(arrays=arrays), 0)
            # Made while tracing: its programs compile with the climb, and see the data as the climb does.
            guide = GuideMap(program.guide, given.args, given.kwargs)
            metric = Metric(guide, _first(starts), program.parameters.of_model)

            def one(start: Any, climb: Climb, key: jax.Array) -> Climbed:
                def loss(unconstrained: dict[str, Any]) -> jax.Array:
                    return program.objective.loss(program.estimator, unconstrained, key, given)

                def begin() -> Climb:
                    return ascent.begin(start, metric.draw(start, key, _NUDGE))

                ascent = Ascent(loss, metric, start, most=MOST)
                climb = jax.lax.cond(climb.evaluations == 0, begin, lambda: climb)
                ended = ascent.run(climb, upto)
                at = ascent.unflatten(ended.at)
                return Climbed(ended, at, program.parameters.constrain(at))

            if len(keys) > 1:
                return jax.vmap(one)(starts, climbs, keys)
            return jax.tree.map(lambda x: x[None], one(_first(starts), _first(climbs), keys[0]))


def climb(
    program: CompiledLoop,
    comparison: GuideComparison,
    starts: Sequence[dict[str, Any]],
    seconds: float,
    progress: bool | str | None,
    begun: float,
    check: Callable[[], Any],
) -> FitResult:
    """Fit by climbing an ELBO without noise; warn if the result should not be trusted.

    Args:
        program: the parts of the fit.
        comparison: compares parameters of the fit.
        starts: unconstrained parameters to climb from.
        seconds: the maximum running time.
        progress: whether to show a bar; a string is its label.
        begun: when the fit began.
        check: a function that raises if the start is at fault, for a climb whose ELBO is not finite there.
    """
    climbs = ExactClimb(program, starts)
    label = progress if isinstance(progress, str) else "fit"
    quiet()
    with tqdm(desc=label, unit="gradient", disable=is_hidden(progress), leave=True) as bar:
        bar.set_postfix_str("compiling")
        now, ran = climbs.run(seconds, bar)
    took, number = time.perf_counter() - begun, len(starts)
    ended, at, params = jax.device_get(now)
    if np.any(ended.end == NOWHERE):
        check()
    results = [_result(program, ended, _at(params, i), i, ran, took) for i in range(number)]
    best = min(range(number), key=lambda i: (not math.isfinite(ended.loss[i]), float(ended.loss[i])))
    result = results[best]
    if number > 1:
        key, loaded = program.keys[0], program.feed.load(0)

        def is_other(i: int) -> bool:
            if i == best or not float(ended.loss[i]) < float(ended.loss[best]) + _MUCH_WORSE:
                return False
            ends = _at(at, best), _at(at, i)
            return max(comparison.distance(a, b, key, loaded) for a, b in (ends, ends[::-1])) >= _APART

        other = tuple(i for i in range(number) if is_other(i))
        result = replace(result, restarts=tuple(results), other_modes=other)
        words = f"the best of {number} starts" + (f"; {result._other_modes_flag()}" if other else "")
        result = replace(result, status=f"{result.status} ({words})")
    result = checked(result, comparison, _at(at, best), program.keys[best], lambda: program.feed.load(0))
    if not result.converged or result.other_modes or result.quadrature:
        warn(result.status)
    return result


def _result(program: CompiledLoop, ended: Climb, params: Any, start: int, ran: float, took: float) -> FitResult:
    first = program.feed.last
    count = int(ended.evaluations[start])
    end, length = int(ended.end[start]), float(max(ended.length[start], ended.reach[start]))
    history = -np.asarray(ended.memory.history[start], jnp.result_type(float))[:count]
    return FitResult(
        params=params,
        converged=end in (CONVERGED, ROUNDING),
        status=_status(end, count, length, ran),
        elbo=history,
        steps=count,
        seconds=took,
        gradient_variance=np.zeros(count, history.dtype),
        phases=(),
        error=None,
        clock=np.asarray([[count, ran]]),
        problem=Problem(program.model, program.guide, jax.tree.map(jnp.asarray, params), first.args, first.kwargs),
        estimator=program.estimator,
        optimizer_state=None,
        gradients={"objective": count},
        note=f"the ELBO has no noise: natural steps and L-BFGS, in {count:,} gradients",
    )


def _status(end: int, count: int, length: float, ran: float) -> str:
    if end == CONVERGED:
        return (
            f"converged after {count:,} gradients: the ELBO has no noise, and the next step would move the guide by "
            f"{length:.1g} standard deviations"
        )
    if end == ROUNDING:
        return (
            f"converged after {count:,} gradients: the ELBO has no noise, and no step changes it beyond its rounding"
        )
    limit = {SPENT: f"{count:,} gradients", CLIMBING: f"{ran:.3g} seconds, {count:,} gradients"}
    if end in limit:
        return (
            f"not converged after {limit[end]}: the next step would move the guide by {length:.2g} standard "
            "deviations. Allow more, or try restarts=4"
        )
    if end == NOWHERE:
        return (
            "not converged: the ELBO or its gradient is not finite at the start. Try other initial values, or "
            "optimizer=optax.adam(1e-2)"
        )
    return (
        f"not converged: after {count:,} gradients no step raises the ELBO, though its gradient is not zero. Check "
        "the model for jumps, use jax_enable_x64, or pass optimizer=optax.adam(1e-2)"
    )


def _first(tree: Any) -> Any:
    return _at(tree, 0)


def _at(tree: Any, start: int) -> Any:
    return jax.tree.map(lambda x: x[start], tree)
