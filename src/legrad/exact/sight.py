"""Which random elements each number of a program sees, and whether what two numbers see is disjoint.

The elements of all sites have one numbering, in which each site is a run. What a number sees is kept as a set or, in
large programs, as a box for each site (`trace.dependence`). Two boxes that overlap may still belong to disjoint sets:
"disjoint" is claimed only where it is proved.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np

from legrad import _compat
from legrad.trace.dependence import EMPTY, join_over, nothing, own_boxes, own_sets, reach_every
from legrad.trace.program import Program

_SETS = 1 << 26  # elements times numbers: programs up to this size are followed with sets, larger ones with boxes
Seen = np.ndarray | None


class Sight:
    """What every value of a program sees of the elements of its inputs.

    Args:
        program: the program, whose inputs are the sites.
        shapes: the shape of each site, in the order of the inputs.
    """

    def __init__(self, program: Program, shapes: Mapping[str, tuple[int, ...]]) -> None:
        sizes = [math.prod(shape) for shape in shapes.values()]
        self.starts = dict(zip(shapes, np.cumsum([0, *sizes]).tolist(), strict=False))
        self.sets = sum(sizes) * max(1, program.largest()) <= _SETS
        own = [(own_sets if self.sets else own_boxes)(shape) for shape in shapes.values()]
        ends = np.cumsum([0, *map(len, own)])
        self.rows = [slice(int(a), int(b)) for a, b in pairwise(ends)]
        given, columns = {}, []
        for i, rows, mine in zip(program.inputs, self.rows, own, strict=True):
            whole = nothing(np.empty(int(ends[-1]), mine.dtype), mine.shape[1:])
            whole[rows] = mine
            given[i] = whole.reshape(len(whole), *program.shapes[i])
            columns.append(whole.reshape(len(whole), -1))
        self.found = reach_every(program, given, _compat.CUSTOM_CALLS)
        self.own = np.concatenate(columns, axis=1) if columns else np.zeros((0, 0), np.uint64)

    def of(self, number: int) -> Seen:
        """Return what a value of the program sees; None if it sees nothing."""
        return self.found.get(number)

    def disjoint(self, a: Seen, b: Seen) -> np.ndarray:
        """Say for each position whether two numbers are known to see no common element. Shapes broadcast."""
        if a is None or b is None:
            return np.True_
        rank = max(a.ndim, b.ndim)
        a, b = (x.reshape(len(x), *(1,) * (rank - x.ndim), *x.shape[1:]) for x in (a, b))
        if self.sets:
            shared = reduce(np.bitwise_or, (x & y for x, y in zip(a, b, strict=True)))
            return shared == 0
        return np.logical_not(reduce(np.logical_or, (_overlap(a[rows], b[rows]) for rows in self.rows)))

    def distinct_along(self, seen: Seen, axes: Sequence[int]) -> bool:
        """Say whether the numbers at different positions along some axes are known to see no common element."""
        if seen is None or not axes:
            return True
        kept = [a for a in range(seen.ndim - 1) if a not in axes]
        lined = seen.transpose(0, *(a + 1 for a in kept), *(a + 1 for a in axes))
        lined = lined.reshape(*lined.shape[: 1 + len(kept)], -1)
        if lined.shape[-1] < 2:
            return True
        if self.sets:
            before = np.bitwise_or.accumulate(lined, axis=-1)[..., :-1]
            return not np.any(before & lined[..., 1:])
        return all(_apart(lined[rows]) for rows in self.rows)

    def without(self, seen: Seen, hidden: np.ndarray) -> Seen:
        """Remove one element at each position, by its number (-1: none), where that is known to be right."""
        if seen is None:
            return None
        hidden = np.broadcast_to(hidden, seen.shape[1:])
        own = self.own[:, np.maximum(hidden, 0)]
        if self.sets:
            return np.where(hidden >= 0, seen & ~own, seen)
        seen = seen.copy()
        for rows in self.rows:
            alone = np.all(seen[rows] == own[rows], axis=0) & (hidden >= 0) & (own[rows][0] != EMPTY)
            seen[rows] = np.where(alone, EMPTY, seen[rows])
        return seen


def _overlap(a: np.ndarray, b: np.ndarray) -> Any:
    half = len(a) // 2
    low, high = (np.maximum(a[:half], b[:half]), np.minimum(-a[half:], -b[half:]))
    return np.all((low <= high) & (a[:half] != EMPTY) & (b[:half] != EMPTY), axis=0)


def _apart(boxes: np.ndarray) -> bool:
    """Say whether boxes on the last axis are apart: points that differ, or intervals that are apart along one axis."""
    half = len(boxes) // 2
    low, high = boxes[:half].astype(np.int64), -boxes[half:].astype(np.int64)
    if np.array_equal(low, high):
        spans = low.reshape(half, -1).max(axis=1, initial=0) + 1
        number = np.sort(np.ravel_multi_index(tuple(low), tuple(spans)), axis=-1)
        return bool(np.all(number[..., 1:] != number[..., :-1]))
    for lo, hi in zip(low, high, strict=True):
        order = np.argsort(lo, axis=-1)
        lo, hi = np.take_along_axis(lo, order, -1), np.take_along_axis(hi, order, -1)
        if np.all(np.maximum.accumulate(hi, axis=-1)[..., :-1] < lo[..., 1:]):
            return True
    return False


def seen_along(seen: Seen, axes: Sequence[int]) -> Seen:
    """Join what all numbers along some axes see."""
    return None if seen is None else join_over(seen, tuple(a + 1 for a in axes))
