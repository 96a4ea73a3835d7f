"""How a value changes when one element of a latent does, for all elements and candidates at once.

    Lazy:  value + Σ over pieces of (product of factors)     linear, or polynomial, in the change
    New:   the value itself, at the positions that are touched

A factor seldom has both the candidates' axis and those of the value: a sum over the value's axes then costs nothing
for each candidate. The first nonlinear function of such a value makes it New.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from legrad.singlesite.labelled import Axis, E, Labelled, M, Order, V, arrange
from legrad.singlesite.layout import Layout, Rows, as_window, from_keys, keys, rows, union


@dataclass(frozen=True, eq=False)
class Piece:
    """A product of factors, zero wherever the layout does not reach."""

    layout: Layout
    factors: tuple[Labelled, ...]

    def has(self, *axes: Axis) -> bool:
        """Whether a factor varies along one of these axes."""
        return any(axis in factor.axes for factor in self.factors for axis in axes)


@dataclass(frozen=True, eq=False)
class Lazy:
    """A change as a sum of pieces."""

    pieces: tuple[Piece, ...]


@dataclass(frozen=True, eq=False)
class New:
    """The changed value, where the layout reaches; elsewhere it is as at the pivot."""

    layout: Layout
    value: Labelled


Change = Lazy | New


@dataclass
class Site:
    """The latent whose elements change, and how its changes are to be laid out.

    Attributes:
        shape: the latent's shape.
        sizes: how many candidates and elements are followed at once, by axis; less than all where blocks run in turn.
        starts: where the block begins, by axis.
        order: the order of axes in memory.
        sparse: whether lists of entries may be used.
    """

    shape: tuple[int, ...]
    sizes: dict[Axis, int]
    starts: dict[Axis, Any] = field(default_factory=dict)
    order: Order = field(default_factory=Order)
    sparse: bool = True

    def index(self, j: int) -> Labelled:
        """The elements' own index along axis j of the latent."""
        count = jnp.arange(self.sizes[E(j)], dtype=jnp.int32)
        return Labelled(count + jnp.asarray(self.starts.get(E(j), 0), jnp.int32), (E(j),))

    def position(self, layout: Layout, a: int, size: int) -> Labelled:
        """The position along axis a of every place that a layout touches."""
        w = layout.where[a]
        if w is None:
            return Labelled(jnp.arange(size, dtype=jnp.int32), (V(a),))
        if isinstance(w, int):
            return self.index(w)
        assert layout.entries is not None
        return Labelled(jnp.asarray(layout.entries.positions[a]), (M,))

    def union(self, layouts: Sequence[Layout], value_shape: tuple[int, ...], free: Collection[int] = ()) -> Layout:
        """The least layout that touches whatever one of several does."""
        return union(layouts, self.shape, value_shape, free=free, sparse=self.sparse)

    def take(self, base: Any, layout: Layout) -> Labelled:
        """Read an array at the places that a layout touches. Axes of size 1 count as absent."""
        base = jnp.asarray(base)
        names: list[Axis | None] = [V(a) for a in range(base.ndim)]
        listed = [a for a in layout.listed() if a < base.ndim and base.shape[a] > 1]
        for a in range(base.ndim):
            w = layout.where[a]
            if base.shape[a] == 1:
                names[a] = None
            elif isinstance(w, int):
                names[a] = E(w)
                if E(w) in self.starts:
                    base = jax.lax.dynamic_slice_in_dim(base, self.starts[E(w)], self.sizes[E(w)], axis=a)
        if listed:
            assert layout.entries is not None
            rest = [a for a in range(base.ndim) if a not in listed]
            sizes = [base.shape[a] for a in listed]
            where = np.ravel_multi_index([layout.entries.positions[a] for a in listed], sizes)
            base = pick(jnp.transpose(base, [*listed, *rest]), where, sizes, layout.entries.runs)
            names = [M, *(names[a] for a in rest)]
        base = jnp.squeeze(base, tuple(i for i, name in enumerate(names) if name is None))
        kept = [name for name in names if name is not None]
        for name in set(kept):
            while kept.count(name) > 1:  # two axes at the element's own index: the diagonal
                first = kept.index(name)
                second = kept.index(name, first + 1)
                base = jnp.diagonal(base, axis1=first, axis2=second)
                kept = [*(n for i, n in enumerate(kept) if i not in (first, second)), name]
        return Labelled(base, tuple(kept))

    def rebase(self, array: Labelled, old: Layout, new: Layout, value_shape: tuple[int, ...]) -> Labelled:
        """An array of one layout on a wider one. Where the old layout does not reach it holds anything finite."""
        return self._rebase(array, old, new, value_shape)[0]

    def reached(self, old: Layout, new: Layout, value_shape: tuple[int, ...]) -> Labelled | None:
        """Where in a wider layout the old one reaches; None if everywhere."""
        mask = self._rebase(Labelled(jnp.ones((), bool), ()), old, new, value_shape)[1]
        entries = new.entries if new.entries is not None else old.entries
        covered = () if entries is None else entries.elements
        for a, w in enumerate(old.where):
            if isinstance(w, int) and w not in covered and new.where[a] is None and value_shape[a] > 1:
                own = self.order.combine(jnp.equal, self.index(w), self.position(new, a, value_shape[a]))
                mask = own if mask is None else self.order.combine(jnp.logical_and, mask, own)
        return mask

    def _rebase(
        self, array: Labelled, old: Layout, new: Layout, value_shape: tuple[int, ...]
    ) -> tuple[Labelled, Labelled | None]:
        if (old.entries is None and new.entries is None) or old.same_as(new):
            return array, None
        entries = new.entries if new.entries is not None else old.entries
        assert entries is not None
        covered = sorted(entries.elements)
        table = rows(old, self.shape, covered)
        freed = [a for a in table.positions if new.where[a] is None and value_shape[a] > 1]
        listed = new.listed()
        target = keys(table, covered, listed, self.shape, value_shape)
        if new.entries is not None:
            found = keys(rows(new, self.shape, covered), covered, listed, self.shape, value_shape)
            order = np.argsort(found, kind="stable")
            target = order[np.searchsorted(found, target, sorter=order)]
            lead: list[Axis] = [M, *map(V, freed)]
            full = [len(found), *(value_shape[a] for a in freed)]
        else:
            lead = [*map(E, covered), *map(V, freed)]
            target = np.stack(np.unravel_index(target, [self.shape[j] for j in covered]))
            full = [*(self.shape[j] for j in covered), *(value_shape[a] for a in freed)]
        place = np.ravel_multi_index([*np.atleast_2d(target), *(table.positions[a] for a in freed)], full)
        source = np.full(math.prod(full), -1, np.int64)
        source[place] = np.arange(len(place))
        mask = None if (source >= 0).all() else (source >= 0).reshape(full)
        present = None if mask is None else Labelled(jnp.asarray(mask), tuple(lead)).squeezed()
        runs = new.entries.runs if new.entries is not None and not freed else ()
        moved = self.rows_of(array, table, old, covered, source, runs)
        if M not in moved.axes:
            return moved, present
        at, data = moved.axes.index(M), moved.data
        data = data.reshape(*data.shape[:at], *full, *data.shape[at + 1 :])
        return Labelled(data, (*moved.axes[:at], *lead, *moved.axes[at + 1 :])).squeezed(), present

    def rows_of(
        self,
        array: Labelled,
        table: Rows,
        layout: Layout,
        covered: Sequence[int],
        chosen: np.ndarray,
        runs: tuple[int, ...] = (),
    ) -> Labelled:
        """Rows of a layout's table, with the axes of the latent that it covers as one leading axis.

        Args:
            array: on that layout.
            table: the layout's places.
            layout: the layout.
            covered: the axes of the latent that the table covers.
            chosen: which rows, in order; -1 for any number that is finite.
            runs: where runs of neighbouring rows begin.
        """
        if not len(table.elements[covered[0]]):  # nothing is touched: no row can be asked for
            return Labelled(jnp.zeros((), array.data.dtype), ())
        index: dict[Axis, np.ndarray] = {}
        if M in array.axes:
            assert table.source is not None
            index[M] = table.source
        own = () if layout.entries is None else layout.entries.elements
        index |= {E(j): table.elements[j] for j in covered if j not in own and E(j) in array.axes}
        if not index:
            return array
        before, after = self.order.around(axis for axis in array.axes if axis not in index)
        sizes = [array.size_of(axis) for axis in index]
        flat = np.ravel_multi_index([i[np.maximum(chosen, 0)] for i in index.values()], sizes)
        flat = np.where(chosen >= 0, flat, -1)
        data = pick(arrange(array, [*before, *index, *after]), flat, sizes, runs, len(before))
        return Labelled(data, (*before, M, *after))

    # --- forms ---------------------------------------------------------------------------------------------

    def product(self, piece: Piece, layout: Layout, value_shape: tuple[int, ...]) -> Labelled:
        """A piece multiplied out on a wider layout, zero where it does not reach."""
        array = self.rebase(self.order.multiply(piece.factors), piece.layout, layout, value_shape)
        mask = self.reached(piece.layout, layout, value_shape)
        if mask is None:
            return array
        return self.order.combine(lambda m, v: jnp.where(m, v, jnp.zeros((), v.dtype)), mask, array)

    def as_new(self, change: Change, base: Any, layout: Layout) -> Labelled:
        """The changed value at the places of a layout that is no narrower than its own."""
        shape, here = jnp.shape(base), self.take(base, layout)
        if isinstance(change, New):
            return self.overlay(here, change.value, change.layout, layout, shape)
        total = here
        for piece in change.pieces:
            total = self.order.combine(jnp.add, total, self.product(piece, layout, shape))
        return total

    def overlay(self, under: Labelled, value: Labelled, old: Layout, new: Layout, shape: tuple[int, ...]) -> Labelled:
        """`value` where the old layout reaches, `under` elsewhere."""
        array, mask = self.rebase(value, old, new, shape), self.reached(old, new, shape)
        return array if mask is None else self.order.combine(jnp.where, mask, array, under)

    def as_lazy(self, change: Change, base: Any) -> Lazy:
        """The change as a difference."""
        if isinstance(change, Lazy):
            return change
        here = self.take(base, change.layout)
        return Lazy((Piece(change.layout, (self.order.combine(jnp.subtract, change.value, here),)),))

    def layouts(self, change: Change) -> list[Layout]:
        """The layouts of all parts of a change."""
        return [change.layout] if isinstance(change, New) else [piece.layout for piece in change.pieces]

    def tidy(self, pieces: Sequence[Piece]) -> Lazy:
        """Add up the pieces that are small: alike in layout, and constant along the axes of the value."""
        done: list[Piece] = []
        for piece in pieces:
            small = not any(factor.has("v") for factor in piece.factors)
            piece = Piece(piece.layout, self.grouped(piece.factors))
            for i, other in enumerate(done):
                alike = small and not any(factor.has("v") for factor in other.factors)
                if alike and other.layout.same_as(piece.layout):
                    total = self.order.combine(jnp.add, *(self.order.multiply(p.factors) for p in (other, piece)))
                    done[i] = Piece(piece.layout, (total,))
                    break
            else:
                done.append(piece)
        return Lazy(tuple(done))

    def cast(self, change: Change, base: Any, dtype: Any) -> Change:
        """The change of a value in another type. A difference of narrow or unsigned integers would wrap around."""
        if isinstance(change, Lazy) and holds_differences(base.dtype):
            cast = [
                Piece(p.layout, tuple(Labelled(f.data.astype(dtype), f.axes) for f in p.factors))
                for p in change.pieces
            ]
            return Lazy(tuple(cast))
        layout = self.union(self.layouts(change), tuple(base.shape))
        value = self.as_new(change, base, layout)
        return New(layout, Labelled(value.data.astype(dtype), value.axes))

    def loosen(self, change: Change, base: Any, axes: Collection[int]) -> Change:
        """The change without lists along axes of size 1, which are about to go."""
        listed = {a for layout in self.layouts(change) for a in layout.listed() if a in axes}
        if not listed:
            return change
        shape = tuple(base.shape)
        if isinstance(change, Lazy):
            return Lazy(tuple(self.sum_entries(piece, listed, shape) for piece in change.pieces))
        layout = self.union([change.layout], shape, listed)
        return New(layout, self.as_new(change, base, layout))

    def broadcast(self, change: Change, base: Any, into: Sequence[int], shape: tuple[int, ...]) -> Change:
        """The change of a value with more axes, or longer ones, along which it is constant.

        Args:
            change: of the value.
            base: the value at the pivot.
            into: the new number of each axis.
            shape: the new shape.
        """
        passed = {a: b for a, b in enumerate(into) if base.shape[a] == shape[b]}
        change = self.loosen(change, base, [a for a in range(base.ndim) if a not in passed])
        names = {V(a): V(b) for a, b in passed.items()}

        def broad(layout: Layout) -> Layout:
            where: list[Any] = [None] * len(shape)
            for a, b in passed.items():
                where[b] = layout.where[a]
            return layout.rename(where, passed)

        if isinstance(change, New):
            return New(broad(change.layout), change.value.rename(names))
        pieces = [Piece(broad(p.layout), tuple(f.rename(names) for f in p.factors)) for p in change.pieces]
        return Lazy(tuple(pieces))

    def masked(self, factors: Sequence[Labelled], mask: Labelled) -> tuple[Labelled, ...]:
        """A product that is zero outside a mask, also where a factor is infinite there."""
        factors, done, hidden = self.grouped(factors), [], False
        for factor in factors:
            if factor.has("v") or set(mask.axes) <= set(factor.axes):
                zero = Labelled(jnp.zeros((), factor.data.dtype), ())
                factor, hidden = self.order.combine(jnp.where, mask, factor, zero), True
            done.append(factor)
        if not hidden:
            done.append(Labelled(mask.data.astype(factors[0].data.dtype), mask.axes))
        return tuple(done)

    def grouped(self, factors: Sequence[Labelled]) -> tuple[Labelled, ...]:
        """The factors without axes of the value as one, and those with the same axes as one."""
        groups: dict[Any, list[Labelled]] = {}
        for factor in factors:
            groups.setdefault(frozenset(factor.axes) if factor.has("v") else None, []).append(factor)
        return tuple(self.order.multiply(group) for group in groups.values())

    def sum_entries(self, piece: Piece, gone: Collection[int], value_shape: tuple[int, ...]) -> Piece:
        """Add up the entries of an element that differ only along axes that are gone. Those axes stay, as free."""
        layout = piece.layout
        gone = [a for a in layout.listed() if a in gone]
        if not gone or layout.entries is None:
            return piece
        covered = sorted(layout.entries.elements)
        kept = [a for a in layout.listed() if a not in gone]
        table = rows(layout, self.shape, covered)
        key = keys(table, covered, kept, self.shape, value_shape)
        array = self.order.multiply(piece.factors)
        if M not in array.axes:
            array = self.order.combine(jnp.multiply, array, Labelled(jnp.ones(len(key), array.data.dtype), (M,)))
        before, after = self.order.around(axis for axis in array.axes if axis != M)
        data = arrange(array, [*before, M, *after])
        where = [None if a in gone else w for a, w in enumerate(layout.where)]
        if kept:
            found, target = np.unique(key, return_inverse=True)
            entries, order = from_keys(found, covered, kept, self.shape, value_shape)
            back = np.argsort(order)
            data = _sum_into(data, back[target.reshape(-1)], (len(found),), before=len(before))
            return Piece(Layout(tuple(where), entries), (Labelled(data, (*before, M, *after)),))
        full = tuple(self.shape[j] for j in covered)
        data = _sum_into(data, key, full, layout.entries.runs, len(before), layout.entries.chunk)
        return Piece(Layout(tuple(where)), (Labelled(data, (*before, *map(E, covered), *after)).squeezed(),))


