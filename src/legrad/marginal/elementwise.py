"""Functions of numbers on tables: evaluated while tracing where all numbers are known, for two forms where an element
only chooses between them (`chosen.py`), else at every candidate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from legrad.marginal.chosen import Chosen
from legrad.marginal.context import Context, shapes_of
from legrad.marginal.table import Shape, Table, align, raised
from legrad.trace.operations import run_equation
from legrad.trace.program import Op

_KEPT = 1 << 22  # numbers that are computed while tracing, in one array


def elementwise(op: Op, operands: list[Table], context: Context) -> list[Table]:
    """Apply a function of numbers at every candidate."""
    (shape,) = shapes_of(op)
    if (chosen := _chosen(op, operands, shape)) is not None:
        return [chosen]
    operands = [raised(t, len(shape)) for t in _known(op, operands, context)]
    if not all(isinstance(t.values, np.ndarray) for t in operands):
        return [_of_numbers(op, operands, shape, context)]
    if op.name in _NUMPY:  # nothing to compile
        arrays, labels = align(operands, context.limit, np, position_wise=True)
        return [Table(_NUMPY[op.name](*arrays).astype(op.eqn.outvars[0].aval.dtype), labels, shape)]
    with jax.ensure_compile_time_eval():
        table = _of_numbers(op, operands, shape, context)
        return [Table(np.asarray(table.values), table.labels, shape)]


_NUMPY: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "rem": np.fmod,
    "max": np.maximum,
    "min": np.minimum,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "convert_element_type": np.asarray,
}


def _chosen(op: Op, operands: list[Table], shape: Shape) -> Table | None:
    """Choose between two forms by what is known of elements, or apply a function to both forms of such a choice."""
    labelled = [t for t in operands if t.labels]
    if len(labelled) != 1 or len(labelled[0].shape) != len(shape):
        return None
    plain = [raised(t, len(shape)) for t in operands]
    (choice,) = (t for t in plain if t.labels)
    if isinstance(choice, Chosen):
        return choice.mapped(lambda form: _bind(op, [form if t is choice else t.values for t in plain]), shape)
    if op.name != "select_n" or choice is not plain[0] or len(plain) != 3:
        return None
    mask = choice.values
    if (
        not isinstance(mask, np.ndarray)
        or mask.dtype != bool
        or not jnp.issubdtype(op.eqn.outvars[0].aval.dtype, jnp.floating)
    ):
        return None
    no, yes = jnp.broadcast_arrays(plain[1].values, plain[2].values)
    return Chosen(mask, yes, no, choice.labels, shape)


def _bind(op: Op, operands: list[Any]) -> Any:
    sizes = np.broadcast_shapes(*(jnp.shape(x) for x in operands))
    return run_equation(op.eqn, [jnp.broadcast_to(x, sizes) for x in operands])[0]


def _of_numbers(op: Op, operands: list[Table], shape: Shape, context: Context) -> Table:
    values, labels = align(operands, context.limit, position_wise=True)
    sizes = np.broadcast_shapes(*(v.shape for v in values))
    return Table(run_equation(op.eqn, [jnp.broadcast_to(v, sizes) for v in values])[0], labels, shape)


def _known(op: Op, operands: list[Table], context: Context) -> list[Table]:
    """Return the operands as numbers if all are known now, and few enough to be kept in a program."""
    if not any(t.labels for t in operands) or not all(isinstance(t.values, np.ndarray) for t in operands if t.labels):
        return operands
    numbers = []
    for t, i in zip(operands, op.inputs, strict=True):
        x = t.values if t.labels else context.program.read(i)
        if x is None:
            return operands
        numbers.append(x if t.labels else x[tuple(slice(n) for n in t.own)])  # one number for all stays one
    own = np.broadcast_shapes(*(x.shape[len(t.labels) :] for x, t in zip(numbers, operands, strict=True)))
    if math.prod(own) * math.prod(label.size for t in operands for label in t.labels) > _KEPT:
        return operands
    return [Table(x, t.labels, t.shape) for x, t in zip(numbers, operands, strict=True)]
