"""Gradients of a loss at fixed parameters, in the unconstrained space of the optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from numpyro.infer.elbo import ELBO

from legrad.model.objective import Given, Objective
from legrad.model.parameters import Parameters
from legrad.model.problem import Noise

_ROUNDING_DRAWS = 8


class Moments(NamedTuple):
    """Mean and variance of each component of a gradient over draws."""

    mean: Any
    variance: Any


def gradient(
    estimator: ELBO,
    model: Callable[..., Any],
    guide: Callable[..., Any],
    params: Mapping[str, Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Callable[[jax.Array], dict[str, Any]]:
    """Return a function of a key that returns one draw of the estimator's gradient of the ELBO."""
    parameters = Parameters(model, guide, args, kwargs, jax.random.key(0), params)
    at, objective = parameters.unconstrain(parameters.initial), Objective(model, guide, parameters)
    return lambda key: gradient_at(objective, estimator, at, key, Given(args, dict(kwargs), {}))


def gradient_at(
    objective: Objective, estimator: ELBO, unconstrained: dict[str, Any], key: jax.Array, given: Given
) -> dict[str, Any]:
    """Return one draw of the estimator's gradient of the ELBO at unconstrained parameters."""
    return jax.grad(lambda u: -objective.loss(estimator, u, key, given))(unconstrained)


def rounding(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    params: Mapping[str, Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    key: jax.Array,
) -> dict[str, Any]:
    """Return the rounding error of each component of a gradient: ε · ‖terms of f‖ · |∂ log q|, RMS over draws.

    A gradient that vanishes at an optimum is a sum of large terms, and its size says nothing about its rounding.
    """
    parameters = Parameters(model, guide, args, kwargs, jax.random.key(0), params)
    at, objective = parameters.unconstrain(parameters.initial), Objective(model, guide, parameters)

    def one(key: jax.Array) -> dict[str, Any]:
        noise = Noise(*jax.random.split(key))

        def log_q(unconstrained: dict[str, Any]) -> tuple[jax.Array, jax.Array]:
            problem = objective.problem(unconstrained, Given(args, dict(kwargs), {}))
            pivot = problem.draw(noise)
            x = {name: jax.lax.stop_gradient(factor.coordinate) for name, factor in pivot.items()}
            there = problem.evaluate(x, noise, pivot=pivot)
            size = jnp.sqrt(sum(jnp.sum(term**2) for term in there.terms().values()))
            return sum((jnp.sum(f.log_prob()) for f in there.factors.values()), jnp.zeros(())), size

        score, size = jax.grad(log_q, has_aux=True)(at)
        return jax.tree.map(lambda s: (jnp.finfo(s.dtype).eps * size * s) ** 2, score)

    squares = jax.jit(lambda keys: jax.lax.map(one, keys))(jax.random.split(key, _ROUNDING_DRAWS))
    return jax.tree.map(lambda s: jnp.sqrt(jnp.mean(s, axis=0)), squares)


def moments(draw: Callable[[jax.Array], Any], key: jax.Array, number: int | jax.Array) -> Moments:
    """Return mean and variance over `number` draws, one after another to need the memory of one draw only."""
    shapes = jax.eval_shape(draw, key)
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)

    def welford(i: jax.Array, carry: Moments) -> Moments:
        x = draw(jax.random.fold_in(key, i))
        delta = jax.tree.map(jnp.subtract, x, carry.mean)
        mean = jax.tree.map(lambda m, d: m + d / (i + 1), carry.mean, delta)
        squares = jax.tree.map(lambda s, d: s + d * d * (i / (i + 1)), carry.variance, delta)  # never negative
        return Moments(mean, squares)

    mean, squares = jax.lax.fori_loop(0, number, welford, Moments(zeros, zeros))
    return Moments(mean, jax.tree.map(lambda s: s / (number - 1), squares))
