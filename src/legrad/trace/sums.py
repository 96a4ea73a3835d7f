"""Where only sums matter: values of a program that reach its results through sums alone.

The results of a program count as lists of additive terms, of which only the total matters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp

if TYPE_CHECKING:
    from legrad.trace.program import Op, Program


def only_summed(program: Program) -> dict[int, frozenset[int]]:
    """Find the axes of each value along which only the sum matters; for a result, these are all axes."""
    axes: dict[int, frozenset[int]] = {i: frozenset(range(len(program.shapes[i]))) for i in program.outputs}
    for op in reversed(program.ops):
        for i in op.inputs:
            one = len(op.outputs) == 1
            before = _before(program, op, i, axes.get(op.outputs[0], frozenset())) if one else frozenset[int]()
            axes[i] = axes.get(i, before) & before
    return axes


def _before(program: Program, op: Op, i: int, after: frozenset[int]) -> frozenset[int]:
    """Find the axes of an operand, given those of the result."""
    shapes, dtypes = program.shapes, program.dtypes
    if op.name == "reduce_sum":
        gone = op.eqn.params["axes"]
        kept = [a for a in range(len(shapes[i])) if a not in gone]
        return frozenset(gone) | {kept[a] for a in after}
    (out,) = op.outputs
    floating = all(jnp.issubdtype(dtypes[j], jnp.floating) for j in (i, out))
    if shapes[i] != shapes[out] or not floating:  # integers are rounded
        return frozenset()
    if op.name in ("neg", "convert_element_type", "copy", "stop_gradient", "add", "sub", "add_any"):
        return after
    others = [j for j in op.inputs if j != i]
    if op.name == "mul" and others and all(program.is_constant(j) and program.is_one_number(j) for j in others):
        return after
    return frozenset()


def addends(program: Program, number: int) -> list[tuple[int, int]]:
    """Find values whose sums over all their numbers add up to that of a value, each with its sign."""
    shapes, dtypes = program.shapes, program.dtypes
    found, ahead = [], [(number, 1)]
    while ahead:
        i, sign = ahead.pop()
        op = program.maker(i)
        same = op is not None and all(dtypes[j] == dtypes[i] for j in op.inputs)
        if op is None or not same or not jnp.issubdtype(dtypes[i], jnp.floating):
            found.append((i, sign))
        elif op.name in ("reduce_sum", "reshape", "squeeze", "transpose", "neg", "copy"):
            ahead.append((op.inputs[0], -sign if op.name == "neg" else sign))
        elif op.name in ("add", "sub", "add_any") and all(shapes[j] == shapes[i] for j in op.inputs):
            ahead += [(op.inputs[0], sign), (op.inputs[1], -sign if op.name == "sub" else sign)]
        else:
            found.append((i, sign))
    return found
