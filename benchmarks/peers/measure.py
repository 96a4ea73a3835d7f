"""Gradients of a method at fixed parameters: variance, agreement, seconds, all from one compiled program.

The program takes steps of gradient descent, x ← x − rate · g, and gives the last g. With a rate of zero, which the
compiler does not know, the parameters stay and nothing that depends on them can be taken out of the loop. One step is
a draw of the gradient; many steps are timed, so that a small problem is not measured by the time of calling it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from estimators import Method
from row import Peer

from legrad._compiled import jit
from legrad.diagnostics.gradients import gradient_at
from legrad.diagnostics.timing import interleaved_seconds
from legrad.model.arrays import split_arrays
from legrad.model.objective import Given, Objective
from legrad.model.parameters import Parameters
from legrad.trace.concrete import compiled_for

DIRECTIONS = 8  # random projections in which means are compared


class Gradients:
    """The compiled gradients of one method on one problem.

    Args:
        peer: the problem.
        method: the estimator.

    Attributes:
        compiled: the seconds that compiling took.
        temporaries: the bytes that the program needs beside its arguments and results.
    """

    def __init__(self, peer: Peer, method: Method) -> None:
        parameters = Parameters(method.model, method.guide, peer.args, {}, jax.random.key(0), peer.params)
        objective = Objective(method.model, method.guide, parameters)
        self.at = parameters.unconstrain(parameters.initial)
        self.arrays, rebuild = split_arrays(peer.args)

        def gradient(at: Any, key: jax.Array, args: tuple[Any, ...]) -> dict[str, jax.Array]:
            if method.hand is not None:
                return jax.tree.map(jnp.negative, method.hand(parameters.constrain(at), key, args))
            return gradient_at(objective, method.estimator, at, key, Given(args, {}, {}))

        def run(at: Any, key: jax.Array, steps: jax.Array, rate: jax.Array, arrays: Any) -> Any:
            with compiled_for(arrays, self.arrays):
                args = rebuild(arrays)

                def step(i: jax.Array, carry: Any) -> Any:
                    g = gradient(carry[0], jax.random.fold_in(key, i), args)
                    return jax.tree.map(lambda x, d: x - rate * d, carry[0], g), g

                return jax.lax.fori_loop(0, steps, step, (at, at))[1]

        begun = time.perf_counter()
        self.key, self.rate = jax.random.key(3), jnp.zeros(())
        self._run = jit(run).lower(self.at, self.key, 1, self.rate, self.arrays).compile()
        self.compiled = time.perf_counter() - begun
        self.temporaries = int(self._run.memory_analysis().temp_size_in_bytes)

    def last(self, key: jax.Array, steps: int = 1) -> dict[str, jax.Array]:
        """The last of so many gradients."""
        return jax.block_until_ready(self._run(self.at, key, steps, self.rate, self.arrays))

    def draws(self, names: list[str], least: int, most: int, budget: float, seed: int = 0) -> Draws:
        """Moments of the named parameters over at least `least` draws, and up to `most` while there is time."""
        key = jax.random.fold_in(self.key, seed)
        found, begun = Draws(names), time.perf_counter()
        while found.number < least or (found.number < most and time.perf_counter() - begun < budget):
            found.add(jax.device_get(self.last(jax.random.fold_in(key, found.number))))
        return found


class Draws:
    """Moments of the named parameters' gradient in float64, and its projections on a few fixed directions."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.number, self.mean, self.squares = 0, {}, {}
        self.projections: list[np.ndarray] = []
        self._directions: dict[str, np.ndarray] = {}

    def add(self, gradient: Mapping[str, Any]) -> None:
        self.number += 1
        projected = np.zeros(DIRECTIONS)
        for i, name in enumerate(self.names):
            x = np.asarray(gradient[name], np.float64)
            if name not in self.mean:
                signs = np.random.default_rng(i).choice([-1.0, 1.0], (DIRECTIONS, x.size)).astype(np.float32)
                self._directions[name] = signs
                self.mean[name], self.squares[name] = np.zeros_like(x), np.zeros_like(x)
            delta = x - self.mean[name]
            self.mean[name] += delta / self.number
            self.squares[name] += delta * (x - self.mean[name])
            projected += self._directions[name] @ x.ravel()
        self.projections.append(projected)

    def variance(self, names: tuple[str, ...] | None = None) -> float:
        """The mean over all coordinates, or over those of some parameters."""
        names = names or self.names
        total = sum(float(self.squares[name].sum()) for name in names) / (self.number - 1)
        return total / sum(self.squares[name].size for name in names)

    def bias_z(self, other: Draws) -> float:
        """By how many standard errors the means of two methods differ, in the worst of a few directions."""
        mine, theirs = np.stack(self.projections), np.stack(other.projections)
        square = mine.var(axis=0, ddof=1) / len(mine) + theirs.var(axis=0, ddof=1) / len(theirs)
        scale = sum(float(np.sum(m**2)) for m in self.mean.values())  # a projection of rounding errors is that large
        return float(np.max(np.abs(mine.mean(0) - theirs.mean(0)) / np.sqrt(square + 1e-9 * scale + 1e-30)))


def in_turns(
    calls: Mapping[str, Callable[[int], Any]], rounds: int, least: float, most: int = 1_000_000
) -> dict[str, float]:
    """The median seconds of one step of each `call(steps)`, the calls taking turns of about `least` seconds."""
    steps = {}
    for name, call in calls.items():
        number = 1
        while True:
            begun = time.perf_counter()
            call(number)
            took = time.perf_counter() - begun
            if took > least / 2 or number >= most:
                break
            number = min(most, max(2 * number, min(10 * number, int(number * least / took))))
        steps[name] = number
    fixed = {name: (lambda c=call, n=steps[name]: c(n)) for name, call in calls.items()}
    found = interleaved_seconds(fixed, rounds, least=0.0)
    return {name: took / steps[name] for name, took in found.items()}
