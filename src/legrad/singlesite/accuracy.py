"""Find which values of a program must be known to full accuracy, and where a change has lost that accuracy.

A change is followed as a difference wherever that saves work, and base + difference has an error of about ε |base|.
This error is harmless if the value itself is large, or if only sums of differences matter, because everything up to
the result is linear in the change. The error is not harmless if the value goes into a nonlinear function:

    log(rate)             the rate must be accurate relative to its distance from 0
    log1p(x)              ... from −1
    exp(x), softplus(x)   an absolute error is a relative error of the result: it must be small

`needs` works backwards from the result to find which of these a value is used for. `far_off` and `too_near` say where
base + difference is not accurate enough; there the change is computed again by running the program itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from legrad import _compat
from legrad.trace.program import Op, Program


class Need(NamedTuple):
    """What a value is used for.

    Attributes:
        value: whether the value itself matters, and not only differences of it.
        points: points near which a function of the value is steep without bound; the value must be accurate relative
            to its distance from them.
        hides_nan: whether a NaN in the value may not show in the result.
        exact: whether the result may jump at any value (an order, a loop that compares): no rounding is allowed.
    """

    value: bool
    points: frozenset[float] = frozenset()
    hides_nan: bool = False
    exact: bool = False

    def __or__(self, other: Any) -> Need:
        """Combine two needs."""
        hides_nan, exact = self.hides_nan or other.hides_nan, self.exact or other.exact
        return Need(self.value or other.value, self.points | other.points, hides_nan, exact)


DIFFERENCES = Need(False)
ABSOLUTE = Need(True)
RELATIVE = Need(True, frozenset({0.0}))
EXACT = Need(True, frozenset({0.0}), hides_nan=True, exact=True)

# What a primitive needs of its operands, given what is needed of its result. Linear primitives and positive powers
# pass the need on: differences stay differences. (The difference of two squares is as accurate as the squares.)
_LINEAR = {
    "add", "add_any", "sub", "neg", "copy", "stop_gradient", "convert_element_type", "reduce_sum", "cumsum",
    "broadcast_in_dim", "reshape", "squeeze", "transpose", "slice", "rev", "pad", "concatenate", "split",
    "dynamic_slice", "dynamic_update_slice", "gather", "scatter", "scatter-add", "select_n", "square",
    "conv_general_dilated", "fft", "real", "imag",
}  # fmt: skip
# Lipschitz and zero at zero: relative accuracy of the result needs relative accuracy of the operand.
_THROUGH_ZERO = {
    "abs", "max", "min", "clamp", "tanh", "sin", "tan", "sinh", "asinh", "atan", "erf", "expm1", "reduce_max",
    "reduce_min", "cummax", "cummin", "sort", "reduce_prod", "cumprod", "mul", "dot_general", "reduce_precision",
    "scatter-mul", "scatter_mul", "rem", "nextafter",
}  # fmt: skip
# A relative error of the result is an absolute error of the operand.
_FLAT = {
    "exp", "exp2", "logistic", "erfc", "cosh", "cos", "cumlogsumexp", "eigh", "svd",
    "legrad_bernoulli_logits", "legrad_hard_bernoulli_logits", "legrad_poisson_log", "legrad_categorical_logits",
    "bessel_i0e", "bessel_i1e",
}  # fmt: skip
# As those above, but for the operand in one place only.
_LINEAR_IN = {("div", 0), ("triangular_solve", 1)}
_THROUGH_ZERO_OR_FLAT = {("div", 0), ("legrad_poisson", 1), ("pow", 1)}
# Steep without bound near these points.
_STEEP: dict[str, frozenset[float]] = {
    "log1p": frozenset({-1.0}),
    **dict.fromkeys(("atanh", "asin", "acos", "erf_inv"), frozenset({-1.0, 1.0})),
    "acosh": frozenset({1.0}),
}
# A NaN in an operand is a NaN in the result. (`select_n` may drop one, but then the operand does not matter.)
_SHOWS_NAN = {
    *_LINEAR, "mul", "dot_general", "div", "integer_pow", "sqrt", "rsqrt", "cbrt", "log", "log1p", "exp", "exp2",
    "expm1", "tanh", "logistic", "sin", "cos", "lgamma", "digamma", "abs", "erf", "erfc", "triangular_solve",
    "legrad_poisson", "legrad_poisson_log",
}  # fmt: skip
# The operands that choose which numbers of the others make the result: if they change, the rest is not linear.
_CHOOSERS: dict[str, slice] = {
    "select_n": slice(0, 1),
    "gather": slice(1, None),
    "dynamic_slice": slice(1, None),
    "dynamic_update_slice": slice(2, None),
    "scatter": slice(1, 2),
    "scatter-add": slice(1, 2),
}
# These have a rule of their own, which checks on which side of a threshold a value falls.
COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge"}
THRESHOLDS = {*COMPARISONS, "sign", "floor", "ceil", "round"}
# The order of numbers decides the result.
_ORDERING = {"argmax", "argmin", "sort", "top_k", "approx_top_k"}
# Between these points and their images nothing is steep: a point of the result is a point of the operand.
_KEEPS_POINTS = {*_LINEAR, "max", "min", "clamp", "reduce_max", "reduce_min", "cummax", "cummin"}


def needs(program: Program, ops: Sequence[Op], changing: set[int]) -> dict[int, Need]:
    """Find what each changing value of a program is used for; of the outputs, only differences are needed.

    Args:
        program: the traced function.
        ops: the operations that a change reaches, in order.
        changing: the ids of the values that change.
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
    """Return what an operation needs of the operand in some place, given what is needed of its results."""
    if _is_exact(program, op, place):
        return DIFFERENCES
    if op.name in THRESHOLDS:
        return _for_threshold(program, op, place)
    if op.name in _ORDERING or (op.name in ("scan", "while", "cond") and _jumps(op.eqn)):
        return EXACT
    chosen = any(i in changing for i in op.inputs[_CHOOSERS.get(op.name, slice(0, 0))])
    linear = (op.name in _LINEAR and not chosen) or _is_linear(op, place, changing)
    lipschitz = op.name in _THROUGH_ZERO or op.name in _FLAT or (op.name, place) in _THROUGH_ZERO_OR_FLAT
    if linear or lipschitz or chosen or op.name in _STEEP:
        before = _before(program, op, place, asked.points)
        return Need(asked.value or not linear, _STEEP.get(op.name, frozenset()) | before, exact=asked.exact)
    # log, a divisor, roots, negative powers, gamma functions, and every unknown primitive
    return RELATIVE | Need(False, exact=asked.exact)


