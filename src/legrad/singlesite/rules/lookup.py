"""Gather and scatter: moves if the indices are known constants, look-ups in a table if they change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from legrad.singlesite.change import Change, Lazy, New, holds_differences
from legrad.singlesite.labelled import Axis, Labelled, V, arrange
from legrad.singlesite.layout import Layout
from legrad.singlesite.rules.fallback import fallback, linear
from legrad.singlesite.rules.move import Move, merge, move
from legrad.singlesite.rules.operand import Operand, Rule, Step
from legrad.trace.operations import run_equation


def gather(step: Step) -> list[Change | None]:
    """Compute x[constant] as a move and table[latent] as a look-up; if both change, take the fallback."""
    x, *parts = step.operands
    if x.change is None:
        return _look_up(step, x, parts)
    (index,) = parts
    if index.change is not None:
        return fallback(step)
    known = index.read()
    if known is None or x.base.size == 0 or index.base.size == 0:
        # Out of bounds a difference is zero, for any fill value.
        unfilled = step.eqn.replace(params={**step.eqn.params, "fill_value": 0})
        if holds_differences(x.base.dtype):
            return linear(Step(step.site, unfilled, step.operands, step.results))
        return fallback(step)
    return [move(step, x, _pick(step, x, known), step.results[0])]


def _pick(step: Step, x: Operand, known: np.ndarray) -> Move:
    """Return the move of x to a gather's result at known indices."""
    dims = step.eqn.params["dimension_numbers"]
    sizes = step.eqn.params["slice_sizes"]
    batching = tuple(getattr(dims, "operand_batching_dims", ()))
    windows = [a for a in range(len(x.shape)) if a not in dims.collapsed_slice_dims and a not in batching]
    alone = [a for a in windows if sizes[a] == x.shape[a] and a not in dims.start_index_map]
    passed = {a: dims.offset_dims[windows.index(a)] for a in alone}
    worked = [a for a in range(len(x.shape)) if a not in passed]
    made = [b for b in range(len(step.shape)) if b not in passed.values()]
    source = _positions(x.shape, lambda p: _run_now(step, [p, known], fill_value=-1), passed, worked)
    return Move(passed, worked, made, lambda v, fill: _read(v, source, fill), total=bool((source >= 0).all()))


def _run_now(step: Step, operands: list[Any], **params: Any) -> np.ndarray:
    """Run the primitive on positions while tracing; with any setting of JAX, the positions are 32-bit integers."""
    with jax.ensure_compile_time_eval():
        return np.asarray(step.eqn.primitive.bind(*operands, **{**step.eqn.params, **params}))


def _positions(
    shape: tuple[int, ...],
    run: Callable[[np.ndarray], np.ndarray],
    passed: dict[int, int],
    worked: list[int],
) -> np.ndarray:
    """Return the flat position along the worked axes that each number of the result comes from; -1 for none."""
    index = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
    taken = run(index)
    first = tuple(0 if b in passed.values() else slice(None) for b in range(taken.ndim))
    taken = taken[first]
    where = np.unravel_index(np.maximum(taken, 0), shape)
    flat = np.ravel_multi_index([where[a] for a in worked], [shape[a] for a in worked]) if worked else taken * 0
    return np.where(taken >= 0, flat, -1)


def _read(v: Any, source: np.ndarray, fill: Any) -> Any:
    """Read an array, of NumPy or JAX, at flat positions, with a fill value at -1."""
    if isinstance(v, np.ndarray):
        return np.where(source >= 0, v.reshape(-1)[np.maximum(source, 0)], fill)
    taken = v.reshape(-1).at[np.maximum(source, 0)].get(mode="promise_in_bounds")
    return taken if (source >= 0).all() else jnp.where(jnp.asarray(source >= 0), taken, fill)


def _look_up(step: Step, table: Operand, parts: Sequence[Operand]) -> list[Change | None]:
    """Look up a constant table at changed indices, once for each place that is touched.

    `_columns` reads the indices at those places, one array for each axis of the table, and `_gathered` looks them up.
    Then the axes of the indices, and of the windows read from the table, get their places in the result.
    """
    site, dims, shape = step.site, step.eqn.params["dimension_numbers"], parts[0].shape
    last = len(shape) - 1  # the axis of an index's components
    layouts = [layout for p in parts if p.change is not None for layout in site.layouts(p.change)]
    layout = site.union(layouts, shape, [last])
    columns = _columns(step, parts, layout)
    order = site.order.sort({axis for column in columns for axis in column.axes})
    batching = tuple(getattr(dims, "operand_batching_dims", ()))
    plain = jax.lax.GatherDimensionNumbers(
        offset_dims=tuple(range(len(order), len(order) + len(dims.offset_dims))),
        collapsed_slice_dims=tuple(sorted((*dims.collapsed_slice_dims, *batching))),
        start_index_map=(*batching, *dims.start_index_map),
    )
    data = _gathered(step, table.base, [arrange(column, order) for column in columns], plain)
    into = dict(enumerate(b for b in range(len(step.shape)) if b not in dims.offset_dims))
    axes = [V(into[axis[1]]) if axis[0] == "v" else axis for axis in order] + [V(b) for b in dims.offset_dims]
    where: list[Any] = [None] * len(step.shape)
    for a, b in into.items():
        where[b] = layout.where[a]
    moved = Layout(layout.where[:last], layout.entries).rename(where, into)
    return [New(moved, Labelled(data, tuple(axes)).squeezed())]


