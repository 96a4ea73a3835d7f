"""Elementwise primitives: nonlinear ones are evaluated where a change reaches, linear ones keep a sum of products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp

from legrad.singlesite.accuracy import rounding, undecided
from legrad.singlesite.change import MOST_PIECES, Change, Lazy, New, Piece, holds_differences
from legrad.singlesite.labelled import K, Labelled
from legrad.singlesite.rules.operand import Operand, Rule, Step
from legrad.singlesite.rules.pieces import multiply_pieces
from legrad.trace.operations import run_equation
from legrad.trace.primitives import ELEMENTWISE


def nonlinear(step: Step) -> list[Change | None]:
    """Evaluate any elementwise primitive at the places that the change of an operand touches."""
    layout, arrays = step.evaluated(step.shape)
    cast = [Labelled(a.data.astype(x.base.dtype), a.axes) for a, x in zip(arrays, step.operands, strict=True)]
    results: list[Any] = []

    def run(*values: Any) -> Any:
        results.extend(run_equation(step.eqn, values))
        return results[0]

    first = step.site.order.combine(run, *cast)
    return [New(layout, Labelled(r, first.axes)) for r in results]


# The distance of the operands from the threshold of a comparison or rounding.
_DISTANCE: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), lambda x, y: jnp.abs(x - y)),
    **dict.fromkeys(("floor", "ceil"), lambda x: jnp.abs(x - jnp.round(x))),
    "round": lambda x: jnp.abs(x - jnp.floor(x) - 0.5),
    "sign": jnp.abs,
    "rem": lambda x, y: jnp.abs(x - jnp.round(x / y) * y),
}


def threshold(step: Step) -> list[Change | None]:
    """Evaluate a comparison or rounding as any function, and flag where lost digits decide the result."""
    _flag_undecided(step, _DISTANCE[step.eqn.primitive.name])
    return nonlinear(step)


def _flag_undecided(step: Step, distance: Callable[..., Any]) -> None:
    """Flag where an operand formed as base + difference is nearer to a threshold than its rounding error."""
    site = step.site
    formed = [x for x in step.changing() if isinstance(x.change, Lazy) and x.change.direct is None]
    if not formed or not jnp.issubdtype(formed[0].base.dtype, jnp.floating):
        return
    layout, arrays = step.evaluated(step.shape)
    parts = [site.take(x.base, layout) for x in formed]
    parts += [site.product(p, layout, step.shape) for x in formed for p in step.pieces(x)]
    dtype = formed[0].base.dtype

    def test(*values: Any) -> Any:
        new, parts = values[: len(arrays)], values[len(arrays) :]
        most = reduce(jnp.maximum, map(jnp.abs, parts))
        # Sums of integers are exact.
        whole = reduce(jnp.logical_and, [part == jnp.round(part) for part in parts])
        exact = whole & (most < 1 / rounding(dtype))
        return ~exact & undecided(dtype, distance(*new), most)

    site.digits.flag(layout, site.order.combine(test, *arrays, *parts), step.shape)


def _negated(pieces: Sequence[Piece]) -> list[Piece]:
    """Negate each piece."""
    return [Piece(p.layout, (Labelled(-p.factors[0].data, p.factors[0].axes), *p.factors[1:])) for p in pieces]


def _sum(step: Step, pieces: Sequence[Piece], linear: bool = True) -> list[Change | None]:
    """Return a sum of pieces, which can also be had as values if the operands can.

    If the operands are base + difference, a linear function of them is formed as base + difference too: what is added
    may make up for the digits that the operands lost. Any other function is evaluated at the operands' values.
    """
    total, known = step.site.tidy(pieces), step.values_known()
    if len(total.pieces) > MOST_PIECES:
        return nonlinear(step)
    return [replace(total, direct=lambda: _values(step), values_known=known) if known or not linear else total]


def _values(step: Step) -> New:
    """Evaluate a primitive with one result."""
    (new,) = nonlinear(step)
    assert isinstance(new, New)
    return new


def neg(step: Step) -> list[Change | None]:
    """Compute -x."""
    return _sum(step, _negated(step.pieces(step.operands[0])))


def _meets_values(step: Step) -> bool:
    """Return whether a sum is used as a value, and one of two changes that make it is known as values alone.

    The sum is then evaluated anyway. Its difference must be that of the same values: for r − max(r), which a mask of
    −1e30 makes exactly 0, the difference of r less that of its maximum would still hold what the mask has swallowed.
    """
    changes = [x.change for x in step.changing()]
    met = len(changes) > 1 and any(isinstance(change, New) for change in changes)
    return met and step.need.value and step.values_known() and jnp.issubdtype(step.results[0].dtype, jnp.floating)


def add(step: Step) -> list[Change | None]:
    """Compute x + y."""
    if _meets_values(step):
        return nonlinear(step)
    return _sum(step, [p for x in step.changing() for p in step.pieces(x)])


def sub(step: Step) -> list[Change | None]:
    """Compute x - y."""
    if _meets_values(step):
        return nonlinear(step)
    x, y = step.operands
    left = [] if x.change is None else list(step.pieces(x))
    right = [] if y.change is None else _negated(step.pieces(y))
    return _sum(step, left + right)


def identity(step: Step) -> list[Change | None]:
    """Return the change as it is."""
    return [step.operands[0].change]


def stop(step: Step) -> list[Change | None]:
    """Return the change without its derivative."""
    change = step.operands[0].change
    if isinstance(change, New):
        return [New(change.layout, _stopped(change.value))]
    assert change is not None
    pieces = [Piece(p.layout, tuple(map(_stopped, p.factors))) for p in change.pieces]
    return [step.site.moved(change, pieces, lambda new: New(new.layout, _stopped(new.value)))]


def _stopped(array: Labelled) -> Labelled:
    """Stop the derivative of an array."""
    return Labelled(jax.lax.stop_gradient(array.data), array.axes)


def _scaled(step: Step, x: Operand, by: Any) -> list[Piece]:
    """Multiply each piece of x by a constant array."""
    pieces = []
    for p in step.pieces(x):
        pieces.append(Piece(p.layout, (*p.factors, step.site.take(by, p.layout))))
    return pieces


def mul(step: Step) -> list[Change | None]:
    """Compute x y, which is linear in each; if both change, as a polynomial where that saves work."""
    x, y = step.operands
    if y.change is None:
        return _sum(step, _scaled(step, x, y.base))
    if x.change is None:
        return _sum(step, _scaled(step, y, x.base))
    return _polynomial(step, x, y)


def _polynomial(step: Step, x: Operand, y: Operand) -> list[Change | None]:
    """Multiply two changing operands as a polynomial, if factors save work; otherwise as a nonlinear function."""
    first, second = step.pieces(x), step.pieces(y)
    if not _saves_work([*first, *second]) or len(first) * len(second) > 4 or (x is not y and step.values_known()):
        return nonlinear(step)
    if x is not y:
        _flag_lost(step)
    both = [multiply_pieces(step.site, p, q, step.shape) for p in first for q in second]
    products = [p for p in both if p is not None]
    if len(products) < len(both):
        return nonlinear(step)
    if x is y:
        twice = Labelled(jnp.asarray(2, x.base.dtype), ())
        linear = [Piece(p.layout, (*p.factors, twice)) for p in _scaled(step, x, x.base)]
    else:
        linear = [*_scaled(step, x, y.base), *_scaled(step, y, x.base)]
    return _sum(step, [*linear, *products], linear=False)


def _flag_lost(step: Step) -> None:
    """Flag where an operand has lost digits: the parts of a product, a q + b p + p q, would cancel without a sign."""
    for x in step.changing():
        if isinstance(x.change, Lazy) and not x.change.values_known:
            step.site.digits.flag_lost(x.change, x.base)


def _saves_work(pieces: Sequence[Piece]) -> bool:
    """Return whether a piece varies along the value, and no factor does so for each candidate."""
    dense = any(factor.has("v") and K in factor.axes for piece in pieces for factor in piece.factors)
    return not dense and any(piece.varies() for piece in pieces)


def power(step: Step) -> list[Change | None]:
    """Compute x² as a product; other powers are nonlinear."""
    (x,) = step.operands
    if step.eqn.params.get("y", 2) != 2 or not isinstance(x.change, Lazy):
        return nonlinear(step)
    return _polynomial(step, x, x)


def div(step: Step) -> list[Change | None]:
    """Compute x / y, which is linear in x if y is constant."""
    x, y = step.operands
    if y.change is not None or not jnp.issubdtype(x.base.dtype, jnp.floating):
        return nonlinear(step)
    return _sum(step, _scaled(step, x, 1 / y.base))


def convert(step: Step) -> list[Change | None]:
    """Convert to another type, which is linear between types that hold a difference."""
    (x,) = step.operands
    old, new = x.base.dtype, step.results[0].dtype
    widens = jnp.issubdtype(new, jnp.floating) or (new == jnp.int64 and old == jnp.int32)
    exact = jnp.issubdtype(old, jnp.floating) or any(f.has("v") for p in step.pieces(x) for f in p.factors)
    if jnp.issubdtype(old, jnp.floating) and not widens:
        _flag_undecided(step, jnp.abs if jnp.issubdtype(new, jnp.bool_) else _DISTANCE["floor"])
    if not (holds_differences(old) and widens and exact):
        return nonlinear(step)  # integers may wrap around: cast the values themselves if that costs nothing
    assert x.change is not None
    return [step.site.cast(x.change, x.base, new)]


def select(step: Step) -> list[Change | None]:
    """Choose between operands, which is linear in them if the predicate is constant."""
    which, *cases = step.operands
    if which.change is not None:
        return nonlinear(step)
    pieces = []
    for i, case in enumerate(cases):
        if case.change is not None:
            chosen = which.base == (bool(i) if which.base.dtype == bool else i)
            for p in step.pieces(case):
                pieces.append(Piece(p.layout, step.site.masked(p.factors, step.site.take(chosen, p.layout))))
    return _sum(step, pieces)


def _settled(rule: Rule) -> Rule:
    """Skip a choice that is known to fall on one operand everywhere, such as a support check of known data."""

    def either(step: Step) -> list[Change | None]:
        which = step.operands[0].read()
        if which is None or which.size == 0 or (which != which.flat[0]).any():
            return rule(step)
        return [_broad(step).operands[1 + int(which.flat[0])].change]

    return either


def _broad(step: Step) -> Step:
    """Broadcast scalars and axes of size 1, which primitives do by themselves, so that all shapes are equal."""
    operands = []
    for x in step.operands:
        if x.change is not None and x.shape != step.shape:
            into = range(len(x.shape)) if len(x.shape) == len(step.shape) else ()
            change = step.site.broadcast(x.change, x.base, into, step.shape)
            x = Operand(jnp.broadcast_to(x.base, step.shape), change, x.read)
        operands.append(x)
    same = {id(x): y for x, y in zip(step.operands, operands, strict=True)}
    return replace(step, operands=[same[id(x)] for x in step.operands])


def _always(rule: Rule) -> Rule:
    """Apply a rule to operands of equal shape."""
    return lambda step: rule(_broad(step))


def _if_lazy(rule: Rule) -> Rule:
    """Apply a rule for differences if the changes are numeric and best kept as differences."""

    def either(step: Step) -> list[Change | None]:
        step = _broad(step)
        numeric = all(jnp.issubdtype(x.base.dtype, jnp.number) for x in step.changing())
        return rule(step) if numeric and step.prefers_differences() else nonlinear(step)

    return either


RULES: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, _always(nonlinear)),  # right for all of them; the rules below keep more structure
    **dict.fromkeys(_DISTANCE, _always(threshold)),
    "copy": identity,
    "stop_gradient": stop,
    "neg": _if_lazy(neg),
    "add": _if_lazy(add),
    "add_any": _if_lazy(add),
    "sub": _if_lazy(sub),
    "mul": _if_lazy(mul),
    "div": _if_lazy(div),
    "integer_pow": power,
    "square": power,
    "convert_element_type": _if_lazy(convert),
    "select_n": _settled(_if_lazy(select)),
}
