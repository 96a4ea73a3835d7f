"""Double precision for a part of a program, whatever the user's program runs in."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

double = jax.enable_x64
"""`with double(True):` computes in float64; for this thread, and only inside."""


def as_double(tree: Any) -> Any:
    """Return a tree with its float arrays as new NumPy arrays of float64; all else stays.

    An array of float64 becomes a view: JAX keeps the constants of a traced program by the array's identity, and would
    take the one that it made in single precision.
    """

    def convert(x: Any) -> Any:
        if isinstance(x, jax.Array | np.ndarray) and jnp.issubdtype(x.dtype, jnp.floating):
            return np.asarray(x, np.float64).view()
        return x

    return jax.tree.map(convert, tree)
