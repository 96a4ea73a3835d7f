"""The one loop: it drives any estimator with any optax optimizer, compiled in chunks of steps."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpyro.infer.elbo import ELBO
from tqdm.auto import tqdm

from legrad.estimators import LocalExpectation
from legrad.fitting.arrays import split_arrays
from legrad.fitting.checks import check_start
from legrad.fitting.parameters import Parameters
from legrad.fitting.result import FitResult
from legrad.known import known
from legrad.problem import Problem

_CHUNK_SECONDS = 0.5  # how long compiled code runs between two looks at the clock


def fit(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    *,
    key: jax.Array,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    estimator: ELBO | None = None,
    optimizer: optax.GradientTransformation | None = None,
    steps: int = 2000,
    seconds: float | None = None,
    init_params: Mapping[str, Any] | None = None,
    progress: bool | str | None = None,
) -> FitResult:
    """Fit a guide to a model by stochastic gradients of the ELBO.

    Args:
        model: a NumPyro model, or `legrad.log_density(f)`.
        guide: a NumPyro guide, such as `legrad.MeanField(model)`.
        key: the random key; the same key gives the same fit (with `seconds`, of as many steps as there was time for).
        args: arguments of model and guide; arrays among them are data.
        kwargs: keyword arguments of model and guide.
        estimator: any of legrad's, or any NumPyro ELBO; `LocalExpectation()` if None.
        optimizer: an optax optimizer, schedules included; `optax.adam(1e-2)` if None.
        steps: how many, at most.
        seconds: stop after so many seconds of running (compiling is not counted); None: when the steps are done.
        init_params: parameter values to start from, constrained.
        progress: show a progress bar, with a label if it is a string; if None, where the output is a terminal.

    Returns:
        The parameters, the ELBO of every step, and what to do with them.

    Example:
        >>> result = legrad.fit(model, legrad.MeanField(model), args=(X, y), key=jax.random.key(0))
        >>> result.params, result.elbo[-1]
    """
    estimator = LocalExpectation() if estimator is None else estimator
    optimizer = optax.adam(1e-2) if optimizer is None else optimizer
    _check(estimator, optimizer, steps, seconds, args)
    kwargs = dict(kwargs or {})
    of_init, of_check, of_steps = jax.random.split(key, 3)
    parameters = Parameters(model, guide, args, kwargs, of_init, init_params)
    check_start(Problem(model, guide, parameters.initial, args, kwargs), of_check)

    arrays, rebuild = split_arrays((args, kwargs))

    @jax.jit
    def run(state: Any, start: jax.Array, number: jax.Array, *, key: jax.Array, data: Any) -> Any:
        args, kwargs = rebuild(data)

        def loss(unconstrained: dict[str, Any], key: jax.Array) -> jax.Array:
            return estimator.loss(key, parameters.constrain(unconstrained), model, guide, *args, **kwargs)

        def step(i: jax.Array, carry: Any) -> Any:
            unconstrained, memory, history = carry
            value, gradient = jax.value_and_grad(loss)(unconstrained, jax.random.fold_in(key, i))
            updates, memory = optimizer.update(gradient, memory, unconstrained)
            history = history.at[i].set(-value)
            return optax.apply_updates(unconstrained, updates), memory, history

        # A loop with traced bounds is one compiled program for chunks of any length. It is compiled for these data
        # alone, so what is sparse in them may be planned.
        with known(data, arrays):
            return jax.lax.fori_loop(start, start + number, step, state)

    unconstrained = parameters.unconstrain(parameters.initial)
    history = jnp.full(steps, jnp.nan, jnp.result_type(float))
    state = (unconstrained, optimizer.init(unconstrained), history)
    begun = time.perf_counter()
    advance = partial(run, key=of_steps, data=arrays)
    state, clock = _drive(advance, state, steps, math.inf if seconds is None else seconds, progress)
    done = int(clock[-1, 0])
    return FitResult(
        params=jax.device_get(parameters.constrain(state[0])),
        elbo=np.asarray(state[2])[:done],
        steps=done,
        seconds=time.perf_counter() - begun,
        clock=clock,
        problem=Problem(model, guide, parameters.constrain(state[0]), args, kwargs),
        estimator=estimator,
        optimizer_state=jax.device_get(state[1]),
    )


def _drive(
    advance: Callable[..., Any], state: Any, steps: int, seconds: float, progress: bool | str | None
) -> tuple[Any, np.ndarray]:
    """Run the steps, in chunks that take about half a second each; the state, and the clock after each chunk."""
    done, chunk = 0, 1
    clock = [(0.0, 0.0)]
    hide = not (sys.stderr.isatty() if progress is None else progress)
    label = progress if isinstance(progress, str) else None
    timed = not math.isinf(seconds)
    form = "{l_bar}{bar}| {n:.0f}/{total:.0f} s{postfix}" if timed else None
    with tqdm(total=seconds if timed else steps, disable=hide, unit="step", desc=label, bar_format=form) as bar:
        while done < steps and chunk:
            begun = time.perf_counter()
            state = jax.block_until_ready(advance(state, done, chunk))
            took = time.perf_counter() - begun
            done += chunk
            clock.append((done, clock[-1][1] + took))
            ran = clock[-1][1] - clock[1][1]  # the first chunk's time is that of compiling
            if not hide:
                bar.set_postfix_str(f"{f'step {done:,}, ' if timed else ''}ELBO {_recent(state[2], done):.4g}")
                bar.update(min(ran, seconds) - bar.n if timed else chunk)
            chunk = min(_next_chunk(chunk, done, took, seconds - ran), steps - done)
    return state, np.asarray(clock)


def _next_chunk(chunk: int, done: int, took: float, left: float) -> int:
    """How many steps come next: as many as take half a second, and no more than there is time for."""
    if left <= 0:
        return 0
    if done == 1:
        return 2 if math.isinf(left) else 1  # how long a step takes is not known yet
    each = max(took / chunk, 1e-9)
    if took < _CHUNK_SECONDS:
        chunk = min(4 * chunk, max(1, int(_CHUNK_SECONDS / each)))
    return max(1, min(chunk, int(min(left, 1e9) / each)))


def _recent(history: jax.Array, done: int) -> float:
    return float(np.mean(np.asarray(history[max(0, done - 100) : done])))


def _check(estimator: Any, optimizer: Any, steps: Any, seconds: Any, args: Any) -> None:
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise ValueError(f"steps={steps!r}: a fit needs a whole number of at least 1")
    if seconds is not None and not (isinstance(seconds, int | float) and seconds > 0):
        raise ValueError(f"seconds={seconds!r}: give a positive number, or None for no limit")
    if not isinstance(estimator, ELBO):
        raise TypeError(f"estimator={estimator!r} is no estimator: pass an object such as legrad.LocalExpectation()")
    if not isinstance(optimizer, optax.GradientTransformation):
        raise TypeError(f"optimizer={optimizer!r} is no optax optimizer: pass one such as optax.adam(1e-2)")
    if not isinstance(args, tuple):
        raise TypeError(f"args is a {type(args).__name__}: pass the model's arguments as a tuple, args=(X, y)")
