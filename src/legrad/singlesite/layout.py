"""Which positions of a value a change of one element touches.

Along each axis of the value, a change touches every position (None), the position equal to the element's own index
along axis j of the latent (j), or the positions in a list of entries (ENTRIES). The list pairs elements with
positions, for the axes of the latent that the list covers; along other axes of the latent all elements share it.

    x[b, h] in x @ W, x of shape (B, H):      where = (0, None)       row b, all columns
    x[t] in x[1:] - x[:-1]:                   where = (ENTRIES,)      entries (t, t - 1) and (t, t)
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

ENTRIES = "m"
_MOST_RUNS = 16
Where = int | str | None


@dataclass(frozen=True, eq=False)
class Entries:
    """Pairs of an element and a position, by axis, without duplicates.

    If there are few distances from element to position, as on chains and grids, pairs with the same distance stand
    together. Each such run is a window of the latent, and is read by a slice instead of a gather.
    """

    elements: dict[int, np.ndarray]
    positions: dict[int, np.ndarray]
    runs: tuple[int, ...] = ()  # where each run begins, and the end of the last; empty if there are no runs
    chunk: int = 1  # each group of this many pairs in a row belongs to one element

    @cached_property
    def size(self) -> int:
        """Return the count of pairs."""
        return len(next(iter(self.elements.values())))

    def same_as(self, other: Entries) -> bool:
        """Return whether both lists hold the same pairs in the same order."""
        return self is other or (
            self.elements.keys() == other.elements.keys()
            and self.positions.keys() == other.positions.keys()
            and self.size == other.size
            and all(_equal(v, other.elements[j]) for j, v in self.elements.items())
            and all(_equal(v, other.positions[a]) for a, v in self.positions.items())
        )


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    return a is b or np.array_equal(a, b)


@dataclass(frozen=True, eq=False)
class Layout:
    """The positions of a value that a change of one element touches: `where` has an item for every axis."""

    where: tuple[Where, ...]
    entries: Entries | None = None

    def same_as(self, other: Layout) -> bool:
        """Return whether both layouts touch the same positions, listed in the same order."""
        if self.where != other.where or (self.entries is None) != (other.entries is None):
            return False
        return self.entries is None or other.entries is None or self.entries.same_as(other.entries)

    def rename(self, where: Sequence[Where], positions: dict[int, int]) -> Layout:
        """Return the layout of a value whose axes were moved; `positions` maps old axes of entries to new ones."""
        entries = self.entries
        if entries is not None:
            moved = {positions[a]: p for a, p in entries.positions.items()}
            entries = Entries(entries.elements, moved, entries.runs, entries.chunk)
        return Layout(tuple(where), entries)

    def free(self) -> list[int]:
        """Return the axes along which everything is touched."""
        return [a for a, w in enumerate(self.where) if w is None]

    def listed(self) -> list[int]:
        """Return the axes along which the entries say what is touched."""
        return [a for a, w in enumerate(self.where) if w == ENTRIES]

    def covered(self) -> list[int]:
        """Return the axes of the latent that the entries cover."""
        return [] if self.entries is None else list(self.entries.elements)


@dataclass(frozen=True)
class Rows:
    """The places of a layout as a table: one row for each pair, over given axes of the latent.

    Attributes:
        source: the entry that each row comes from, or None if the layout has no entries.
        elements: the element's index along each of the given axes.
        positions: the position along each axis of the value that is listed or follows one of the given axes.
    """

    source: np.ndarray | None
    elements: dict[int, np.ndarray]
    positions: dict[int, np.ndarray]


def rows(layout: Layout, shape: tuple[int, ...], covered: Sequence[int]) -> Rows:
    """List a layout's places over the axes `covered` of a latent with the given shape."""
    entries, own = layout.entries, layout.covered()
    extra = [j for j in covered if j not in own]
    sizes = ([] if entries is None else [entries.size]) + [shape[j] for j in extra]
    index = [i.reshape(-1) for i in np.indices(sizes, dtype=np.int32)] if sizes else []
    source = index.pop(0) if entries is not None else None
    elements = dict(zip(extra, index, strict=True))
    if entries is not None:
        elements |= {j: entries.elements[j][source] for j in own}
    positions: dict[int, np.ndarray] = {}
    for a, w in enumerate(layout.where):
        if w == ENTRIES and entries is not None:
            positions[a] = entries.positions[a][source]
        elif isinstance(w, int) and w in elements:
            positions[a] = elements[w]
    return Rows(source, elements, positions)


