"""Contract two changes, or a change and a constant, as in `dot_general`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from legrad.singlesite.change import MOST_PIECES, Change, Lazy, New, Piece
from legrad.singlesite.labelled import Axis, E, Labelled, M, V
from legrad.singlesite.layout import ENTRIES, Entries, Layout
from legrad.singlesite.rules.fallback import fallback
from legrad.singlesite.rules.operand import Operand, Rule, Step
from legrad.singlesite.rules.pieces import meet, sum_product
from legrad.singlesite.site import Site

_SPARSE = 0.3  # a matrix with a smaller share of nonzeros is read by entries


class Dot:
    """The axes of a `dot_general`, seen from the side that changes."""

    def __init__(self, step: Step, side: int) -> None:
        contract, batch = step.eqn.params["dimension_numbers"]
        self.side = side
        self.contract = list(zip(contract[side], contract[1 - side], strict=True))
        self.batch = list(zip(batch[side], batch[1 - side], strict=True))
        own, other = step.operands[side], step.operands[1 - side]
        self.own = self._free(len(own.shape), contract[side], batch[side])
        self.other = self._free(len(other.shape), contract[1 - side], batch[1 - side])
        # The result has the batch axes, then those of the left side, then those of the right.
        lead = len(self.batch)
        first = {side: lead + side * len(self.other), 1 - side: lead + (1 - side) * len(self.own)}
        self.out_own = {a: first[side] + i for i, a in enumerate(self.own)}
        self.out_own |= {a: i for i, (a, _) in enumerate(self.batch)}
        self.out_other = {b: first[1 - side] + i for i, b in enumerate(self.other)}
        self.out_other |= {b: i for i, (_, b) in enumerate(self.batch)}

    @staticmethod
    def _free(rank: int, *used: Sequence[int]) -> list[int]:
        """Return the axes that are neither contracted nor batch axes."""
        return [a for a in range(rank) if not any(a in axes for axes in used)]

    def names(self) -> tuple[dict[Axis, Axis], dict[Axis, Axis]]:
        """Return the names of both sides' axes in the result; contracted axes are called ("c", i)."""
        own = {V(a): V(o) for a, o in self.out_own.items()} | {
            V(a): ("c", i) for i, (a, _) in enumerate(self.contract)
        }
        other = {V(b): V(o) for b, o in self.out_other.items()}
        return own, other | {V(b): ("c", i) for i, (_, b) in enumerate(self.contract)}


def dot_general(step: Step) -> list[Change | None]:
    """Contract two operands, which is linear in each. If both change, add the product of the two changes."""
    if not jnp.issubdtype(step.results[0].dtype, jnp.number):
        return fallback(step)
    step = _in_one_type(step)
    value = _of_values(step)
    if value is not None:
        return [value]
    pieces: list[Piece] = []
    for side, x in enumerate(step.operands):
        if x.change is not None:
            dot = Dot(step, side)
            pieces += [_with_constant(step, dot, p, step.operands[1 - side]) for p in step.pieces(x)]
    if all(x.change is not None for x in step.operands):
        for x in step.operands:
            if isinstance(x.change, Lazy) and not x.change.values_known:
                step.site.digits.flag_lost(x.change, x.base)
        both = _of_both_changes(step)
        if both is None:
            return fallback(step)
        pieces += both
    total = step.site.tidy([piece.cast(step.results[0].dtype) for piece in pieces])
    return [total] if len(total.pieces) <= MOST_PIECES else fallback(step)


def _of_values(step: Step) -> New | None:
    """Contract the values of the one operand that changes, if that keeps digits; otherwise return None."""
    if len(step.changing()) != 1:
        return None
    side = 0 if step.operands[0].change is not None else 1
    x, dot = step.operands[side], Dot(step, side)
    values = step.values(x, [a for a, _ in dot.contract])
    if values is None:
        return None
    whole = _with_constant(step, dot, Piece(values.layout, (values.value,)), step.operands[1 - side])
    product = step.site.order.multiply(whole.factors)
    return New(whole.layout, Labelled(product.data.astype(step.results[0].dtype), product.axes))


def _of_both_changes(step: Step) -> list[Piece] | None:
    """Contract the changes of the two operands; return None if a product of pieces has no simple form."""
    x, y = step.operands
    dot, done = Dot(step, 0), []
    for p in step.pieces(x):
        for q in step.pieces(y):
            both = _with_change(step, dot, p, q)
            if both is None:
                return None
            done.append(both)
    return done


def _in_one_type(step: Step) -> Step:
    """Convert the operands to the type of the result, since the primitive takes operands of mixed types."""
    dtype, operands = step.results[0].dtype, []
    for x in step.operands:
        if x.change is not None and x.base.dtype != dtype:
            x = Operand(x.base.astype(dtype), step.site.cast(x.change, x.base, dtype), x.read)
        operands.append(x)
    return replace(step, operands=operands)


def _with_constant(step: Step, dot: Dot, p: Piece, constant: Operand) -> Piece:
    """Contract a piece with a constant, read only at the places that the piece touches."""
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
    return _contracted(step, dot, layout, factors, [read.rename(other)])


