"""The keeping of digits: where a value formed as base + difference has too few of them for what it is used for.

A Lazy change can also be had as New, computed as the program computes the value, until a sum over few touched
positions leaves nothing but base + difference. If this sum has too few digits, the element and candidate are flagged,
or marked with a NaN that shows in the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp

from legrad.singlesite import accuracy
from legrad.singlesite.accuracy import Need
from legrad.singlesite.change import Lazy, Piece
from legrad.singlesite.labelled import Axis, Labelled, M
from legrad.singlesite.layout import Layout
from legrad.singlesite.places import Places
from legrad.singlesite.together import any_of


class Digits:
    """The record of lost digits, for the elements and candidates of a block.

    Attributes:
        flags: arrays over elements and candidates that are true where digits were lost.
        marked: whether a NaN in the results may also stand for lost digits.

    Args:
        places: the elements and candidates.
        on: whether lost digits are recorded; if not, it is known already where they are, and nothing is marked.
    """

    def __init__(self, places: Places, on: bool = True) -> None:
        self._on = on
        self.flags: list[Labelled] = []
        self.marked = False
        self._places = places
        self._examined: dict[int, Lazy] = {}

    def checked(
        self, change: Lazy, base: Any, here: Labelled, products: Sequence[Labelled], total: Labelled
    ) -> Labelled:
        """Return a value formed as base + difference, and record where the value has too few digits.

        Args:
            change: the change of the value.
            base: the value at the pivot.
            here: the same at the places of some layout.
            products: the pieces of the change, multiplied out there.
            total: their sum with `here`.
        """
        if not change.need.points or change.need.hides_nan or not jnp.issubdtype(base.dtype, jnp.floating):
            self.flag_lost(change, base)
            return total
        # A NaN marks what is lost and shows in the result, which is cheaper than a search here. If the search is
        # over, what is lost matters to no result: the value at the pivot stands in, with a finite derivative.
        self.marked = self._on

        def mark(new: Any, base: Any, *parts: Any) -> Any:
            return jnp.where(lost_at(change.need, new, base, *parts), jnp.nan if self._on else base, new)

        return self._places.order.combine(mark, total, here, *(products if len(products) > 1 else ()))

    def flag_lost(self, change: Lazy, base: Any) -> None:
        """Flag the elements and candidates whose values, as base + pieces, have too few digits for their use."""
        dtype, need = base.dtype, change.need
        if not self._on or not need.value or id(change) in self._examined or not jnp.issubdtype(dtype, jnp.floating):
            return
        self._examined[id(change)] = change
        places, shape = self._places, jnp.shape(base)
        layout = places.union([piece.layout for piece in change.pieces], shape)
        here = places.take(base, layout)

        def lost() -> Labelled:
            products = [places.product(piece, layout, shape) for piece in change.pieces]
            new = reduce(lambda a, b: places.order.combine(jnp.add, a, b), products, here)
            parts = [here, *products] if len(products) > 1 else [here]
            return self._anywhere(layout, places.order.combine(partial(lost_at, need), new, *parts), shape)

        if need.points:
            self.flags.append(lost())
        else:
            self.flags.append(_unless(_small(change, here, dtype), lost))

    def flag_cast(self, change: Lazy, base: Any, dtype: Any) -> None:
        """Flag the elements and candidates whose differences are wrong in another type."""
        if jnp.issubdtype(base.dtype, jnp.integer) and base.dtype != dtype:
            self._flag_wrapped(change, base)
        elif jnp.issubdtype(dtype, jnp.floating) and accuracy.rounding(dtype) < accuracy.rounding(base.dtype):
            self.flag_lost(change, base)  # in the wider type, the digits that the narrow one has lost are not missed

    def _flag_wrapped(self, change: Lazy, base: Any) -> None:
        """Flag the elements and candidates whose integers wrap around, so that no other type holds their differences.

        Factors that wrapped are still right modulo 2^bits. So base + pieces is the integer itself if that sum, as a
        real number, is within the range of the type.
        """
        dtype = base.dtype
        if not self._on or id(change) in self._examined or not jnp.issubdtype(dtype, jnp.signedinteger):
            return
        self._examined[id(change)] = change
        places, shape = self._places, jnp.shape(base)
        real = jnp.float64 if dtype == jnp.int64 else jnp.float32
        most = 0.99 * float(jnp.iinfo(dtype).max)  # a margin for the rounding of the sum
        pieces = [piece.cast(real) for piece in change.pieces]
        layout = places.union([piece.layout for piece in pieces], shape)
        here = places.take(base.astype(real), layout)

        def lost() -> Labelled:
            products = [places.product(piece, layout, shape) for piece in pieces]
            new = reduce(lambda a, b: places.order.combine(jnp.add, a, b), products, here)
            return self._anywhere(layout, Labelled(~(jnp.abs(new.data) <= most), new.axes), shape)

        bound = reduce(jnp.add, map(_bound, pieces), jnp.max(jnp.abs(here.data), initial=0.0))
        self.flags.append(_unless(bound <= most, lost))

    def flag(self, layout: Layout, lost: Labelled, shape: tuple[int, ...]) -> None:
        """Flag the elements and candidates for which a condition holds somewhere on a layout."""
        if self._on:
            self.flags.append(self._anywhere(layout, lost, shape))

    def _anywhere(self, layout: Layout, lost: Labelled, shape: tuple[int, ...]) -> Labelled:
        """Return for which elements and candidates a condition holds somewhere on a layout."""
        over = tuple(i for i, axis in enumerate(lost.axes) if axis[0] == "v")
        found = Labelled(jnp.any(lost.data, axis=over), tuple(axis for axis in lost.axes if axis[0] != "v"))
        if M not in found.axes:
            return found
        each = Piece(layout, (Labelled(found.data.astype(jnp.int32), found.axes),))
        count = self._places.order.multiply(self._places.sum_entries(each, layout.listed(), shape).factors)
        return Labelled(count.data > 0, count.axes)


def lost_at(need: Need, new: Any, *parts: Any) -> Any:
    """Return where a sum of parts has too few digits. If one part cancels the base, the base is the largest part."""
    most = reduce(jnp.maximum, map(jnp.abs, parts))
    far = accuracy.far_off(new.dtype, new, most)
    if need.exact:  # sums of whole numbers are exact
        whole = reduce(jnp.logical_and, [part == jnp.round(part) for part in (new, *parts)])
        return ~(whole & (most < 1 / accuracy.rounding(new.dtype)))
    return far | accuracy.too_near(new.dtype, new, most, need.points) if need.points else far


def _small(change: Lazy, here: Labelled, dtype: Any) -> jax.Array:
    """Return whether base and pieces are all too small for their sum to lose digits; false for NaN."""
    small = jnp.max(jnp.abs(here.data), initial=0.0) <= accuracy.largest(dtype)
    for piece in change.pieces:
        one = len(change.pieces) == 1
        factors = [factor for factor in piece.factors if not (one and factor.has("v"))]
        size = reduce(jnp.multiply, [jnp.max(jnp.abs(f.data), initial=0.0) for f in factors], jnp.ones((), dtype))
        small &= (size < jnp.inf) if one else (size <= accuracy.largest(dtype))
    return small


def _bound(piece: Piece) -> jax.Array:
    """Return a bound on the absolute values of a product of factors."""
    return reduce(jnp.multiply, [jnp.max(jnp.abs(factor.data), initial=0.0) for factor in piece.factors])


def _unless(fine: jax.Array, flagged: Any) -> Labelled:
    """Return the flags that a function computes, or no flags, without computing any, if all is fine."""
    axes: list[tuple[Axis, ...]] = []

    def found() -> jax.Array:
        flags = flagged()
        axes.append(flags.axes)
        return flags.data

    like = jax.eval_shape(found)
    data = jax.lax.cond(any_of(~fine), found, lambda: jnp.zeros(like.shape, bool))
    return Labelled(data, axes[0])