def holds_differences(dtype: Any) -> bool:
    """Whether the difference of two numbers of a type is a number of that type."""
    return bool(jnp.issubdtype(dtype, jnp.floating) or dtype in (jnp.int32, jnp.int64))


def pick(
    data: jax.Array, index: np.ndarray, shape: Sequence[int], runs: tuple[int, ...] = (), before: int = 0
) -> jax.Array:
    """Rows of an array; -1 stands for any finite number. Runs are read as slices, all else by a gather.

    Args:
        data: `before` axes, then axes of `shape`, then others.
        index: numbers of positions in `shape`.
        shape: the axes that become one.
        runs: where runs of neighbouring positions begin, and the end of the last.
        before: how many axes come first.
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
    return jax.lax.optimization_barrier(taken)  # a gather inside a loop of function values would keep it from SIMD


def _sum_windows(
    data: jax.Array, target: np.ndarray, shape: tuple[int, ...], runs: tuple[int, ...], before: int
) -> jax.Array | None:
    """The sum of runs, each put in its window of an array; None where a run is no window."""
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


def _sum_into(
    data: jax.Array,
    target: np.ndarray,
    shape: tuple[int, ...],
    runs: tuple[int, ...] = (),
    before: int = 0,
    chunk: int = 1,
) -> jax.Array:
    """The sum of the rows of `data` for each target, in place of the axis of rows an array of some shape."""
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
    total = jax.ops.segment_sum(
        jnp.moveaxis(data, axis, 0), jnp.asarray(target, jnp.int32), num_segments=count, mode="promise_in_bounds"
    )
    return jnp.moveaxis(total, 0, axis)
