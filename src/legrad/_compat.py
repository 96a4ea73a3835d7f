"""The only contact with `jax.extend` and with what differs between JAX versions."""

from __future__ import annotations

from typing import Any

import jax
from jax.extend import core as jex

Literal = jex.Literal
Tracer = jax.core.Tracer

# Primitives that only wrap another program: walking into the program is the same as running the wrapper.
_WRAPPERS = {
    "jit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
}


def wrapped_program(eqn: Any) -> tuple[Any, list[Any]] | None:
    """The (jaxpr, consts) that an equation merely wraps, or None for an ordinary primitive."""
    key = _WRAPPERS.get(eqn.primitive.name)
    if key is None:
        return None
    program = eqn.params[key]  # a Jaxpr or a ClosedJaxpr, depending on primitive and JAX version
    return getattr(program, "jaxpr", program), list(getattr(program, "consts", ()))


def is_concrete(x: Any) -> bool:
    """Whether the numbers in `x` can be read now, outside any compiled program."""
    return not isinstance(x, Tracer)
