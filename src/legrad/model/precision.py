"""Double precision for a part of a program, whatever the user's program runs in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from legrad.model.fixed_arguments import Fixed

T = TypeVar("T")


def in_double(run: Callable[[], T]) -> T:
    """Run a function in double precision, in this thread.

    JAX keeps the NumPy arrays of a traced program in the precision that they were first traced in, as long as that
    program lives: an array that a model closes over may still be float32, and the program fails with a TypeError.
    Then what JAX keeps is dropped, and the function runs once more.
    """
    with jax.enable_x64(True):
        try:
            return run()
        except TypeError:
            jax.clear_caches()
            return run()


def as_double(tree: Any) -> Any:
    """Return a tree with its float arrays in float64; NumPy arrays of other types become views, all else stays.

    A view is an array that JAX has not kept in single precision. Call it in double precision: JAX's arrays stay what
    they are, as a model may index them with a latent.
    """

    def convert(x: Any) -> Any:
        if isinstance(x, Fixed):
            return Fixed(convert(x.array))
        if not isinstance(x, jax.Array | np.ndarray):
            return x
        if jnp.issubdtype(x.dtype, jnp.floating):
            return jnp.asarray(x, jnp.float64) if isinstance(x, jax.Array) else np.asarray(x, np.float64).view()
        return x.view() if isinstance(x, np.ndarray) else x

    return jax.tree.map(convert, tree)
