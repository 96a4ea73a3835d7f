"""Arrays of which a discrete element only chooses between two forms, `where(t < tau, early, late)`.

The choice is known for every candidate, and the forms do not depend on the element. So functions are evaluated for
the two forms and not for every candidate, and a sum over positions is, with a the one form and b the other,

    S[k] = Σ_t where(mask[k, t], a_t, b_t) = S[0] + Σ_{j ≤ k} Σ_t (mask[j, t] − mask[j - 1, t]) (a_t − b_t)

a running sum of a few differences if neighbouring candidates choose alike almost everywhere, as change points do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from legrad.marginal.table import Label, Shape, Table
from legrad.singlesite.together import all_of


class Chosen(Table):
    """A table that is `where(mask, yes, no)`: the mask has axes of candidates, and is known; the forms have none."""

    mask: np.ndarray
    yes: Any
    no: Any

    def __init__(self, mask: np.ndarray, yes: Any, no: Any, labels: tuple[Label, ...], shape: Shape) -> None:
        for name, value in (("mask", mask), ("yes", yes), ("no", no), ("labels", labels), ("shape", shape)):
            object.__setattr__(self, name, value)

    @property
    def values(self) -> Any:
        """The table in full."""
        return jnp.where(self.mask, self.yes, self.no)

    def mapped(self, f: Callable[[Any], Any], shape: Shape | None = None) -> Chosen:
        """Apply an elementwise function to both forms."""
        return Chosen(self.mask, f(self.yes), f(self.no), self.labels, self.shape if shape is None else shape)


def total(table: Chosen) -> Any:
    """Return the sum over all positions for each candidate: (candidates,); None if that saves nothing."""
    own = tuple(max(n, m) for n, m in zip(table.mask.shape[1:], np.shape(table.yes), strict=True))
    if len(table.labels) != 1 or own != table.shape:
        return None
    mask = np.broadcast_to(table.mask, (len(table.mask), *own)).reshape(len(table.mask), -1)
    later, position = np.nonzero(mask[1:] != mask[:-1])
    if len(later) > 2 * sum(mask.shape):
        return None
    sign = np.where(mask[later + 1, position], 1, -1)
    a, b = (jnp.broadcast_to(x, own).reshape(-1) for x in (table.yes, table.no))

    def running(a: Any, b: Any) -> Any:
        each = _at(a - b, position) * sign.astype(a.dtype)
        every = np.arange(len(mask) - 1)
        steps = each if np.array_equal(later, every) else jnp.zeros(len(every), a.dtype).at[later].add(each)
        return jnp.sum(jnp.where(mask[0], a, b)) + jnp.concatenate([jnp.zeros(1, a.dtype), jnp.cumsum(steps)])

    @jax.checkpoint
    def in_full(a: Any, b: Any) -> Any:
        return jnp.sum(jnp.where(mask, a, b), axis=1)

    finite = all_of(jnp.all(jnp.isfinite(a)) & jnp.all(jnp.isfinite(b)))  # what is impossible has no difference
    return jax.lax.cond(finite, running, in_full, a, b)


def _at(x: Any, index: np.ndarray) -> Any:
    return x[: len(index)] if np.array_equal(index, np.arange(len(index))) else x[index]
