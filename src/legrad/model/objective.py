"""The objective of a fit: model and guide as functions of unconstrained parameters.

params = constrain(u) and the plates' indices,    loss(u) = −ELBO, estimated,    u ← u + optimizer(∇ loss)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import optax
from numpyro.infer.elbo import ELBO

from legrad.model.parameters import Parameters
from legrad.model.problem import Evaluation, Noise, Problem
from legrad.model.threads import one_at_a_time

Unconstrained = dict[str, Any]


class Given(NamedTuple):
    """The arguments of model and guide at one step, and the indices of plates."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    plates: dict[str, Any]


@dataclass(frozen=True)
class Objective:
    """Model and guide at unconstrained parameters."""

    model: Callable[..., Any]
    guide: Callable[..., Any]
    parameters: Parameters = field(repr=False)

    def problem(self, unconstrained: Unconstrained, given: Given) -> Problem:
        """Return model, guide, parameters and data as a problem."""
        params = self.parameters.constrain(unconstrained) | given.plates
        return Problem(self.model, self.guide, params, given.args, given.kwargs)

    def loss(self, estimator: ELBO, unconstrained: Unconstrained, key: jax.Array, given: Given) -> jax.Array:
        """Return an estimator's negative ELBO, whose derivative is its estimate of the gradient."""
        with one_at_a_time:
            params = self.parameters.constrain(unconstrained) | given.plates
            return estimator.loss(key, params, self.model, self.guide, *given.args, **given.kwargs)

    def at_a_draw(self, unconstrained: Unconstrained, noise: Noise, given: Given) -> Evaluation:
        """Evaluate every term of the ELBO at one draw of the guide, differentiable along the draw."""
        problem = self.problem(unconstrained, given)
        return problem.evaluate({}, noise, pivot=problem.draw(noise))

    def elbo(self, unconstrained: Unconstrained, key: jax.Array, given: Given) -> jax.Array:
        """Return the ELBO at one draw of the guide; the same key gives the same noise."""
        return self.at_a_draw(unconstrained, Noise(*jax.random.split(key)), given).total()


class Updated(NamedTuple):
    """One step of an optimizer: loss and gradient before it, parameters and the optimizer's state after it."""

    loss: jax.Array
    gradient: Unconstrained
    unconstrained: Unconstrained
    memory: Any


def update(
    loss: Callable[[Unconstrained], jax.Array],
    optimizer: optax.GradientTransformation,
    unconstrained: Unconstrained,
    memory: Any,
    rate: jax.Array | None = None,
) -> Updated:
    """Take one step down a loss; `rate` multiplies the update that the optimizer adds to the parameters."""
    value, gradient = jax.value_and_grad(loss)(unconstrained)
    updates, memory = optimizer.update(gradient, memory, unconstrained)
    if rate is not None:
        updates = jax.tree.map(lambda u: rate.astype(u.dtype) * u, updates)
    return Updated(value, gradient, optax.apply_updates(unconstrained, updates), memory)