def _for_threshold(program: Program, op: Op, place: int) -> Need:
    """Return what a comparison or rounding needs of its operand.

    The rule of a threshold looks at the digits of an operand that is base + difference itself. An operand that is a
    nonlinear function of one (abs, square, max) must be accurate relative to its distance from the threshold.
    """
    maker = program.maker(op.inputs[place])
    if maker is None or maker.name in {*_LINEAR, "mul", "div", "dot_general"} - {"square"}:
        return DIFFERENCES
    if op.name not in COMPARISONS:
        return RELATIVE if op.name == "sign" else EXACT
    other = _scalar(program, op.inputs[1 - place]) if program.is_constant(op.inputs[1 - place]) else None
    if other is None:
        return EXACT
    return Need(True, frozenset({other}), hides_nan=True) if math.isfinite(other) else DIFFERENCES


def _jumps(eqn: Any) -> bool:
    """Return whether a program inside an equation compares, rounds or orders numbers other than its own counters."""
    return any(_compares(program) for program in _compat.inner_programs(eqn))


def _compares(jaxpr: Any) -> bool:
    """Return whether a program compares, rounds or orders floating-point numbers."""
    for eqn in jaxpr.eqns:
        floats = any(jnp.issubdtype(v.aval.dtype, jnp.floating) for v in eqn.invars)
        if floats and eqn.primitive.name in THRESHOLDS | _ORDERING:
            return True
        if _jumps(eqn):
            return True
    return False


