"""Parameters of a Gaussian that are optimized in whitened coordinates, and numbers that are in other units.

    loc = center + W u,    scale_tril = W T,    with T lower triangular, exp on its diagonal

To NumPyro these are constraints: `numpyro.param` holds loc and scale_tril themselves, and only an optimizer sees u
and T. So a saved fit does not depend on the whitening.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.transforms import (
    AffineTransform,
    LowerCholeskyAffine,
    LowerCholeskyTransform,
    ParameterFreeTransform,
)


class WhitenedVector(constraints.Constraint):
    """Vectors, whose unconstrained coordinates are whitened."""

    event_dim = 1

    def __init__(self, center: np.ndarray, tril: np.ndarray) -> None:
        self.center, self.tril = center, tril

    def __call__(self, x: Any) -> Any:
        """Whether vectors are finite."""
        return jnp.all(jnp.isfinite(x), axis=-1)

    def tree_flatten(self) -> Any:
        """Return the arrays, as NumPyro keeps constraints."""
        return (self.center, self.tril), (("center", "tril"), {})


class Scaled(constraints.Constraint):
    """Real numbers, whose unconstrained coordinates are in other units."""

    event_dim = 0

    def __init__(self, unit: np.ndarray) -> None:
        self.unit = unit

    def __call__(self, x: Any) -> Any:
        """Whether numbers are finite."""
        return jnp.isfinite(x)

    def tree_flatten(self) -> Any:
        """Return the arrays, as NumPyro keeps constraints."""
        return (self.unit,), (("unit",), {})


class WhitenedCholesky(constraints.Constraint):
    """Lower triangular matrices with a positive diagonal, whose unconstrained coordinates are whitened."""

    event_dim = 2

    def __init__(self, tril: np.ndarray) -> None:
        self.tril = tril

    def __call__(self, x: Any) -> Any:
        """Whether matrices are lower triangular with a positive diagonal."""
        return constraints.lower_cholesky(x)

    def tree_flatten(self) -> Any:
        """Return the arrays, as NumPyro keeps constraints."""
        return (self.tril,), (("tril",), {})


class _Product(ParameterFreeTransform):
    """The product of a fixed lower triangular matrix and the lower triangular matrix of an unconstrained vector."""

    domain = constraints.real_vector
    codomain = constraints.lower_cholesky

    def __init__(self, tril: np.ndarray) -> None:
        self.tril = tril

    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.asarray(self.tril) @ LowerCholeskyTransform()(x)

    def _inverse(self, y: jax.Array) -> jax.Array:
        return LowerCholeskyTransform()._inverse(solve_triangular(jnp.asarray(self.tril), y, lower=True))

    def log_abs_det_jacobian(self, x: jax.Array, y: jax.Array, intermediates: Any = None) -> jax.Array:
        size = len(self.tril)
        stretch = jnp.sum(jnp.log(jnp.diagonal(self.tril)) * (1 + jnp.arange(size)))
        return LowerCholeskyTransform().log_abs_det_jacobian(x, y) + stretch

    def forward_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return LowerCholeskyTransform().forward_shape(shape)

    def inverse_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return LowerCholeskyTransform().inverse_shape(shape)


@biject_to.register(Scaled)
def _scaled(constraint: Scaled) -> AffineTransform:
    return AffineTransform(jnp.zeros_like(jnp.asarray(constraint.unit)), jnp.asarray(constraint.unit))


@biject_to.register(WhitenedVector)
def _vector(constraint: WhitenedVector) -> LowerCholeskyAffine:
    return LowerCholeskyAffine(jnp.asarray(constraint.center), jnp.asarray(constraint.tril))


@biject_to.register(WhitenedCholesky)
def _cholesky(constraint: WhitenedCholesky) -> _Product:
    return _Product(constraint.tril)