def keys(
    table: Rows, elements: Sequence[int], positions: Sequence[int], shape: Sequence[int], value_shape: Sequence[int]
) -> np.ndarray:
    """Return one integer for each row, which encodes the element and its position and sorts by them."""
    columns = [table.elements[j] for j in elements] + [table.positions[a] for a in positions]
    sizes = [shape[j] for j in elements] + [value_shape[a] for a in positions]
    if math.prod(sizes) >= 1 << 62:
        raise OverflowError(f"{math.prod(sizes):,} positions are too many to list")
    return np.ravel_multi_index([c.astype(np.int64) for c in columns], sizes)


def from_keys(
    unique: np.ndarray,
    elements: Sequence[int],
    positions: Sequence[int],
    shape: Sequence[int],
    value_shape: Sequence[int],
) -> tuple[Entries, np.ndarray]:
    """Return the entries that sorted, distinct `keys` stand for, and the order in which the entries are put."""
    sizes = [shape[j] for j in elements] + [value_shape[a] for a in positions]
    columns = [c.astype(np.int32) for c in np.unravel_index(unique, sizes)]
    order, runs = _runs(columns[: len(elements)], columns[len(elements) :])
    columns = [c[order] for c in columns]
    own = dict(zip(elements, columns[: len(elements)], strict=True))
    return Entries(own, dict(zip(positions, columns[len(elements) :], strict=True)), runs), order


def _runs(elements: list[np.ndarray], positions: list[np.ndarray]) -> tuple[np.ndarray, tuple[int, ...]]:
    """Return an order of pairs in which those with the same distance stand together, and where each run begins.

    If there are too many distances, keep the order, without runs.
    """
    count = len(elements[0])
    code = _distances(elements, positions) if len(elements) == len(positions) and count else None
    which = None if code is None else _which_of_few(code)
    if which is None:
        return np.arange(count), ()
    which = which.reshape(-1).astype(np.uint8)  # radix sort: linear time
    return np.argsort(which, kind="stable"), (0, *(int(n) for n in np.cumsum(np.bincount(which))))


def _distances(elements: list[np.ndarray], positions: list[np.ndarray]) -> np.ndarray | None:
    """Return one integer for each pair, equal for equal distances along all axes; None if 62 bits are too few."""
    distances = [p.astype(np.int64) - e for p, e in zip(positions, elements, strict=True)]
    lowest = [d.min() for d in distances]
    sizes = [int(d.max() - low) + 1 for d, low in zip(distances, lowest, strict=True)]
    if math.prod(sizes) >= 1 << 62:
        return None
    return np.ravel_multi_index([d - low for d, low in zip(distances, lowest, strict=True)], sizes)


