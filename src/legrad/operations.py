"""Functions that stay one operation of a traced program, under a name of their own.

A program that is followed operation by operation takes such a function for one more elementwise primitive, and may
have a rule for it: what the function means is plain there, and lost among the primitives that it is made of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

OPERATIONS: dict[str, Callable[..., jax.Array]] = {}


def operation(fn: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """An elementwise function, of arrays of one shape, as an operation with the function's name."""

    def named(*operands: jax.Array) -> jax.Array:
        return fn(*operands)

    named.__name__ = named.__qualname__ = name = f"legrad_{fn.__name__}"
    OPERATIONS[name] = fn
    return jax.jit(named)


def name_of(eqn: Any) -> str:
    """The name of a primitive or operation."""
    inner = str(eqn.params.get("name", "")) if eqn.primitive.name == "jit" else ""
    return inner if inner in OPERATIONS else str(eqn.primitive.name)
