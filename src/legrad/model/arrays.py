"""Which arguments of a model are data: arrays become inputs of a compiled program, all else stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def split_arrays(tree: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """Arrays become inputs of the compiled program; everything else stays as it is, known while tracing."""
    leaves, structure = jax.tree.flatten(tree)
    dynamic = [isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves]

    def rebuild(arrays: list[Any]) -> Any:
        rest = iter(arrays)
        merged = [next(rest) if d else x for d, x in zip(dynamic, leaves, strict=True)]
        return jax.tree.unflatten(structure, merged)

    return [jnp.asarray(x) for d, x in zip(dynamic, leaves, strict=True) if d], rebuild
