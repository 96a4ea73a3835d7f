"""The oracle: the expectation as a sum over all joint configurations of the latents.

    E_q[f] = Σ_x q(x) · f(x)

The cost is exponential in the number of latents, so this is for small discrete problems only. The gradient is exact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient

from legrad.distributions import support
from legrad.estimators.base import Estimator, draws
from legrad.model.problem import Noise, Problem
from legrad.model.sites import Factor

LIMIT = 1 << 20  # joint configurations
_BLOCK = 1 << 10  # of them evaluated at once


class Exact(Estimator):
    """The exact expectation, by enumerating the joint support of a discrete guide.

    Value and gradient have no sampling noise, except for the subsampling of plates, which depends on the key.
    """

    def __init__(self) -> None:
        super().__init__(num_particles=1)

    def estimate(self, problem: Problem, key: jax.Array) -> jax.Array:
        """See `Estimator.estimate`."""
        noise = draws(key, 1)
        noise = Noise(noise.sites[0], noise.plates)
        pivot = problem.draw(noise)
        choices = _supports(pivot)
        sizes = [len(values) for name in choices for values in choices[name].T]
        total = math.prod(sizes)

        def configuration(number: jax.Array) -> dict[str, jax.Array]:
            digits = list(jnp.unravel_index(number, sizes))
            x = {}
            for name, values in choices.items():
                mine, digits = digits[: values.shape[1]], digits[values.shape[1] :]
                picked = jnp.asarray([values[d, e] for e, d in enumerate(mine)], values.dtype)
                x[name] = picked.reshape(jnp.shape(pivot[name].coordinate))
            return x

        def weighted(x: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
            here = problem.evaluate(x, noise, pivot=pivot)
            log_q = sum((jnp.sum(here.factors[name].log_prob()) for name in x), start=jnp.zeros(()))
            return log_q, here.total()

        def one(number: jax.Array) -> jax.Array:
            x = configuration(number)
            possible = stop_gradient(jnp.exp(weighted(x)[0])) > 0
            # A configuration without probability counts for nothing; the pivot replaces it to keep gradients finite.
            x = {name: jnp.where(possible, z, stop_gradient(pivot[name].coordinate)) for name, z in x.items()}
            log_q, f = weighted(x)
            return jnp.where(possible, jnp.exp(log_q) * f, 0.0)

        block = min(_BLOCK, total)
        numbers = jnp.arange(math.ceil(total / block) * block).reshape(-1, block)

        def body(carry: jax.Array, numbers: jax.Array) -> tuple[jax.Array, None]:
            inside = numbers < total
            parts = jax.vmap(one)(jnp.where(inside, numbers, 0))
            return carry + jnp.sum(jnp.where(inside, parts, 0.0)), None

        zero = jnp.zeros((), jax.eval_shape(one, numbers[0, 0]).dtype)
        return jax.lax.scan(jax.checkpoint(body), zero, numbers)[0]


def _supports(pivot: Mapping[str, Factor]) -> dict[str, jax.Array]:
    """Return the candidates of each site, (K, elements)."""
    choices, total = {}, 1
    for name, factor in pivot.items():
        scalar = factor.scalar
        if scalar is None or not support.is_finite(scalar.base):
            raise ValueError(
                f"site '{name}' of the guide is {factor.family}, whose support cannot be enumerated: Exact needs "
                "finite discrete sites; use legrad.LocalExpectation()"
            )
        values = support.must_have_candidates(scalar.base).values
        choices[name] = values.reshape(len(values), -1)
        total *= len(values) ** choices[name].shape[1]
        if total > LIMIT:
            raise ValueError(
                f"with site '{name}' the guide has more than 2^20 joint configurations, too many to enumerate: use "
                "fewer latents, or legrad.LocalExpectation(), whose cost grows linearly"
            )
    return choices
