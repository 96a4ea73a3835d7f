"""Parameters on the way, where a fit spends its time: a short fit with LeGrad, the same in every run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import legrad
from legrad.model.parameters import Parameters


def warmed(model: Callable, guide: Callable, args: tuple[Any, ...], steps: int, rate: float) -> dict[str, Any]:
    """The parameters after so many steps of Adam; those that are declared, for none."""
    if not steps:
        return Parameters(model, guide, args, {}, jax.random.key(1)).initial
    estimator = legrad.LocalExpectation(exact_terms=False)  # with exact terms some fits would be at their end
    settings = {
        "estimator": estimator,
        "key": jax.random.key(1),
        "optimizer": optax.adam(rate),
        "steps": steps,
        "progress": False,
    }
    return legrad.fit(model, guide, args=args, **settings).params


def trained(
    model: Callable, guide: Callable, start: dict[str, Any], rows: np.ndarray, batch: int, steps: int, rate: float
) -> dict[str, Any]:
    """The parameters after so many steps of Adam on minibatches of `rows`, each of which is a whole data set."""
    estimator, adam, rows = legrad.LocalExpectation(), optax.adam(rate), jnp.asarray(rows)

    def step(i: jax.Array, carry: Any) -> Any:
        params, memory = carry
        of_rows, of_loss = jax.random.split(jax.random.fold_in(jax.random.key(1), i))
        y = rows[jax.random.randint(of_rows, (batch,), 0, len(rows))].astype(int)
        gradient = jax.grad(lambda p: estimator.loss(of_loss, p, model, guide, y))(params)
        updates, memory = adam.update(gradient, memory)
        return optax.apply_updates(params, updates), memory

    loop = jax.jit(lambda carry: jax.lax.fori_loop(0, steps, step, carry)[0])
    return jax.device_get(loop((start, adam.init(start))))
