"""Reductions, and other primitives that mix the numbers along some axes and leave the other axes alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from legrad.singlesite.change import Change, New, Piece
from legrad.singlesite.labelled import Axis, Labelled, V, spread
from legrad.singlesite.layout import Layout
from legrad.singlesite.rules.fallback import fallback
from legrad.singlesite.rules.operand import Rule, Step


def _without(layout: Layout, axes: Sequence[int], rank: int) -> tuple[Layout, dict[Axis, Axis]]:
    """A layout after axes are gone, and the new names of those that stay."""
    kept = [a for a in range(rank) if a not in axes]
    number = {a: i for i, a in enumerate(kept)}
    return layout.rename([layout.where[a] for a in kept], number), {V(a): V(i) for a, i in number.items()}


def sum_over(step: Step, pieces: Sequence[Piece], axes: Sequence[int], shape: tuple[int, ...]) -> list[Piece]:
    """The sum of each piece over axes of the value: one term where an element touches one position."""
    site, done = step.site, []
    for piece in pieces:
        listed = [a for a in axes if piece.layout.where[a] == "m"]
        free = [a for a in axes if piece.layout.where[a] is None]
        if listed:
            piece = site.sum_entries(piece, listed, shape)
        over = [V(a) for a in free if piece.has(V(a))]
        factors = list(piece.factors)
        if over:
            summed = [f for f in factors if any(axis in f.axes for axis in over)]
            factors = [f for f in factors if not any(axis in f.axes for axis in over)]
            factors.append(site.order.contract(summed, over))
        times = 1
        for a in free:
            times *= 1 if V(a) in over else shape[a]
        if times != 1:
            factors.append(Labelled(jnp.asarray(times, factors[0].data.dtype), ()))
        layout, names = _without(piece.layout, axes, len(shape))
        done.append(Piece(layout, tuple(f.rename(names) for f in factors)))
    return done


def reduce_sum(step: Step) -> list[Change | None]:
    """A sum is linear: it is taken over differences, so that what does not change is never added up.

    Where everything changes and the sum is used as a value, it is taken over values.
    """
    (x,) = step.operands
    axes = step.eqn.params["axes"]
    values = step.values(x, axes)
    if values is not None:
        (total,) = sum_over(step, [Piece(values.layout, (values.value,))], axes, x.shape)
        return [New(total.layout, step.site.order.multiply(total.factors))]
    return [step.site.tidy(sum_over(step, step.pieces(x), axes, x.shape))]


def cumsum(step: Step) -> list[Change | None]:
    """A running sum: one changed number is a step."""
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
    """A primitive that works along the axes which a parameter names, the same for every index of the others.

    Args:
        param: the parameter that holds the axes, one number or several.
        keeps: whether the result still has those axes.
    """

    def rule(step: Step) -> list[Change | None]:
        site, given = step.site, step.eqn.params[param]
        axes = (given,) if isinstance(given, int) else tuple(given)
        shape = step.operands[0].shape
        layout = site.union([x for o in step.changing() for x in site.layouts(o.change)], shape, axes)  # type: ignore[arg-type]
        arrays = [
            site.take(o.base, layout) if o.change is None else site.as_new(o.change, o.base, layout)
            for o in step.operands
        ]
        used = {axis for array in arrays for axis in array.axes} | set(map(V, axes))
        order = site.order.sort(used)
        sizes = {axis: max(array.size_of(axis) for array in arrays) for axis in used}
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
    """Whether all or any of some truth values hold: how many are true is a sum, and that changes by what is touched.

    Args:
        holds: of the number that are true and the number that there are.
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
        number = site.as_new(change, truths.sum(axis=axes, dtype=jnp.int32), layout)
        result = holds(number.data, math.prod(x.shape[a] for a in axes))
        return [New(layout, Labelled(result, number.axes))]

    return rule


def _index_dtype(rule: Rule) -> Rule:
    """argmax counts positions: over several axes it has no simple batch."""

    def checked(step: Step) -> list[Change | None]:
        return rule(step) if len(step.eqn.params["axes"]) == 1 else fallback(step)

    return checked


_reduction: Any = rowwise("axes", keeps=False)
RULES: dict[str, Rule] = {
    "reduce_sum": reduce_sum,
    "cumsum": cumsum,
    **dict.fromkeys(["reduce_max", "reduce_min", "reduce_prod", "reduce_xor"], _reduction),
    "reduce_and": _quantifier(lambda number, all_of: number == all_of),
    "reduce_or": _quantifier(lambda number, _: number > 0),
    **dict.fromkeys(["argmax", "argmin"], _index_dtype(_reduction)),
    **dict.fromkeys(["cumprod", "cummax", "cummin", "cumlogsumexp"], rowwise("axis")),
    "sort": rowwise("dimension"),
}
