"""What a rule is given: the operands of one equation, and what changes in them."""

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
    """One operand: its value at the pivot, its change (None for a constant), its numbers where they can be read."""

    base: Any
    change: Change | None
    read: Callable[[], np.ndarray | None]

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return tuple(self.base.shape)


@dataclass(frozen=True, eq=False)
class Step:
    """One equation at work: what a rule sees.

    Attributes:
        site: the latent whose elements change.
        eqn: the equation.
        operands: its operands.
        results: its results at the pivot.
        summed: the axes of the result along which nothing but its sum matters.
        need: what the results are used for.
        scratch: arrays that the rule holds while it works, beside what it gives back.
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
        """The shape of the first result."""
        return tuple(self.results[0].shape)

    def changing(self) -> list[Operand]:
        """The operands that change."""
        return [x for x in self.operands if x.change is not None]

    def prefers_differences(self) -> bool:
        """Whether a linear rule should keep differences: they are, or they would save work.

        A value that is touched in few positions is exact as it is. One that is constant along an axis that is touched
        everywhere stays a factor only as a difference.
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

    def known(self) -> bool:
        """Whether the values of all operands are known, with all their digits."""
        return all(isinstance(x.change, New) or (x.change is not None and x.change.known) for x in self.changing())

    def values(self, x: Operand, axes: Sequence[int]) -> New | None:
        """An operand's change as values, where these are known and all positions along some axes are touched.

        A sum along those axes may then be taken of the values. It is, where the result is used as a value: as a
        difference it could lose its digits.
        """
        if not self.need.value or not self.known() or not jnp.issubdtype(x.base.dtype, jnp.floating):
            return None
        new = self.site.directly(x.change) if isinstance(x.change, Lazy) else x.change
        assert new is not None
        return new if all(new.layout.where[a] is None for a in axes) else None

    def pieces(self, x: Operand) -> tuple[Piece, ...]:
        """An operand's change as a difference."""
        assert x.change is not None
        return self.site.as_lazy(x.change, x.base).pieces


def _spreads(layout: Layout, shape: tuple[int, ...]) -> bool:
    return any(shape[a] > 1 for a in layout.free() if a < len(shape))


Rule = Callable[[Step], "list[Change | None]"]
