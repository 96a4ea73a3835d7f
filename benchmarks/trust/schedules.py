"""How few steps a fixed schedule needs: every length, rate and decay of a grid, with one compiled program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from row import TrustProblem

import legrad
from legrad.model.parameters import Parameters

RATES = (0.2, 0.1, 0.05, 0.02, 0.01)
LENGTHS = tuple(int(50 * 2 ** (i / 2)) for i in range(19))  # 50, 70, 100, ... 25,600
DECAYS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "constant": np.ones_like,
    "cosine": lambda part: 0.5 * (1 + np.cos(np.pi * part)),
}


class Fixed:
    """Fits of one problem with Adam and any schedule.

    Args:
        problem: the problem.
        key: the random key of the fits.
    """

    def __init__(self, problem: TrustProblem, key: jax.Array) -> None:
        model, guide, args = problem.model, problem.guide, problem.args
        estimator = problem.estimator or legrad.LocalExpectation()
        of_init, of_steps = jax.random.split(key)
        self.parameters = Parameters(model, guide, args, {}, of_init)
        self.start = self.parameters.unconstrain(self.parameters.initial)
        adam = optax.adam(1.0)

        def loss(unconstrained: Any, key: jax.Array) -> jax.Array:
            return estimator.loss(key, self.parameters.constrain(unconstrained), model, guide, *args)

        @jax.jit
        def run(rates: jax.Array, steps: jax.Array) -> Any:
            def step(i: jax.Array, carry: Any) -> Any:
                unconstrained, memory = carry
                gradient = jax.grad(loss)(unconstrained, jax.random.fold_in(of_steps, i))
                updates, memory = adam.update(gradient, memory)
                return optax.apply_updates(unconstrained, jax.tree.map(lambda u: rates[i] * u, updates)), memory

            return jax.lax.fori_loop(0, steps, step, (self.start, adam.init(self.start)))[0]

        self._run = run

    def fit(self, rate: float, decay: str, steps: int, room: int) -> dict[str, Any]:
        """The constrained parameters after so many steps; `room` is the longest run, for one compiled program."""
        rates = np.zeros(room)
        rates[:steps] = rate * DECAYS[decay](np.arange(steps) / steps)
        return self.parameters.constrain(self._run(jnp.asarray(rates), steps))

    def fewest(self, good: Callable[[dict[str, Any]], bool], most: int) -> tuple[int, str] | None:
        """The shortest fit of the grid, not longer than `most`, whose end is good; and its schedule."""
        lengths = [n for n in LENGTHS if n <= most]
        for steps in lengths:
            for rate in RATES:
                for decay in DECAYS:
                    if good(self.fit(rate, decay, steps, max(lengths))):
                        return steps, f"{rate:g}, {decay}"
        return None