def _with_change(step: Step, dot: Dot, p: Piece, q: Piece) -> Piece | None:
    """Contract two pieces; return None if the product has no simple form."""
    met = meet(step.site, p, q, [*dot.contract, *dot.batch])
    if met is None:
        return None
    first, second, where = met
    own, other = dot.names()
    layout = Layout(tuple(where.get(a, w) for a, w in enumerate(p.layout.where)))
    extra = {dot.out_other[b]: q.layout.where[b] for b in dot.other}
    factors = [f.rename(own) for f in first]
    return _contracted(step, dot, layout, factors, [f.rename(other) for f in second], extra)


def _contracted(
    step: Step,
    dot: Dot,
    layout: Layout,
    factors: list[Labelled],
    read: list[Labelled],
    extra: dict[int, Any] | None = None,
) -> Piece:
    """Contract a product: sum over the contracted axes that are touched everywhere; the others have one term.

    Entries of one element that differ along contracted axes only are added up.

    Args:
        step: the equation.
        dot: the axes of the equation.
        layout: the layout of the side that changes.
        factors: the factors of that side, with the names of `dot.names()`.
        read: the factors of the other side, with the same names.
        extra: for axes of the result that come from the other side alone, what is touched; everything by default.
    """
    site, own_shape, rank = step.site, step.operands[dot.side].shape, len(step.shape)
    free = {("c", i): own_shape[a] for i, (a, _) in enumerate(dot.contract) if layout.where[a] is None}
    arrays = sum_product(site, [*factors, *read], free)
    where: list[Any] = [None] * rank
    for a, o in dot.out_own.items():
        where[o] = layout.where[a]
    for o, w in (extra or {}).items():
        where[o] = w
    if layout.entries is None:
        return Piece(Layout(tuple(where)), site.grouped(arrays))
    # Listed contracted axes stay as extra axes at the end, until the entries are summed over them.
    gone = [a for a, _ in dot.contract if layout.where[a] == ENTRIES]
    into = dict(dot.out_own) | {a: rank + i for i, a in enumerate(gone)}
    padded = layout.rename([*where, *(ENTRIES for _ in gone)], into)
    sizes = (*step.shape, *(own_shape[a] for a in gone))
    piece = site.sum_entries(Piece(padded, tuple(arrays)), range(rank, rank + len(gone)), sizes)
    return Piece(Layout(piece.layout.where[:rank], piece.layout.entries), site.grouped(piece.factors))


def _by_entries(step: Step, dot: Dot, p: Piece, constant: Operand) -> Piece | None:
    """Multiply by a matrix that is mostly zeros: an element touches only the rows where its column is not zero.

    Returns None if the matrix has few zeros, or cannot be read, or the product has another form.
    """
    if not _is_matrix_vector(step.site, dot, p):
        return None
    ((a, b),) = dot.contract
    j = p.layout.where[a]
    if not isinstance(j, int):
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


def _is_matrix_vector(site: Site, dot: Dot, p: Piece) -> bool:
    """Return whether a product is that of a matrix and a whole vector of latents, for which lists are allowed."""
    plain = len(dot.contract) == 1 and not dot.batch and len(dot.other) == 1 and len(dot.own) == 0
    vector = len(site.shape) == 1 and E(0) not in site.starts and site.sparse
    return plain and vector and p.layout.entries is None and not p.varies()


def _chunked(nonzero: np.ndarray, j: int) -> Entries | None:
    """List the nonzeros of each row in whole chunks, filled up with zeros; return None if a row has too few zeros."""
    length, count = nonzero.shape[1], nonzero.sum(axis=1)
    for chunk in sorted(range(16, 129), key=lambda c: abs(c - 64)):
        if np.all(-(-count // chunk) * chunk <= length):
            break
    else:
        return None
    wanted = -(-count // chunk) * chunk
    # A stable sort of each row puts the nonzeros first, in order, and then the zeros.
    order = np.argsort(~nonzero, axis=1, kind="stable").astype(np.int32)
    taken = np.arange(length) < wanted[:, None]
    element = np.repeat(np.arange(len(nonzero), dtype=np.int32), wanted)
    return Entries({j: element}, {0: order[taken]}, chunk=chunk)


def _in_chunks(array: Labelled, entries: Entries, j: int) -> Labelled:
    """Read an array over elements at the entries, with one gathered number for each chunk."""
    if E(j) not in array.axes:
        return array
    at = array.axes.index(E(j))
    each = jnp.take(array.data, jnp.asarray(entries.elements[j][:: entries.chunk]), axis=at, mode="clip")
    each = jnp.expand_dims(jax.lax.optimization_barrier(each), at + 1)
    shape = (*each.shape[: at + 1], entries.chunk, *each.shape[at + 2 :])
    data = jnp.broadcast_to(each, shape).reshape(*shape[:at], -1, *shape[at + 2 :])
    return Labelled(data, tuple(M if axis == E(j) else axis for axis in array.axes))


RULES: dict[str, Rule] = {"dot_general": dot_general}
