"""Products of two changes, and of a change with a constant: elementwise, and contracted as in `dot_general`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from legrad.singlesite.change import Change, New, Piece
from legrad.singlesite.labelled import Axis, E, Labelled, M, V
from legrad.singlesite.layout import ENTRIES, Entries, Layout
from legrad.singlesite.rules.fallback import fallback
from legrad.singlesite.rules.operand import Operand, Rule, Step
from legrad.singlesite.site import Site

_SPARSE = 0.3  # a matrix with a smaller share of nonzeros is read by its entries


def restrict(site: Site, array: Labelled, axis: Axis, j: int) -> Labelled:
    """An array at the element's own index along one axis of the value."""
    if axis not in array.axes:
        return array
    at = array.axes.index(axis)
    data = array.data
    if E(j) in site.starts:
        data = jax.lax.dynamic_slice_in_dim(data, site.starts[E(j)], site.sizes[E(j)], axis=at)
    if E(j) not in array.axes:
        return Labelled(data, tuple(E(j) if a == axis else a for a in array.axes))
    other = array.axes.index(E(j))
    rest = tuple(a for a in array.axes if a not in (axis, E(j)))
    return Labelled(jnp.diagonal(data, axis1=at, axis2=other), (*rest, E(j)))


def meet(
    site: Site, p: Piece, q: Piece, pairs: Sequence[tuple[int, int]]
) -> tuple[tuple[Labelled, ...], tuple[Labelled, ...], dict[int, Any]] | None:
    """Two pieces where both are at work: along each pair of axes that meet, at the places that both touch.

    Returns the factors of both, and where they meet by the first one's axis; None where entries are involved.
    """
    if p.layout.entries is not None or q.layout.entries is not None:
        return None
    first, second, where = list(p.factors), list(q.factors), {}
    for a, b in pairs:
        w, u = p.layout.where[a], q.layout.where[b]
        if w is not None and u is not None and w != u:
            return None
        if w is None and isinstance(u, int):
            first = [restrict(site, f, V(a), u) for f in first]
        if u is None and isinstance(w, int):
            second = [restrict(site, f, V(b), w) for f in second]
        where[a] = u if w is None else w
    return tuple(first), tuple(second), where


def multiply_pieces(site: Site, p: Piece, q: Piece, shape: tuple[int, ...]) -> Piece | None:
    """The elementwise product of two pieces, or None where it has no simple form."""
    if p.layout.entries is not None and p.layout.same_as(q.layout):
        return Piece(p.layout, (*p.factors, *q.factors))
    axes = [(a, a) for a in range(len(shape))]
    met = meet(site, p, q, axes)
    if met is None:
        return None
    first, second, where = met
    return Piece(Layout(tuple(where[a] for a in range(len(shape)))), (*first, *second))


class Dot:
    """The axes of a `dot_general`, from the side that changes."""

    def __init__(self, step: Step, side: int) -> None:
        contract, batch = step.eqn.params["dimension_numbers"]
        self.side = side
        self.contract = list(zip(contract[side], contract[1 - side], strict=True))
        self.batch = list(zip(batch[side], batch[1 - side], strict=True))
        own, other = step.operands[side], step.operands[1 - side]
        self.own = self._free(len(own.shape), contract[side], batch[side])
        self.other = self._free(len(other.shape), contract[1 - side], batch[1 - side])
        # In the result: batch axes, then those of the left side, then those of the right.
        lead = len(self.batch)
        first = {side: lead + side * len(self.other), 1 - side: lead + (1 - side) * len(self.own)}
        self.out_own = {a: first[side] + i for i, a in enumerate(self.own)}
        self.out_own |= {a: i for i, (a, _) in enumerate(self.batch)}
        self.out_other = {b: first[1 - side] + i for i, b in enumerate(self.other)}
        self.out_other |= {b: i for i, (_, b) in enumerate(self.batch)}

    @staticmethod
    def _free(rank: int, *used: Sequence[int]) -> list[int]:
        return [a for a in range(rank) if not any(a in axes for axes in used)]

    def names(self) -> tuple[dict[Axis, Axis], dict[Axis, Axis]]:
        """The axes of both sides in the result; contracted ones are called ("c", i)."""
        own = {V(a): V(o) for a, o in self.out_own.items()} | {
            V(a): ("c", i) for i, (a, _) in enumerate(self.contract)
        }
        other = {V(b): V(o) for b, o in self.out_other.items()}
        return own, other | {V(b): ("c", i) for i, (_, b) in enumerate(self.contract)}


