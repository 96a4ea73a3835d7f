"""Move the numbers of a change to other positions: its arrays, and the layout that says where they are.

A move is a function of an array over the axes that a primitive works on; the other axes keep their layout. The same
function moves the numbers themselves if a change touches all of an axis, and an array of positions if it touches few.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from legrad.singlesite.change import MOST_PIECES, Change, Lazy, New, Piece
from legrad.singlesite.labelled import Axis, Labelled, M, V, arrange, spread
from legrad.singlesite.layout import ENTRIES, Entries, Layout, Rows, from_keys, keys, rows
from legrad.singlesite.rules.operand import Operand, Step
from legrad.singlesite.site import Site


@dataclass(frozen=True, eq=False)
class Move:
    """How one operand goes into one result.

    Attributes:
        passed: the axes that are left alone, from the operand's to the result's.
        worked: the operand's other axes.
        made: the result's other axes.
        apply: a function from an array over `worked` (of NumPy or JAX) and a fill value to an array over `made`.
        total: whether every position of the result comes from the operand.
    """

    passed: dict[int, int]
    worked: list[int]
    made: list[int]
    apply: Callable[[Any, Any], Any]
    total: bool = True


def move(step: Step, x: Operand, how: Move, base: Any) -> Change:
    """Return the change of a result that takes its numbers from one operand."""
    site, shape, out = step.site, x.shape, tuple(base.shape)
    assert x.change is not None
    vanishing = [] if how.made else [a for a in how.worked if shape[a] == 1]
    change = site.loosen(x.change, x.base, vanishing)
    if isinstance(change, New):
        layout, arrays, mask = _moved(site, change.layout, [change.value], how, shape, out)
        value = arrays[0]
        if mask is not None:
            value = site.order.combine(jnp.where, mask, value, site.take(base, layout))
        return New(layout, value)
    pieces = []
    for piece in change.pieces:
        layout, arrays, mask = _moved(site, piece.layout, list(piece.factors), how, shape, out)
        pieces.append(Piece(layout, tuple(arrays) if mask is None else site.masked(arrays, mask)))
    return site.moved(change, pieces, lambda new: move(step, Operand(x.base, new, x.read), how, base))


def _moved(
    site: Site, layout: Layout, arrays: list[Labelled], how: Move, shape: tuple[int, ...], out: tuple[int, ...]
) -> tuple[Layout, list[Labelled], Labelled | None]:
    """Move a layout and the arrays on it; the mask that is returned says which numbers come from the operand."""
    names = {V(a): V(b) for a, b in how.passed.items()}
    tight = _tight(layout, how, shape)
    if tight and not site.sparse:
        loose = Layout(tuple(None if a in tight else w for a, w in enumerate(layout.where)))
        mask = site.reached(layout, loose, shape)
        assert mask is not None
        assert layout.entries is None
        moved, (*values, reached), _ = _moved(site, loose, [*arrays, mask], how, shape, out)
        return moved, values, reached
    if tight:
        return _listed(site, layout, arrays, how, shape, out)
    where: list[Any] = [None] * len(out)
    for a, b in how.passed.items():
        where[b] = layout.where[a]
    renamed = layout.rename(where, how.passed)
    mask = None
    if not how.total:
        known = np.asarray(how.apply(np.ones([shape[a] for a in how.worked], bool), False))
        mask = Labelled(jnp.asarray(known), tuple(map(V, how.made))).squeezed()
    return renamed, [_apply(f, how, shape, names) for f in arrays], mask


def _tight(layout: Layout, how: Move, shape: tuple[int, ...]) -> list[int]:
    """Return the worked axes along which few positions are touched."""
    return [a for a in how.worked if layout.where[a] == ENTRIES or (layout.where[a] is not None and shape[a] > 1)]


def _apply(array: Labelled, how: Move, shape: tuple[int, ...], names: dict[Axis, Axis]) -> Labelled:
    """Move the numbers of an array that is touched everywhere along the worked axes."""
    worked = [V(a) for a in how.worked]
    if not any(axis in array.axes for axis in worked):
        return array.rename(names)
    rest = [axis for axis in array.axes if axis not in worked]
    sizes = {axis: array.size_of(axis) for axis in rest} | {V(a): shape[a] for a in how.worked}
    data = spread(array, [*rest, *worked], sizes)
    run: Callable[[Any], Any] = lambda value: how.apply(value, jnp.zeros((), value.dtype))  # noqa: E731
    for _ in rest:
        run = jax.vmap(run)
    result = Labelled(run(data), (*rest, *(("w", b) for b in how.made)))
    return result.rename(names).rename({("w", b): V(b) for b in how.made}).squeezed()


def _listed(
    site: Site, layout: Layout, arrays: list[Labelled], how: Move, shape: tuple[int, ...], out: tuple[int, ...]
) -> tuple[Layout, list[Labelled], Labelled | None]:
    """Follow the touched positions one by one: the result's layout is a list of entries.

    1. `_touched` lists the operand's touched positions, each with its row in the table of the layout.
    2. `_readers` finds the positions of the result that read each of them: a reading is a pair of the two.
    3. `_readings` and `_sorted_entries` turn the elements and result positions of all readings into entries.
    4. `_read_rows` reads each array in the order of the entries.
    """
    tight = _tight(layout, how, shape)
    covered = sorted({w for w in (layout.where[a] for a in tight) if isinstance(w, int)}.union(layout.covered()))
    # An axis left alone that follows a covered axis of the latent is listed too.
    follow = {a: b for a, b in how.passed.items() if layout.where[a] in covered or layout.where[a] == ENTRIES}
    alone = {a: b for a, b in how.passed.items() if a not in follow}
    touched = _touched(rows(layout, site.shape, covered), how, tight, shape)
    which, target = _readers(touched, how, shape)
    readings = _readings(touched, which, target, how.made, follow, out)
    entries, order = _sorted_entries(readings, site, out)
    where: list[Any] = [None] * len(out)
    for a, b in alone.items():
        where[b] = layout.where[a]
    for b in entries.positions:
        where[b] = ENTRIES
    names = {V(a): V(b) for a, b in alone.items()}
    read = [_read_rows(site, array, touched, layout, which[order], entries.runs) for array in arrays]
    return Layout(tuple(where), entries), [array.rename(names) for array in read], None


class _Touched(NamedTuple):
    """The touched positions of an operand, one by one.

    Attributes:
        table: the places of the operand's layout.
        row: the row of the table that each position belongs to.
        at: the index of each position along every worked axis.
        free: the worked axes that are touched everywhere.
    """

    table: Rows
    row: np.ndarray
    at: dict[int, np.ndarray]
    free: list[int]


def _touched(table: Rows, how: Move, tight: Sequence[int], shape: tuple[int, ...]) -> _Touched:
    """List the touched positions over all worked axes; those along free axes in full."""
    count = len(next(iter(table.elements.values())))
    free = [a for a in how.worked if a not in tight]
    row, *index = np.indices([count, *(shape[a] for a in free)], dtype=np.int32).reshape(1 + len(free), -1)
    at = dict(zip(free, index, strict=True)) | {a: table.positions[a][row] for a in tight}
    return _Touched(table, row, at, free)


def _readers(touched: _Touched, how: Move, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Join every touched position with every position of the result that reads its number.

    Returns, for each reading, which touched position is read, and the flat position of the result along `how.made`.
    """
    sizes = [shape[a] for a in how.worked]
    flat = np.ravel_multi_index([touched.at[a] for a in how.worked], sizes)
    source = np.asarray(how.apply(np.arange(int(np.prod(sizes)), dtype=np.int32).reshape(sizes), -1)).reshape(-1)
    order = np.argsort(source, kind="stable")
    first = np.searchsorted(source[order], flat, "left")
    count = np.searchsorted(source[order], flat, "right") - first
    which = np.repeat(np.arange(len(flat)), count)
    step_in = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
    return which, order[np.repeat(first, count) + step_in]


