"""Functions that stay one operation of a traced program, under a name of their own.

Code that follows a program operation by operation treats such a function as one more primitive, and may have a rule
for it: as one operation its meaning is plain, while it would be lost among the primitives that make up the function.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax

from legrad import _compat

Shape = tuple[int, ...]
OPERATIONS: dict[str, Callable[..., jax.Array]] = {}
ELEMENTWISE: set[str] = set()
_FITS: dict[str, Callable[..., bool]] = {}


def operation(fn: Callable[..., jax.Array], *, fits: Callable[..., bool] | None = None) -> Callable[..., jax.Array]:
    """Return a function of arrays as an operation with the function's name.

    Args:
        fn: the function; elementwise, of operands of one shape, unless `fits` is given.
        fits: whether the shapes of operands and result are those of a single call; under `vmap` they would differ.
    """

    def named(*operands: jax.Array) -> jax.Array:
        return fn(*operands)

    named.__name__ = named.__qualname__ = name = f"legrad_{fn.__name__}"
    OPERATIONS[name] = fn
    if fits is None:
        ELEMENTWISE.add(name)
    arity = len(inspect.signature(fn).parameters)
    _FITS[name] = lambda *shapes: len(shapes) == arity + 1 and (fits(*shapes) if fits else len(set(shapes)) == 1)
    return jax.jit(named)


def name_of(eqn: Any) -> str:
    """Return the name of a primitive or operation."""
    inner = str(eqn.params.get("name", "")) if eqn.primitive.name == "jit" else ""
    if inner not in OPERATIONS:
        return str(eqn.primitive.name)
    shapes = [tuple(v.aval.shape) for v in (*eqn.invars, *eqn.outvars)]
    return inner if _FITS[inner](*shapes) else str(eqn.primitive.name)


def run_equation(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    """Run one equation of a jaxpr: an operation by its function, whatever the shapes."""
    if (name := name_of(eqn)) in OPERATIONS:
        return [OPERATIONS[name](*operands)]
    return _compat.bind(eqn, operands)


def wrapped_program(eqn: Any) -> tuple[Any, list[Any]] | None:
    """Return the (jaxpr, consts) that an equation merely wraps, or None for a primitive or operation."""
    return _compat.wrapped_program(eqn, name_of(eqn))
