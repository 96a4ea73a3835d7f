"""Arrays on layouts: read at the places that a layout touches, widened to another layout, summed over entries."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from legrad.singlesite.change import Piece
from legrad.singlesite.labelled import Axis, E, Labelled, M, Order, V, arrange
from legrad.singlesite.layout import Layout, Rows, from_keys, keys, rows, union
from legrad.singlesite.reading import pick, sum_into


@dataclass
class Places:
    """The elements and candidates that are followed at once, and how arrays over them are laid out.

    Attributes:
        shape: the latent's shape.
        sizes: how many candidates and elements are followed at once, by axis; fewer than all when run in blocks.
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
        """Return the elements' own index along axis j of the latent."""
        count = jnp.arange(self.sizes[E(j)], dtype=jnp.int32)
        return Labelled(count + jnp.asarray(self.starts.get(E(j), 0), jnp.int32), (E(j),))

    def position(self, layout: Layout, a: int, size: int) -> Labelled:
        """Return the position along axis a of every place that a layout touches."""
        w = layout.where[a]
        if w is None:
            return Labelled(jnp.arange(size, dtype=jnp.int32), (V(a),))
        if isinstance(w, int):
            return self.index(w)
        assert layout.entries is not None
        return Labelled(jnp.asarray(layout.entries.positions[a]), (M,))

    def union(self, layouts: Sequence[Layout], value_shape: tuple[int, ...], free: Collection[int] = ()) -> Layout:
        """Return the smallest layout that touches every place that one of several layouts touches."""
        return union(layouts, self.shape, value_shape, free=free, sparse=self.sparse)

    # --- reading -------------------------------------------------------------------------------------------

    def take(self, base: Any, layout: Layout) -> Labelled:
        """Read an array at the places that a layout touches. Axes of size 1 count as absent.

        Cut axes at the element's own index to the block, pick the listed places, drop axes of size 1, and keep the
        diagonal of two axes at the same index.
        """
        base = jnp.asarray(base)
        names = [None if n == 1 else _name(layout, a) for a, n in enumerate(base.shape)]
        for a, name in enumerate(names):
            if name in self.starts:
                base = jax.lax.dynamic_slice_in_dim(base, self.starts[name], self.sizes[name], axis=a)
        base, names = _pick_entries(base, names, layout)
        base = jnp.squeeze(base, tuple(i for i, name in enumerate(names) if name is None))
        return _diagonal(base, [name for name in names if name is not None])

    def rows_of(
        self,
        array: Labelled,
        table: Rows,
        layout: Layout,
        covered: Sequence[int],
        chosen: np.ndarray,
        runs: tuple[int, ...] = (),
    ) -> Labelled:
        """Read rows of a layout's table, with the axes of the latent that the table covers as one leading axis.

        Args:
            array: an array on the layout.
            table: the layout's places.
            layout: the layout.
            covered: the axes of the latent that the table covers.
            chosen: which rows, in order; -1 for any finite number.
            runs: where runs of neighbouring rows begin.
        """
        if not len(table.elements[covered[0]]):  # nothing is touched: no row can be asked for
            return Labelled(jnp.zeros((), array.data.dtype), ())
        index: dict[Axis, np.ndarray] = {}
        if M in array.axes:
            assert table.source is not None
            index[M] = table.source
        own = layout.covered()
        index |= {E(j): table.elements[j] for j in covered if j not in own and E(j) in array.axes}
        if not index:
            return array
        before, after = self.order.around(axis for axis in array.axes if axis not in index)
        sizes = [array.size_of(axis) for axis in index]
        flat = np.ravel_multi_index([i[np.maximum(chosen, 0)] for i in index.values()], sizes)
        flat = np.where(chosen >= 0, flat, -1)
        data = pick(arrange(array, [*before, *index, *after]), flat, sizes, runs, len(before))
        return Labelled(data, (*before, M, *after))

    # --- widening ------------------------------------------------------------------------------------------

    def rebase(self, array: Labelled, old: Layout, new: Layout, value_shape: tuple[int, ...]) -> Labelled:
        """Put an array of one layout on a wider one, with any finite number where the old layout does not reach."""
        return self._rebase(array, old, new, value_shape)[0]

    def reached(self, old: Layout, new: Layout, value_shape: tuple[int, ...]) -> Labelled | None:
        """Return where in a wider layout the old one reaches; None if everywhere."""
        mask = self._rebase(Labelled(jnp.ones((), bool), ()), old, new, value_shape)[1]
        covered = old.covered() if new.entries is None else new.covered()
        for a, w in enumerate(old.where):
            if isinstance(w, int) and w not in covered and new.where[a] is None and value_shape[a] > 1:
                own = self.order.combine(jnp.equal, self.index(w), self.position(new, a, value_shape[a]))
                mask = own if mask is None else self.order.combine(jnp.logical_and, mask, own)
        return mask

    def _rebase(
        self, array: Labelled, old: Layout, new: Layout, value_shape: tuple[int, ...]
    ) -> tuple[Labelled, Labelled | None]:
        """Return an array on a wider layout, and where lists of entries say that the old layout reaches.

        List the old layout's places, find where each place goes on the new layout, and read the array in that order.
        """
        if (old.entries is None and new.entries is None) or old.same_as(new):
            return array, None
        covered = sorted(old.covered() if new.entries is None else new.covered())
        table = rows(old, self.shape, covered)
        freed = [a for a in table.positions if new.where[a] is None and value_shape[a] > 1]
        lead, sizes, place = self._targets(table, new, covered, freed, value_shape)
        source = np.full(math.prod(sizes), -1, np.int64)
        source[place] = np.arange(len(place))
        mask = None if (source >= 0).all() else (source >= 0).reshape(sizes)
        present = None if mask is None else Labelled(jnp.asarray(mask), tuple(lead)).squeezed()
        runs = new.entries.runs if new.entries is not None and not freed else ()
        moved = self.rows_of(array, table, old, covered, source, runs)
        if M not in moved.axes:
            return moved, present
        at, data = moved.axes.index(M), moved.data
        data = data.reshape(*data.shape[:at], *sizes, *data.shape[at + 1 :])
        return Labelled(data, (*moved.axes[:at], *lead, *moved.axes[at + 1 :])).squeezed(), present

    def _targets(
        self, table: Rows, new: Layout, covered: list[int], freed: list[int], value_shape: tuple[int, ...]
    ) -> tuple[list[Axis], list[int], np.ndarray]:
        """Return where the rows of a table go on a wider layout: the axes there, their sizes, a flat index by row."""
        listed = new.listed()
        target = keys(table, covered, listed, self.shape, value_shape)
        if new.entries is not None:
            found = keys(rows(new, self.shape, covered), covered, listed, self.shape, value_shape)
            order = np.argsort(found, kind="stable")
            columns = [order[np.searchsorted(found, target, sorter=order)]]
            lead, sizes = [M], [len(found)]
        else:
            lead, sizes = [E(j) for j in covered], [self.shape[j] for j in covered]
            columns = list(np.unravel_index(target, sizes))
        lead += [V(a) for a in freed]
        sizes += [value_shape[a] for a in freed]
        return lead, sizes, np.ravel_multi_index([*columns, *(table.positions[a] for a in freed)], sizes)

    def product(self, piece: Piece, layout: Layout, value_shape: tuple[int, ...]) -> Labelled:
        """Multiply a piece out on a wider layout, with zero where the piece does not reach."""
        array = self.rebase(self.order.multiply(piece.factors), piece.layout, layout, value_shape)
        mask = self.reached(piece.layout, layout, value_shape)
        if mask is None:
            return array
        return self.order.combine(lambda m, v: jnp.where(m, v, jnp.zeros((), v.dtype)), mask, array)

    def overlay(self, under: Labelled, value: Labelled, old: Layout, new: Layout, shape: tuple[int, ...]) -> Labelled:
        """Put `value` where the old layout reaches, and `under` elsewhere."""
        array, mask = self.rebase(value, old, new, shape), self.reached(old, new, shape)
        return array if mask is None else self.order.combine(jnp.where, mask, array, under)

    # --- products and sums ---------------------------------------------------------------------------------

    def grouped(self, factors: Sequence[Labelled]) -> tuple[Labelled, ...]:
        """Multiply the factors without axes of the value together, and those with the same axes."""
        groups: dict[Any, list[Labelled]] = {}
        for factor in factors:
            groups.setdefault(frozenset(factor.axes) if factor.has("v") else None, []).append(factor)
        return tuple(self.order.multiply(group) for group in groups.values())

    def masked(self, factors: Sequence[Labelled], mask: Labelled) -> tuple[Labelled, ...]:
        """Make a product zero outside a mask, even where a factor is infinite there."""
        factors, done, hidden = self.grouped(factors), [], False
        for factor in factors:
            if factor.has("v") or set(mask.axes) <= set(factor.axes):
                zero = Labelled(jnp.zeros((), factor.data.dtype), ())
                factor, hidden = self.order.combine(jnp.where, mask, factor, zero), True
            done.append(factor)
        if not hidden:
            done.append(Labelled(mask.data.astype(factors[0].data.dtype), mask.axes))
        return tuple(done)

    def sum_entries(self, piece: Piece, gone: Collection[int], value_shape: tuple[int, ...]) -> Piece:
        """Add up the entries of an element that differ only along the axes `gone`, and make those axes free."""
        layout = piece.layout
        gone = [a for a in layout.listed() if a in gone]
        if not gone or layout.entries is None:
            return piece
        covered = sorted(layout.covered())
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
            data = sum_into(data, back[target.reshape(-1)], (len(found),), before=len(before))
            return Piece(Layout(tuple(where), entries), (Labelled(data, (*before, M, *after)),))
        full = tuple(self.shape[j] for j in covered)
        data = sum_into(data, key, full, layout.entries.runs, len(before), layout.entries.chunk)
        return Piece(Layout(tuple(where)), (Labelled(data, (*before, *map(E, covered), *after)).squeezed(),))


