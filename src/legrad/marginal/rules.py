"""What a primitive does to tables: one function for each family, `rule(op, operands, context) -> results`.

Numbers of different positions mix only where a rule says so; there `spread` gives each of their elements an axis of
its own, or refuses. A primitive without a rule mixes everything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from legrad import _compat
from legrad.marginal.context import Context, run_of, shapes_of
from legrad.marginal.elementwise import elementwise
from legrad.marginal.table import NONE, Label, Shape, Table, batched, common, pruned, spread, take
from legrad.trace.concrete import read
from legrad.trace.operations import ELEMENTWISE as ELEMENTWISE_OPERATIONS
from legrad.trace.primitives import ELEMENTWISE
from legrad.trace.program import Op

Rule = Callable[[Op, list[Table], Context], list[Table]]


def apply(op: Op, operands: list[Table], context: Context) -> list[Table]:
    """Return the results of an operation."""
    if op.name in ELEMENTWISE_OPERATIONS or op.name in ELEMENTWISE:
        return elementwise(op, operands, context)
    if op.name in _compat.CUSTOM_CALLS and any(t.labels for t in operands):
        return _custom_elementwise(op, operands, context)
    return RULES.get(op.name, _everything)(op, operands, context)


def _everything(op: Op, operands: list[Table], context: Context) -> list[Table]:
    operands = [spread(t, range(len(t.shape)), context.limit).full() for t in operands]
    shapes = shapes_of(op)
    placed = [t.relabelled(lambda e: e.reshape(())) for t in operands]
    results, labels = batched(run_of(op), placed, context.limit)

    def at(rank: int) -> tuple[Label, ...]:
        return tuple(Label(label.size, label.elements.reshape((1,) * rank)) for label in labels)

    return [Table(v, at(len(shape)), shape) for v, shape in zip(results, shapes, strict=True)]


def _custom_elementwise(op: Op, operands: list[Table], context: Context) -> list[Table]:
    """An elementwise function with derivative rules of its own, which are kept: it is run on whole arrays."""
    shapes = shapes_of(op)
    rank = len(shapes[0])

    def place(elements: np.ndarray) -> np.ndarray:
        return elements if elements.ndim == rank else elements.reshape((1,) * rank)

    placed = [t.full().relabelled(place) for t in operands]
    results, labels = batched(run_of(op), placed, context.limit)
    return [Table(v, labels, shape) for v, shape in zip(results, shapes, strict=True)]


def _identity(op: Op, operands: list[Table], context: Context) -> list[Table]:
    return operands


# --- movement ----------------------------------------------------------------------------------------------------


def _broadcast_in_dim(op: Op, operands: list[Table], context: Context) -> list[Table]:
    table, shape = operands[0], tuple(op.eqn.params["shape"])
    dims = op.eqn.params["broadcast_dimensions"]

    def move(x: Any, lead: int) -> Any:
        lengths = [1] * len(shape)
        for axis, target in enumerate(dims):
            lengths[target] = x.shape[lead + axis]
        return x.reshape(*x.shape[:lead], *lengths)

    return [table.moved(move, shape)]


def _reshape(op: Op, operands: list[Table], context: Context) -> list[Table]:
    (shape,) = shapes_of(op)
    return [reshaped(operands[0], shape)]


def reshaped(table: Table, shape: Shape) -> Table:
    """Reshape an array; a block of axes of which nothing is stored stays so."""
    blocks = _blocks(table.shape, shape)

    def move(x: Any, lead: int) -> Any:
        wide, lengths = list(x.shape[:lead]), list(x.shape[:lead])
        for old, new in blocks:
            stored = any(x.shape[lead + a] > 1 for a in old)
            wide += [table.shape[a] if stored else 1 for a in old]
            lengths += [shape[a] if stored else 1 for a in new]
        array = np.broadcast_to(x, wide) if isinstance(x, np.ndarray) else jnp.broadcast_to(x, wide)
        return array.reshape(lengths)

    return table.moved(move, shape)


def _blocks(old: Shape, new: Shape) -> list[tuple[list[int], list[int]]]:
    """Split the axes of a reshape into blocks that hold the same numbers."""
    blocks: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        mine, yours = [i] if i < len(old) else [], [j] if j < len(new) else []
        i, j = i + len(mine), j + len(yours)
        a, b = math.prod(old[k] for k in mine), math.prod(new[k] for k in yours)
        while a != b:
            if (a < b or j == len(new)) and i < len(old):
                mine.append(i)
                a *= old[i]
                i += 1
            else:
                yours.append(j)
                b *= new[j]
                j += 1
        blocks.append((mine, yours))
    return blocks


def _transpose(op: Op, operands: list[Table], context: Context) -> list[Table]:
    order = op.eqn.params["permutation"]
    shape = tuple(operands[0].shape[a] for a in order)
    return [
        operands[0].moved(lambda x, lead: x.transpose(*range(lead), *(lead + a for a in order)), shape),
    ]


def _slice(op: Op, operands: list[Table], context: Context) -> list[Table]:
    p = op.eqn.params
    strides = p["strides"] or (1,) * len(p["start_indices"])
    windows = list(map(slice, p["start_indices"], p["limit_indices"], strides))
    return [pruned(operands[0].moved(partial(_window, windows=windows), shapes_of(op)[0]))]


def _window(x: Any, lead: int, windows: Sequence[slice]) -> Any:
    kept = [w if n > 1 else slice(None) for w, n in zip(windows, x.shape[lead:], strict=True)]
    return x[(slice(None),) * lead + tuple(kept)]


def _rev(op: Op, operands: list[Table], context: Context) -> list[Table]:
    axes = op.eqn.params["dimensions"]
    windows = [slice(None, None, -1 if a in axes else 1) for a in range(len(operands[0].shape))]
    return [operands[0].moved(partial(_window, windows=windows), operands[0].shape)]


def _split(op: Op, operands: list[Table], context: Context) -> list[Table]:
    axis, ends = op.eqn.params["axis"], np.cumsum(op.eqn.params["sizes"])
    return [take(operands[0], axis, int(e - n), int(e)) for e, n in zip(ends, op.eqn.params["sizes"], strict=True)]


def _concatenate(op: Op, operands: list[Table], context: Context) -> list[Table]:
    axis = op.eqn.params["dimension"]
    return [_shared(op, operands, axis, context) or concatenated(operands, axis)]


def _shared(op: Op, parts: list[Table], axis: int, context: Context) -> Table | None:
    """Join states, and numbers that chains start from, without storing each position: `[first, z[0], z[1], ...]`.

    All are elements with the same candidates, so what depends on them, such as a table of transitions, is one table.
    """
    states = [t for t in parts if t.labels]
    if context.free is None or len(parts) < 2 or any(len(t.labels) != 1 or any(n > 1 for n in t.own) for t in states):
        return None
    candidates = [read(t.values) for t in states]
    first = None if not candidates else candidates[0]
    if first is None or any(c is None or not np.array_equal(c.ravel(), first.ravel()) for c in candidates):
        return None
    first = first.ravel()
    if len(np.unique(first)) < len(first) or not any(t.labels[0].varies(axis) for t in states):
        return None
    known = [None if t.labels else context.program.read(i) for t, i in zip(parts, op.inputs, strict=True)]
    if any(x is None or not np.isin(x, first).all() for x, t in zip(known, parts, strict=True) if not t.labels):
        return None
    rows = []
    for x, part in zip(known, parts, strict=True):
        label = part.labels[0] if x is None else context.added(x, first)
        rows.append(np.broadcast_to(label.elements, part.shape))
    return Table(states[0].values, (Label(len(first), np.concatenate(rows, axis=axis)),), shapes_of(op)[0])


def concatenated(parts: list[Table], axis: int) -> Table:
    """Join arrays along an axis; labels of equal size share an axis of candidates, each with its own elements."""
    sizes: list[int] = []
    slots: list[list[int]] = []
    for part in parts:
        mine: list[int] = []
        for label in part.labels:
            free = (i for i, size in enumerate(sizes) if size == label.size and i not in mine)
            slot = next(free, len(sizes))
            if slot == len(sizes):
                sizes.append(label.size)
            mine.append(slot)
        slots.append(mine)
    parts = [part.full([axis]) for part in parts]
    rest = common([(*p.own[:axis], 1, *p.own[axis + 1 :]) for p in parts])
    columns: list[list[np.ndarray]] = [[] for _ in sizes]
    values = []
    for part, mine in zip(parts, slots, strict=True):
        length = part.shape[axis]
        own = (*rest[:axis], length, *rest[axis + 1 :])
        order = sorted(range(len(mine)), key=lambda i: mine[i])
        lead = [1] * len(sizes)
        for slot in mine:
            lead[slot] = sizes[slot]
        array = jnp.asarray(part.values).transpose(*order, *range(len(mine), len(mine) + len(own)))
        values.append(jnp.broadcast_to(array.reshape(*lead, *part.own), (*sizes, *own)))
        for slot, column in enumerate(columns):
            found = part.labels[mine.index(slot)].elements if slot in mine else np.full((1,) * len(own), NONE)
            column.append(found)
    shape = (*parts[0].shape[:axis], sum(p.shape[axis] for p in parts), *parts[0].shape[axis + 1 :])
    labels = []
    for size, column in zip(sizes, columns, strict=True):
        span = common([(*e.shape[:axis], 1, *e.shape[axis + 1 :]) for e in column])
        wide = [
            np.broadcast_to(e, (*span[:axis], p.shape[axis], *span[axis + 1 :]))
            for e, p in zip(column, parts, strict=True)
        ]
        labels.append(Label(size, np.concatenate(wide, axis=axis)))
    return Table(jnp.concatenate(values, axis=len(sizes) + axis), tuple(labels), shape)


def _moved_by(op: Op, table: Table, run: Callable[[Any, Any], Any], fill: Any) -> Table:
    """Move numbers by `run(array, fill)`, whose positions are known now; those that it fills have no element."""
    (shape,) = shapes_of(op)
    positions = np.arange(1, math.prod(table.shape) + 1, dtype=np.int32).reshape(table.shape)
    with jax.ensure_compile_time_eval():
        found = np.asarray(run(jnp.asarray(positions), 0))

    def place(elements: np.ndarray) -> np.ndarray:
        return np.concatenate([[NONE], np.broadcast_to(elements, table.shape).ravel()])[found]

    lead = tuple(label.size for label in table.labels)
    if all(n == 1 for n in table.own) and found.all():  # one number for all positions stays one
        alike = table.values.reshape(*lead, *(1,) * len(shape))
        return pruned(Table(alike, table.relabelled(place).labels, shape))
    table = table.full()
    values = jax.vmap(lambda x: run(x, fill))(jnp.reshape(table.values, (-1, *table.shape)))
    return pruned(Table(values.reshape(*lead, *shape), table.relabelled(place).labels, shape))


def _pad(op: Op, operands: list[Table], context: Context) -> list[Table]:
    table, padding = operands
    if padding.labels or not table.labels:
        return _everything(op, operands, context)
    config = op.eqn.params["padding_config"]
    return [_moved_by(op, table, lambda x, fill: jax.lax.pad(x, jnp.asarray(fill, x.dtype), config), padding.values)]


# --- reductions and products -------------------------------------------------------------------------------------


def _reduce(op: Op, operands: list[Table], context: Context) -> list[Table]:
    axes, (shape,) = op.eqn.params["axes"], shapes_of(op)
    table = spread(operands[0], axes, context.limit)
    unstored = [a for a in axes if table.own[a] == 1 and table.shape[a] != 1]
    if op.name in ("reduce_prod", "reduce_xor", "argmax", "argmin"):
        table, unstored = table.full(axes), []
    lead = len(table.labels)
    params = op.eqn.params | {"axes": tuple(lead + a for a in axes)}
    values = op.eqn.primitive.bind(table.values, **params)
    if op.name == "reduce_sum" and unstored:
        values = values * jnp.asarray(math.prod(table.shape[a] for a in unstored), values.dtype)
    elements = table.relabelled(lambda e: e.reshape([n for a, n in enumerate(e.shape) if a not in axes]))
    return [Table(values, elements.labels, shape)]


def _along(axes: Callable[[Op, int], list[int]]) -> Rule:
    """Make the rule of a primitive that mixes numbers along some axes, and keeps all axes."""

    def rule(op: Op, operands: list[Table], context: Context) -> list[Table]:
        mixed = axes(op, len(operands[0].shape))
        operands = [spread(t, mixed, context.limit).full() for t in operands]
        results, labels = batched(run_of(op), operands, context.limit)
        return [Table(v, labels, shape) for v, shape in zip(results, shapes_of(op), strict=True)]

    return rule


def _dot_general(op: Op, operands: list[Table], context: Context) -> list[Table]:
    (contract, batch), (shape,) = op.eqn.params["dimension_numbers"], shapes_of(op)
    sides = [spread(t, c, context.limit).full(c) for t, c in zip(operands, contract, strict=True)]
    stored = [any(t.own[b[i]] > 1 for t, b in zip(sides, batch, strict=True)) for i in range(len(batch[0]))]
    sides = [t.full([a for a, s in zip(b, stored, strict=True) if s]) for t, b in zip(sides, batch, strict=True)]
    free = [
        [a for a in range(len(t.shape)) if a not in c and a not in b]
        for t, c, b in zip(sides, contract, batch, strict=True)
    ]
    first = len(batch[0])
    starts = [first, first + len(free[0])]

    def placed(side: int) -> Table:
        def place(elements: np.ndarray) -> np.ndarray:
            lengths, order = [1] * len(shape), [*batch[side], *free[side]]
            for i, a in enumerate(batch[side]):
                lengths[i] = elements.shape[a]
            for i, a in enumerate(free[side]):
                lengths[starts[side] + i] = elements.shape[a]
            return elements.transpose(*order, *contract[side]).reshape(lengths)

        return sides[side].relabelled(place)

    results, labels = batched(run_of(op), [placed(0), placed(1)], context.limit)
    return [Table(results[0], labels, shape)]


def _categorical_logits(op: Op, operands: list[Table], context: Context) -> list[Table]:
    """The log-probability of classes, `logits[..., value] − log Σ exp(logits)`: classes mix, members do not."""
    logits, value = operands
    last = len(logits.shape) - 1
    logits = spread(logits, [last], context.limit).full()
    placed = [logits.relabelled(lambda e: e.reshape(e.shape[:-1])), value.full()]
    results, labels = batched(run_of(op), placed, context.limit)
    return [Table(results[0], labels, value.shape)]


# --- look-ups ----------------------------------------------------------------------------------------------------


def _gather(op: Op, operands: list[Table], context: Context) -> list[Table]:
    operand, indices = operands
    known = context.program.read(op.inputs[1])
    if known is None or not operand.labels:
        return [_look_up(op, operand, indices, context)]
    params, where = op.eqn.params, known

    def run(x: Any, fill: Any) -> Any:
        return op.eqn.primitive.bind(x, where, **(params | {"fill_value": fill}))

    return [_moved_by(op, operand, run, params.get("fill_value"))]


def _look_up(op: Op, operand: Table, indices: Table, context: Context) -> Table:
    """Look numbers up by indices that depend on elements, `mu[z]`, in an array that may do so too."""
    numbers, (shape,) = op.eqn.params["dimension_numbers"], shapes_of(op)
    theirs, ours = tuple(numbers.operand_batching_dims), tuple(numbers.start_indices_batching_dims)
    last = len(indices.shape) - 1
    indices = spread(indices, [last], context.limit).full([last])
    operand = spread(operand, [a for a in range(len(operand.shape)) if a not in theirs], context.limit)
    stored = [operand.own[a] > 1 or indices.own[b] > 1 for a, b in zip(theirs, ours, strict=True)]
    keep = {a for a, s in zip(theirs, stored, strict=True) if not s}
    operand = operand.full([a for a in range(len(operand.shape)) if a not in keep])
    indices = indices.full([b for b, s in zip(ours, stored, strict=True) if s])
    batch = [d for d in range(len(shape)) if d not in numbers.offset_dims]  # where each axis of the indices goes

    def of_index(elements: np.ndarray) -> np.ndarray:
        lengths = [1] * len(shape)
        for axis, d in enumerate(batch):
            lengths[d] = elements.shape[axis]
        return elements.reshape(lengths)

    def of_operand(elements: np.ndarray) -> np.ndarray:
        lengths = [1] * len(shape)
        for a, b in sorted(zip(theirs, ours, strict=True), key=lambda pair: batch[pair[1]]):
            lengths[batch[b]] = elements.shape[a]
        order = sorted(range(len(theirs)), key=lambda i: batch[ours[i]])
        rest = [a for a in range(elements.ndim) if a not in theirs]
        return elements.transpose(*(theirs[i] for i in order), *rest).reshape(lengths)

    placed = [operand.relabelled(of_operand), indices.relabelled(of_index)]
    results, labels = batched(run_of(op), placed, context.limit)
    return Table(results[0], labels, shape)


def _dynamic_slice(op: Op, operands: list[Table], context: Context) -> list[Table]:
    table, starts = operands[0], [context.program.read(i) for i in op.inputs[1:]]
    if not table.labels or any(s is None for s in starts):
        return _everything(op, operands, context)
    begins = [
        int(np.clip(np.asarray(s), 0, n - k))
        for s, n, k in zip(starts, table.shape, op.eqn.params["slice_sizes"], strict=True)
    ]
    windows = [slice(b, b + k) for b, k in zip(begins, op.eqn.params["slice_sizes"], strict=True)]
    return [pruned(table.moved(partial(_window, windows=windows), shapes_of(op)[0]))]


def _last_two(op: Op, rank: int) -> list[int]:
    return [rank - 2, rank - 1]


def _axis(op: Op, rank: int) -> list[int]:
    return [op.eqn.params["axis"] if "axis" in op.eqn.params else op.eqn.params["dimension"]]


RULES: dict[str, Rule] = {
    **dict.fromkeys(["reshape", "squeeze"], _reshape),
    **dict.fromkeys(
        [f"reduce_{name}" for name in ("sum", "max", "min", "prod", "and", "or", "xor")] + ["argmax", "argmin"],
        _reduce,
    ),
    **dict.fromkeys(["cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "sort"], _along(_axis)),
    **dict.fromkeys(["triangular_solve", "cholesky"], _along(_last_two)),
    "broadcast_in_dim": _broadcast_in_dim,
    "transpose": _transpose,
    "slice": _slice,
    "rev": _rev,
    "split": _split,
    "concatenate": _concatenate,
    "pad": _pad,
    "dot_general": _dot_general,
    "gather": _gather,
    "dynamic_slice": _dynamic_slice,
    "legrad_categorical_logits": _categorical_logits,
    "optimization_barrier": _identity,
}
