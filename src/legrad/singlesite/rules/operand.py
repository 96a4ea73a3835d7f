"""The input of a rule: the operands of one equation, and their changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

from legrad.singlesite.accuracy import DIFFERENCES, Need
from legrad.singlesite.change import Change, Lazy, New, Piece, holds_differences
from legrad.singlesite.labelled import Labelled
from legrad.singlesite.layout import Layout
from legrad.singlesite.site import Site


@dataclass(frozen=True, eq=False)
class Operand:
    """An operand of an equation.

    Attributes:
        base: the operand's value at the pivot.
        change: the operand's change; None for a constant.
        read: a function that returns the numbers of a constant, or None if they cannot be read while tracing.
    """

    base: Any
    change: Change | None
    read: Callable[[], np.ndarray | None]

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the operand's shape."""
        return tuple(self.base.shape)


@dataclass(frozen=True, eq=False)
class Step:
    """One equation as a rule sees it.

    Attributes:
        site: the latent whose elements change.
        eqn: the equation.
        operands: the equation's operands.
        results: the equation's results at the pivot.
        summed: the axes of the first result along which only the sum matters.
        need: what the results are used for.
        scratch: arrays that the rule holds while it works, besides the changes that it returns.
    """

    site: Site
    eqn: Any
    operands: Sequence[Operand]
    results: Sequence[Any]
    summed: frozenset[int] = frozenset()
    scratch: list[Labelled] = field(default_factory=list)
    need: Need = DIFFERENCES

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the first result."""
        return tuple(self.results[0].shape)

    def changing(self) -> list[Operand]:
        """Return the operands that change."""
        return [x for x in self.operands if x.change is not None]

    def prefers_differences(self) -> bool:
        """Return whether a linear rule should keep differences: the changes are in that form, or it would save work.

        A value that is touched in few positions is best kept as it is. A value that is constant along an axis that is
        touched everywhere stays a factor only as a difference.
        """
        return all(
            isinstance(x.change, Lazy)
            or (
                holds_differences(x.base.dtype)
                and not x.change.value.has("v")
                and _spreads(x.change.layout, self.shape)
            )
            for x in self.changing()
            if x.change is not None
        )

    def values_known(self) -> bool:
        """Return whether the values of all operands are known, with all their digits."""
        changes = [x.change for x in self.changing()]
        return all(isinstance(change, New) or (change is not None and change.values_known) for change in changes)

    def values(self, x: Operand, axes: Sequence[int]) -> New | None:
        """Return an operand's change as values if a sum along some axes should be taken of values, and None if not.

        The sum should be taken of values if the result is used as a value, because a difference could lose digits,
        provided that the values are known and all positions along those axes are touched.
        """
        if not self.need.value or not self.values_known() or not jnp.issubdtype(x.base.dtype, jnp.floating):
            return None
        new = self.site.directly(x.change) if isinstance(x.change, Lazy) else x.change
        assert new is not None
        return new if all(new.layout.where[a] is None for a in axes) else None

    def evaluated(self, shape: tuple[int, ...], free: Sequence[int] = ()) -> tuple[Layout, list[Labelled]]:
        """Return the smallest layout that all changes fit on, and every operand, with its change, on that layout.

        Args:
            shape: the shape of all operands.
            free: axes along which the layout must touch everything.
        """
        site = self.site
        layout = site.union(
            [w for x in self.operands if x.change is not None for w in site.layouts(x.change)], shape, free
        )
        arrays = [
            site.take(x.base, layout) if x.change is None else site.as_new(x.change, x.base, layout)
            for x in self.operands
        ]
        return layout, arrays

    def pieces(self, x: Operand) -> tuple[Piece, ...]:
        """Return an operand's change as a difference."""
        assert x.change is not None
        return self.site.as_lazy(x.change, x.base).pieces


def _spreads(layout: Layout, shape: tuple[int, ...]) -> bool:
    """Return whether a layout touches all of an axis that is longer than 1."""
    return any(shape[a] > 1 for a in layout.free() if a < len(shape))


Rule = Callable[[Step], "list[Change | None]"]
