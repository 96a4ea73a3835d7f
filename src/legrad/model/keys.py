"""Random keys as users pass them: a JAX key, or a whole number that seeds one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Key = jax.Array | int


def as_key(key: Any) -> jax.Array:
    """Return a JAX key; a whole number n stands for `jax.random.key(n)`.

    Raises:
        TypeError: if the argument is neither a key nor a whole number.
        ValueError: if the argument is an array of several keys.
    """
    if isinstance(key, int | np.integer) and not isinstance(key, bool):
        return jax.random.key(int(key))
    dtype = getattr(key, "dtype", None)
    if dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key):
        if key.shape:
            raise ValueError(f"key is an array of keys of shape {key.shape}: pass one of them, such as keys[0]")
        return key
    if dtype == np.uint32 and np.ndim(key) == 1:  # jax.random.PRNGKey
        return jnp.asarray(key)
    raise TypeError(f"key={key!r} is not a random key: pass jax.random.key(0), or a whole number such as 0")
