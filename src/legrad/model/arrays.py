"""Splitting a model's arguments: arrays are data and become inputs of a compiled program, the rest is constant; and
running a function over many rows, some at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding

from legrad._compat import is_concrete


def split_arrays(
    tree: Any, place: Callable[[Any], Any] = jnp.asarray
) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """Split a tree into its arrays, and a function that puts arrays back among the leaves known while tracing.

    Args:
        tree: a tree of arrays and other leaves.
        place: what is done to each array.
    """
    leaves, structure = jax.tree.flatten(tree)
    dynamic = [_is_data(leaf) for leaf in leaves]
    static = [None if d else x for d, x in zip(dynamic, leaves, strict=True)]  # what rebuilds holds no array

    def rebuild(arrays: list[Any]) -> Any:
        rest = iter(arrays)
        merged = [next(rest) if d else x for d, x in zip(dynamic, static, strict=True)]
        return jax.tree.unflatten(structure, merged)

    return [place(x) for d, x in zip(dynamic, leaves, strict=True) if d], rebuild


def _is_data(leaf: Any) -> bool:
    """Whether a leaf is an array that a program takes; text, dates and objects are not."""
    return isinstance(leaf, jax.Array) or (isinstance(leaf, np.ndarray) and leaf.dtype.kind not in "USOMm")


def automatic(tree: Any) -> Any:
    """Return arrays that lie in parts on a mesh with axes of type Auto, whatever the type of theirs was; no copies.

    With axes of type Explicit, JAX's default, the parts are written into the type of everything that is computed from
    an array, which models, guides and our interpreters know nothing of.
    """
    return jax.tree.map(lambda x: _automatic(x) if isinstance(x, jax.Array) else x, tree)


def _automatic(x: jax.Array) -> jax.Array:
    sharding = x.sharding if is_concrete(x) else None
    if not isinstance(sharding, NamedSharding) or all(kind == AxisType.Auto for kind in sharding.mesh.axis_types):
        return x
    theirs = sharding.mesh
    mesh = Mesh(theirs.devices, theirs.axis_names, axis_types=(AxisType.Auto,) * len(theirs.axis_names))
    parts = [part.data for part in x.addressable_shards]
    return jax.make_array_from_single_device_arrays(x.shape, NamedSharding(mesh, sharding.spec), parts)


def map_in_batches(f: Callable[[Any], Any], rows: Any, most: int) -> Any:
    """Apply f to each row of a tree of arrays, some rows at a time, as one loop over batches of equal size.

    `jax.lax.map` compiles f twice where the last batch is smaller than the others; here rows are repeated to fill it.

    Args:
        f: a function of one row.
        rows: arrays with a common leading axis.
        most: the largest number of rows that are computed together.
    """
    number = len(jax.tree.leaves(rows)[0])
    if number <= most:
        return jax.vmap(f)(rows)
    batches = -(-number // most)
    size = -(-number // batches)
    which = (np.arange(batches * size) % number).reshape(batches, size)
    found = jax.lax.map(lambda i: jax.vmap(f)(jax.tree.map(lambda a: a[i], rows)), jnp.asarray(which))
    return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:])[:number], found)
