"""One-element changes by running again whatever depends on the element: for each candidate, the program itself.

It is the way out where following the changes saves nothing, or has lost digits for some elements and candidates: then
it runs for those alone. Differences are taken before sums, so that what does not change is never added up.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from legrad.singlesite.together import any_of
from legrad.trace.program import Program
from legrad.trace.sums import addends

_AT_ONCE = 32  # changes in a block of those that digits were lost for


def recompute(
    program: Program,
    number: int,
    values: dict[int, Any],
    choices: jax.Array,
    memory: int,
    differences: bool,
    flags: jax.Array | None = None,
) -> dict[int, jax.Array]:
    """The difference of every touched output, or its value, summed over its numbers, for candidates and elements.

    Args:
        program: the traced function.
        number: which of its inputs changes.
        values: at the pivot, whatever the operations that the change reaches take and give.
        choices: the candidates, (K, *shape); axes of length 1 stand for all elements.
        memory: bytes that one block may take.
        differences: whether the values at the pivot are subtracted.
        flags: which candidates and elements are asked for, (K, *shape); None for all. The others get zeros.
    """
    pivot, ops = values[number], program.reached(number)
    shape = (len(choices), *pivot.shape)
    changing = program.dependents(number)
    dtypes = {o: jax.eval_shape(jnp.sum, values[o]).dtype for o in program.touched(number)}
    terms = {o: [(i, sign) for i, sign in addends(program, o) if i in changing] for o in dtypes}

    def one(k: jax.Array, e: jax.Array) -> dict[int, jax.Array]:
        at = jnp.unravel_index(e, pivot.shape) if pivot.ndim else ()
        own = tuple(jnp.where(n == 1, 0, i) for n, i in zip(choices.shape[1:], at, strict=True))
        now = {number: pivot.at[at].set(choices[(k, *own)]) if pivot.ndim else choices[k].astype(pivot.dtype)}
        for op in ops:
            now.update(zip(op.outputs, op.run([now.get(i, values[i]) for i in op.inputs]), strict=True))

        def difference(o: int, dtype: Any) -> jax.Array:
            parts = [sign * jnp.sum(now[i].astype(dtype) - values[i].astype(dtype)) for i, sign in terms[o]]
            return sum(parts, start=jnp.zeros((), dtype))

        return {o: difference(o, dtype) if differences else jnp.sum(now[o]) for o, dtype in dtypes.items()}

    count = math.prod(shape)
    held = 1 + sum(math.prod(program.shapes[i]) * program.dtypes[i].itemsize for op in ops for i in op.outputs)
    block = max(1, min(memory // held, count))
    k, e = (jnp.asarray(i, jnp.int32) for i in jnp.divmod(jnp.arange(count, dtype=jnp.int32), max(1, pivot.size)))
    if flags is None:
        each = jax.vmap(one)(k, e) if block == count else jax.lax.map(lambda at: one(*at), (k, e), batch_size=block)
        return {o: f.reshape(shape) for o, f in each.items()}
    block = min(block, _AT_ONCE)
    chosen = flags.reshape(-1)
    order = jnp.argsort(~chosen)  # those asked for come first, and the blocks after them have nothing to do
    order = jnp.concatenate([order, jnp.full(-count % block, order[-1])]).reshape(-1, block)

    def some(order: jax.Array) -> dict[int, jax.Array]:
        nothing = {o: jnp.zeros(block, dtype) for o, dtype in dtypes.items()}
        asked = any_of(jnp.any(chosen[order]))
        return jax.lax.cond(asked, lambda: jax.vmap(one)(k[order], e[order]), lambda: nothing)

    def placed(found: jax.Array) -> jax.Array:
        total = jnp.zeros(count, found.dtype).at[order.reshape(-1)].set(found.reshape(-1))
        return jnp.where(chosen, total, 0).reshape(shape)

    return {o: placed(found) for o, found in jax.lax.map(some, order).items()}
