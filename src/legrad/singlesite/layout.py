"""Which positions of a value a change of one element touches.

Along each axis of the value a change touches every position (None), the position that is the element's own index
along axis j of the latent (j), or positions that a list of entries holds (ENTRIES). The list pairs elements with
positions, for the axes of the latent that it covers; along the others of its axes every element has the same list.

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
    """Pairs of an element and a position, by axis; none twice.

    Pairs with the same distance from element to position stand together where there are few distances, as on chains
    and grids: each such run is then a window of the latent, and reading it is no gather but a slice.
    """

    elements: dict[int, np.ndarray]
    positions: dict[int, np.ndarray]
    runs: tuple[int, ...] = ()  # where each run begins, and the end of the last; empty where there are none
    chunk: int = 1  # so many pairs in a row are always of one element

    @cached_property
    def size(self) -> int:
        """How many pairs."""
        return len(next(iter(self.elements.values())))

    def same_as(self, other: Entries) -> bool:
        """Whether both hold the same pairs in the same order."""
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
    """What the change of one element touches in a value: `where` for every axis of the value."""

    where: tuple[Where, ...]
    entries: Entries | None = None

    def same_as(self, other: Layout) -> bool:
        """Whether both touch the same positions, listed alike."""
        if self.where != other.where or (self.entries is None) != (other.entries is None):
            return False
        return self.entries is None or other.entries is None or self.entries.same_as(other.entries)

    def rename(self, where: Sequence[Where], positions: dict[int, int]) -> Layout:
        """The layout of a value whose axes were moved; `positions` maps old axes of entries to new ones."""
        entries = self.entries
        if entries is not None:
            moved = {positions[a]: p for a, p in entries.positions.items()}
            entries = Entries(entries.elements, moved, entries.runs, entries.chunk)
        return Layout(tuple(where), entries)

    def free(self) -> list[int]:
        """The axes along which everything is touched."""
        return [a for a, w in enumerate(self.where) if w is None]

    def listed(self) -> list[int]:
        """The axes along which the entries say what is touched."""
        return [a for a, w in enumerate(self.where) if w == ENTRIES]


@dataclass(frozen=True)
class Rows:
    """The places of a layout as a table: one row for each pair, over given axes of the latent.

    Attributes:
        source: the entry that each row comes from, or None where the layout has none.
        elements: the element's index along each axis.
        positions: the position along each axis of the value that is not free and not left to an axis outside.
    """

    source: np.ndarray | None
    elements: dict[int, np.ndarray]
    positions: dict[int, np.ndarray]


def rows(layout: Layout, shape: tuple[int, ...], covered: Sequence[int]) -> Rows:
    """List a layout's places over the axes `covered` of a latent of some shape."""
    entries = layout.entries
    own = [] if entries is None else list(entries.elements)
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
    """One number for each row: the element and its position, in the order of sorting."""
    columns = [table.elements[j] for j in elements] + [table.positions[a] for a in positions]
    sizes = [shape[j] for j in elements] + [value_shape[a] for a in positions]
    if math.prod(sizes) >= 1 << 62:
        raise OverflowError("too many positions to list")
    return np.ravel_multi_index([c.astype(np.int64) for c in columns], sizes)


def from_keys(
    unique: np.ndarray,
    elements: Sequence[int],
    positions: Sequence[int],
    shape: Sequence[int],
    value_shape: Sequence[int],
) -> tuple[Entries, np.ndarray]:
    """The entries that numbers of `keys`, sorted and none twice, stand for; and the order that they are put in."""
    sizes = [shape[j] for j in elements] + [value_shape[a] for a in positions]
    columns = [c.astype(np.int32) for c in np.unravel_index(unique, sizes)]
    order, runs = _runs(columns[: len(elements)], columns[len(elements) :])
    columns = [c[order] for c in columns]
    own = dict(zip(elements, columns[: len(elements)], strict=True))
    return Entries(own, dict(zip(positions, columns[len(elements) :], strict=True)), runs), order


