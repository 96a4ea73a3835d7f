"""Compute one-element changes by running, for each candidate, the part of the program that depends on the element.

This is used if following the changes saves nothing, or has lost digits for some elements and candidates: then it runs
for those alone. Differences are taken before sums, so that what does not change is never added up.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from legrad.singlesite.together import any_of
from legrad.trace.program import Program
from legrad.trace.sums import addends

Found = dict[int, jax.Array]
One = Callable[[jax.Array, jax.Array], Found]
_AT_ONCE = 32  # changes in one block, if digits were lost


def recompute(
    program: Program,
    input_id: int,
    values: dict[int, Any],
    choices: jax.Array,
    memory: int,
    differences: bool,
    flags: jax.Array | None = None,
) -> Found:
    """Return the difference or the value of every touched output, summed, for every candidate and element.

    Args:
        program: the traced function.
        input_id: which of the program's inputs changes.
        values: the operands and results, at the pivot, of the operations that the change reaches.
        choices: the candidates, (K, *shape); all elements share an axis of length 1.
        memory: bytes that one block may take.
        differences: whether the values at the pivot are subtracted.
        flags: the candidates and elements to compute, (K, *shape); None for all. The others get zeros.
    """
    pivot, ops = values[input_id], program.reached(input_id)
    shape = (len(choices), *pivot.shape)
    dtypes = {o: jax.eval_shape(jnp.sum, values[o]).dtype for o in program.touched(input_id)}
    one = _change_of_one(program, input_id, values, choices, dtypes, differences)
    count = math.prod(shape)
    held = 1 + sum(math.prod(program.shapes[i]) * program.dtypes[i].itemsize for op in ops for i in op.outputs)
    block = max(1, min(memory // held, count))
    k, e = (jnp.asarray(i, jnp.int32) for i in jnp.divmod(jnp.arange(count, dtype=jnp.int32), max(1, pivot.size)))
    if flags is not None:
        return _flagged_only(one, k, e, flags, min(block, _AT_ONCE), dtypes)
    each = jax.vmap(one)(k, e) if block == count else jax.lax.map(lambda at: one(*at), (k, e), batch_size=block)
    return {o: f.reshape(shape) for o, f in each.items()}


def _change_of_one(
    program: Program,
    input_id: int,
    values: dict[int, Any],
    choices: jax.Array,
    dtypes: dict[int, Any],
    differences: bool,
) -> One:
    """Return a function that runs the program with element e set to candidate k, and sums the touched outputs."""
    pivot, ops = values[input_id], program.reached(input_id)
    changing = program.dependents(input_id)
    terms = {o: [(i, sign) for i, sign in addends(program, o) if i in changing] for o in dtypes}

    def one(k: jax.Array, e: jax.Array) -> Found:
        at = jnp.unravel_index(e, pivot.shape) if pivot.ndim else ()
        own = tuple(jnp.where(n == 1, 0, i) for n, i in zip(choices.shape[1:], at, strict=True))
        now = {input_id: pivot.at[at].set(choices[(k, *own)]) if pivot.ndim else choices[k].astype(pivot.dtype)}
        for op in ops:
            now.update(zip(op.outputs, op.run([now.get(i, values[i]) for i in op.inputs]), strict=True))

        def difference(o: int, dtype: Any) -> jax.Array:
            parts = [sign * jnp.sum(now[i].astype(dtype) - values[i].astype(dtype)) for i, sign in terms[o]]
            return sum(parts, start=jnp.zeros((), dtype))

        return {o: difference(o, dtype) if differences else jnp.sum(now[o]) for o, dtype in dtypes.items()}

    return one


def _flagged_only(
    one: One, k: jax.Array, e: jax.Array, flags: jax.Array, block: int, dtypes: dict[int, Any]
) -> Found:
    """Run the flagged candidates and elements in blocks, with zeros for the others."""
    chosen = flags.reshape(-1)
    order = jnp.argsort(~chosen)  # the flagged ones first: the blocks after them have nothing to do
    first = order[0]
    order = jnp.concatenate([order, jnp.full(-flags.size % block, order[-1])]).reshape(-1, block)

    @jax.checkpoint  # the derivatives of blocks that have nothing to do hold no memory
    def some(order: jax.Array) -> Found:
        nothing = {o: jnp.zeros(block, dtype) for o, dtype in dtypes.items()}
        asked = any_of(jnp.any(chosen[order]))
        run = jnp.where(chosen[order], order, first)  # no derivative of another change, which may be infinite
        return jax.lax.cond(asked, lambda: jax.vmap(one)(k[run], e[run]), lambda: nothing)

    def placed(found: jax.Array) -> jax.Array:
        total = jnp.zeros(flags.size, found.dtype).at[order.reshape(-1)].set(found.reshape(-1))
        return jnp.where(chosen, total, 0).reshape(flags.shape)

    return {o: placed(found) for o, found in jax.lax.map(some, order).items()}
