"""Compute one-element changes by brute force: all of `f`, once for each element and candidate.

This is a plain vmap in blocks, so that memory stays bounded, and the oracle for every faster method.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Tree = Any


def brute(f: Callable[[Tree], Tree], x: Tree, candidates: Tree, *, memory: int, pivot: Tree | None = None) -> Tree:
    """Evaluate `f` with each element of `x` replaced by each of its candidates.

    Args:
        f: a function of a pytree of arrays that returns scalars or arrays of additive terms, which are summed.
        x: the pivot.
        candidates: as `x`, each leaf with a leading axis of candidates; all elements share an axis of length 1.
        memory: bytes that the evaluations of one block may take together.
        pivot: f(x), to be subtracted term by term before the sum; None to return values.

    Returns:
        A pytree with the structure of `candidates`, each leaf holding f's own structure.
    """
    leaves, structure = jax.tree.flatten(x)
    choices = jax.tree.leaves(candidates)
    block = max(1, memory // _bytes(f, x))

    def summed(y: Tree) -> Tree:
        terms = f(y)
        if pivot is not None:
            terms = jax.tree.map(_difference, terms, pivot)
        return jax.tree.map(jnp.sum, terms)

    def leaf(i: int) -> Tree:
        shape, flat = (len(choices[i]), *jnp.shape(leaves[i])), jnp.ravel(leaves[i])
        cand = jnp.broadcast_to(jnp.asarray(choices[i], flat.dtype), shape).reshape(shape[0], flat.size)

        def one(where: tuple[jax.Array, jax.Array]) -> Tree:
            k, e = where
            changed = flat.at[e].set(cand[k, e]).reshape(jnp.shape(leaves[i]))
            return summed(jax.tree.unflatten(structure, [*leaves[:i], changed, *leaves[i + 1 :]]))

        k, e = jnp.indices(cand.shape).reshape(2, -1)
        if cand.size == 0:
            return jax.tree.map(lambda v: jnp.zeros(shape, v.dtype), jax.eval_shape(summed, x))
        values = jax.lax.map(one, (k, e), batch_size=min(block, cand.size))
        return jax.tree.map(lambda v: v.reshape(shape), values)

    return jax.tree.unflatten(structure, [leaf(i) for i in range(len(leaves))])


def _difference(term: jax.Array, pivot: jax.Array) -> jax.Array:
    """Subtract in the type of a sum: differences of narrow types would wrap around, and booleans have none."""
    dtype = jax.eval_shape(jnp.sum, term).dtype
    return jnp.asarray(term, dtype) - jnp.asarray(pivot, dtype)


def _bytes(f: Callable[[Tree], Tree], x: Tree) -> int:
    """Estimate from above how many bytes one evaluation holds: everything that f computes."""
    jaxpr = jax.make_jaxpr(f)(x).jaxpr
    avals = [v.aval for eqn in jaxpr.eqns for v in eqn.outvars if hasattr(v.aval, "shape")]
    return 1 + sum(math.prod(a.shape) * getattr(a.dtype, "itemsize", 8) for a in avals)
