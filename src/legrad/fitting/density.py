"""The log-density of a model's continuous latents as compiled functions for a solver on the host, in float64.

Counts what it is asked for: gradients of the model, and Hessian products, of which a Hessian takes one per latent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from legrad._compiled import jit
from legrad.guides.latent_space import LatentSpace
from legrad.model.arrays import map_in_batches, split_arrays

_MEMORY = 1 << 28  # bytes of intermediate values that are computed together
_DIFFERENCE = 1e-4  # the step of differences, relative to 1 + |x|


class Density:
    """The log-density of a vector, and its derivatives.

    Args:
        space: the vector space of the latents.
        args: positional arguments of the model.
        kwargs: keyword arguments of the model.

    Attributes:
        gradients: how many gradients at a single point were computed, Hessian products included.
    """

    def __init__(self, space: LatentSpace, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.size, self.gradients = space.size, 0
        arrays, rebuild = split_arrays((args, dict(kwargs)))

        def f(x: jax.Array, arrays: list[Any]) -> jax.Array:
            return space.log_density(x, *rebuild(arrays))

        program = jax.make_jaxpr(f)(jnp.zeros(self.size), arrays)
        largest = max((v.aval.size * 8 for eqn in program.eqns for v in eqn.outvars), default=8)
        self.together = max(1, min(128, _MEMORY // (16 * largest)))

        def products(x: jax.Array, arrays: list[Any]) -> jax.Array:
            def product(v: jax.Array) -> jax.Array:
                return jax.jvp(lambda x: jax.grad(f)(x, arrays), (x,), (v,))[1]

            return map_in_batches(product, jnp.eye(self.size), self.together)

        self._arrays, self._has_products = arrays, True
        self._gradient = jit(jax.value_and_grad(f))
        self._hessian = jit(products)
        self._value = jit(f)
        self._many = jit(lambda xs, arrays: map_in_batches(lambda x: f(x, arrays), xs, self.together))
        self._many_gradients = jit(
            lambda xs, arrays: map_in_batches(lambda x: jax.value_and_grad(f)(x, arrays), xs, self.together)
        )

    def value(self, x: np.ndarray) -> float:
        """Return the log-density at a point; -inf if it is not a number."""
        value = float(self._value(x, self._arrays))
        return value if math.isfinite(value) else -math.inf

    def gradient(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the log-density at a point, and its gradient."""
        self.gradients += 1
        value, gradient = jax.device_get(self._gradient(x, self._arrays))
        return float(value), np.asarray(gradient)

    def hessian(self, x: np.ndarray) -> np.ndarray:
        """Return the Hessian at a point."""
        if self._has_products:
            try:
                found = np.asarray(self._hessian(x, self._arrays))
                self.gradients += self.size
                if np.isfinite(found).all():
                    return found
            except TypeError:  # a function with a derivative of its own in reverse mode alone, such as `odeint`
                self._has_products = False
        return self._differences(x)

    def _differences(self, x: np.ndarray) -> np.ndarray:
        """Return the Hessian by central differences of gradients; NaN if one of them is not finite."""
        rows = []
        for step in np.diag(_DIFFERENCE * (1 + np.abs(x))):
            up, down = self.gradient(x + step)[1], self.gradient(x - step)[1]
            if not (np.isfinite(up).all() and np.isfinite(down).all()):
                return np.full((self.size, self.size), math.nan)
            rows.append((up - down) / (2 * step.sum()))
        return (np.stack(rows) + np.stack(rows).T) / 2

    def many(self, xs: np.ndarray) -> np.ndarray:
        """Return the log-density at each row of a matrix."""
        return np.asarray(self._many(xs, self._arrays))

    def many_gradients(self, xs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the log-density at each row of a matrix, and its gradients."""
        values, gradients = jax.device_get(self._many_gradients(xs, self._arrays))
        return np.asarray(values), np.asarray(gradients)
