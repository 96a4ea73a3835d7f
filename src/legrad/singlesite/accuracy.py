"""Which values of a program must be known to full accuracy, and where a change has lost it.

A change is followed as a difference wherever that saves work, and base + difference has an error of about ε |base|.
That is harmless where the value itself is large, and where only sums of differences are asked for: everything up to
the result is then linear in the change. It is not harmless where a nonlinear function sees the value:

    log(rate)             the rate must be accurate relative to its distance from 0
    log1p(x)              ... from −1
    exp(x), softplus(x)   an absolute error is a relative error of the result: it must be small

`needs` finds out which of these a value is used for, from the result backwards; `lost` says where base + difference
does not meet it. There the change is computed again by running the program itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from legrad.trace.program import Op, Program


class Need(NamedTuple):
    """What a value is used for.

    Attributes:
        value: whether anything but differences of it matters.
        points: numbers near which a function of it is steep without bound; it must be accurate relative to its
            distance from them.
        hides_nan: whether a NaN in it may not show in the result.
    """

    value: bool
    points: frozenset[float] = frozenset()
    hides_nan: bool = False

    def __or__(self, other: Any) -> Need:
        """Both needs."""
        return Need(self.value or other.value, self.points | other.points, self.hides_nan or other.hides_nan)


DIFFERENCES = Need(False)
ABSOLUTE = Need(True)
RELATIVE = Need(True, frozenset({0.0}))

# What a primitive asks of its operands, given what is asked of its result. Linear ones, and positive powers, pass on
# what is asked: differences stay differences. (The difference of two squares is as accurate as the squares are.)
_LINEAR = {
    "add", "add_any", "sub", "neg", "copy", "stop_gradient", "convert_element_type", "reduce_sum", "cumsum",
    "broadcast_in_dim", "reshape", "squeeze", "transpose", "slice", "rev", "pad", "concatenate", "split",
    "dynamic_slice", "dynamic_update_slice", "gather", "scatter", "scatter-add", "select_n", "square",
    "conv_general_dilated", "fft", "real", "imag",
}  # fmt: skip
# Lipschitz and zero at zero: relative accuracy of the result asks for that of the operand.
_THROUGH_ZERO = {
    "abs", "max", "min", "clamp", "tanh", "sin", "tan", "sinh", "asinh", "atan", "erf", "expm1", "reduce_max",
    "reduce_min", "cummax", "cummin", "sort", "reduce_prod", "cumprod", "mul", "dot_general", "reduce_precision",
    "scatter-mul", "scatter_mul", "rem", "nextafter", "triangular_solve",
}  # fmt: skip
# A relative error of the result is an absolute one of the operand.
_FLAT = {
    "exp", "exp2", "logistic", "erfc", "cosh", "cos", "cumlogsumexp", "cholesky", "lu", "eigh", "svd", "qr",
    "legrad_bernoulli_logits", "legrad_hard_bernoulli_logits", "legrad_poisson_log", "legrad_categorical_logits",
    "bessel_i0e", "bessel_i1e", "argmax", "argmin",
}  # fmt: skip
_STEEP: dict[str, frozenset[float]] = {
    "log1p": frozenset({-1.0}),
    **dict.fromkeys(("atanh", "asin", "acos", "erf_inv"), frozenset({-1.0, 1.0})),
    "acosh": frozenset({1.0}),
}
# A NaN in an operand is one in the result. (Of a choice it may be none: what is not chosen does not matter.)
_SHOWS_NAN = {
    *_LINEAR, "mul", "dot_general", "div", "integer_pow", "sqrt", "rsqrt", "cbrt", "log", "log1p", "exp", "exp2",
    "expm1", "tanh", "logistic", "sin", "cos", "lgamma", "digamma", "abs", "erf", "erfc", "triangular_solve",
    "legrad_poisson", "legrad_poisson_log",
}  # fmt: skip
# A rule of their own looks on which side of a threshold they fall.
THRESHOLDS = {"eq", "ne", "lt", "le", "gt", "ge", "sign", "floor", "ceil", "round"}


def needs(program: Program, ops: Sequence[Op], changing: set[int]) -> dict[int, Need]:
    """What each changing value of a program is used for; the sums of its outputs are asked for as differences.

    Args:
        program: the traced function.
        ops: those of its operations that a change reaches, in order.
        changing: the numbers of the values that change.
    """
    found: dict[int, Need] = {i: DIFFERENCES for i in changing}
    for op in reversed(ops):
        asked = DIFFERENCES
        for i in op.outputs:
            asked |= found.get(i, DIFFERENCES)
        for place, i in enumerate(op.inputs):
            if i in changing:
                hides = Need(False, hides_nan=asked.hides_nan or op.name not in _SHOWS_NAN)
                found[i] |= _asked(program, op, place, asked, changing) | hides
    return found


def _asked(program: Program, op: Op, place: int, asked: Need, changing: set[int]) -> Need:
    name, operand = op.name, program.dtypes[op.inputs[place]]
    if not jnp.issubdtype(operand, jnp.floating) or name in THRESHOLDS or name == "is_finite":
        return DIFFERENCES  # integers are exact
    if name == "convert_element_type" and not jnp.issubdtype(program.dtypes[op.outputs[0]], jnp.floating):
        return DIFFERENCES  # as a threshold
    alone = sum(i in changing for i in op.inputs) == 1
    linear = name in ("mul", "dot_general") and alone
    linear |= name == "div" and alone and place == 0
    linear |= name == "triangular_solve" and alone and place == 1
    linear |= name == "integer_pow" and op.eqn.params["y"] > 0
    if name in _LINEAR or linear:
        return Need(asked.value, _before(program, op, place, asked.points))
    if name in _THROUGH_ZERO or (name == "div" and place == 0):
        return Need(True, _before(program, op, place, asked.points))
    if name in _FLAT or (name in ("legrad_poisson", "pow") and place == 1):
        return Need(True, _before(program, op, place, asked.points))
    if name in _STEEP:
        return Need(True, _STEEP[name] | _before(program, op, place, asked.points))
    return RELATIVE  # log, division by it, roots, negative powers, gamma functions, whatever is not known


_INVERSE: dict[str, Callable[[float], Iterable[float]]] = {
    "neg": lambda c: [-c],
    "abs": lambda c: [c, -c],
    "exp": lambda c: [math.log(c)] if c > 0 else [],
    "expm1": lambda c: [math.log1p(c)] if c > -1 else [],
    "log1p": lambda c: [math.expm1(c)] if c < 700 else [],
    "logistic": lambda c: [math.log(c / (1 - c))] if 0 < c < 1 else [],
    "tanh": lambda c: [math.atanh(c)] if abs(c) < 1 else [],
    "square": lambda c: [math.sqrt(c), -math.sqrt(c)] if c >= 0 else [],
    **dict.fromkeys(("erfc", "cosh", "cos", "exp2"), lambda c: []),
}


def _before(program: Program, op: Op, place: int, points: frozenset[float]) -> frozenset[float]:
    """Where an operand is when the result is at one of some points: 1 − e^−s is near 0 where s is."""
    if op.name in _INVERSE:
        return frozenset(before for c in points for before in _INVERSE[op.name](c))
    if op.name in ("add", "sub", "mul", "div") and points:
        other = _scalar(program, op.inputs[1 - place])
        if other is None or not math.isfinite(other):
            return points
        if op.name == "add":
            return frozenset(c - other for c in points)
        if op.name == "sub":
            return frozenset(c + other if place == 0 else other - c for c in points)
        if other == 0:
            return frozenset()
        return frozenset(c / other if op.name == "mul" else c * other for c in points)
    return points if op.name in _LINEAR else points & RELATIVE.points


def _scalar(program: Program, number: int) -> float | None:
    """The number that an array is known to hold everywhere, if there is one."""
    if not program.is_one_number(number):
        return None
    value = program.read(number)
    return None if value is None or value.size == 0 else float(value.flat[0])


def rounding(dtype: Any) -> float:
    """The error of one rounding."""
    return float(jnp.finfo(dtype).eps) / 2


def closest(dtype: Any) -> float:
    """How near to a point a value may come, relative to what it was made of, before too many digits are gone."""
    return math.sqrt(rounding(dtype))


def largest(dtype: Any) -> float:
    """How large the parts of a value may be for the error of their sum to be small whatever the sum is."""
    return 1 / (4 * math.sqrt(rounding(dtype)))


_SHARE = 16.0  # parts that are larger than their sum by no more than this cost it one digit


def far_off(dtype: Any, new: Any, parts: Any) -> Any:
    """Where the absolute error of a sum of parts is not small, neither as it is nor beside the sum; true for NaN."""
    small = (parts <= largest(dtype)) | (parts <= _SHARE * jnp.abs(new))
    return ~(small & (new == new))


def too_near(dtype: Any, new: Any, parts: Any, points: frozenset[float]) -> Any:
    """Where a sum of parts is nearer to one of the points than its error allows; true for NaN."""
    near = jnp.zeros(jnp.shape(new), bool)
    for point in sorted(points):
        distance = jnp.abs(new) if point == 0.0 else jnp.abs(new - point)
        near |= ~(distance >= closest(dtype) * parts)
    return near


def undecided(dtype: Any, distance: Any, parts: Any) -> Any:
    """Where a sum of parts lies so near to a threshold that rounding decides the side; true for NaN."""
    return ~((distance > 64 * rounding(dtype) * parts) | (parts == 0))