def _readings(
    touched: _Touched,
    which: np.ndarray,
    target: np.ndarray,
    made: Sequence[int],
    follow: dict[int, int],
    out: tuple[int, ...],
) -> Rows:
    """Return the element of each reading, and its position along the result's axes that are made or follow one."""
    row = touched.row[which]
    positions = dict(zip(made, np.unravel_index(target, [out[b] for b in made]), strict=True)) if made else {}
    positions |= {b: touched.table.positions[a][row] for a, b in follow.items()}
    return Rows(None, {j: e[row] for j, e in touched.table.elements.items()}, positions)


def _sorted_entries(readings: Rows, site: Site, out: tuple[int, ...]) -> tuple[Entries, np.ndarray]:
    """Return the entries that readings make up, and the readings in the order of the entries."""
    elements, positions = sorted(readings.elements), sorted(readings.positions)
    key = keys(readings, elements, positions, site.shape, out)
    by_key = np.argsort(key, kind="stable")
    entries, order = from_keys(key[by_key], elements, positions, site.shape, out)
    return entries, by_key[order]


def _read_rows(
    site: Site, array: Labelled, touched: _Touched, layout: Layout, chosen: np.ndarray, runs: tuple[int, ...]
) -> Labelled:
    """Read an array at the chosen touched positions, in order, along one axis of entries."""
    table, row = touched.table, touched.row[chosen]
    covered = sorted(table.elements)
    varying = [a for a in touched.free if V(a) in array.axes]
    if not varying:
        return site.rows_of(array, table, layout, covered, row, runs)
    every = site.rows_of(array, table, layout, covered, np.arange(len(table.elements[covered[0]])))
    index: dict[Axis, np.ndarray] = {M: row} if M in every.axes else {}
    index |= {V(a): touched.at[a][chosen] for a in varying}
    left = tuple(axis for axis in every.axes if axis not in index)
    picked = arrange(every, [*index, *left]).at[tuple(index.values())].get(mode="promise_in_bounds")
    return Labelled(picked, (M, *left))


