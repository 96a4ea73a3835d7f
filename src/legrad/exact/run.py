"""Linear operations run on means, and, with squared coefficients, on variances."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from legrad import _compat
from legrad.trace.operations import run_equation
from legrad.trace.program import Op

BLOCK = 1 << 26  # numbers of a matrix whose square is not stored, but computed in blocks of rows


def real(value: Any) -> Any:
    """Return numbers as floats: the mean of whole numbers is not whole."""
    dtype = jnp.result_type(value)
    return value if jnp.issubdtype(dtype, jnp.floating) else jnp.asarray(value).astype(jnp.result_type(float))


def in_bounds(op: Op) -> Op:
    """Return a look-up whose indices are clipped in the derivative as they are in the value.

    The derivative of `x[i]` by x drops an i beyond the end, while its value is that of the last number.
    """
    promised = jax.lax.GatherScatterMode.PROMISE_IN_BOUNDS
    if op.name != "gather" or op.eqn.params["mode"] != promised:
        return op
    return op._replace(eqn=op.eqn.replace(params=op.eqn.params | {"mode": jax.lax.GatherScatterMode.CLIP}))


def run_linear(op: Op, operands: Sequence[Any]) -> list[Any]:
    """Run a linear operation of numbers on their means."""
    if op.name == "convert_element_type":
        after = op.eqn.params["new_dtype"]
        return [operands[0].astype(after) if jnp.issubdtype(after, jnp.floating) else operands[0]]
    if op.name in ("gather", "dynamic_slice"):
        return run_equation(op.eqn, [real(operands[0]), *operands[1:]])
    if op.name == "select_n":
        return run_equation(op.eqn, [operands[0], *_alike(operands[1:])])
    numbers = _alike(operands)
    if op.name == "dot_general":
        params = op.eqn.params | {"preferred_element_type": numbers[0].dtype}
        return _compat.bind(op.eqn.replace(params=params), numbers)
    return run_equation(op.eqn, numbers)


def _alike(operands: Sequence[Any]) -> list[Any]:
    numbers = [jnp.asarray(real(x)) for x in operands]
    dtype = jnp.result_type(*numbers)
    return [x.astype(dtype) for x in numbers]


def squared(op: Op, operands: Sequence[Any], place: int) -> Any:
    """Run a linear operation with squared coefficients on variances, which are the operand at a place."""
    if op.name in ("reduce_sum", "cumsum"):
        return run_linear(op, operands)[0]
    if op.name == "dot_general":
        matrix = real(operands[1 - place])
        if math.prod(jnp.shape(matrix)) <= BLOCK or not _is_product(op, place, matrix):
            return run_linear(op, [jnp.square(matrix) if j != place else x for j, x in enumerate(operands)])[0]
        return _in_blocks(jnp.asarray(matrix), operands[place])
    return _by_columns(op, operands, place)


def _is_product(op: Op, place: int, matrix: Any) -> bool:
    """Say whether an operation is `matrix @ vector`."""
    contract, batch = op.eqn.params["dimension_numbers"]
    vector = op.eqn.invars[place].aval.ndim == 1
    return jnp.ndim(matrix) == 2 and vector and tuple(contract[1 - place]) == (1,) and not batch[0]


def _in_blocks(matrix: jax.Array, v: jax.Array) -> jax.Array:
    def row(x: jax.Array) -> jax.Array:
        return jnp.dot(jnp.square(x), v)

    rows = max(1, BLOCK // 8 // matrix.shape[1])
    # checkpoint: the squares are computed again for the derivative, not kept
    return jnp.asarray(jax.lax.map(jax.checkpoint(row), matrix, batch_size=rows))


def _by_columns(op: Op, operands: Sequence[Any], place: int) -> Any:
    """Find the coefficients of a solve with a triangular matrix by solving for the identity: L⁻¹, squared."""
    matrix, variances = real(operands[0]), operands[1]
    left = op.eqn.params["left_side"]
    n = jnp.shape(matrix)[-1]
    eye = jnp.broadcast_to(jnp.eye(n, dtype=matrix.dtype), jnp.shape(matrix))
    inverse = _compat.bind(op.eqn, [jnp.asarray(matrix), eye])[0]
    square = jnp.square(inverse)
    return square @ variances if left else variances @ square
