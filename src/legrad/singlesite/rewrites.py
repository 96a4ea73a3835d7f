"""Rewrite equations into forms through which one-element changes are easier to follow."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from legrad import _compat
from legrad.distributions.densities import poisson_log
from legrad.trace.operations import name_of
from legrad.trace.program import Op, Program


def rewrite(program: Program, eqn: Any, operands: list[int]) -> list[int]:
    """Append an equation to a program in the form that suits changes, and return the ids of its results."""
    if _never_nan(program, eqn, operands):
        return [operands[1]]
    if name_of(eqn) == "legrad_categorical_logits" and not program.is_constant(operands[1]):
        return program.inline(eqn, eqn.params["jaxpr"], operands)  # if the class changes, log p is a look-up
    rate = program.maker(operands[0]) if name_of(eqn) == "legrad_poisson" else None
    if rate is not None and rate.name == "exp":
        given = [rate.inputs[0], operands[1]]
        like = [jax.ShapeDtypeStruct(program.shapes[i], program.dtypes[i]) for i in given]
        return program.inline(eqn, jax.make_jaxpr(poisson_log)(*like), given)
    return program.append(eqn, _separate_indices(program, eqn, operands))


def _separate_indices(program: Program, eqn: Any, operands: list[int]) -> list[int]:
    """Return the operands of a look-up J[a, b] in a constant table with each index on its own.

    JAX concatenates the indices first, so that a change of one would have to be followed as a change of pairs.
    """
    glue = program.maker(operands[1]) if eqn.primitive.name == "gather" else None
    if glue is None or glue.name != "concatenate" or not program.is_constant(operands[0]):
        return operands
    last = len(program.shapes[operands[1]]) - 1
    if glue.eqn.params["dimension"] != last or any(program.shapes[i][last] != 1 for i in glue.inputs):
        return operands
    return [operands[0], *glue.inputs]


def _never_nan(program: Program, eqn: Any, operands: list[int]) -> bool:
    """Recognize the test for NaN in `logaddexp` if one side is a finite constant, as in `softplus`.

    With d = a − b, `logaddexp(a, b)` is where(d ≠ d, a + b, max(a, b) + ...). If a side is finite, d is NaN only if
    the other result is NaN too. XLA does not see that, and keeps the test inside the innermost loop, which costs
    several times the rest.
    """
    test = program.maker(operands[0]) if eqn.primitive.name == "select_n" else None
    if test is None or test.name != "ne" or test.inputs[0] != test.inputs[1] or len(operands) != 3:
        return False
    difference = _made_by(program, test.inputs[0], "sub")
    if difference is None:
        return False
    sides = set(difference.inputs)
    return _chooses_sum_or_max(program, operands, sides) and any(_is_finite_scalar(program, i) for i in sides)


def _chooses_sum_or_max(program: Program, operands: list[int], sides: set[int]) -> bool:
    """Return whether a choice is between the sum of two sides, and a sum with their maximum."""
    result, other = (_made_by(program, i, "add") for i in operands[1:])
    if result is None or other is None or set(other.inputs) != sides:
        return False
    larger = [_made_by(program, i, "max") for i in result.inputs]
    return any(op is not None and set(op.inputs) == sides for op in larger)


def _made_by(program: Program, value_id: int, name: str) -> Op | None:
    """Return the operation that makes a value if the operation has this name."""
    op = program.maker(value_id)
    return op if op is not None and op.name == name else None


def _is_finite_scalar(program: Program, value_id: int) -> bool:
    """Return whether a value is a constant with one finite number that can be read while tracing."""
    value = program.constants.get(value_id)
    return value is not None and np.size(value) == 1 and _compat.is_concrete(value) and bool(np.isfinite(value))
