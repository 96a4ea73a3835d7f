"""The log-density of a model's continuous latents as compiled functions for a solver on the host, in float64.

Counts what it is asked for: gradients of the model, and Hessian products, of which a Hessian takes one per latent.

A long program, such as a Python loop over time, takes longer to compile than to run many times. It is compiled once,
for gradients at several points: single points are padded, and Hessians are differences.
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
CHUNK = 128  # points of one compiled call
_CHEAP = 100_000  # numbers that a density computes, below which compiling takes longer than gradients nobody needs
_LONG = 600  # operations of a program that is compiled once
_TOGETHER = 32  # points at which a long program computes gradients
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
        self.space, self.size, self.gradients = space, space.size, 0
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
        work = sum(v.aval.size for eqn in program.eqns for v in eqn.outvars if hasattr(v.aval, "size"))
        self._is_cheap, self._is_long = work < _CHEAP, len(program.eqns) > _LONG
        self._many = jit(lambda xs, arrays: map_in_batches(lambda x: f(x, arrays), xs, self.together))
        self._many_gradients = jit(
            lambda xs, arrays: map_in_batches(lambda x: jax.value_and_grad(f)(x, arrays), xs, self.together),
            quick=self._is_long and self._is_cheap,
        )

    def value(self, x: np.ndarray) -> float:
        """Return the log-density at a point; -inf if it is not a number."""
        value = self.gradient(x)[0]  # a program of its own would take longer to compile than it saves
        return value if math.isfinite(value) else -math.inf

    def gradient(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the log-density at a point, and its gradient."""
        self.gradients += 1
        if self._is_long:
            values, gradients = self.many_gradients(x[None])
            return float(values[0]), gradients[0]
        value, gradient = jax.device_get(self._gradient(x, self._arrays))
        return float(value), np.asarray(gradient)

    def hessian(self, x: np.ndarray) -> np.ndarray:
        """Return the Hessian at a point."""
        if self._has_products and not self._is_long:
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
        steps = _DIFFERENCE * (1 + np.abs(x))
        places = np.concatenate([x + np.diag(steps), x - np.diag(steps)])
        self.gradients += len(places)
        up, down = np.split(self.many_gradients(places)[1], 2)
        rows = (up - down) / (2 * steps[:, None])
        return (rows + rows.T) / 2 if np.isfinite(rows).all() else np.full((self.size, self.size), math.nan)

    def many(self, xs: np.ndarray) -> np.ndarray:
        """Return the log-density at each row of a matrix."""
        if self._is_long:
            return self.many_gradients(xs)[0]
        if self._is_cheap and len(xs) % CHUNK == 0:  # the program that is compiled already
            return np.concatenate([self.many_gradients(part)[0] for part in np.split(xs, len(xs) // CHUNK)])
        return np.asarray(self._many(xs, self._arrays))

    def many_gradients(self, xs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the log-density at each row of a matrix, and its gradients."""
        if not self._is_long:
            values, gradients = jax.device_get(self._many_gradients(xs, self._arrays))
            return np.asarray(values), np.asarray(gradients)
        found = []
        for start in range(0, len(xs), _TOGETHER):
            part = xs[start : start + _TOGETHER]
            padded = np.concatenate([part, np.repeat(part[-1:], _TOGETHER - len(part), 0)])
            values, gradients = jax.device_get(self._many_gradients(padded, self._arrays))
            found.append((values[: len(part)], gradients[: len(part)]))
        return np.concatenate([v for v, _ in found]), np.concatenate([g for _, g in found])
