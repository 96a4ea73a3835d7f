"""Sums along axes of a table, element by element: each partial sum has only the labels of what it contains."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from legrad.marginal.table import CannotSum, Table, align, take

MOST = 64  # numbers that are added up one after another


def sum_along(table: Table, axes: Sequence[int], limit: int, numbers: int) -> Table:
    """Add up a table along axes, along which its labels may name different elements.

    Args:
        table: the table.
        axes: the axes, which the result lacks.
        limit: the largest number of joint candidates.
        numbers: the largest number of numbers in the result.
    """
    for axis in table.varying(axes):
        table = _added(table, axis, limit, numbers)
    count = math.prod(table.shape[a] for a in axes if table.own[a] == 1)
    values = jnp.sum(table.values, axis=tuple(len(table.labels) + a for a in axes))
    values = values * jnp.asarray(count, values.dtype) if count != 1 else values
    shape = tuple(n for a, n in enumerate(table.shape) if a not in axes)
    placed = table.relabelled(lambda e: e.reshape([n for a, n in enumerate(e.shape) if a not in axes]))
    return Table(values, placed.labels, shape)


def _added(table: Table, axis: int, limit: int, numbers: int) -> Table:
    count = table.shape[axis]
    if count > MOST:
        label = next(label for label in table.labels if label.varies(axis))
        raise CannotSum(label.some(), f"{count:,} elements are seen together", label.size**count)
    total = take(table, axis, 0, 1)
    for j in range(1, count):
        values, labels = align([total, take(table, axis, j, j + 1)], limit, position_wise=True)
        joint = math.prod(label.size for label in labels)
        own = np.broadcast_shapes(*(v.shape[len(labels) :] for v in values))
        if joint * math.prod(own) > numbers:
            raise CannotSum([], f"{len(labels)} elements are seen together", joint)
        total = Table(values[0] + values[1], labels, total.shape)
    return total
