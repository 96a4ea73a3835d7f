"""Slices, reshapes, transposes, concatenations: primitives that move numbers to other positions, each as a `Move`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from legrad.singlesite.change import Change
from legrad.singlesite.rules.fallback import fallback
from legrad.singlesite.rules.move import Move, merge, move
from legrad.singlesite.rules.operand import Rule, Step


def _one(step: Step, how: Move) -> list[Change | None]:
    """Move the first operand into the only result."""
    return [move(step, step.operands[0], how, step.results[0])]


def transpose(step: Step) -> list[Change | None]:
    """Reorder axes."""
    passed = {a: b for b, a in enumerate(step.eqn.params["permutation"])}
    return _one(step, Move(passed, [], [], lambda v, fill: v))


def broadcast_in_dim(step: Step) -> list[Change | None]:
    """Add axes along which the value is constant."""
    x = step.operands[0]
    assert x.change is not None
    return [step.site.broadcast(x.change, x.base, step.eqn.params["broadcast_dimensions"], step.shape)]


def _groups(old: Sequence[int], new: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Return the smallest groups of axes that a reshape maps to each other: those with equal products of sizes."""
    groups, i, j = [], 0, 0
    while i < len(old) or j < len(new):
        first = i, j
        i, j = min(i + 1, len(old)), min(j + 1, len(new))
        while (m := math.prod(old[first[0] : i])) != (n := math.prod(new[first[1] : j])):
            if (m < n and i < len(old)) or j >= len(new):
                i += 1
            else:
                j += 1
        groups.append((list(range(first[0], i)), list(range(first[1], j))))
    return groups


def reshape(step: Step) -> list[Change | None]:
    """Merge and split axes, and add and drop axes of size 1."""
    x, out = step.operands[0], step.shape
    if 0 in x.shape:
        return fallback(step)
    # Match the axes without those of size 1, so that more of them are left alone.
    old, new = ([a for a, n in enumerate(s) if n != 1] for s in (x.shape, out))
    passed: dict[int, int] = {}
    worked: list[int] = [a for a, n in enumerate(x.shape) if n == 1]
    made: list[int] = [b for b, n in enumerate(out) if n == 1]
    for a, b in _groups([x.shape[i] for i in old], [out[i] for i in new]):
        if len(a) == len(b) == 1:
            passed[old[a[0]]] = new[b[0]]
        else:
            worked += [old[i] for i in a]
            made += [new[i] for i in b]
    worked, made = sorted(worked), sorted(made)
    return _one(step, Move(passed, worked, made, lambda v, fill: v.reshape([out[b] for b in made])))


def squeeze(step: Step) -> list[Change | None]:
    """Drop axes of size 1."""
    return reshape(step)


def _along(shape: Sequence[int], axes: Sequence[int], apply: Callable[[Any, Any], Any], total: bool = True) -> Move:
    """Return a move that works along some axes and keeps all axes in place."""
    worked = list(axes)
    return Move({a: a for a in range(len(shape)) if a not in worked}, worked, worked, apply, total)


def slice_(step: Step) -> list[Change | None]:
    """Take a window with strides."""
    p, shape = step.eqn.params, step.operands[0].shape
    strides = p["strides"] or (1,) * len(shape)
    window = list(zip(p["start_indices"], p["limit_indices"], strides, strict=True))
    axes = [a for a, w in enumerate(window) if w != (0, shape[a], 1)]
    cut = tuple(slice(*window[a]) for a in axes)
    return _one(step, _along(shape, axes, lambda v, fill: v[cut]))


def rev(step: Step) -> list[Change | None]:
    """Reverse axes."""
    axes = list(step.eqn.params["dimensions"])
    cut = tuple(slice(None, None, -1) for _ in axes)
    return _one(step, _along(step.shape, axes, lambda v, fill: v[cut]))


def pad(step: Step) -> list[Change | None]:
    """Pad a value with copies of a scalar."""
    x, filler = step.operands
    config = step.eqn.params["padding_config"]
    if filler.change is not None or x.change is None:
        return fallback(step)
    axes = [a for a, c in enumerate(config) if c != (0, 0, 0)]
    padding = [config[a] for a in axes]

    def apply(v: Any, fill: Any) -> Any:
        with jax.ensure_compile_time_eval() if isinstance(v, np.ndarray) else nullcontext():
            padded = jax.lax.pad(v, jnp.asarray(fill, v.dtype), padding)
        return np.asarray(padded) if isinstance(v, np.ndarray) else padded

    return _one(step, _along(x.shape, axes, apply, total=False))


def concatenate(step: Step) -> list[Change | None]:
    """Join values along an axis."""
    axis, start = step.eqn.params["dimension"], 0
    place = np.arange(step.shape[axis]).reshape([-1 if a == axis else 1 for a in range(len(step.shape))])
    changes, regions = [], []
    for x in step.operands:
        if x.change is not None and x.shape[axis]:
            changes.append(move(step, x, _placed(x.shape, step.shape, axis, start), step.results[0]))
            regions.append((place >= start) & (place < start + x.shape[axis]))
        start += x.shape[axis]
    return [merge(step, changes, regions, step.results[0]) if changes else None]


def _placed(shape: Sequence[int], out: Sequence[int], axis: int, start: int) -> Move:
    """Return the move of an operand to its place along an axis of a concatenation."""
    after = out[axis] - start - shape[axis]

    def apply(v: Any, fill: Any) -> Any:
        xp = np if isinstance(v, np.ndarray) else jnp
        return xp.concatenate([xp.full(start, fill, v.dtype), v, xp.full(after, fill, v.dtype)])

    return _along(out, [axis], apply, total=False)


def split(step: Step) -> list[Change | None]:
    """Split a value into parts."""
    x, axis, start, parts = step.operands[0], step.eqn.params["axis"], 0, []
    for size, base in zip(step.eqn.params["sizes"], step.results, strict=True):
        cut = slice(start, start + size)
        parts.append(move(step, x, _along(x.shape, [axis], partial(_cut, cut)), base))
        start += size
    return list(parts)


def _cut(cut: slice, v: Any, fill: Any) -> Any:
    return v[cut]


def dynamic_slice(step: Step) -> list[Change | None]:
    """Take a window at a known place."""
    x, *starts = step.operands
    known = [s.read() for s in starts]
    if any(s is None for s in known) or x.change is None:
        return fallback(step)
    sizes = step.eqn.params["slice_sizes"]
    first = [min(max(int(s), 0), n - m) for s, n, m in zip(known, x.shape, sizes, strict=True)]  # type: ignore[arg-type]
    axes = [a for a, m in enumerate(sizes) if m != x.shape[a]]
    cut = tuple(slice(first[a], first[a] + sizes[a]) for a in axes)
    return _one(step, _along(x.shape, axes, lambda v, fill: v[cut]))


RULES: dict[str, Rule] = {
    "transpose": transpose,
    "broadcast_in_dim": broadcast_in_dim,
    "reshape": reshape,
    "squeeze": squeeze,
    "slice": slice_,
    "rev": rev,
    "pad": pad,
    "concatenate": concatenate,
    "split": split,
    "dynamic_slice": dynamic_slice,
}