def merge(step: Step, changes: Sequence[Change], regions: Sequence[np.ndarray], base: Any) -> Change:
    """Merge the changes of separate parts of one value; `regions` says which numbers belong to each part."""
    if len(changes) == 1:
        return changes[0]
    site = step.site
    lazy = [c for c in changes if isinstance(c, Lazy)]
    if len(lazy) == len(changes) and sum(len(c.pieces) for c in lazy) <= MOST_PIECES:
        pieces = site.tidy([p for c in lazy for p in c.pieces])
        if not all(c.values_known for c in lazy):
            return pieces
        return replace(
            pieces, direct=lambda: _merged(step, [site.directly(c) for c in lazy], regions, base), values_known=True
        )
    return _merged(step, changes, regions, base)


def _merged(step: Step, changes: Sequence[Change], regions: Sequence[np.ndarray], base: Any) -> New:
    """Merge the changes of separate parts of one value into values."""
    site = step.site
    shape = tuple(base.shape)
    layout = site.union([x for c in changes for x in site.layouts(c)], shape)
    total = site.take(base, layout)
    for c, region in zip(changes, regions, strict=True):
        if isinstance(c, New):
            part = site.overlay(total, c.value, c.layout, layout, shape)
            along = [a for a, n in enumerate(region.shape) if n > 1]
            inside = bool(along) and all(c.layout.where[a] is not None for a in along)
            total = part if inside else site.order.combine(jnp.where, site.take(region, layout), part, total)
        else:
            for piece in c.pieces:
                total = site.order.combine(jnp.add, total, site.product(piece, layout, shape))
    return New(layout, total)
