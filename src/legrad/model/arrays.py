"""Splitting a model's arguments: arrays are data and become inputs of a compiled program, the rest is constant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def split_arrays(
    tree: Any, place: Callable[[Any], Any] = jnp.asarray
) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """Split a tree into its arrays, and a function that puts arrays back among the leaves known while tracing.

    Args:
        tree: a tree of arrays and other leaves.
        place: what is done to each array.
    """
    leaves, structure = jax.tree.flatten(tree)
    dynamic = [isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves]

    def rebuild(arrays: list[Any]) -> Any:
        rest = iter(arrays)
        merged = [next(rest) if d else x for d, x in zip(dynamic, leaves, strict=True)]
        return jax.tree.unflatten(structure, merged)

    return [place(x) for d, x in zip(dynamic, leaves, strict=True) if d], rebuild
