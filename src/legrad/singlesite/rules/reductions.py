"""Reduce, or otherwise mix, the numbers along some axes, and leave the other axes alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from legrad.singlesite.change import Change, New, Piece
from legrad.singlesite.labelled import Axis, Labelled, V, spread
from legrad.singlesite.layout import ENTRIES, Layout
from legrad.singlesite.rules.fallback import fallback
from legrad.singlesite.rules.operand import Rule, Step
from legrad.singlesite.rules.pieces import sum_product


def _without(layout: Layout, axes: Sequence[int], rank: int) -> tuple[Layout, dict[Axis, Axis]]:
    """Return a layout without some axes, and the new names of the axes that stay."""
    kept = [a for a in range(rank) if a not in axes]
    into = {a: i for i, a in enumerate(kept)}
    return layout.rename([layout.where[a] for a in kept], into), {V(a): V(i) for a, i in into.items()}


def sum_over(step: Step, pieces: Sequence[Piece], axes: Sequence[int], shape: tuple[int, ...]) -> list[Piece]:
    """Sum each piece over axes of the value; along an axis with one touched position there is one term."""
    site, done = step.site, []
    for piece in pieces:
        listed = [a for a in axes if piece.layout.where[a] == ENTRIES]
        free = {V(a): shape[a] for a in axes if piece.layout.where[a] is None}
        if listed:
            piece = site.sum_entries(piece, listed, shape)
        factors = sum_product(site, piece.factors, free)
        layout, names = _without(piece.layout, axes, len(shape))
        done.append(Piece(layout, tuple(f.rename(names) for f in factors)))
    return done


def reduce_sum(step: Step) -> list[Change | None]:
    """Sum differences, so that what does not change is never added up.

    If everything changes and the sum is used as a value, sum the values instead.
    """
    (x,) = step.operands
    axes = step.eqn.params["axes"]
    values = step.values(x, axes)
    if values is not None:
        (total,) = sum_over(step, [Piece(values.layout, (values.value,))], axes, x.shape)
        return [New(total.layout, step.site.order.multiply(total.factors))]
    return [step.site.tidy(sum_over(step, step.pieces(x), axes, x.shape))]


def cumsum(step: Step) -> list[Change | None]:
    """Take a running sum, in which one changed number makes a step."""
    (x,) = step.operands
    axis, reverse = step.eqn.params["axis"], step.eqn.params["reverse"]
    pieces = []
    for piece in step.pieces(x):
        w = piece.layout.where[axis]
        if not isinstance(w, int) or x.shape[axis] == 1:
            return rowwise("axis")(step)
        place = Labelled(jnp.arange(x.shape[axis], dtype=jnp.int32), (V(axis),))
        after = jnp.less_equal if reverse else jnp.greater_equal
        mask = step.site.order.combine(after, place, step.site.index(w))
        where = [None if a == axis else w for a, w in enumerate(piece.layout.where)]
        factors = step.site.masked(piece.factors, mask)
        pieces.append(Piece(Layout(tuple(where), piece.layout.entries), factors))
    return [step.site.tidy(pieces)]


def rowwise(param: str, *, keeps: bool = True) -> Rule:
    """Return the rule of a primitive that works along some axes, in the same way for every index of the others.

    Args:
        param: the name of the parameter that holds the axes, an integer or several.
        keeps: whether the result still has those axes.
    """

    def rule(step: Step) -> list[Change | None]:
        site, given = step.site, step.eqn.params[param]
        axes = (given,) if isinstance(given, int) else tuple(given)
        shape = step.operands[0].shape
        layout, arrays = step.evaluated(shape, axes)
        order = site.order.sort({axis for array in arrays for axis in array.axes} | set(map(V, axes)))
        sizes = {axis: max(array.size_of(axis) for array in arrays) for axis in order}
        sizes |= {V(a): shape[a] for a in axes}
        place = tuple(order.index(V(a)) for a in axes)
        params = dict(step.eqn.params) | {param: place[0] if isinstance(given, int) else place}
        results = step.eqn.primitive.bind(*(spread(array, order, sizes) for array in arrays), **params)
        results = list(results) if step.eqn.primitive.multiple_results else [results]
        if keeps:
            return [New(layout, Labelled(r, order).squeezed()) for r in results]
        rest = tuple(axis for axis in order if axis not in [V(a) for a in axes])
        after, names = _without(layout, axes, len(shape))
        return [New(after, Labelled(r, rest).rename(names)) for r in results]

    return rule


def _quantifier(holds: Callable[[Any, int], Any]) -> Rule:
    """Return the rule of `all` or `any`: count the true values, and change the count at the touched places only.

    Args:
        holds: a function of the count of true values and the count of all values.
    """

    def rule(step: Step) -> list[Change | None]:
        (x,), site, axes = step.operands, step.site, step.eqn.params["axes"]
        assert x.change is not None
        touched = {a for layout in site.layouts(x.change) for a in axes if layout.where[a] is not None}
        if x.base.dtype != bool or not touched:
            return _reduction(step)
        truths = x.base.astype(jnp.int32)
        change = site.as_lazy(site.cast(x.change, x.base, jnp.int32), truths)
        change = site.tidy(sum_over(step, change.pieces, axes, x.shape))
        layout = site.union(site.layouts(change), step.shape)
        count = site.as_new(change, truths.sum(axis=axes, dtype=jnp.int32), layout)
        result = holds(count.data, math.prod(x.shape[a] for a in axes))
        return [New(layout, Labelled(result, count.axes))]

    return rule


def _one_axis_only(rule: Rule) -> Rule:
    """Take the fallback for `argmax` over several axes, whose positions have no simple batch."""

    def checked(step: Step) -> list[Change | None]:
        return rule(step) if len(step.eqn.params["axes"]) == 1 else fallback(step)

    return checked


_reduction: Any = rowwise("axes", keeps=False)
RULES: dict[str, Rule] = {
    "reduce_sum": reduce_sum,
    "cumsum": cumsum,
    **dict.fromkeys(["reduce_max", "reduce_min", "reduce_prod", "reduce_xor"], _reduction),
    "reduce_and": _quantifier(lambda count, of: count == of),
    "reduce_or": _quantifier(lambda count, of: count > 0),
    **dict.fromkeys(["argmax", "argmin"], _one_axis_only(_reduction)),
    **dict.fromkeys(["cumprod", "cummax", "cummin", "cumlogsumexp"], rowwise("axis")),
    "sort": rowwise("dimension"),
}