def _columns(step: Step, parts: Sequence[Operand], layout: Layout) -> list[Labelled]:
    """Read the indices of a look-up at the places of a layout, each component on its own.

    Batch axes of the table and of the index belong together: the index along them is the position itself.
    """
    site, shape, last = step.site, parts[0].shape, len(parts[0].shape) - 1
    columns: list[Labelled] = []
    for p in parts:
        column = site.take(p.base, layout) if p.change is None else site.as_new(p.change, p.base, layout)
        columns += [column] if p.shape[last] == 1 else [_component(column, V(last), i) for i in range(p.shape[last])]
    batching = getattr(step.eqn.params["dimension_numbers"], "start_indices_batching_dims", ())
    own = [site.position(layout, a, shape[a]) for a in batching]
    return [*(Labelled(p.data.astype(columns[0].data.dtype), p.axes) for p in own), *columns]


def _component(array: Labelled, axis: Axis, i: int) -> Labelled:
    """Return an array at one position along an axis."""
    if axis not in array.axes:
        return array
    at = array.axes.index(axis)
    return Labelled(
        jax.lax.index_in_dim(array.data, i, at, keepdims=False), (*array.axes[:at], *array.axes[at + 1 :])
    )


def _gathered(step: Step, table: Any, columns: list[Any], dims: Any) -> Any:
    """Look up by separate indices; use one flat index to read single numbers by indices known to be in bounds."""
    shape = jnp.broadcast_shapes(*(c.shape for c in columns))
    params = {**step.eqn.params, "dimension_numbers": dims}
    bounded = params["mode"] == jax.lax.GatherScatterMode.PROMISE_IN_BOUNDS
    if (
        bounded
        and table.size < 1 << 31
        and not dims.offset_dims
        and len(dims.collapsed_slice_dims) == table.ndim
        and len(columns) > 1
    ):
        sizes = [table.shape[d] for d in dims.start_index_map]
        flat = columns[0].astype(jnp.int32)  # narrow types could not hold the product
        for size, column in zip(sizes[1:], columns[1:], strict=True):
            flat = flat * size + column.astype(jnp.int32)
        table = jnp.transpose(table, dims.start_index_map).reshape(-1)
        return table.at[flat].get(mode="promise_in_bounds")
    vector = jnp.stack([jnp.broadcast_to(c, shape) for c in columns], axis=-1)
    return step.eqn.primitive.bind(table, vector, **params)


def scatter(step: Step) -> list[Change | None]:
    """Compute x.at[constant].set(y): move x where it is not overwritten, and y to its places."""
    x, index, y = step.operands
    known = None if index.change is not None else index.read()
    if known is None or 0 in (x.base.size, y.base.size):
        return fallback(step)
    marks = np.arange(1, x.base.size + y.base.size + 1, dtype=np.int32)
    old, new = marks[: x.base.size].reshape(x.shape), marks[x.base.size :].reshape(y.shape)
    with jax.ensure_compile_time_eval():
        result = np.asarray(run_equation(step.eqn, [old, known, new])[0])
    changes: list[Change] = []
    regions = []
    for operand, first in ((x, 1), (y, x.base.size + 1)):
        if operand.change is not None:
            own = (result >= first) & (result < first + operand.base.size)
            source = np.where(own, result - first, -1)
            how = _everywhere(operand, step, source)
            changes.append(move(step, operand, how, step.results[0]))
            regions.append(own)
    return [merge(step, changes, regions, step.results[0])]


def _everywhere(operand: Operand, step: Step, source: np.ndarray) -> Move:
    """Return a move over all axes that reads the operand at flat positions."""
    worked, made = list(range(len(operand.shape))), list(range(len(step.shape)))
    return Move({}, worked, made, lambda v, fill: _read(v, source, fill), total=False)


def scatter_add(step: Step) -> list[Change | None]:
    """Compute x.at[constant].add(y), which is linear in both."""
    x, index, y = step.operands
    if index.change is not None or not jnp.issubdtype(x.base.dtype, jnp.number):
        return fallback(step)
    pieces = [] if x.change is None else list(step.pieces(x))
    if y.change is not None:
        alone = Operand(jnp.zeros_like(x.base), None, lambda: None)
        (added,) = linear(Step(step.site, step.eqn, [alone, index, y], step.results))
        assert isinstance(added, Lazy)
        pieces += added.pieces
    return [step.site.tidy(pieces)]


RULES: dict[str, Rule] = {
    "gather": gather,
    "scatter": scatter,
    "scatter-add": scatter_add,
}
