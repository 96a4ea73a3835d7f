"""Data movement: numbers go to other positions, and the layout says where.

Each primitive is described once, as a function of an array over the axes that it works on; axes that it leaves alone
keep their layout. The same function moves the numbers themselves, where a change touches all of an axis, and an array
of positions, where it touches few.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from legrad.singlesite.change import Change, Lazy, New, Piece
from legrad.singlesite.labelled import Axis, Labelled, M, V, arrange, spread
from legrad.singlesite.layout import ENTRIES, Entries, Layout, Rows, from_keys, keys, rows
from legrad.singlesite.rules.fallback import fallback
from legrad.singlesite.rules.operand import Operand, Rule, Step
from legrad.singlesite.site import Site


@dataclass(frozen=True, eq=False)
class Move:
    """How one operand goes into one result.

    Attributes:
        passed: axes that are left alone: operand's to result's.
        worked: the operand's other axes.
        made: the result's other axes.
        apply: takes an array over `worked` (of numpy or JAX) and a fill to one over `made`.
        total: whether every position of the result comes from the operand.
    """

    passed: dict[int, int]
    worked: list[int]
    made: list[int]
    apply: Callable[[Any, Any], Any]
    total: bool = True


def move(step: Step, x: Operand, how: Move, base: Any) -> Change:
    """The change of a result that takes its numbers from one operand."""
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
    """A layout and the arrays on it after a move; the mask says which numbers come from the operand."""
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
    """The worked axes along which few positions are touched."""
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
    3. `_sorted_entries` turns the elements and result positions of all readings into entries.
    4. `_read_rows` reads each array in the order of the entries.
    """
    tight = _tight(layout, how, shape)
    covered = sorted({w for w in (layout.where[a] for a in tight) if isinstance(w, int)}.union(layout.covered()))
    # An axis left alone that follows a covered axis of the latent is listed too.
    follow = [a for a in how.passed if layout.where[a] in covered or layout.where[a] == ENTRIES]
    touched = _touched(rows(layout, site.shape, covered), how, tight, shape)
    which, target = _readers(touched, how, shape)
    row = touched.row[which]
    made = dict(zip(how.made, np.unravel_index(target, [out[b] for b in how.made]), strict=True)) if how.made else {}
    positions = made | {how.passed[a]: touched.table.positions[a][row] for a in follow}
    elements = {j: e[row] for j, e in touched.table.elements.items()}
    entries, order = _sorted_entries(Rows(None, elements, positions), site, out)
    where: list[Any] = [ENTRIES if b in positions else None for b in range(len(out))]
    alone = {a: b for a, b in how.passed.items() if a not in follow}
    for a, b in alone.items():
        where[b] = layout.where[a]
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
    """Changes of separate parts of one value; `regions` says which numbers belong to each part."""
    if len(changes) == 1:
        return changes[0]
    site = step.site
    lazy = [c for c in changes if isinstance(c, Lazy)]
    if len(lazy) == len(changes) and sum(len(c.pieces) for c in lazy) <= 8:
        pieces = site.tidy([p for c in lazy for p in c.pieces])
        if not all(c.known for c in lazy):
            return pieces
        return replace(
            pieces, direct=lambda: _merged(step, [site.directly(c) for c in lazy], regions, base), known=True
        )
    return _merged(step, changes, regions, base)


def _merged(step: Step, changes: Sequence[Change], regions: Sequence[np.ndarray], base: Any) -> New:
    """The same as values."""
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


# --- the primitives ------------------------------------------------------------------------------------------


def _one(step: Step, how: Move) -> list[Change | None]:
    return [move(step, step.operands[0], how, step.results[0])]


def transpose(step: Step) -> list[Change | None]:
    """Axes in another order."""
    passed = {a: b for b, a in enumerate(step.eqn.params["permutation"])}
    return _one(step, Move(passed, [], [], lambda v, fill: v))


def broadcast_in_dim(step: Step) -> list[Change | None]:
    """New axes, along which the value is constant."""
    x = step.operands[0]
    assert x.change is not None
    return [step.site.broadcast(x.change, x.base, step.eqn.params["broadcast_dimensions"], step.shape)]


def _groups(old: Sequence[int], new: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """The smallest groups of axes that a reshape takes to each other."""
    groups, i, j = [], 0, 0
    while i < len(old) or j < len(new):
        a, b = [], []
        m = n = 1
        if i < len(old):
            a.append(i)
            m *= old[i]
            i += 1
        if j < len(new):
            b.append(j)
            n *= new[j]
            j += 1
        while m != n:
            if (m < n and i < len(old)) or j >= len(new):
                a.append(i)
                m *= old[i]
                i += 1
            else:
                b.append(j)
                n *= new[j]
                j += 1
        groups.append((a, b))
    return groups


def reshape(step: Step) -> list[Change | None]:
    """Axes merged, split, or of size 1 added and dropped."""
    x, out = step.operands[0], step.shape
    if 0 in x.shape:
        return fallback(step)
    # Axes of size 1 come and go freely: without them more axes are left alone.
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
    """Axes of size 1 dropped."""
    return reshape(step)


def _along(shape: Sequence[int], axes: Sequence[int], apply: Callable[[Any, Any], Any], total: bool = True) -> Move:
    """A move that works along some axes and keeps their order."""
    worked = list(axes)
    return Move({a: a for a in range(len(shape)) if a not in worked}, worked, worked, apply, total)


def slice_(step: Step) -> list[Change | None]:
    """A window with strides."""
    p, shape = step.eqn.params, step.operands[0].shape
    strides = p["strides"] or (1,) * len(shape)
    window = list(zip(p["start_indices"], p["limit_indices"], strides, strict=True))
    axes = [a for a, w in enumerate(window) if w != (0, shape[a], 1)]
    cut = tuple(slice(*window[a]) for a in axes)
    return _one(step, _along(shape, axes, lambda v, fill: v[cut]))


def rev(step: Step) -> list[Change | None]:
    """Axes turned around."""
    axes = list(step.eqn.params["dimensions"])
    cut = tuple(slice(None, None, -1) for _ in axes)
    return _one(step, _along(step.shape, axes, lambda v, fill: v[cut]))


def pad(step: Step) -> list[Change | None]:
    """A value among copies of another number."""
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
    """Values one after the other."""
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
    after = out[axis] - start - shape[axis]

    def apply(v: Any, fill: Any) -> Any:
        xp = np if isinstance(v, np.ndarray) else jnp
        return xp.concatenate([xp.full(start, fill, v.dtype), v, xp.full(after, fill, v.dtype)])

    return _along(out, [axis], apply, total=False)


def split(step: Step) -> list[Change | None]:
    """A value in parts."""
    x, axis, start, parts = step.operands[0], step.eqn.params["axis"], 0, []
    for size, base in zip(step.eqn.params["sizes"], step.results, strict=True):
        cut = slice(start, start + size)
        parts.append(move(step, x, _along(x.shape, [axis], partial(_cut, cut)), base))
        start += size
    return list(parts)


def _cut(cut: slice, v: Any, fill: Any) -> Any:
    return v[cut]


def dynamic_slice(step: Step) -> list[Change | None]:
    """A window of known place."""
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