def _name(layout: Layout, a: int) -> Axis:
    """Return the name of axis a of a value that is read on a layout; the picked entries rename the listed axes."""
    w = layout.where[a]
    return E(w) if isinstance(w, int) else V(a)


def _pick_entries(base: jax.Array, names: list[Axis | None], layout: Layout) -> tuple[jax.Array, list[Axis | None]]:
    """Read the listed places of an array: its listed axes become one leading axis of entries."""
    listed = [a for a in layout.listed() if a < base.ndim and base.shape[a] > 1]
    if not listed:
        return base, names
    assert layout.entries is not None
    rest = [a for a in range(base.ndim) if a not in listed]
    sizes = [base.shape[a] for a in listed]
    where = np.ravel_multi_index([layout.entries.positions[a] for a in listed], sizes)
    base = pick(jnp.transpose(base, [*listed, *rest]), where, sizes, layout.entries.runs)
    return base, [M, *(names[a] for a in rest)]


def _diagonal(data: jax.Array, names: list[Axis]) -> Labelled:
    """Name the axes of an array; of axes with the same name, keep the diagonal."""
    for name in set(names):
        while names.count(name) > 1:
            first = names.index(name)
            second = names.index(name, first + 1)
            data = jnp.diagonal(data, axis1=first, axis2=second)
            names = [*(n for i, n in enumerate(names) if i not in (first, second)), name]
    return Labelled(data, tuple(names))
