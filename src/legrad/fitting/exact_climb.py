"""A fit whose ELBO has no noise: no steps of a guessed size, but a climb (`natural.ascent`) from each start.

All starts climb side by side in one program. Every start but a user's own is moved by a twentieth of a standard
deviation at random: without noise, components that begin alike would stay alike.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import handlers
from tqdm.auto import tqdm

from legrad._compat import jit
from legrad.estimators import Exact, LocalExpectation
from legrad.fitting.compiled_loop import CompiledLoop
from legrad.fitting.conclusion import checked
from legrad.fitting.guide_comparison import GuideComparison
from legrad.fitting.result import FitResult
from legrad.model.log_density import LogDensity
from legrad.model.messages import warn
from legrad.model.problem import Noise, Problem
from legrad.model.threads import one_at_a_time
from legrad.natural.ascent import CONVERGED, ROUNDING, SPENT, Ascent, Climb
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
    if isinstance(estimator, LocalExpectation):

        def look(params: Any, key: jax.Array) -> None:
            estimator.arrange(replace(problem, params=params), Noise(*jax.random.split(key)))

        with listening() as found:
            jax.eval_shape(look, dict(problem.params), jax.random.key(0))
        if not found.deterministic:
            return False
    elif not isinstance(estimator, Exact):
        return False
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


class ExactClimb:
    """The climbs of one fit, compiled once.

    Args:
        program: the parts of the fit: model, guide, parameters, estimator and data.
        starts: unconstrained parameters to climb from.
    """

    def __init__(self, program: CompiledLoop, starts: Sequence[dict[str, Any]]) -> None:
        self.program, self.starts = program, list(starts)
        given = program.feed.at(program.feed.load(0), 0)
        self.metric = Metric(GuideMap(program.guide, given.args, given.kwargs), starts[0])
        self._begin, self._go_on = jit(self._begin_all), jit(self._go_on_all)

    def run(self, seconds: float, bar: tqdm) -> tuple[Climb, float]:
        """Climb from all starts; return where they ended, and the seconds that this took after compiling."""
        arrays = self.program.feed.load(0).arrays
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *self.starts)
        climbs, ran = self._begin(stacked, self.program.keys, arrays), 0.0
        climbs = self._go_on(climbs, self.program.keys, jnp.asarray(0), arrays)  # compiles
        while bool(np.any(np.asarray(climbs.end) == 0)) and ran < seconds:
            begun = time.perf_counter()
            upto = jnp.asarray(int(np.max(climbs.evaluations)) + _CHUNK)
            climbs = jax.block_until_ready(self._go_on(climbs, self.program.keys, upto, arrays))
            ran += time.perf_counter() - begun
            bar.set_postfix_str(f"ELBO {-float(np.min(climbs.loss)):,.6g}", refresh=False)
            bar.update(int(np.max(climbs.evaluations)) - bar.n)
        return climbs, ran

    def params(self, climbs: Climb, start: int) -> dict[str, Any]:
        """Return the unconstrained parameters where one start ended."""
        return self._ascent(self.program.keys[0], ()).unflatten(climbs.at[start])

    def _ascent(self, key: jax.Array, arrays: Any) -> Ascent:
        program = self.program

        def loss(unconstrained: dict[str, Any]) -> jax.Array:
            given = program.feed.at(program.feed.load(0)._replace(arrays=arrays), 0)
            return program.objective.loss(program.estimator, unconstrained, key, given)

        return Ascent(loss, self.metric, self.starts[0], most=MOST)

    def _begin_all(self, starts: Any, keys: jax.Array, arrays: Any) -> Climb:
        def one(start: Any, key: jax.Array) -> Climb:
            nudged = jax.tree.map(jnp.add, start, self.metric.draw(start, key, _NUDGE))
            return self._ascent(key, arrays).begin(nudged)

        with compiled_for(arrays, self.program.feed.arrays):
            return jax.vmap(one)(starts, keys) if len(keys) > 1 else _lead(one(_first(starts), keys[0]))

    def _go_on_all(self, climbs: Climb, keys: jax.Array, upto: jax.Array, arrays: Any) -> Climb:
        def one(climb: Climb, key: jax.Array) -> Climb:
            return self._ascent(key, arrays).run(climb, upto)

        with compiled_for(arrays, self.program.feed.arrays):
            return jax.vmap(one)(climbs, keys) if len(keys) > 1 else _lead(one(_first(climbs), keys[0]))


def climb(
    program: CompiledLoop,
    comparison: GuideComparison,
    starts: Sequence[dict[str, Any]],
    seconds: float,
    progress: bool | str | None,
    begun: float,
) -> FitResult:
    """Fit by climbing an ELBO without noise; warn if the result should not be trusted.

    Args:
        program: the parts of the fit.
        comparison: compares parameters of the fit.
        starts: unconstrained parameters to climb from.
        seconds: the maximum running time.
        progress: whether to show a bar; a string is its label.
        begun: when the fit began.
    """
    climbs = ExactClimb(program, starts)
    label = progress if isinstance(progress, str) else "fit"
    with tqdm(total=MOST, desc=label, unit="gradient", disable=_hidden(progress), leave=True) as bar:
        bar.set_postfix_str("compiling")
        ended, ran = climbs.run(seconds, bar)
    took, number = time.perf_counter() - begun, len(starts)
    results = [_result(program, climbs, ended, i, ran, took) for i in range(number)]
    best = min(range(number), key=lambda i: (not math.isfinite(ended.loss[i]), float(ended.loss[i])))
    result = results[best]
    if number > 1:
        key, loaded = program.keys[0], program.feed.load(0)

        def is_other(i: int) -> bool:
            if i == best or not float(ended.loss[i]) < float(ended.loss[best]) + _MUCH_WORSE:
                return False
            ends = climbs.params(ended, best), climbs.params(ended, i)
            return max(comparison.distance(a, b, key, loaded) for a, b in (ends, ends[::-1])) >= _APART

        other = tuple(i for i in range(number) if is_other(i))
        result = replace(result, restarts=tuple(results), other_modes=other)
        words = f"the best of {number} starts" + (f"; {result._other_modes_flag()}" if other else "")
        result = replace(result, status=f"{result.status} ({words})")
    result = checked(result, comparison, climbs.params(ended, best), program.keys[best], lambda: program.feed.load(0))
    if not result.converged or result.other_modes or result.quadrature:
        warn(result.status)
    return result


def _result(
    program: CompiledLoop, climbs: ExactClimb, ended: Climb, start: int, ran: float, took: float
) -> FitResult:
    params, first = program.parameters.constrain(climbs.params(ended, start)), program.feed.last
    count = int(ended.evaluations[start])
    end, length = int(ended.end[start]), float(max(ended.length[start], ended.reach[start]))
    history = -np.asarray(ended.history[start], jnp.result_type(float))[:count]
    return FitResult(
        params=jax.device_get(params),
        converged=end in (CONVERGED, ROUNDING),
        status=_status(end, count, length, ran),
        elbo=history,
        steps=count,
        seconds=took,
        gradient_variance=np.zeros(count, history.dtype),
        phases=(),
        error=None,
        clock=np.asarray([[count, ran]]),
        problem=Problem(program.model, program.guide, params | first.plates, first.args, first.kwargs),
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
    limit = {SPENT: f"{count:,} gradients", 0: f"{ran:.3g} seconds, {count:,} gradients"}
    if end in limit:
        return (
            f"not converged after {limit[end]}: the next step would move the guide by {length:.2g} standard "
            "deviations. Allow more, or try restarts=4"
        )
    return (
        f"not converged: after {count:,} gradients no step raises the ELBO, though its gradient is not zero. Check "
        "the model for jumps, use jax_enable_x64, or pass optimizer=optax.adam(1e-2)"
    )


def _hidden(progress: bool | str | None) -> bool | None:
    return None if progress is None else not progress


def _first(tree: Any) -> Any:
    return jax.tree.map(lambda x: x[0], tree)


def _lead(tree: Any) -> Any:
    return jax.tree.map(lambda x: x[None], tree)
