"""Iterates of a fit in blocks: split R-hat, averages, and their Monte Carlo error, in the memory of a few iterates.

    block k:  mean and sum of squared deviations of the iterates of `length` steps

A phase of a fit fills up to `NUMBER` blocks; then pairs of blocks are merged into blocks of twice the length. Two
halves of the blocks are the two chains of R-hat = sqrt(((n - 1) / n · W + B / n) / W), with W the mean of the two
variances and B / n the variance of the two means.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from legrad._compiled import jit

NUMBER = 16
_SHARE = 0.95  # share of an array's elements that must be within a bound; with 20 elements or fewer, all


class Blocks(NamedTuple):
    """Moments of the iterates, one row per block."""

    mean: Any
    squares: Any
    seen: jax.Array  # how many iterates
    length: jax.Array  # steps of a block

    @classmethod
    def empty(cls, iterate: Any, length: int) -> Blocks:
        """Return blocks without any iterates."""
        zeros = jax.tree.map(lambda x: jnp.zeros((NUMBER, *jnp.shape(x)), jnp.result_type(x)), iterate)
        return cls(zeros, zeros, jnp.asarray(0, jnp.int32), jnp.asarray(length, jnp.int32))

    def add(self, iterate: Any) -> Blocks:
        """Add one iterate (compiled; the caller merges before the blocks are full)."""
        block, inside = self.seen // self.length, self.seen % self.length

        def update(x: jax.Array, mean: jax.Array, squares: jax.Array) -> tuple[jax.Array, jax.Array]:
            fresh = inside == 0
            old = jnp.where(fresh, x, mean[block])
            new = old + (x - old) / (inside + 1).astype(x.dtype)
            spread = jnp.where(fresh, 0.0, squares[block]) + (x - old) * (x - new)
            return mean.at[block].set(new), squares.at[block].set(spread)

        leaves, structure = jax.tree.flatten(iterate)
        both = [
            update(*a) for a in zip(leaves, jax.tree.leaves(self.mean), jax.tree.leaves(self.squares), strict=True)
        ]
        mean, squares = (jax.tree.unflatten(structure, [pair[i] for pair in both]) for i in (0, 1))
        return Blocks(mean, squares, self.seen + 1, self.length)


@jit
def merged(blocks: Blocks) -> Blocks:
    """Merge pairs of blocks into blocks of twice the length; the second half of the rows is free again."""

    def mean(m: jax.Array) -> jax.Array:
        pairs = 0.5 * (m[0::2] + m[1::2])
        return jnp.concatenate([pairs, jnp.zeros_like(pairs)])

    def squares(s: jax.Array, m: jax.Array) -> jax.Array:
        pairs = s[0::2] + s[1::2] + 0.5 * blocks.length * (m[0::2] - m[1::2]) ** 2
        return jnp.concatenate([pairs, jnp.zeros_like(pairs)])

    return Blocks(
        jax.tree.map(mean, blocks.mean),
        jax.tree.map(squares, blocks.squares, blocks.mean),
        blocks.seen,
        2 * blocks.length,
    )


@jit
def average(blocks: Blocks, which: jax.Array) -> Any:
    """Return the mean iterate of the blocks chosen by a mask."""
    return jax.tree.map(lambda m: _mean(m, which), blocks.mean)


@jit
def monte_carlo_error(blocks: Blocks, which: jax.Array) -> Any:
    """Return the standard error of `average`, from the spread of the block means."""
    number = jnp.sum(which)

    def error(m: jax.Array) -> jax.Array:
        squares = _mean((m - _mean(m, which)) ** 2, which)
        return jnp.sqrt(squares / (number - 1).astype(m.dtype))

    return jax.tree.map(error, blocks.mean)


@jit
def split_rhat(blocks: Blocks, first: jax.Array, second: jax.Array) -> dict[str, jax.Array]:
    """Return R-hat of two groups of equally many blocks: per parameter, what 95% of its elements do not exceed."""
    n = jnp.sum(first) * blocks.length

    def one(m: jax.Array, s: jax.Array) -> jax.Array:
        means = [_mean(m, which) for which in (first, second)]
        variances = [
            (_mean(s, which) + blocks.length * _mean((m - mean) ** 2, which)) / blocks.length
            for mean, which in zip(means, (first, second), strict=True)
        ]
        within = 0.5 * (variances[0] + variances[1])
        between = 0.5 * (means[0] - means[1]) ** 2
        ratio = (n - 1) / n + between / jnp.where(within > 0, within, 1.0)
        still = (within == 0) & (between == 0)  # the element does not move at all
        return jnp.where(still, 1.0, jnp.where(within > 0, jnp.sqrt(ratio), jnp.inf))

    def worst(mean: Any, squares: Any) -> jax.Array:
        values = [jnp.ravel(one(m, s)) for m, s in zip(jax.tree.leaves(mean), jax.tree.leaves(squares), strict=True)]
        return most(jnp.concatenate(values)) if values else jnp.ones(())

    return {name: worst(blocks.mean[name], blocks.squares[name]) for name in blocks.mean}


def most(values: jax.Array) -> jax.Array:
    """Return the bound that 95% of the values do not exceed: of 20 or fewer, the largest."""
    values = jnp.ravel(values)
    keep = math.ceil(_SHARE * values.size) if values.size > 20 else values.size
    return jnp.sort(values)[keep - 1] if values.size else jnp.zeros(())


def mask(blocks: range) -> np.ndarray:
    """Return a range of blocks as a mask over all blocks."""
    return np.isin(np.arange(NUMBER), blocks)


def _mean(rows: jax.Array, which: jax.Array) -> jax.Array:
    weights = (which / jnp.sum(which)).astype(rows.dtype)
    return jnp.tensordot(weights, rows, axes=1)
