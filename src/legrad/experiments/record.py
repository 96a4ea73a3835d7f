"""A fit that keeps what the paper plots: one coordinate's gradient at each step, and parameters along the way.

`legrad.fit` takes any optax optimizer, so the record is one: it lets the gradient pass and remembers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpyro.infer.elbo import ELBO

from legrad.experiments.stages import Arrays
from legrad.fitting.fit import fit


class Record(NamedTuple):
    """The first optimizer's state: the step, the coordinate's gradients, and the parameters before chosen steps."""

    step: jax.Array
    gradient: jax.Array
    kept: Any


def record(steps: int, pick: Callable[[Any], jax.Array], keep: Sequence[int]) -> optax.GradientTransformation:
    """An optimizer that changes nothing and remembers `pick(gradient)` of each step, and parameters at `keep`."""
    at = jnp.asarray(keep, int)

    def init(params: Any) -> Record:
        kept = jax.tree.map(lambda p: jnp.zeros((len(keep), *jnp.shape(p)), p.dtype), params)
        return Record(jnp.zeros((), int), jnp.zeros(steps), kept)

    def update(gradient: Any, state: Record, params: Any = None) -> tuple[Any, Record]:
        i = state.step
        kept = state.kept
        if keep:
            row = jnp.where(jnp.isin(i, at), jnp.searchsorted(at, i), len(keep))  # past the end: dropped
            kept = jax.tree.map(lambda k, p: k.at[row].set(p, mode="drop"), kept, params)
        return gradient, Record(i + 1, state.gradient.at[i].set(pick(gradient)), kept)

    return optax.GradientTransformation(init, update)


def trajectory(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    args: tuple[Any, ...],
    estimator: ELBO,
    optimizer: optax.GradientTransformation,
    *,
    steps: int,
    seed: int,
    pick: Callable[[Any], jax.Array],
    keep: Sequence[int] = (0,),
    seconds: float | None = None,
    label: str,
) -> Arrays:
    """Fit, and return the record as arrays.

    They are `elbo`, `gradient` and `seconds` by step, `final NAME`, and `kept NAME`, which is unconstrained.
    """
    result = fit(
        model,
        guide,
        args=args,
        key=jax.random.key(seed),
        estimator=estimator,
        optimizer=optax.chain(record(steps, pick, keep), optimizer),
        steps=steps,
        seconds=seconds,
        progress=label,
    )
    kept: Record = result.optimizer_state[0]
    found = {
        "elbo": result.elbo,
        "gradient": np.asarray(kept.gradient)[: result.steps],
        "seconds": seconds_of_steps(result.clock),
    }
    found |= {f"final {name}": np.asarray(value) for name, value in result.params.items()}
    reached = [row for row, step in enumerate(keep) if step < result.steps]
    found["kept steps"] = np.asarray([keep[row] for row in reached])
    return found | {f"kept {name}": np.asarray(value)[reached] for name, value in kept.kept.items()}


def seconds_of_steps(clock: np.ndarray) -> np.ndarray:
    """Return the seconds after each step without compilation: the first step counts as the mean of later steps."""
    steps, seconds = clock[1:].T
    each = (seconds[-1] - seconds[0]) / max(1.0, steps[-1] - steps[0])
    return each + np.interp(np.arange(1, steps[-1] + 1), steps, seconds - seconds[0])


def window_variance(gradient: np.ndarray, width: int = 10) -> np.ndarray:
    """The paper's measure: the variance of one coordinate over the last `width` steps, at each step."""
    return np.lib.stride_tricks.sliding_window_view(gradient, width).var(axis=-1, ddof=1)
