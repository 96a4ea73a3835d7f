"""Functions that stay one operation of a traced program, under a name of their own.

A program that is followed operation by operation takes such a function for one more primitive, and may have a rule
for it: what the function means is plain there, and lost among the primitives that it is made of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

OPERATIONS: dict[str, Callable[..., jax.Array]] = {}
ELEMENTWISE: set[str] = set()


def operation(fn: Callable[..., jax.Array], *, elementwise: bool = True) -> Callable[..., jax.Array]:
    """A function of arrays as an operation with the function's name.

    Args:
        fn: the function.
        elementwise: whether its operands and its result have one shape, and each number of the result comes from
            the numbers in the same place.
    """

    def named(*operands: jax.Array) -> jax.Array:
        return fn(*operands)

    named.__name__ = named.__qualname__ = name = f"legrad_{fn.__name__}"
    OPERATIONS[name] = fn
    if elementwise:
        ELEMENTWISE.add(name)
    return jax.jit(named)


def inside(eqn: Any) -> tuple[Any, list[Any]]:
    """The program of an operation, and its constants."""
    program = eqn.params["jaxpr"]
    return program.jaxpr, list(program.consts)


def name_of(eqn: Any) -> str:
    """The name of a primitive or operation."""
    inner = str(eqn.params.get("name", "")) if eqn.primitive.name == "jit" else ""
    return inner if inner in OPERATIONS else str(eqn.primitive.name)
