"""Run a primitive on a batch of all elements and candidates: exact for any primitive, but touches everything."""

from __future__ import annotations

from typing import Any

import jax

from legrad.singlesite.change import Change, Lazy, New, Piece
from legrad.singlesite.labelled import Axis, Labelled, V, spread
from legrad.singlesite.layout import Layout
from legrad.singlesite.rules.operand import Operand, Step
from legrad.trace.operations import run_equation


def _batch(step: Step, arrays: list[Labelled]) -> tuple[Axis, ...]:
    """Return the axes of some arrays that are not axes of the value."""
    return step.site.order.sort({axis for array in arrays for axis in array.axes if axis[0] != "v"})


def _whole(step: Step, array: Labelled, shape: tuple[int, ...], batch: tuple[Axis, ...]) -> Any:
    """Return an array with all axes of its value, and one leading axis for the batch."""
    sizes = {axis: array.size_of(axis) for axis in array.axes} | dict(step.site.sizes)
    sizes |= {V(a): n for a, n in enumerate(shape)}
    data = spread(array, [*batch, *map(V, range(len(shape)))], sizes)
    return data.reshape(-1, *shape)


def _named(step: Step, data: jax.Array, batch: tuple[Axis, ...], shape: tuple[int, ...]) -> Labelled:
    """Name the axes of an array whose leading axis is the batch."""
    data = data.reshape(*(step.site.sizes[axis] for axis in batch), *shape)
    return Labelled(data, (*batch, *map(V, range(len(shape))))).squeezed()


def _free(x: Operand) -> Layout:
    """Return the layout of an operand that touches everything."""
    return Layout((None,) * len(x.shape))


def fallback(step: Step) -> list[Change | None]:
    """Run the primitive under vmap for every element and candidate."""
    site = step.site
    arrays = {i: site.as_new(x.change, x.base, _free(x)) for i, x in enumerate(step.operands) if x.change is not None}
    batch = _batch(step, list(arrays.values()))
    operands = [
        _whole(step, arrays[i], x.shape, batch) if i in arrays else x.base for i, x in enumerate(step.operands)
    ]
    run = jax.vmap(
        lambda *values: run_equation(step.eqn, values), [0 if i in arrays else None for i in range(len(operands))]
    )
    results: list[Change | None] = []
    for data, base in zip(run(*operands), step.results, strict=True):
        layout = Layout((None,) * base.ndim)
        results.append(New(layout, _named(step, data, batch, base.shape)))
    return results


def linear(step: Step) -> list[Change | None]:
    """Run a primitive that is linear in the one operand that changes on the factors that vary along its axes."""
    changing = step.changing()
    if len(changing) != 1 or len(step.results) != 1:
        return fallback(step)
    (x,) = changing
    if step.values(x, range(len(x.shape))) is not None:
        return fallback(step)
    at = next(i for i, o in enumerate(step.operands) if o is x)
    site, pieces = step.site, []
    constants = [None if o is x else o.base for o in step.operands]
    for piece in step.pieces(x):
        free = _free(x)
        small = [f for f in piece.factors if not f.has("v")]
        column = [f for f in piece.factors if f.has("v")]
        if piece.layout.entries is not None:
            small, column = [], list(piece.factors)
        one = Labelled(x.base.dtype.type(1), ()) if not column else site.order.multiply(column)
        one = Labelled(jax.numpy.asarray(one.data), one.axes)
        whole = site.product(Piece(piece.layout, (one,)), free, x.shape)
        batch = _batch(step, [whole])

        def run(value: Any) -> Any:
            return run_equation(step.eqn, [*constants[:at], value, *constants[at + 1 :]])[0]

        data = jax.vmap(run)(_whole(step, whole, x.shape, batch))
        result = _named(step, data, batch, step.shape)
        pieces.append(Piece(Layout((None,) * len(step.shape)), (*small, result)))
    return [Lazy(tuple(pieces))]
