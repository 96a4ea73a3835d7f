"""Which operations a quadrature may pass: those that are analytic wherever their operands can be.

A trapezoid rule is exact to rounding for analytic functions only. A jump or a kink would cost all its digits, and so
would a function that leaves its domain: log(x) of a Normal x. Nodes are few far from zero, so waves are no better.
What is not listed here is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr, ndtr, xlog1py, xlogy

from legrad import _compat
from legrad.trace.program import Op, Program

_ENTIRE = {
    "add", "add_any", "sub", "mul", "neg", "exp", "exp2", "expm1", "sinh", "cosh", "tanh", "logistic",
    "erf", "erfc", "square", "copy", "asinh", "atan", "reduce_sum", "cumsum", "reduce_prod", "cumprod", "dot_general",
    "reshape", "squeeze", "broadcast_in_dim", "transpose", "slice", "rev", "split", "concatenate", "pad",
    "optimization_barrier",
}  # fmt: skip
_OF_POSITIVE = {"log": 0, "sqrt": 0, "rsqrt": 0, "cbrt": 0, "pow": 0, "lgamma": 0, "digamma": 0, "log1p": 0, "div": 1}
_CHOOSING = {"select_n": slice(0, 1), "gather": slice(1, None), "dynamic_slice": slice(1, None)}
_OWN = {"legrad_bernoulli_logits", "legrad_hard_bernoulli_logits", "legrad_poisson_log", "legrad_categorical_logits"}
_CUSTOM: tuple[Callable[..., Any], ...] = (jnp.logaddexp, log_ndtr, ndtr, xlogy, xlog1py)


class Sign(IntEnum):
    """What is known of the sign of a value, over all that its elements can be."""

    ANY = 0
    FIXED = 1  # not zero, and of one sign
    NONNEGATIVE = 2
    POSITIVE = 3


class Signs:
    """The signs of a program's values, as far as its operations show them."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._found: dict[int, Sign] = {}

    def of(self, i: int) -> Sign:
        """Return what is known of the sign of a value."""
        if i not in self._found:
            self._found[i] = self._sign(i)
        return self._found[i]

    def _sign(self, i: int) -> Sign:
        numbers = self.program.read(i)
        if numbers is not None:
            low = float(np.min(numbers)) if numbers.size and numbers.dtype != bool else 0.0
            return Sign.POSITIVE if low > 0 else Sign.NONNEGATIVE if low >= 0 else Sign.FIXED
        if self.program.is_constant(i):
            return Sign.FIXED
        op = self.program.maker(i)
        if op is None:
            return Sign.ANY
        signs = [self.of(j) for j in op.inputs]
        if op.name in ("exp", "exp2", "logistic", "erfc"):
            return Sign.POSITIVE
        power = whole_power(self.program, op)
        if op.name in ("square", "abs") or (power is not None and power % 2 == 0):
            return max(signs[0], Sign.NONNEGATIVE) if signs[0] != Sign.FIXED else Sign.POSITIVE
        if op.name in ("mul", "div"):
            if op.name == "mul" and op.inputs[0] == op.inputs[1]:
                return Sign.NONNEGATIVE
            if min(signs) >= Sign.NONNEGATIVE and (op.name == "mul" or signs[1] == Sign.POSITIVE):
                return min(signs)
            return Sign.FIXED if Sign.ANY not in signs and Sign.NONNEGATIVE not in signs else Sign.ANY
        if op.name in ("add", "add_any"):
            return max(signs) if min(signs) >= Sign.NONNEGATIVE else Sign.ANY
        if op.name in (
            "sqrt",
            "integer_pow",
            "pow",
            "rsqrt",
            "convert_element_type",
            "copy",
            "reshape",
            "squeeze",
            "slice",
        ):
            return signs[0]
        if op.name in ("broadcast_in_dim", "transpose", "reduce_sum", "expand_dims"):
            return signs[0] if op.name != "reduce_sum" or signs[0] != Sign.FIXED else Sign.ANY
        if op.name == "neg":
            return Sign.FIXED if signs[0] in (Sign.FIXED, Sign.POSITIVE) else Sign.ANY
        return Sign.ANY


def whole_power(program: Program, op: Op) -> int | None:
    """Return the exponent of a power if it is one known whole number."""
    if op.name == "integer_pow":
        return int(op.eqn.params["y"])
    numbers = program.read(op.inputs[1]) if op.name == "pow" else None
    if numbers is None or numbers.size == 0 or np.any(numbers != numbers.flat[0]) or numbers.flat[0] % 1:
        return None
    return int(numbers.flat[0])


def obstacle(program: Program, signs: Signs, op: Op, continuous: list[bool]) -> str | None:
    """Say why a quadrature cannot pass an operation, None if it can.

    Args:
        program: the program.
        signs: the signs of its values.
        op: the operation.
        continuous: which of its operands depend on what is integrated.
    """
    name = op.name
    if name in _CHOOSING:
        return f"`{name}` jumps" if any(continuous[_CHOOSING[name]]) else None
    if name in _ENTIRE or name in _OWN:
        return None
    if name == "convert_element_type":
        return None if jnp.issubdtype(program.dtypes[op.outputs[0]], jnp.floating) else "a conversion jumps"
    if (power := whole_power(program, op)) is not None:
        fine = power >= 0 or signs.of(op.inputs[0]) in (Sign.FIXED, Sign.POSITIVE)
        return None if fine else f"`{name}` may meet zero"
    if name in _OF_POSITIVE or name == "legrad_poisson":
        k = _OF_POSITIVE.get(name, 0)
        if not continuous[k]:
            return None
        sign = signs.of(op.inputs[k])
        fine = sign == Sign.POSITIVE or (sign == Sign.FIXED and name in ("log", "div"))
        fine = fine or (name == "log1p" and sign >= Sign.NONNEGATIVE)
        return None if fine else f"`{name}` of a number that may not be positive"
    if name in _compat.CUSTOM_CALLS and is_function(op.eqn, _CUSTOM):
        return None
    return f"`{name}` has no rule for continuous latents"


def is_function(eqn: Any, functions: tuple[Callable[..., Any], ...]) -> bool:
    """Say whether an equation calls one of some functions, by comparing programs."""
    given = tuple((tuple(v.aval.shape), str(v.aval.dtype)) for v in eqn.invars)
    body = eqn.params.get("call_jaxpr", eqn.params.get("jaxpr"))
    return any(str(body) == _body(f, given) for f in functions)


@cache
def _body(f: Callable[..., Any], given: tuple[tuple[tuple[int, ...], str], ...]) -> str:
    like = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in given]
    try:
        jaxpr = jax.make_jaxpr(f)(*like).jaxpr
    except TypeError:  # another number of operands
        return ""
    while len(jaxpr.eqns) == 1 and jaxpr.eqns[0].primitive.name not in _compat.CUSTOM_CALLS:
        inner = jaxpr.eqns[0].params.get("jaxpr")
        if inner is None:
            return ""
        jaxpr = inner.jaxpr
    last = jaxpr.eqns[-1]
    return str(last.params.get("call_jaxpr", "")) if last.primitive.name in _compat.CUSTOM_CALLS else ""