def _which_of_few(code: np.ndarray) -> np.ndarray | None:
    """Return for each integer its rank among the distinct ones; None if there are more than `_MOST_RUNS`."""
    found = np.unique(code[:: max(1, len(code) // 64)])  # a sample, as sorting all of them takes long
    if len(found) > _MOST_RUNS:
        return None
    which = np.minimum(np.searchsorted(found, code), len(found) - 1)
    if not np.array_equal(found[which], code):  # the sample missed some
        found, which = np.unique(code, return_inverse=True)
    return which if len(found) <= _MOST_RUNS else None


def _distinct(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return the distinct integers of some arrays, sorted; in linear time if each array is sorted already."""
    joined = np.sort(np.concatenate(parts), kind="stable")
    return joined[np.concatenate([[True], joined[1:] != joined[:-1]])] if len(joined) else joined


def as_window(index: np.ndarray, shape: Sequence[int]) -> list[slice] | None:
    """Return the window of an array that flat positions enumerate in order; None if they are not a window."""
    if len(index) == 0 or index.min() < 0:
        return None
    first, last = np.unravel_index(index[0], shape), np.unravel_index(index[-1], shape)
    window = [slice(int(lo), int(hi) + 1) for lo, hi in zip(first, last, strict=True)]
    extent = [w.stop - w.start for w in window]
    if min(extent, default=1) < 1 or math.prod(extent) != len(index):
        return None
    grid = np.ravel_multi_index(np.ix_(*(np.arange(w.start, w.stop) for w in window)), tuple(shape))
    return window if np.array_equal(grid.reshape(-1), index) else None


def union(
    layouts: Sequence[Layout],
    shape: tuple[int, ...],
    value_shape: tuple[int, ...],
    *,
    free: Collection[int] = (),
    sparse: bool = True,
) -> Layout:
    """Return the smallest layout that touches every position that one of several layouts touches.

    If the layouts are all the same, and free where they must be, return the first. Otherwise decide by axis:

    1. `_loose_axes`: an axis is free if one of the layouts is free along it, or the caller asks for that.
    2. `_axes_to_list`: an axis is listed if the layouts differ there, or if it depends on what another list covers.
       The remaining axes are as in the first layout.
    3. `_common_entries`: the listed axes share one list. If that would save little, they are free instead.

    Args:
        layouts: the layouts of values of the same rank.
        shape: the latent's shape.
        value_shape: the value's shape.
        free: axes that must be free in the result.
        sparse: whether lists of entries are allowed.
    """
    alike = all(layout.same_as(layouts[0]) for layout in layouts)
    if alike and all(layouts[0].where[a] is None for a in free):
        return layouts[0]
    loose = _loose_axes(layouts, value_shape, free)
    listed, covered = _axes_to_list(layouts, [a for a in range(len(value_shape)) if a not in loose])
    where = [None if a in loose else layouts[0].where[a] for a in range(len(value_shape))]
    if not listed:
        return Layout(tuple(where))
    entries = _common_entries(layouts, sorted(covered), sorted(listed), shape, value_shape) if sparse else None
    joined = None if entries is None else ENTRIES
    return Layout(tuple(joined if a in listed else w for a, w in enumerate(where)), entries)


def _loose_axes(layouts: Sequence[Layout], value_shape: tuple[int, ...], free: Collection[int]) -> set[int]:
    """Return the axes that a common layout leaves free: those asked for, of size 1, or free in one layout."""
    unit = {a for a, n in enumerate(value_shape) if n == 1}
    return {*free, *unit}.union(*(layout.free() for layout in layouts))


def _axes_to_list(layouts: Sequence[Layout], tight: Sequence[int]) -> tuple[set[int], set[int]]:
    """Return which of the tight axes of the value need a common list, and which axes of the latent it covers.

    Start with what the lists of the layouts cover. Then add axes of the value, and what they cover, until nothing
    more depends on the list.
    """
    listed: set[int] = set()
    covered = {j for layout in layouts if not set(tight).isdisjoint(layout.listed()) for j in layout.covered()}
    before = -1
    while len(covered) + len(listed) > before:
        before = len(covered) + len(listed)
        for a in tight:
            found = {layout.where[a] for layout in layouts}
            if len(found) > 1 or ENTRIES in found or found & covered:
                listed.add(a)
                covered |= {w for w in found if isinstance(w, int)}
                covered |= {j for layout in layouts if layout.where[a] == ENTRIES for j in layout.covered()}
    return listed, covered


def _common_entries(
    layouts: Sequence[Layout],
    covered: Sequence[int],
    listed: Sequence[int],
    shape: tuple[int, ...],
    value_shape: tuple[int, ...],
) -> Entries | None:
    """List the pairs that one of the layouts touches; None if they are more than half of all pairs."""
    everything = math.prod(shape[j] for j in covered) * math.prod(value_shape[a] for a in listed)
    if everything >= 1 << 62:
        return None
    tables = [rows(layout, shape, covered) for layout in layouts]
    unique = _distinct([keys(table, covered, listed, shape, value_shape) for table in tables])
    return None if 2 * len(unique) > everything else from_keys(unique, covered, listed, shape, value_shape)[0]
