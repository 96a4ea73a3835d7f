"""How a value changes when one element of a latent does, for all elements and candidates at once.

    Lazy:  value + Σ over pieces of (product of factors)     linear, or polynomial, in the change
    New:   the value itself, at the positions that are touched

A factor seldom has both the candidates' axis and those of the value: a sum over the value's axes then costs nothing
for each candidate. The first nonlinear function of such a value makes it New.

What is known as a value stays one: until a sum over touched positions makes it a difference for good, a Lazy change
can also be had as New, computed as the program computes it. After such a sum the value is base + difference, and
where that has too few digits for what the value is used for, the element and candidate are flagged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from legrad.singlesite import accuracy
from legrad.singlesite.accuracy import ABSOLUTE, Need
from legrad.singlesite.labelled import Axis, E, Labelled, M, Order, V, arrange
from legrad.singlesite.layout import Layout, Rows, from_keys, keys, rows, union
from legrad.singlesite.reading import pick, sum_into
from legrad.singlesite.together import any_of


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
    """A change as a sum of pieces.

    Attributes:
        pieces: what is added to the value at the pivot.
        direct: gives the same change as New, computed from its operands' values instead of as base + pieces.
        known: whether no value on that way was formed as base + difference: then `direct` has lost no digits.
        need: what the value is used for.
    """

    pieces: tuple[Piece, ...]
    direct: Callable[[], New] | None = None
    known: bool = False
    need: Need = ABSOLUTE


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
        flags: for elements and candidates, whether digits were lost on the way.
        marked: whether a NaN in the results may mean so, too.
    """

    shape: tuple[int, ...]
    sizes: dict[Axis, int]
    starts: dict[Axis, Any] = field(default_factory=dict)
    order: Order = field(default_factory=Order)
    sparse: bool = True
    flags: list[Labelled] = field(default_factory=list)
    marked: bool = False
    _watched: dict[int, Lazy] = field(default_factory=dict)
    _values: dict[int, tuple[Lazy, New]] = field(default_factory=dict)

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
        if isinstance(change, Lazy) and change.direct is not None:
            change = self.directly(change)
        if isinstance(change, New):
            return self.overlay(here, change.value, change.layout, layout, shape)
        products = [self.product(piece, layout, shape) for piece in change.pieces]
        total = reduce(lambda a, b: self.order.combine(jnp.add, a, b), products, here)
        if not change.need.points or change.need.hides_nan or not jnp.issubdtype(base.dtype, jnp.floating):
            self.watch(change, base)
            return total
        # A NaN marks what is lost, and shows in the result: that is cheaper than to look for it here.
        self.marked = True
        mark = lambda new, *parts: jnp.where(_lost(change.need, new, *parts), jnp.nan, new)  # noqa: E731
        return self.order.combine(mark, total, here, *(products if len(products) > 1 else ()))

    def directly(self, change: Lazy) -> New:
        """A change as values, made once."""
        assert change.direct is not None
        if id(change) not in self._values:
            self._values[id(change)] = change, change.direct()
        return self._values[id(change)][1]

    def moved(self, change: Lazy, pieces: Sequence[Piece], move: Callable[[New], Change]) -> Lazy:
        """A change after something that only moves numbers: `move` does to values what was done to the pieces."""

        def direct() -> New:
            new = move(self.directly(change))
            assert isinstance(new, New)
            return new

        return replace(change, pieces=tuple(pieces), direct=None if change.direct is None else direct)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Inside a branch of a condition: values made there must not stay when it is left."""
        before, self._values = self._values, dict(self._values)
        try:
            yield
        finally:
            self._values = before

    def watch(self, change: Lazy, base: Any) -> None:
        """Flag the elements and candidates whose values, as base + pieces, have too few digits for their use."""
        dtype, need = base.dtype, change.need
        if not need.value or id(change) in self._watched or not jnp.issubdtype(dtype, jnp.floating):
            return
        self._watched[id(change)] = change
        shape = jnp.shape(base)
        layout = self.union(self.layouts(change), shape)
        here = self.take(base, layout)

        def lost() -> Labelled:
            products = [self.product(piece, layout, shape) for piece in change.pieces]
            new = reduce(lambda a, b: self.order.combine(jnp.add, a, b), products, here)
            parts = [here, *products] if len(products) > 1 else [here]
            return self._flagged(layout, self.order.combine(partial(_lost, need), new, *parts), shape)

        if need.points:
            self.flags.append(lost())
            return
        small = jnp.max(jnp.abs(here.data), initial=0.0) <= accuracy.largest(dtype)  # not so for NaN
        for piece in change.pieces:
            one = len(change.pieces) == 1
            factors = [factor for factor in piece.factors if not (one and factor.has("v"))]
            size = reduce(jnp.multiply, [jnp.max(jnp.abs(f.data), initial=0.0) for f in factors], jnp.ones((), dtype))
            small &= (size < jnp.inf) if one else (size <= accuracy.largest(dtype))
        axes: list[tuple[Axis, ...]] = []

        def found() -> jax.Array:
            flagged = lost()
            axes.append(flagged.axes)
            return flagged.data

        like = jax.eval_shape(found)
        data = jax.lax.cond(any_of(~small), found, lambda: jnp.zeros(like.shape, bool))
        self.flags.append(Labelled(data, axes[0]))

    def flag(self, layout: Layout, lost: Labelled, shape: tuple[int, ...]) -> None:
        """Flag the elements and candidates for which something is true somewhere on a layout."""
        self.flags.append(self._flagged(layout, lost, shape))

    def _flagged(self, layout: Layout, lost: Labelled, shape: tuple[int, ...]) -> Labelled:
        over = tuple(i for i, axis in enumerate(lost.axes) if axis[0] == "v")
        found = Labelled(jnp.any(lost.data, axis=over), tuple(axis for axis in lost.axes if axis[0] != "v"))
        if M not in found.axes:
            return found
        count = Piece(layout, (Labelled(found.data.astype(jnp.int32), found.axes),))
        number = self.order.multiply(self.sum_entries(count, layout.listed(), shape).factors)
        return Labelled(number.data > 0, number.axes)

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
            return self.moved(change, cast, lambda new: self.cast(new, base, dtype))
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
            pieces = [self.sum_entries(piece, listed, shape) for piece in change.pieces]
            return self.moved(change, pieces, lambda new: self.loosen(new, base, axes))
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
        return self.moved(change, pieces, lambda new: self.broadcast(new, base, into, shape))

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
            data = sum_into(data, back[target.reshape(-1)], (len(found),), before=len(before))
            return Piece(Layout(tuple(where), entries), (Labelled(data, (*before, M, *after)),))
        full = tuple(self.shape[j] for j in covered)
        data = sum_into(data, key, full, layout.entries.runs, len(before), layout.entries.chunk)
        return Piece(Layout(tuple(where)), (Labelled(data, (*before, *map(E, covered), *after)).squeezed(),))


def _lost(need: Need, new: Any, *parts: Any) -> Any:
    """Where a sum of parts has too few digits. Where one part cancels the base, the base is the largest of them."""
    most = reduce(jnp.maximum, map(jnp.abs, parts))
    far = accuracy.far_off(new.dtype, new, most)
    return far | accuracy.too_near(new.dtype, new, most, need.points) if need.points else far


def holds_differences(dtype: Any) -> bool:
    """Whether the difference of two numbers of a type is a number of that type."""
    return bool(jnp.issubdtype(dtype, jnp.floating) or dtype in (jnp.int32, jnp.int64))
