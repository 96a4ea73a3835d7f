"""Double precision for a part of a program, whatever the user's program runs in."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

double = jax.enable_x64
"""`with double(True):` computes in float64; for this thread, and only inside."""


def as_double(tree: Any) -> Any:
    """Return a tree with its float arrays as NumPy arrays of float64; all else stays."""

    def convert(x: Any) -> Any:
        if isinstance(x, jax.Array | np.ndarray) and x.dtype in (np.float32, np.float16, jnp.bfloat16):
            return np.asarray(x, np.float64)
        return x

    return jax.tree.map(convert, tree)
