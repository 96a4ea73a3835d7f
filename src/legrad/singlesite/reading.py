"""Read and add up rows of an array at known positions: runs as slices and windows, all else by gather and scatter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np

from legrad.singlesite.layout import as_window


def pick(
    data: jax.Array, index: np.ndarray, shape: Sequence[int], runs: tuple[int, ...] = (), before: int = 0
) -> jax.Array:
    """Read rows of an array, runs as slices and all else by a gather; -1 stands for any finite number.

    Args:
        data: an array with `before` leading axes, then the axes of `shape`, then others.
        index: flat positions in `shape`.
        shape: the sizes of the axes that become one.
        runs: where runs of neighbouring positions begin, and the end of the last.
        before: how many leading axes there are.
    """
    lead, rest = data.shape[:before], data.shape[before + len(shape) :]
    whole = (slice(None),) * before
    if runs:
        parts = []
        for start, stop in pairwise(runs):
            part, window = index[start:stop], as_window(index[start:stop], shape)
            if window is not None:
                parts.append(data[(*whole, *window)].reshape(*lead, -1, *rest))
            elif (part < 0).all():
                parts.append(jnp.zeros((*lead, len(part), *rest), data.dtype))
            else:
                break
        else:
            return jnp.concatenate(parts, axis=before) if len(parts) > 1 else parts[0]
    flat = data.reshape(*lead, -1, *rest)
    if len(index) == math.prod(shape) and np.array_equal(index, np.arange(len(index))):
        return flat
    taken = flat.at[(*whole, np.maximum(index, 0).astype(np.int32))].get(mode="promise_in_bounds")
    return jax.lax.optimization_barrier(taken)  # a gather inside a loop of function values would prevent SIMD


def _sum_windows(
    data: jax.Array, target: np.ndarray, shape: tuple[int, ...], runs: tuple[int, ...], before: int
) -> jax.Array | None:
    """Add up runs, each in its window of an array; return None if a run is not a window."""
    lead, rest, total = data.shape[:before], data.shape[before + 1 :], None
    for start, stop in pairwise(runs):
        window = as_window(target[start:stop], shape)
        if window is None:
            return None
        part = jax.lax.slice_in_dim(data, start, stop, axis=before)
        part = part.reshape(*lead, *(w.stop - w.start for w in window), *rest)
        padding = [(w.start, n - w.stop, 0) for w, n in zip(window, shape, strict=True)]
        padding = [*((0, 0, 0) for _ in lead), *padding, *((0, 0, 0) for _ in rest)]
        part = jax.lax.pad(part, jnp.zeros((), data.dtype), padding)
        total = part if total is None else total + part
    return total


def sum_into(
    data: jax.Array,
    target: np.ndarray,
    shape: tuple[int, ...],
    runs: tuple[int, ...] = (),
    before: int = 0,
    chunk: int = 1,
) -> jax.Array:
    """Add up the rows of `data` that share a target; the axis of rows becomes the axes of `shape`."""
    count, lead, rest = math.prod(shape), data.shape[:before], data.shape[before + 1 :]
    total = _sum_windows(data, target, shape, runs, before) if runs else None
    if total is not None:
        return total
    if len(target) == count and np.array_equal(target, np.arange(count)):
        return data.reshape(*lead, *shape, *rest)
    if chunk > 1:
        data = data.reshape(*lead, -1, chunk, *rest).sum(axis=before + 1, dtype=data.dtype)
    return _scatter(data, target[::chunk], count, before).reshape(*lead, *shape, *rest)


def _scatter(data: jax.Array, target: np.ndarray, count: int, axis: int) -> jax.Array:
    """Add up the rows along an axis that share one of `count` targets."""
    total = jax.ops.segment_sum(
        jnp.moveaxis(data, axis, 0), jnp.asarray(target, jnp.int32), num_segments=count, mode="promise_in_bounds"
    )
    return jnp.moveaxis(total, 0, axis)
