"""The latent whose elements change, and what can be done to a change of any form: convert, move, cast, broadcast."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import jax.numpy as jnp

from legrad.singlesite.change import Change, Lazy, New, Piece, holds_differences
from legrad.singlesite.digits import Digits
from legrad.singlesite.labelled import Labelled, V
from legrad.singlesite.layout import Layout
from legrad.singlesite.places import Places


@dataclass
class Site(Places):
    """The latent whose elements change, with its changes followed for a block of elements and candidates.

    Attributes:
        found_lost: whether the changes that lose digits are known already, and are not followed.
        digits: the record of lost digits.
    """

    found_lost: bool = False
    digits: Digits = field(init=False)
    _values: dict[int, tuple[Lazy, New]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.digits = Digits(self, not self.found_lost)

    def layouts(self, change: Change) -> list[Layout]:
        """Return the layouts of all parts of a change."""
        return [change.layout] if isinstance(change, New) else [piece.layout for piece in change.pieces]

    # --- the two forms -------------------------------------------------------------------------------------

    def as_new(self, change: Change, base: Any, layout: Layout) -> Labelled:
        """Return the changed value at the places of a layout that is no narrower than the change's own."""
        shape, here = jnp.shape(base), self.take(base, layout)
        if isinstance(change, Lazy) and change.direct is not None:
            change = self.directly(change)
        if isinstance(change, New):
            return self.overlay(here, change.value, change.layout, layout, shape)
        products = [self.product(piece, layout, shape) for piece in change.pieces]
        total = reduce(lambda a, b: self.order.combine(jnp.add, a, b), products, here)
        return self.digits.checked(change, base, here, products, total)

    def as_lazy(self, change: Change, base: Any) -> Lazy:
        """Return the change as a difference."""
        if isinstance(change, Lazy):
            return change
        here = self.take(base, change.layout)
        subtract = _difference if self.found_lost else jnp.subtract
        return Lazy((Piece(change.layout, (self.order.combine(subtract, change.value, here),)),))

    def directly(self, change: Lazy) -> New:
        """Return a change as values, which are computed once."""
        assert change.direct is not None
        if id(change) not in self._values:
            self._values[id(change)] = change, change.direct()
        return self._values[id(change)][1]

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Forget on leaving a branch of a condition the values that `directly` computed inside the branch."""
        before, self._values = self._values, dict(self._values)
        try:
            yield
        finally:
            self._values = before

    # --- a change after an operation -----------------------------------------------------------------------

    def moved(self, change: Lazy, pieces: Sequence[Piece], move: Callable[[New], Change]) -> Lazy:
        """Return a change whose numbers were only moved: `move` does to values what was done to the pieces."""

        def direct() -> New:
            new = move(self.directly(change))
            assert isinstance(new, New)
            return new

        return replace(change, pieces=tuple(pieces), direct=None if change.direct is None else direct)

    def tidy(self, pieces: Sequence[Piece]) -> Lazy:
        """Add up the pieces that are small: alike in layout, and constant along the axes of the value."""
        done: list[Piece] = []
        for piece in pieces:
            small = not piece.varies()
            piece = Piece(piece.layout, self.grouped(piece.factors))
            for i, other in enumerate(done):
                if small and not other.varies() and other.layout.same_as(piece.layout):
                    total = self.order.combine(jnp.add, *(self.order.multiply(p.factors) for p in (other, piece)))
                    done[i] = Piece(piece.layout, (total,))
                    break
            else:
                done.append(piece)
        return Lazy(tuple(done))

    def cast(self, change: Change, base: Any, dtype: Any) -> Change:
        """Convert a change to another type. A difference of narrow or unsigned integers would wrap around."""
        if isinstance(change, Lazy) and holds_differences(base.dtype):
            self.digits.flag_cast(change, base, dtype)
            pieces = [piece.cast(dtype) for piece in change.pieces]
            return self.moved(change, pieces, lambda new: self.cast(new, base, dtype))
        layout = self.union(self.layouts(change), tuple(base.shape))
        value = self.as_new(change, base, layout)
        return New(layout, Labelled(value.data.astype(dtype), value.axes))

    def loosen(self, change: Change, base: Any, axes: Collection[int]) -> Change:
        """Remove the lists of entries along axes of size 1, which are about to be dropped."""
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
        """Return the change of a value that is repeated along new or longer axes.

        Args:
            change: the change of the value.
            base: the value at the pivot.
            into: for each axis of the value, the axis of the result.
            shape: the shape of the result.
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


def _difference(new: Any, here: Any) -> Any:
    """Subtract the value at the pivot: an infinite value that has not changed has no difference."""
    if not jnp.issubdtype(here.dtype, jnp.floating):
        return new - here
    return jnp.where(jnp.isinf(here) & (new == here), jnp.zeros((), here.dtype), new - here)
