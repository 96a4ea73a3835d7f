"""Families of operations, by what they do to means: a new primitive is a name in one of these lists.

An operation belongs to a family only together with which of its operands are random: `mul` scales if one operand is
a constant, and is a product if none is.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import jax.numpy as jnp
import numpy as np

from legrad.trace.program import Op, Program


class Family(Enum):
    """What an operation does to its random operands."""

    MOVE = "each result is one number of an operand"
    SCALE = "each result is a constant times one number"
    ADD = "sums of two numbers"
    MIX = "linear in one operand, with sums over positions"
    PRODUCT = "products of two random numbers"
    CHOICE = "a random choice between numbers"
    LOOK_UP = "numbers looked up by a random index"
    FUNCTION = "anything else"


_MOVES = {
    "reshape", "squeeze", "broadcast_in_dim", "transpose", "slice", "rev", "split", "concatenate", "copy",
    "optimization_barrier",
}  # fmt: skip
_BY_CONSTANT = {"gather": 1, "dynamic_slice": 1}  # movements by constants, from this operand on
_ADDS = {"add", "sub", "add_any"}
_MIXES = {"reduce_sum", "cumsum"}


def family(program: Program, op: Op, is_constant: Callable[[int], bool]) -> Family:
    """Return the family of an operation with at least one random operand."""
    random = [not is_constant(i) for i in op.inputs]
    name = op.name
    if name in _MOVES:
        return Family.MOVE
    if name in _BY_CONSTANT and not any(random[_BY_CONSTANT[name] :]):
        return Family.MOVE
    if name == "pad" and not random[1]:
        return Family.MOVE
    if name == "select_n":
        return Family.CHOICE if random[0] else Family.MOVE
    if name == "gather" and random[1]:
        return Family.LOOK_UP
    if name == "convert_element_type":
        return Family.MOVE if _keeps(program, op) else Family.FUNCTION
    if not all(is_number(program.dtypes[i]) for i in (*op.inputs, *op.outputs)):
        return Family.FUNCTION
    if name in _ADDS:
        return Family.ADD
    if name == "neg":
        return Family.SCALE
    if name == "mul":
        return Family.PRODUCT if all(random) else Family.SCALE
    if name == "div" and jnp.issubdtype(program.dtypes[op.outputs[0]], jnp.floating):
        return Family.PRODUCT if random[1] else Family.SCALE
    if name in _MIXES:
        return Family.MIX
    if name == "dot_general":
        return Family.PRODUCT if all(random) else Family.MIX
    if name == "triangular_solve" and not random[0]:
        return Family.MIX
    return Family.FUNCTION


def _keeps(program: Program, op: Op) -> bool:
    """Say whether a conversion keeps the number: not from real to whole numbers, nor to narrow integers."""
    before, after = program.dtypes[op.inputs[0]], program.dtypes[op.outputs[0]]
    if jnp.issubdtype(after, jnp.floating):
        return bool(np.dtype(before).kind in "biuf")
    return is_number(after) and (before == np.dtype(bool) or (is_number(before) and np.dtype(before).kind == "i"))


def is_number(dtype: object) -> bool:
    """Say whether sums of this type are those of its numbers: narrow and unsigned integers wrap around."""
    whole = jnp.issubdtype(dtype, jnp.signedinteger) and np.dtype(dtype).itemsize >= 4  # type: ignore[arg-type]
    return bool(whole or jnp.issubdtype(dtype, jnp.floating))  # type: ignore[arg-type]
