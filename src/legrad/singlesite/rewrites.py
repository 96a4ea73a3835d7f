"""Equations that one-element changes are followed through more easily in another form."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from legrad import _compat
from legrad.distributions.densities import poisson_log
from legrad.trace.operations import name_of
from legrad.trace.program import Program


def rewrite(program: Program, eqn: Any, operands: list[int]) -> list[int]:
    """Append an equation to a program in the form that suits changes."""
    if _never_nan(program, eqn, operands):
        return [operands[1]]
    if name_of(eqn) == "legrad_categorical_logits" and not program.is_constant(operands[1]):
        return program.inline(eqn, eqn.params["jaxpr"], operands)  # a class that changes is a look-up
    rate = program.maker(operands[0]) if name_of(eqn) == "legrad_poisson" else None
    if rate is not None and rate.name == "exp":
        given = [rate.inputs[0], operands[1]]
        like = [jax.ShapeDtypeStruct(program.shapes[i], program.dtypes[i]) for i in given]
        return program.inline(eqn, jax.make_jaxpr(poisson_log)(*like), given)
    return program.append(eqn, _separate_indices(program, eqn, operands))


def _separate_indices(program: Program, eqn: Any, operands: list[int]) -> list[int]:
    """Take the indices of a look-up J[a, b] one by one, where the table is a constant.

    JAX glues them together first, and a change of one would have to be followed as a change of pairs.
    """
    glue = program.maker(operands[1]) if eqn.primitive.name == "gather" else None
    if glue is None or glue.name != "concatenate" or not program.is_constant(operands[0]):
        return operands
    last = len(program.shapes[operands[1]]) - 1
    if glue.eqn.params["dimension"] != last or any(program.shapes[i][last] != 1 for i in glue.inputs):
        return operands
    return [operands[0], *glue.inputs]


def _never_nan(program: Program, eqn: Any, operands: list[int]) -> bool:
    """Recognize the test for NaN in `logaddexp` where one side is a finite constant, as in `softplus`.

    There the tested difference is NaN only where the untested result is NaN too. XLA does not see that, and keeps
    the test inside the innermost loop, which costs several times the rest.
    """
    test = program.maker(operands[0]) if eqn.primitive.name == "select_n" else None
    if test is None or test.name != "ne" or test.inputs[0] != test.inputs[1] or len(operands) != 3:
        return False
    difference, other, result = (program.maker(i) for i in (test.inputs[0], operands[2], operands[1]))
    if difference is None or difference.name != "sub" or other is None or other.name != "add":
        return False
    sides = set(difference.inputs)
    if set(other.inputs) != sides or result is None or result.name != "add":
        return False
    larger = [program.maker(i) for i in result.inputs]
    if not any(op is not None and op.name == "max" and set(op.inputs) == sides for op in larger):
        return False
    finite = [program.constants[i] for i in sides if i in program.constants]
    return any(np.size(c) == 1 and _compat.is_concrete(c) and bool(np.isfinite(c)) for c in finite)
