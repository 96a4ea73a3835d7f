"""The end of a fit: the best of its starts, and for each start a sentence on what happened and what to try."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from legrad.estimators import LocalExpectation
from legrad.fitting.checkpoint import Progress
from legrad.fitting.checks import name_failure
from legrad.fitting.compiled_loop import CompiledLoop
from legrad.fitting.data import Loaded
from legrad.fitting.guide_comparison import GuideComparison
from legrad.fitting.host_loop import INTERRUPTED, LOST
from legrad.fitting.processes import on_host, several
from legrad.fitting.result import FitResult
from legrad.fitting.stopping import PhaseRecord, answer
from legrad.model.messages import warn
from legrad.model.problem import Problem

_RANK_DRAWS = 256  # for the ELBO that decides between starts
_APART = 0.5  # standard deviations of q: guides this far apart are not the same
_MUCH_WORSE = 10.0  # nats: a mode with exp(-10) of the mass does not matter


def finish(
    program: CompiledLoop,
    comparison: GuideComparison,
    now: Progress,
    ended: str,
    steps: int,
    seconds: float | None,
    took: float,
) -> FitResult:
    """Return the result of a fit, and warn if it should not be trusted.

    Args:
        program: the compiled steps of the fit.
        comparison: compares parameters of the fit.
        now: the state in which the fit ended.
        ended: what ended the fit, if not the fit itself.
        steps: the maximum number of steps.
        seconds: the time limit in seconds, if there was one.
        took: how many seconds the fit took.
    """
    results = [_one(program, now, i, ended, steps, seconds, took) for i in range(len(now.limits))]
    best = 0
    other_modes: tuple[int, ...] = ()
    if len(results) > 1:
        best, other_modes = _compare(program, comparison, now, results)
    result = results[best]
    if len(results) > 1:
        result = replace(result, restarts=tuple(results), other_modes=other_modes)
        words = f"the best of {len(results)} starts"
        if other_modes:
            words += f"; {result._other_modes_flag()}"
        result = replace(result, status=f"{result.status} ({words})")
    if best not in now.failures and ended != INTERRUPTED:
        at, key = _end(program, now, best)[0], program.keys[best]
        result = checked(result, comparison, at, key, lambda: program.feed.load(max(0, now.at - 1)))
    judged = bool(now.records)
    if ended or best in now.failures or other_modes or result.quadrature or (judged and not result.converged):
        warn(result.status)
    return result


def checked(
    result: FitResult, comparison: GuideComparison, at: Any, key: jax.Array, load: Callable[[], Loaded]
) -> FitResult:
    """Return a result, with a sentence on the error of its quadrature if that is large.

    Args:
        result: the result.
        comparison: compares parameters of the fit.
        at: the unconstrained parameters where it ended.
        key: the random key of the start.
        load: a function that reads the data.
    """
    try:
        quadrature = comparison.quadrature(at, key, load())
    except Exception as error:  # a check must not lose the result
        if several():  # the other processes may wait for this one
            raise
        quadrature = f"the accuracy of the quadrature could not be checked ({error})"
    if not quadrature:
        return result
    return replace(result, quadrature=quadrature, status=f"{result.status}. But {quadrature}")


def _one(
    program: CompiledLoop, now: Progress, start: int, ended: str, steps: int, seconds: float | None, took: float
) -> FitResult:
    state = program.take(now.state, start)
    done = min(now.at, int(now.limits[start]))
    record = now.records[start] if now.records else None
    converged = record is not None and record.done
    fell = _fell(np.asarray(state.elbo)[:done])
    unconstrained, since = _end(program, now, start)
    elbo = np.asarray(state.elbo)
    if start in now.failures:
        status = _failure(program, now.failures[start], start, state)
    elif converged:
        assert record is not None
        status = _converged(record, done)
    elif ended:
        status = f"stopped at step {done:,}: {ended}"
    else:
        limit = f"{steps:,} steps" if done >= steps else f"{seconds:g} seconds, {done:,} steps"
        status = _unfinished(record, elbo[:done], limit, since, program.estimator)
    if ended.startswith(LOST) and (converged or start in now.failures):
        status = f"{status}. But {ended}"
    if fell and start not in now.failures:
        converged = False
        status = f"the ELBO {fell}: try a smaller learning rate. Otherwise: {status}"
    params = program.parameters.constrain(unconstrained)
    first = program.feed.last
    return FitResult(
        params=on_host(params),
        converged=converged,
        status=status,
        elbo=elbo[:done],
        steps=done,
        seconds=took,
        gradient_variance=np.asarray(state.noise)[:done],
        phases=() if record is None else tuple(record.phases),
        error=on_host(record.error) if record is not None and converged else None,
        clock=np.asarray(now.clock),
        problem=Problem(program.model, program.guide, params | first.plates, first.args, first.kwargs),
        estimator=program.estimator,
        optimizer_state=on_host(state.memory),
    )


def _end(program: CompiledLoop, now: Progress, start: int) -> tuple[Any, int | None]:
    """Return the unconstrained parameters that a start ended with, and the step since which they are averaged."""
    if now.records and start not in now.failures:
        return answer(now.records[start], program.take(now.state, start))
    return program.take(now.state.unconstrained, start), None


def _failure(program: CompiledLoop, step: int, start: int, state: Any) -> str:
    key = jax.random.fold_in(program.keys[start], step)
    given = program.feed.at(program.feed.load(step), step)
    try:
        what = name_failure(program, state.unconstrained, key, given)
    except Exception as error:  # naming the cause must not lose the result
        if several():
            raise
        what = f"the ELBO or its gradient ({error})"
    return (
        f"stopped at step {step:,}, which is not finite: {what}. The parameters are those before that step. Try a "
        "smaller learning rate, optax.clip_by_global_norm, or other initial values, and look at that site"
    )


def _converged(record: PhaseRecord, done: int) -> str:
    last = record.phases[-1]
    begin = f"converged after {done:,} steps: the parameters are the average since step {last.averaged:,}"
    if last.moved == last.error == 0.0:
        return f"{begin}, and at the last step size the ELBO gained {last.gained:.2g} nats"
    return (
        f"{begin}, accurate to {last.error:.2g} standard deviations; the last reduction of the step size moved the "
        f"guide by {last.moved:.2g}"
    )


def _unfinished(record: PhaseRecord | None, elbo: np.ndarray, limit: str, since: int | None, estimator: Any) -> str:
    trend = _trend(elbo)
    if record is None:
        return f"took the {limit} that it was given; {trend}. stop='auto' tells whether a fit has converged"
    phase = record.phases[-1]
    what = "the last iterate" if since is None else f"the average since step {since:,}"
    if math.isinf(phase.rhat):
        why = "there were too few steps to compare"
    elif math.isinf(phase.error):
        which = _ordinal(len(record.phases))
        why = f"the iterates are not stationary at the {which} step size (R-hat {phase.rhat:.2f})"
    else:
        why = (
            f"the average of the iterates is accurate only to {phase.error:.2g} standard deviations of the guide, or "
            f"still moved (by {phase.moved:.2g}) when the step size was reduced"
        )
    less = "more pivots" if isinstance(estimator, LocalExpectation) else "legrad.LocalExpectation(), more samples"
    return (
        f"not converged after {limit}: {why}; {trend}. The parameters are {what}. Try more steps, less noise "
        f"({less}, larger minibatches), or a larger learning rate"
    )


def _trend(elbo: np.ndarray) -> str:
    """Say whether the ELBO still rises or falls in the second half of its history."""
    tail = elbo[len(elbo) // 2 :]
    tail = tail[np.isfinite(tail)]
    if len(tail) < 20:
        return "too few steps to see a trend of the ELBO"
    early, late = np.array_split(tail, 2)
    rise = late.mean() - early.mean()
    # Means of batches, since the estimates of neighbouring steps are correlated.
    batches = [np.array([b.mean() for b in np.array_split(part, 5)]) for part in (early, late)]
    error = math.sqrt(sum(b.var(ddof=1) / 5 for b in batches))
    if abs(rise) > 3 * error and abs(rise) > 1e-6 * abs(late.mean()):
        per = 1000 * rise / (len(tail) / 2)
        return f"the ELBO still {'rises' if rise > 0 else 'falls'}, by {abs(per):.2g} nats per 1,000 steps"
    return "the ELBO no longer shows a clear trend"


def _fell(elbo: np.ndarray) -> str:
    """Say so if the ELBO ends clearly below its best: a part of the guide may have collapsed."""
    width = max(50, len(elbo) // 20)
    number = len(elbo) // width
    if number < 4:
        return ""
    parts = elbo[len(elbo) - number * width :].reshape(number, width)
    means = parts.mean(1)
    # Neighbouring steps are correlated, so the error comes from the spread within a part, not of single steps.
    spread = np.array([[piece.mean() for piece in np.array_split(part, 5)] for part in parts]).std(
        1, ddof=1
    ) / math.sqrt(5)
    best = int(np.argmax(means))
    end, drop = means[-2:].mean(), means[best] - means[-2:].mean()
    error = math.hypot(spread[best], float(np.hypot(*spread[-2:])) / 2)
    if drop > 6 * error and drop > 0.01 * (means[best] - elbo[:width].mean()) and drop > 1e-4 * abs(end):
        return (
            f"was {means[best]:.4g} around step {len(elbo) - (number - best) * width:,} and is {end:.4g} at the end"
        )
    return ""


def _ordinal(n: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(n, f"{n}th")


def _as_good(comparison: GuideComparison, best: Any, other: Any, key: jax.Array, loaded: Loaded) -> bool:
    """Whether the ELBOs of two ends cannot be told apart."""
    gain, error = comparison.gain(best, other, key, loaded, _RANK_DRAWS)
    return gain >= -2.0 * error


def _compare(
    program: CompiledLoop, comparison: GuideComparison, now: Progress, results: list[FitResult]
) -> tuple[int, tuple[int, ...]]:
    """Return the start with the best ELBO, and the starts that ended elsewhere with an ELBO not much worse.

    Among starts that are as good as the best, take the one that converged first.
    """
    key, loaded = program.keys[0], program.feed.load(max(0, now.at - 1))
    ends = [_end(program, now, i)[0] for i in range(len(results))]
    elbos = [comparison.elbo(end, key, loaded, _RANK_DRAWS) for end in ends]
    elbos = [e if math.isfinite(e) and i not in now.failures else -math.inf for i, e in enumerate(elbos)]
    top = int(np.argmax(elbos))
    best = min(
        (i for i in range(len(ends)) if i == top or _as_good(comparison, ends[top], ends[i], key, loaded)),
        key=lambda i: (i in now.failures, not results[i].converged, results[i].steps),
    )
    other_modes = [
        i
        for i, elbo in enumerate(elbos)
        if i != best
        and elbo > elbos[best] - _MUCH_WORSE
        and not max(
            comparison.distance(ends[best], ends[i], key, loaded),
            comparison.distance(ends[i], ends[best], key, loaded),
        )
        < _APART
    ]
    return best, tuple(other_modes)
