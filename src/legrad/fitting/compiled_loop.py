"""The compiled part of a fit: many steps of gradient and optimizer as one program, for one start or several.

A step that is not finite (ELBO, gradient, or the parameters it would lead to) is not taken: the start that it
happened to stays where it was before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpyro.infer.elbo import ELBO

from legrad._compat import jit
from legrad.fitting.data import Feed, Loaded
from legrad.fitting.iterates import Blocks
from legrad.model.objective import Objective, update
from legrad.model.parameters import Parameters
from legrad.trace.concrete import compiled_for


class State(NamedTuple):
    """Where a start is: all that the next step depends on, and what has been seen.

    Attributes:
        step: how many steps were taken.
        unconstrained: the parameters.
        memory: the optimizer's state.
        rate: what the optimizer's updates are multiplied with.
        elbo: the estimate of each step.
        noise: of each step, half the mean squared difference of its gradient from the one before: the variance of
            a component of the gradient, as far as the gradient's mean does not move.
        gradient: the last one.
        blocks: the iterates in blocks, where someone asks for them.
        failed: whether the last step was not finite.
    """

    step: jax.Array
    unconstrained: dict[str, Any]
    memory: Any
    rate: jax.Array
    elbo: jax.Array
    noise: jax.Array
    gradient: Any
    blocks: Blocks | None
    failed: jax.Array


class CompiledLoop:
    """The steps of a fit, compiled once.

    Args:
        model: the model.
        guide: the guide.
        parameters: theirs.
        estimator: gives loss and gradient.
        optimizer: an optax optimizer.
        feed: the data of each step.
        keys: the random key of each start, on a leading axis.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        parameters: Parameters,
        estimator: ELBO,
        optimizer: optax.GradientTransformation,
        feed: Feed,
        keys: jax.Array,
    ) -> None:
        self.objective = Objective(model, guide, parameters)
        self.model, self.guide, self.parameters = model, guide, parameters
        self.estimator, self.optimizer, self.feed, self.keys = estimator, optimizer, feed, keys
        self._advance = jit(self._advance_all)  # of this object: a static `self` would stay in JAX's cache

    def begin(self, starts: list[dict[str, Any]], steps: int, block: int | None) -> State:
        """The state before the first step, with room for the history of `steps`."""

        def one(unconstrained: dict[str, Any]) -> State:
            empty = jnp.full(steps, jnp.nan, jnp.result_type(float))
            return State(
                step=jnp.asarray(0, jnp.int32),
                unconstrained=unconstrained,
                memory=self.optimizer.init(unconstrained),
                rate=jnp.ones((), jnp.result_type(float)),
                elbo=empty,
                noise=empty,
                gradient=jax.tree.map(jnp.zeros_like, unconstrained),
                blocks=None if block is None else Blocks.empty(unconstrained, block),
                failed=jnp.asarray(False),
            )

        return self.stack([one(start) for start in starts])

    def stack(self, states: list[State]) -> State:
        """Several starts as one state; a single one stays as it is."""
        return states[0] if len(self.keys) == 1 else jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)

    def take(self, state: Any, start: int) -> Any:
        """The state (or a part of it) of one start."""
        return state if len(self.keys) == 1 else jax.tree.map(lambda leaf: leaf[start], state)

    def put(self, state: Any, start: int, one: Any) -> Any:
        """The state with that of one start replaced."""
        return one if len(self.keys) == 1 else jax.tree.map(lambda s, x: s.at[start].set(x), state, one)

    def advance(self, state: State, ends: np.ndarray, loaded: Loaded) -> tuple[State, dict[int, int]]:
        """Take the steps up to `ends`, one for each start; also the starts that cannot, with the step that fails."""
        after = self._advance(state, self.keys, jnp.asarray(ends, jnp.int32), loaded)
        failed, steps = (np.atleast_1d(x) for x in jax.device_get((after.failed, after.step)))
        if not failed.any():
            return after, {}
        # The state after a step that is not finite is of no use: take the steps before it again, which are the same.
        ends = np.where(failed, steps - 1, ends)
        after = self._advance(state, self.keys, jnp.asarray(ends, jnp.int32), loaded)
        return after, {int(r): int(ends[r]) for r in np.flatnonzero(failed)}

    def _advance_all(self, state: State, keys: jax.Array, ends: jax.Array, loaded: Loaded) -> State:
        # It is compiled for these arrays alone, so what is sparse in them may be planned.
        with compiled_for(loaded.arrays, self.feed.arrays):
            if len(self.keys) == 1:
                return self._run(state, keys[0], ends[0], loaded)
            return jax.vmap(self._run, in_axes=(0, 0, 0, None))(state, keys, ends, loaded)

    def _run(self, state: State, key: jax.Array, end: jax.Array, loaded: Loaded) -> State:
        def go_on(state: State) -> jax.Array:
            return (state.step < end) & ~state.failed

        # A loop with traced bounds is one compiled program for chunks of any length.
        return jax.lax.while_loop(go_on, lambda state: self._step(state, key, loaded), state)

    def _step(self, state: State, key: jax.Array, loaded: Loaded) -> State:
        i, old = state.step, state.unconstrained
        given, of_step = self.feed.at(loaded, i), jax.random.fold_in(key, i)

        def loss(unconstrained: dict[str, Any]) -> jax.Array:
            return self.objective.loss(self.estimator, unconstrained, of_step, given)

        value, gradient, new, memory = update(loss, self.optimizer, old, state.memory, state.rate)
        # The optimizer's state counts, too: with an infinite second moment Adam would stand still for ever.
        sound = _finite(memory) | ~_finite(state.memory)  # some hold an infinity from the beginning
        failed = ~(jnp.isfinite(value) & _finite(gradient) & _finite(new) & sound)

        return State(
            step=i + 1,
            unconstrained=new,
            memory=memory,
            rate=state.rate,
            elbo=state.elbo.at[i].set(-value),
            noise=state.noise.at[i].set(
                jnp.where(i > 0, _half_squared_difference(gradient, state.gradient), jnp.nan)
            ),
            gradient=gradient,
            blocks=None if state.blocks is None else state.blocks.add(new),
            failed=failed,
        )


def _finite(tree: Any) -> jax.Array:
    floats = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    leaves = [jnp.all(jnp.isfinite(leaf)) for leaf in floats]
    return jnp.all(jnp.stack(leaves)) if leaves else jnp.asarray(True)


def _half_squared_difference(a: Any, b: Any) -> jax.Array:
    squares = jax.tree.map(lambda x, y: jnp.sum((x - y) ** 2), a, b)
    size = sum(leaf.size for leaf in jax.tree.leaves(a))
    return 0.5 * sum(jax.tree.leaves(squares)) / size
