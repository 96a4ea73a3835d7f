"""What a rule is given: the operands of one equation, and what changes in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from legrad.singlesite.change import Change, Lazy, Piece, Site


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
    """

    site: Site
    eqn: Any
    operands: Sequence[Operand]
    results: Sequence[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first result."""
        return tuple(self.results[0].shape)

    def changing(self) -> list[Operand]:
        """The operands that change."""
        return [x for x in self.operands if x.change is not None]

    def lazy(self) -> bool:
        """Whether every change is a sum of products."""
        return all(isinstance(x.change, Lazy) for x in self.changing())

    def pieces(self, x: Operand) -> tuple[Piece, ...]:
        """An operand's change as a difference."""
        assert x.change is not None
        return self.site.as_lazy(x.change, x.base).pieces


Rule = Callable[[Step], "list[Change | None]"]
