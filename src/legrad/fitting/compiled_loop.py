"""The compiled part of a fit: many steps of gradient and optimizer as one program, for one start or several.

A step that is not finite (ELBO, gradient, or resulting parameters) is not taken: its start keeps the parameters from
before that step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpyro.infer.elbo import ELBO

from legrad._compiled import jit
from legrad.fitting.data import Feed, Loaded
from legrad.fitting.iterates import Blocks
from legrad.model.objective import Objective, update
from legrad.model.parameters import Parameters


class State(NamedTuple):
    """The state of a start: everything that the next step depends on, and the history so far.

    Attributes:
        step: how many steps were taken.
        unconstrained: the unconstrained parameters.
        memory: the optimizer's state.
        rate: the factor that multiplies the optimizer's updates.
        elbo: the ELBO estimate of each step.
        noise: for each step, half the mean squared difference of its gradient from the previous gradient: the
            variance of a component of the gradient, provided that the gradient's mean does not move.
        gradient: the last gradient.
        blocks: the iterates in blocks, if there is a stopping rule.
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
        parameters: the parameters of model and guide.
        estimator: the estimator of loss and gradient.
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
        self.estimator, self.optimizer, self.feed = estimator, optimizer, feed
        self.keys = keys if feed.cut is None else feed.cut.copies(keys)
        self._advance = jit(self._advance_all)  # per object: a static `self` would stay in JAX's cache

    def begin(self, starts: list[dict[str, Any]], steps: int, block: int | None) -> State:
        """Return the state before the first step, with room for the history of `steps` steps."""

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

        return self.place(self.stack([one(start) for start in starts]))

    def place(self, state: State) -> State:
        """Return a state on the devices of the fit."""
        lead = 0 if len(self.keys) == 1 else 1
        return state if self.feed.cut is None else self.feed.cut.place_state(state, lead)

    def stack(self, states: list[State]) -> State:
        """Stack the states of several starts; the state of a single start is returned unchanged."""
        return states[0] if len(self.keys) == 1 else jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)

    def take(self, state: Any, start: int) -> Any:
        """Return the state (or a part of it) of one start."""
        return state if len(self.keys) == 1 else jax.tree.map(lambda leaf: leaf[start], state)

    def put(self, state: Any, start: int, one: Any) -> Any:
        """Return the state of all starts with that of one start replaced."""
        return one if len(self.keys) == 1 else jax.tree.map(lambda s, x: s.at[start].set(x), state, one)

    def advance(self, state: State, ends: np.ndarray, loaded: Loaded) -> tuple[State, dict[int, int]]:
        """Take the steps up to `ends`, one per start; also return the starts that failed, each with its bad step."""
        after = self._advance(state, self.keys, jnp.asarray(ends, jnp.int32), loaded)
        failed, steps = (np.atleast_1d(x) for x in jax.device_get((after.failed, after.step)))
        if not failed.any():
            return after, {}
        # The state after a step that is not finite is useless: repeat the steps before it, which are deterministic.
        ends = np.where(failed, steps - 1, ends)
        after = self._advance(state, self.keys, jnp.asarray(ends, jnp.int32), loaded)
        return after, {int(r): int(ends[r]) for r in np.flatnonzero(failed)}

    def _advance_all(self, state: State, keys: jax.Array, ends: jax.Array, loaded: Loaded) -> State:
        with self.feed.tracing(loaded):
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
        # The optimizer's state counts, too: with an infinite second moment Adam would stand still forever.
        sound = _finite(memory) | ~_finite(state.memory)  # some optimizers hold an infinity from the beginning
        failed = ~(jnp.isfinite(value) & _finite(gradient) & _finite(new) & sound)

        after = State(
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
        return after if self.feed.cut is None else self.feed.cut.keep(after)


def _finite(tree: Any) -> jax.Array:
    floats = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    leaves = [jnp.all(jnp.isfinite(leaf)) for leaf in floats]
    return jnp.all(jnp.stack(leaves)) if leaves else jnp.asarray(True)


def _half_squared_difference(a: Any, b: Any) -> jax.Array:
    squares = jax.tree.map(lambda x, y: jnp.sum((x - y) ** 2), a, b)
    size = sum(leaf.size for leaf in jax.tree.leaves(a))
    return 0.5 * sum(jax.tree.leaves(squares)) / size