def dot_general(step: Step) -> list[Change | None]:
    """A contraction: linear in each side. With both changing, also the product of the two changes."""
    if not jnp.issubdtype(step.results[0].dtype, jnp.number):
        return fallback(step)
    step = _in_one_type(step)
    if len(step.changing()) == 1:
        side = 0 if step.operands[0].change is not None else 1
        x, dot = step.operands[side], Dot(step, side)
        values = step.values(x, [a for a, _ in dot.contract])
        if values is not None:
            whole = _with_constant(step, dot, Piece(values.layout, (values.value,)), step.operands[1 - side])
            product = step.site.order.multiply(whole.factors)
            return [New(whole.layout, Labelled(product.data.astype(step.results[0].dtype), product.axes))]
    pieces: list[Piece] = []
    for side, x in enumerate(step.operands):
        if x.change is not None:
            dot = Dot(step, side)
            pieces += [_with_constant(step, dot, p, step.operands[1 - side]) for p in step.pieces(x)]
    if all(x.change is not None for x in step.operands):
        x, y = step.operands
        dot = Dot(step, 0)
        for p in step.pieces(x):
            for q in step.pieces(y):
                both = _with_change(step, dot, p, q)
                if both is None:
                    return fallback(step)
                pieces.append(both)
    dtype = step.results[0].dtype
    pieces = [Piece(p.layout, tuple(Labelled(f.data.astype(dtype), f.axes) for f in p.factors)) for p in pieces]
    total = step.site.tidy(pieces)
    return [total] if len(total.pieces) <= 8 else fallback(step)


def _in_one_type(step: Step) -> Step:
    """The operands in the type of the result: the primitive takes mixed ones."""
    dtype, operands = step.results[0].dtype, []
    for x in step.operands:
        if x.change is not None and x.base.dtype != dtype:
            x = Operand(x.base.astype(dtype), step.site.cast(x.change, x.base, dtype), x.read)
        operands.append(x)
    return replace(step, operands=operands)


def _with_constant(step: Step, dot: Dot, p: Piece, constant: Operand) -> Piece:
    site, layout = step.site, p.layout
    at: list[Any] = [None] * len(constant.shape)
    positions: dict[int, np.ndarray] = {}
    for a, b in (*dot.contract, *dot.batch):
        at[b] = layout.where[a]
        if layout.where[a] == ENTRIES and layout.entries is not None:
            positions[b] = layout.entries.positions[a]
    entries = layout.entries
    if entries is not None:
        entries = Entries(entries.elements, positions, entries.runs, entries.chunk)
    sparse = _by_entries(step, dot, p, constant)
    if sparse is not None:
        return sparse
    read = site.take(constant.base, Layout(tuple(at), entries))
    own, other = dot.names()
    factors = [f.rename(own) for f in p.factors]
    return _contracted(step, dot, layout, factors, [read.rename(other)], dot.contract)


def _with_change(step: Step, dot: Dot, p: Piece, q: Piece) -> Piece | None:
    met = meet(step.site, p, q, [*dot.contract, *dot.batch])
    if met is None:
        return None
    first, second, where = met
    own, other = dot.names()
    layout = Layout(tuple(where.get(a, w) for a, w in enumerate(p.layout.where)))
    extra = {dot.out_other[b]: q.layout.where[b] for b in dot.other}
    factors = [f.rename(own) for f in first]
    return _contracted(step, dot, layout, factors, [f.rename(other) for f in second], dot.contract, extra)


