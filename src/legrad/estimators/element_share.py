"""A random share of the elements: for latents with more elements than a step can visit.

The longest axis of a site is cut into B blocks, B = 1 / fraction. A step draws one block b, and visits its elements:

    surrogate = Σ_{e in block b} B · s_e,    E_b[surrogate] = Σ_e s_e

Each block is a program of its own, in which the block's place is known, so that what is known of chains, grids and
tables is known of a block, too. Blocks have the same size; an element in two of them counts in one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from legrad.trace.devices import parts

MOST = 64  # blocks, each of which is compiled

Arrays = dict[str, Any]


class Share(NamedTuple):
    """The block of one site's elements that a step visits.

    Attributes:
        block: which block, drawn.
        axis: the axis of the site that is cut.
        edges: where each element's block begins, and the end of the last.
        size: how many positions along the axis a block has.
        firsts: where the block of each number begins; the last ones begin earlier than their elements.
    """

    block: jax.Array
    axis: int
    edges: np.ndarray
    size: int
    firsts: np.ndarray

    @property
    def number(self) -> int:
        """The number of blocks."""
        return len(self.firsts)

    def take(self, array: jax.Array, lead: int, block: int | None = None) -> jax.Array:
        """Return a block of an array with `lead` axes before those of the site; if none is given, the drawn block."""
        axis = self.axis + lead
        if array.shape[axis] == 1:
            return array
        if block is not None:
            return jax.lax.slice_in_dim(
                array, int(self.firsts[block]), int(self.firsts[block]) + self.size, axis=axis
            )
        return jax.lax.dynamic_slice_in_dim(array, jnp.asarray(self.firsts)[self.block], self.size, axis)

    def put(self, array: jax.Array, part: jax.Array, block: int) -> jax.Array:
        """Return an array of the site's shape with one block replaced."""
        first = int(self.firsts[block])
        before = jax.lax.slice_in_dim(array, 0, first, axis=self.axis)
        after = jax.lax.slice_in_dim(array, first + self.size, array.shape[self.axis], axis=self.axis)
        return jnp.concatenate([before, part, after], axis=self.axis)

    def counted(self, weights: jax.Array) -> jax.Array:
        """Return the weights of a block's elements, (K, *elements), times B; zero where another block counts them."""
        edges, first = jnp.asarray(self.edges), jnp.asarray(self.firsts)[self.block]
        place = first + jnp.arange(self.size)
        inside = (place >= edges[self.block]) & (place < edges[self.block + 1])
        inside = inside.reshape(-1, *(1,) * (weights.ndim - self.axis - 2))
        return jnp.where(inside, self.number * weights, 0.0)


def shares(x: Mapping[str, jax.Array], fraction: float, key: jax.Array) -> dict[str, Share]:
    """Draw a block for each site that is long enough to be cut; the same block number for all."""
    number = round(1.0 / fraction)
    if number == 1:
        return {}
    block, found = jax.random.randint(key, (), 0, number), {}
    for name, value in x.items():
        # A block of an axis that is cut across devices is on few of them.
        axes = sorted(range(value.ndim), key=lambda a: (parts(value.shape[a]), -value.shape[a]))
        axis = next((a for a in axes if value.shape[a] >= number), None)
        if axis is not None:
            n = value.shape[axis]
            edges = np.arange(number + 1) * n // number
            size = int(np.diff(edges).max())
            found[name] = Share(block, axis, edges, size, np.minimum(edges[:-1], n - size))
    return found


def of_shares(
    run: Callable[[Arrays, Arrays, Callable[[Arrays], Arrays]], Any],
    x: Arrays,
    candidates: Arrays,
    chosen: Mapping[str, Share | None],
) -> Any:
    """Run the changes of the drawn block.

    Args:
        run: takes the elements to change, their candidates, and a function from changed elements to whole sites.
        x: the sites at the pivot.
        candidates: the candidates of each site.
        chosen: the share of each site; None for a site that is visited whole.
    """
    cut = {n: share for n, share in chosen.items() if share is not None}
    if not cut:
        return run(x, candidates, lambda moved: moved)

    def of_block(b: int) -> Callable[[], Any]:
        def whole(moved: Arrays) -> Arrays:
            return moved | {n: share.put(x[n], moved[n], b) for n, share in cut.items() if n in moved}

        def branch() -> Any:
            some = x | {n: share.take(x[n], 0, b) for n, share in cut.items()}
            values = candidates | {n: share.take(candidates[n], 1, b) for n, share in cut.items()}
            return run(some, values, whole)

        return branch

    first = next(iter(cut.values()))
    return jax.lax.switch(first.block, [of_block(b) for b in range(first.number)])