def _runs(elements: list[np.ndarray], positions: list[np.ndarray]) -> tuple[np.ndarray, tuple[int, ...]]:
    count = len(elements[0])
    if len(elements) == len(positions) and count:
        distances = [p.astype(np.int64) - e for p, e in zip(positions, elements, strict=True)]
        lowest = [d.min() for d in distances]
        sizes = [int(d.max() - low) + 1 for d, low in zip(distances, lowest, strict=True)]
        if math.prod(sizes) < 1 << 62:
            code = np.ravel_multi_index([d - low for d, low in zip(distances, lowest, strict=True)], sizes)
            found = np.unique(code[:: max(1, count // 64)])
            if len(found) <= _MOST_RUNS:
                which = np.minimum(np.searchsorted(found, code), len(found) - 1)
                if not np.array_equal(found[which], code):  # some distances are rarer than the sample
                    found, which = np.unique(code, return_inverse=True)
            if len(found) <= _MOST_RUNS:
                which = which.reshape(-1).astype(np.uint8)  # sorted by digits, in linear time
                return np.argsort(which, kind="stable"), (0, *(int(n) for n in np.cumsum(np.bincount(which))))
    return np.arange(count), ()


def _distinct(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return the numbers of some arrays, sorted and none twice; linear in time where each array is sorted already."""
    joined = np.sort(np.concatenate(parts), kind="stable")
    return joined[np.concatenate([[True], joined[1:] != joined[:-1]])] if len(joined) else joined


def as_window(index: np.ndarray, shape: Sequence[int]) -> list[slice] | None:
    """The window of an array that numbers of its positions enumerate in order; None where they do not."""
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
    """The least layout that touches whatever one of several does.

    Args:
        layouts: of values of the same rank.
        shape: the latent's shape.
        value_shape: the value's shape.
        free: axes to be touched everywhere, whatever the layouts say.
        sparse: whether lists of entries are allowed.
    """
    alike = all(layout.same_as(layouts[0]) for layout in layouts)
    if alike and all(layouts[0].where[a] is None for a in free):
        return layouts[0]
    rank = len(value_shape)
    loose = set(free) | {a for a in range(rank) if value_shape[a] == 1}
    loose |= {a for a in range(rank) for layout in layouts if layout.where[a] is None}
    tight = [a for a in range(rank) if a not in loose]
    # Axes of the latent that some list covers on the axes that stay tight must be covered by the common list.
    covered = {
        j
        for x in layouts
        if x.entries is not None and any(a in tight for a in x.listed())
        for j in x.entries.elements
    }
    listed: set[int] = set()
    while True:
        before = len(covered) + len(listed)
        for a in tight:
            found = {layout.where[a] for layout in layouts}
            if len(found) > 1 or ENTRIES in found or found & covered:
                listed.add(a)
                covered |= {w for w in found if isinstance(w, int)}
                covered |= {
                    j for x in layouts if x.entries is not None and x.where[a] == ENTRIES for j in x.entries.elements
                }
        if len(covered) + len(listed) == before:
            break
    where = [None if a in loose else layouts[0].where[a] for a in range(rank)]
    if not listed:
        return Layout(tuple(where))
    elements, positions = sorted(covered), sorted(listed)
    everything = math.prod(shape[j] for j in elements) * math.prod(value_shape[a] for a in positions)
    if sparse and everything < 1 << 62:
        found_keys = []
        for layout in layouts:
            table = rows(layout, shape, elements)
            found_keys.append(keys(table, elements, positions, shape, value_shape))
        unique = _distinct(found_keys)
        if 2 * len(unique) <= everything:
            entries, _ = from_keys(unique, elements, positions, shape, value_shape)
            return Layout(tuple(ENTRIES if a in listed else w for a, w in enumerate(where)), entries)
    return Layout(tuple(None if a in listed else w for a, w in enumerate(where)))