def _contracted(
    step: Step,
    dot: Dot,
    layout: Layout,
    factors: list[Labelled],
    read: list[Labelled],
    contract: Sequence[tuple[int, int]],
    extra: dict[int, Any] | None = None,
) -> Piece:
    """Sum a product over the contracted axes that are touched everywhere; along the others there is one term."""
    site, own_shape = step.site, step.operands[dot.side].shape
    free = {("c", i): own_shape[a] for i, (a, _) in enumerate(contract) if layout.where[a] is None}
    arrays = [*factors, *read]
    over = [axis for axis in free if any(axis in f.axes for f in arrays)]
    if over:
        summed = [f for f in arrays if any(axis in f.axes for axis in over)]
        small = [f for f in arrays if not any(axis in f.axes for axis in over)]
        arrays = [*small, site.order.contract(summed, over)]
    times = 1
    for axis, size in free.items():
        times *= 1 if axis in over else size
    if times != 1:
        arrays.append(Labelled(jnp.asarray(times, arrays[0].data.dtype), ()))
    # A list of entries over a contracted axis: entries of one element that meet in a position are added up.
    where: list[Any] = [None] * len(step.shape)
    for a, o in dot.out_own.items():
        where[o] = layout.where[a]
    for o, w in (extra or {}).items():
        where[o] = w
    rank = len(step.shape)
    if layout.entries is not None:
        gone = [a for a, _ in contract if layout.where[a] == ENTRIES]
        number = dict(dot.out_own) | {a: rank + i for i, a in enumerate(gone)}
        padded = layout.rename([*where, *(ENTRIES for _ in gone)], number)
        sizes = (*step.shape, *(own_shape[a] for a in gone))
        piece = site.sum_entries(Piece(padded, tuple(arrays)), range(rank, rank + len(gone)), sizes)
        return Piece(Layout(piece.layout.where[:rank], piece.layout.entries), site.grouped(piece.factors))
    return Piece(Layout(tuple(where)), site.grouped(arrays))


def _by_entries(step: Step, dot: Dot, p: Piece, constant: Operand) -> Piece | None:
    """A product with a matrix that is mostly zeros: only the rows where an element's column is not zero change."""
    site, layout = step.site, p.layout
    plain = len(dot.contract) == 1 and not dot.batch and len(dot.other) == 1 and len(dot.own) == 0
    if not plain or layout.entries is not None or not site.sparse:
        return None
    a, b = dot.contract[0]
    j = layout.where[a]
    if not isinstance(j, int) or len(site.shape) != 1 or E(j) in site.starts or any(f.has("v") for f in p.factors):
        return None
    matrix = constant.read()
    if matrix is None or np.count_nonzero(matrix) > _SPARSE * matrix.size:
        return None
    matrix = matrix if b == 0 else matrix.T  # (element, position)
    entries = _chunked(matrix != 0, j)
    if entries is None:
        return None
    column = matrix[entries.elements[j], entries.positions[0]]
    factors = [_in_chunks(f, entries, j) for f in p.factors]
    column = Labelled(jnp.asarray(column, constant.base.dtype), (M,))
    return Piece(Layout((ENTRIES,), entries), (*factors, column))


def _chunked(nonzero: np.ndarray, j: int) -> Entries | None:
    """The nonzeros of each row in whole chunks, filled up with zeros; None where a row has too few of those."""
    length, count = nonzero.shape[1], nonzero.sum(axis=1)
    for chunk in sorted(range(16, 129), key=lambda c: abs(c - 64)):
        if np.all(-(-count // chunk) * chunk <= length):
            break
    else:
        return None
    wanted = -(-count // chunk) * chunk
    # Nonzeros first, in order, then zeros: a stable sort of each row.
    order = np.argsort(~nonzero, axis=1, kind="stable").astype(np.int32)
    taken = np.arange(length) < wanted[:, None]
    element = np.repeat(np.arange(len(nonzero), dtype=np.int32), wanted)
    return Entries({j: element}, {0: order[taken]}, chunk=chunk)


def _in_chunks(array: Labelled, entries: Entries, j: int) -> Labelled:
    """An array over elements at the entries: one number for each chunk."""
    if E(j) not in array.axes:
        return array
    at = array.axes.index(E(j))
    each = jnp.take(array.data, jnp.asarray(entries.elements[j][:: entries.chunk]), axis=at, mode="clip")
    each = jnp.expand_dims(jax.lax.optimization_barrier(each), at + 1)
    shape = (*each.shape[: at + 1], entries.chunk, *each.shape[at + 2 :])
    data = jnp.broadcast_to(each, shape).reshape(*shape[:at], -1, *shape[at + 2 :])
    return Labelled(data, tuple(M if axis == E(j) else axis for axis in array.axes))


RULES: dict[str, Rule] = {"dot_general": dot_general}