def _is_exact(program: Program, op: Op, place: int) -> bool:
    """Return whether an operand is an integer, which is exact, or is only tested for being finite."""
    if not jnp.issubdtype(program.dtypes[op.inputs[place]], jnp.floating):
        return True
    if op.name == "convert_element_type":
        return not jnp.issubdtype(program.dtypes[op.outputs[0]], jnp.floating)
    return op.name == "is_finite"


def _is_linear(op: Op, place: int, changing: set[int]) -> bool:
    """Return whether an operation is linear in one operand because the others are constant, or a positive power."""
    if op.name == "integer_pow":
        return bool(op.eqn.params["y"] > 0)
    alone = sum(i in changing for i in op.inputs) == 1
    return alone and (op.name in ("mul", "dot_general") or (op.name, place) in _LINEAR_IN)


# The points of an operand at which the result is at point c.
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
# The same for operations with a scalar: the result's point, the scalar, and the place of the operand.
_WITH_SCALAR: dict[str, Callable[[float, float, int], Iterable[float]]] = {
    "add": lambda c, scalar, place: [c - scalar],
    "sub": lambda c, scalar, place: [c + scalar if place == 0 else scalar - c],
    "mul": lambda c, scalar, place: [c / scalar] if scalar else [],
    "div": lambda c, scalar, place: [c * scalar] if scalar else [],
}


def _before(program: Program, op: Op, place: int, points: frozenset[float]) -> frozenset[float]:
    """Return the points of an operand at which the result is at one of the given points: 1 − e^−s is 0 at s = 0."""
    if op.name == "integer_pow" and op.eqn.params["y"] > 0:
        roots = [abs(c) ** (1 / op.eqn.params["y"]) for c in points]
        return frozenset(sign * root for root in roots for sign in (-1.0, 1.0))
    if op.name in _INVERSE:
        return frozenset(before for c in points for before in _INVERSE[op.name](c))
    if op.name in _WITH_SCALAR and points:
        other = _scalar(program, op.inputs[1 - place])
        if other is None or not math.isfinite(other):
            return points
        return frozenset(before for c in points for before in _WITH_SCALAR[op.name](c, other, place))
    return points if op.name in _KEEPS_POINTS else points & RELATIVE.points


def _scalar(program: Program, value_id: int) -> float | None:
    """Return the one number that an array is known to hold everywhere; None if there is none."""
    if not program.is_one_number(value_id):
        return None
    value = program.read(value_id)
    return None if value is None or value.size == 0 else float(value.flat[0])


def rounding(dtype: Any) -> float:
    """Return the relative error of one rounding."""
    return float(jnp.finfo(dtype).eps) / 2


def closest(dtype: Any) -> float:
    """Return how near to a point a value may come, relative to its parts, before too many digits are lost.

    In float32 that is 1e-3: the error of what is not computed again is below 1e-4 of the value, which powers enlarge.
    """
    return 4 * math.sqrt(rounding(dtype))


def largest(dtype: Any) -> float:
    """Return how large the parts of a value may be for the error of any sum of them to be small."""
    return 1 / (64 * math.sqrt(rounding(dtype)))


_SHARE = 16.0  # parts up to this many times larger than their sum cost the sum one digit


def far_off(dtype: Any, new: Any, parts: Any) -> Any:
    """Return where the error of a sum of parts is large, both by itself and relative to the sum; true for NaN."""
    small = (parts <= largest(dtype)) | (parts <= _SHARE * jnp.abs(new))
    return ~(small & (new == new))


def too_near(dtype: Any, new: Any, parts: Any, points: frozenset[float]) -> Any:
    """Return where a sum of parts is nearer to one of the points than the error of the sum allows; true for NaN."""
    near = jnp.zeros(jnp.shape(new), bool)
    for point in sorted(points):
        distance = jnp.abs(new) if point == 0.0 else jnp.abs(new - point)
        near |= ~(distance >= closest(dtype) * parts)
    return near


def undecided(dtype: Any, distance: Any, parts: Any) -> Any:
    """Return where a sum of parts is so near to a threshold that rounding decides the side; true for NaN."""
    return ~((distance > 64 * rounding(dtype) * parts) | (parts == 0))
