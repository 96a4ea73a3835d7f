"""log Σ exp, with derivatives where terms are impossible."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax


def log_sum_exp(x: Any, axis: int) -> Any:
    """Return log Σ exp along an axis; where all terms are impossible it is −∞, with a derivative of zero."""
    largest = lax.stop_gradient(jnp.max(x, axis=axis, keepdims=True))
    largest = jnp.where(jnp.isneginf(largest), 0.0, largest)
    total = jnp.sum(jnp.exp(x - largest), axis=axis)
    none = total == 0
    return jnp.where(none, -jnp.inf, jnp.squeeze(largest, axis) + jnp.log(jnp.where(none, 1.0, total)))
