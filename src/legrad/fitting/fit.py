"""`fit`: assemble the parts of a fit. `compiled_loop` takes the steps, `host_loop` runs them, `stopping` and
`conclusion` end them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh
from numpyro.infer.elbo import ELBO

from legrad.estimators import LocalExpectation
from legrad.fitting.automatic import prepared, solvable, solve
from legrad.fitting.callbacks import Callback
from legrad.fitting.checkpoint import Checkpoint, Progress, estimator_of, identity
from legrad.fitting.checks import check_observed, check_start
from legrad.fitting.compiled_loop import CompiledLoop
from legrad.fitting.conclusion import finish
from legrad.fitting.data import Feed, Minibatches
from legrad.fitting.entrance import entrance
from legrad.fitting.estimator_choice import candidates, choose
from legrad.fitting.exact_climb import climb, has_no_noise
from legrad.fitting.guide_comparison import GuideComparison
from legrad.fitting.host_loop import HostLoop
from legrad.fitting.joint_start import joint_start
from legrad.fitting.mesh import cut_of
from legrad.fitting.result import FitResult
from legrad.fitting.rounds import fit_in_rounds
from legrad.fitting.starts import scattered
from legrad.fitting.stopping import AutoStop, Stopping
from legrad.fitting.summed_out import exact_result
from legrad.fitting.telling import tell
from legrad.fitting.unrated import RATE, is_amortized, steps_without_rate
from legrad.guides.protocol import OtherStarts
from legrad.guides.structured import Structured
from legrad.marginal.marginalize import Marginal
from legrad.model.keys import Key, as_key
from legrad.model.objective import Given
from legrad.model.parameters import Parameters
from legrad.model.problem import Problem

_STEPS, _STEPS_AUTO = 2000, 100_000


@entrance
def fit(
    model: Callable[..., Any],
    guide: Callable[..., Any] | None = None,
    *,
    key: Key,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    data: Minibatches | None = None,
    mesh: Mesh | None = None,
    estimator: ELBO | str | None = None,
    optimizer: optax.GradientTransformation | None = None,
    steps: int | None = None,
    stop: str | AutoStop | None = None,
    seconds: float | None = None,
    restarts: int | None = None,
    marginalize: bool = True,
    init_params: Mapping[str, Any] | None = None,
    checkpoint: Any = None,
    checkpoint_every: int | None = None,
    callback: Callback | Sequence[Callback] | None = None,
    callback_every: int = 100,
    progress: bool | str | None = None,
) -> FitResult:
    """Fit a guide to a model by stochastic gradients of the ELBO; without a guide, fit `legrad.Structured(model)`.

    Without a guide, discrete latents are summed out where that can be done exactly. If only continuous ones are left,
    no step is random: a Gaussian in unconstrained space is fitted from the posterior's mode to the ELBO of fixed
    draws, more of them until fresh draws confirm the answer; `result.method` says what was done. Settings of the
    stochastic loop (`data`, `mesh`, `estimator`, `optimizer`, `steps`, `stop`, `init_params`, `checkpoint`,
    `callback`) take that loop instead, with `stop="auto"` unless `steps` or `stop` is given.

    Args:
        model: a NumPyro model, or `legrad.log_density(f)`.
        guide: a NumPyro guide, such as `legrad.MeanField(model)`; `legrad.Structured(model)` if None.
        key: the random key, or a whole number that seeds one. The same key gives the same fit; with `seconds`, the
            number of steps may still differ.
        args: positional arguments of model and guide; arrays among them are data. Data frames become arrays, and
            their columns become names in `result.summary`.
        kwargs: keyword arguments of model and guide.
        data: minibatches of arrays that are too large for the device or for memory; they are passed after `args`.
        mesh: devices that share the work, `jax.make_mesh((8,), ("data",))`: data and parameters of the members of the
            largest plate are spread over them. The result is that of one device, up to rounding. docs/distributed.md
            tells how several processes fit together.
        estimator: one of legrad's estimators, or any NumPyro ELBO; `LocalExpectation()` if None. "auto" runs a short
            trial of the estimators that suit the guide, and takes the fastest; `result.method` names it.
        optimizer: an optax optimizer, schedules included. If None, and `steps` and `stop` are None, too, no learning
            rate is needed and the fit stops by itself: an ELBO without noise (`result.deterministic`) is climbed by
            natural steps and L-BFGS; one with noise by natural steps that shrink, or by Adam where a step sees a part
            of the data, a network infers the latents, or latents of the guide depend on each other. With `steps` it
            is `optax.adam(1e-2)`; with `stop="auto"` an ELBO with noise takes `optax.adam(5e-2)`.
        steps: the maximum number of steps; if None, 100,000 where the fit stops by itself, 2,000 otherwise.
        stop: "auto" ends the fit when more steps would change nothing, and returns the average of the last iterates;
            `legrad.AutoStop(...)` does the same with other settings; None takes all steps, or is "auto" if neither
            `optimizer` nor `steps` are given.
        seconds: the maximum running time in seconds, compilation not counted; None for no limit.
        restarts: how many starts to fit; the best is the result, and all are in `result.restarts`. If None, one;
            without a guide, four if the model may have several modes: components that can be relabelled, discrete
            latents that cannot be summed out.
        marginalize: without a guide, whether to sum discrete latents out where that can be done; see
            `legrad.marginalize`. `result.sample` draws them back.
        init_params: parameter values to start from, constrained.
        checkpoint: a folder for checkpoints; after a kill, the same call resumes there and ends with the same result.
        checkpoint_every: steps between two checkpoints; if None, one is written every half minute.
        callback: one function or several, called with a `Snapshot` every `callback_every` steps; returning True
            ends the fit.
        callback_every: steps between two calls of the callbacks.
        progress: whether to show a progress bar; a string is its label; if None, only when the output is a terminal.

    Returns:
        The fitted parameters, how the fit ended, the ELBO of every step, and methods to sample, check and save.

    Example:
        >>> result = legrad.fit(model, args=(X, y), key=jax.random.key(0))
        >>> result.sample(jax.random.key(1), 1000), result.converged, result.status
    """
    begun, key, note = time.perf_counter(), as_key(key), ""
    if guide is None:
        _check_arguments(args, data, seconds)
        _check_counts(restarts=restarts)
        if marginalize:
            model = prepared(model, args, kwargs or {}, data is None)
        if data is None and isinstance(model, Marginal) and model.is_exact(*args, **(kwargs or {})):
            return exact_result(model, args, kwargs or {}, begun)
        guide = Structured(model)
        of_loop = (data, mesh, estimator, optimizer, steps, stop, init_params, checkpoint, callback)
        plain = all(setting is None for setting in of_loop)
        if plain and solvable(guide, args, kwargs or {}):
            return solve(guide, args, kwargs or {}, key, seconds, restarts, begun)
        whole = data is None and mesh is None
        tell("looking for a start")
        start = joint_start(guide, args, kwargs or {}, jax.random.fold_in(key, 3)) if whole else None
        if start is not None and plain and restarts in (None, 1):
            run = partial(fit, model, guide, args=args, kwargs=kwargs, seconds=seconds, progress=progress)
            return replace(fit_in_rounds(run, start, key), seconds=time.perf_counter() - begun)
        stop = "auto" if steps is None and stop is None else stop
        if start is not None:
            init_params, note = start.params | dict(init_params or {}), start.note
    restarts = 1 if restarts is None else restarts
    unrated = optimizer is None and steps is None and stop is None
    rule: Any = AutoStop() if stop == "auto" or unrated else stop
    chosen: Any = LocalExpectation() if estimator is None else estimator
    of_the_loop = (optimizer, steps, None if stop == "auto" else stop, data, checkpoint, callback, mesh)
    may_climb = all(setting is None for setting in of_the_loop) and chosen != "auto"
    optimizer = optax.adam(1e-2 if rule is None else RATE) if optimizer is None else optimizer
    steps = (_STEPS if rule is None else _STEPS_AUTO) if steps is None else steps
    callbacks = [callback] if callable(callback) else list(callback or ())
    _check(chosen, optimizer, rule, seconds, args, data, callbacks)
    _check_counts(steps=steps, restarts=restarts, checkpoint_every=checkpoint_every, callback_every=callback_every)
    steps, kwargs = int(steps), dict(kwargs or {})
    of_init, of_check, of_steps = jax.random.split(key, 3)

    if chosen == "auto" and mesh is not None and jax.process_count() > 1:
        raise ValueError("estimator='auto' measures time, which differs between processes: name an estimator")
    rows = None if data is None else (data.rows, data.size)
    cut = None if mesh is None else cut_of(mesh, model, guide, args, kwargs, rows)
    cut = None if cut is not None and cut.is_plain else cut
    feed = Feed(args, kwargs, data, int(np.asarray(jax.random.key_data(of_steps)).ravel()[-1]), cut)
    try:
        tell("planning the steps")
        first = feed.at(feed.load(0), 0)
        parameters = Parameters(model, guide, first.args, first.kwargs, of_init, init_params)
        feed.find_plates(model, guide)
        first = feed.at(feed.load(0), 0)
        problem = Problem(model, guide, parameters.initial | first.plates, first.args, first.kwargs)
        if mesh is not None and data is None:
            check_observed(model, first, Given(args, kwargs, {}))
        climbs = may_climb and has_no_noise(problem, chosen) and not is_amortized(problem, parameters)
        terms = {} if climbs else check_start(problem, of_check)
        if unrated and not climbs:
            whole = data is None and mesh is None
            optimizer, how = steps_without_rate(problem, parameters, chosen, whole)
            note = "; ".join(words for words in (note, how) if words)
        if chosen == "auto":
            before = None if checkpoint is None else estimator_of(checkpoint, candidates(problem))
            chosen = before or choose(model, guide, parameters, first, optimizer, jax.random.fold_in(key, 2))

        keys = (
            [of_steps] if restarts == 1 else [of_steps, *jax.random.split(jax.random.fold_in(key, 1), restarts - 1)]
        )
        starts = [parameters.start]
        for start_key in keys[1:]:
            of_other, of_place, of_move = jax.random.split(start_key, 3)
            place: dict[str, Any] = (
                guide.other_start(of_place, first.args, first.kwargs) if isinstance(guide, OtherStarts) else {}
            )
            given = place | dict(init_params or {})
            other = Parameters(model, guide, first.args, first.kwargs, of_other, given)
            starts.append(scattered(starts[0], other.unconstrain(other.initial), of_move))
        program = CompiledLoop(model, guide, parameters, chosen, optimizer, feed, jax.numpy.stack(keys))
        comparison = GuideComparison(program)
        if climbs:
            limit, check = math.inf if seconds is None else seconds, partial(check_start, problem, of_check)
            return climb(program, comparison, starts, limit, progress, begun, check)
        stoppings = [Stopping(rule, comparison, k, s) for k, s in zip(keys, starts, strict=True)] if rule else []
        state = program.begin(starts, steps, rule.block if rule else None)
        now = Progress(state, 0, np.full(restarts, steps), records=[s.record for s in stoppings])
        kept = None
        if checkpoint is not None:
            mine = identity(key=key, starts=starts, estimator=chosen, optimizer=optimizer, stop=rule,
                            args=(args, kwargs), data=data, terms=terms)  # fmt: skip
            kept = Checkpoint(checkpoint, mine)
            now = kept.load(now, steps) or now
            now = replace(now, state=program.place(now.state))
            for stopping, record in zip(stoppings, now.records, strict=True):
                stopping.record = record
        limit = math.inf if seconds is None else seconds
        loop = HostLoop(program, steps, limit, stoppings, kept, checkpoint_every, callbacks, callback_every, progress)
        now, ended = loop.run(now)
        result = finish(program, comparison, now, ended, steps, seconds, time.perf_counter() - begun)
        return replace(result, note=note)
    finally:
        feed.close()


def _check(
    estimator: Any, optimizer: Any, rule: Any, seconds: Any, args: Any, data: Any, callbacks: Sequence[Any]
) -> None:
    _check_arguments(args, data, seconds)
    if rule is not None and not isinstance(rule, AutoStop):
        raise ValueError(f"stop={rule!r}: give 'auto', legrad.AutoStop(...), or None for a fixed number of steps")
    if not isinstance(estimator, ELBO) and estimator != "auto":
        raise TypeError(
            f"estimator={estimator!r} is not an estimator: pass an object such as legrad.LocalExpectation(), "
            "or 'auto'"
        )
    if not isinstance(optimizer, optax.GradientTransformation):
        raise TypeError(f"optimizer={optimizer!r} is not an optax optimizer: pass one such as optax.adam(1e-2)")
    for callback in callbacks:
        if not callable(callback):
            raise TypeError(f"callback={callback!r} cannot be called: pass a function of a legrad.Snapshot")


def _check_arguments(args: Any, data: Any, seconds: Any) -> None:
    if seconds is not None and not (isinstance(seconds, int | float) and seconds > 0):
        raise ValueError(f"seconds={seconds!r}: give a positive number, or None for no limit")
    if not isinstance(args, tuple):
        raise TypeError(f"args is a {type(args).__name__}: pass the model's arguments as a tuple, args=(X, y)")
    if data is not None and not isinstance(data, Minibatches):
        raise TypeError(f"data is a {type(data).__name__}: pass data=legrad.Minibatches(X, y, size=100)")


def _check_counts(**counts: int | None) -> None:
    for name, number in counts.items():
        if number is None and name in ("checkpoint_every", "restarts"):
            continue
        if not isinstance(number, int | np.integer) or isinstance(number, bool) or number < 1:
            raise ValueError(f"{name}={number!r}: a fit needs a whole number of at least 1")
