"""The forms of a change: how a value changes when one element of a latent does, for all elements and candidates.

    Lazy:  value + Σ over pieces of (product of factors)     linear, or polynomial, in the change
    New:   the value itself, at the positions that are touched

A factor seldom has both the candidates' axis and those of the value: a sum over the value's axes then costs nothing
for each candidate. The first nonlinear function of a Lazy change makes it New.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from legrad.singlesite.accuracy import ABSOLUTE, Need
from legrad.singlesite.labelled import Axis, Labelled
from legrad.singlesite.layout import Layout

MOST_PIECES = 8  # a change with more pieces is better evaluated as New


@dataclass(frozen=True, eq=False)
class Piece:
    """A product of factors, zero wherever the layout does not reach."""

    layout: Layout
    factors: tuple[Labelled, ...]

    def has(self, *axes: Axis) -> bool:
        """Return whether a factor varies along one of these axes."""
        return any(axis in factor.axes for factor in self.factors for axis in axes)

    def varies(self) -> bool:
        """Return whether a factor varies along an axis of the value."""
        return any(factor.has("v") for factor in self.factors)

    def cast(self, dtype: Any) -> Piece:
        """Convert every factor to another type."""
        return Piece(self.layout, tuple(Labelled(f.data.astype(dtype), f.axes) for f in self.factors))


@dataclass(frozen=True, eq=False)
class Lazy:
    """A change as a sum of pieces.

    Attributes:
        pieces: the products whose sum is added to the value at the pivot.
        direct: a function that returns the same change as New, computed from the operands' values; None if there is
            no way but base + pieces.
        values_known: whether `direct` loses no digits, because no value that it uses was formed as base + difference.
        need: what the value is used for.
    """

    pieces: tuple[Piece, ...]
    direct: Callable[[], New] | None = None
    values_known: bool = False
    need: Need = ABSOLUTE


@dataclass(frozen=True, eq=False)
class New:
    """The changed value where the layout reaches; elsewhere the value is as at the pivot."""

    layout: Layout
    value: Labelled


Change = Lazy | New


def holds_differences(dtype: Any) -> bool:
    """Return whether the difference of two numbers of a type is a number of that type."""
    return bool(jnp.issubdtype(dtype, jnp.floating) or dtype in (jnp.int32, jnp.int64))
