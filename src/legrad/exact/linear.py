"""Numbers as weighted sums of elements: c + Σ_r a_r x_{e_r}, for numbers in which elements meet on several routes.

The variance of Xβ + Zβ, and the mean of a product of two sums of the same elements, follow from the coefficients,

    Cov(Σ_r a_r x_{e_r}, Σ_s b_s x_{e_s}) = Σ_{r,s} a_r b_s Var(x_{e_r}) [e_r = e_s]

A sum is kept as pieces, each with the elements e (known numbers) and the coefficients on a leading axis r. Those of a
product with a constant matrix are read where they are needed, and not stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from legrad.exact.unknown import Unknown
from legrad.trace.operations import run_equation
from legrad.trace.program import Op

MOST = 1 << 24  # coefficients in one piece
_PAIRS = 64  # products of coefficients at one position, where elements do not match one to one


@dataclass(frozen=True)
class Piece:
    """One sum: the elements (R, *shape), the coefficients, and how to read one of them at each position."""

    elements: np.ndarray
    coefficients: Callable[[], Any]
    pick: Callable[[np.ndarray], Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return tuple(self.elements.shape[1:])


def stored(elements: np.ndarray, coefficients: Any) -> Piece:
    """Return a piece with stored coefficients, which may have length 1 along any axis."""

    def pick(r: np.ndarray) -> Any:
        wide = jnp.broadcast_to(coefficients, elements.shape)
        return wide[(r, *np.indices(elements.shape[1:], sparse=True))]

    return Piece(elements, lambda: coefficients, pick)


def scaled(piece: Piece, factor: Any) -> Piece:
    """Multiply by constants, one for each position or one for all."""
    return replace(
        piece,
        coefficients=lambda: piece.coefficients() * factor,
        pick=lambda r: piece.pick(r) * factor,
    )


def moved(piece: Piece, op: Op, operands: Sequence[Any], place: int) -> Piece:
    """Move the numbers by an operation whose other operands are constants; what it fills in sees no element."""

    if op.name in ("convert_element_type", "copy"):
        return piece

    if any(v is None for k, v in enumerate(operands) if k != place):
        raise Unknown("an index that is not known while tracing")
    filled = {"fill_value": 0} if "fill_value" in op.eqn.params else {}
    eqn = op.eqn.replace(params=op.eqn.params | filled)

    def run(x: Any) -> Any:
        return run_equation(eqn, [x if k == place else v for k, v in enumerate(operands)])[0]

    numbers = np.arange(1, math.prod(piece.shape) + 1, dtype=np.int32).reshape(piece.shape)
    with jax.ensure_compile_time_eval():
        at = np.asarray(run(jnp.asarray(numbers)))
    flat = np.concatenate([np.full((len(piece.elements), 1), -1), piece.elements.reshape(len(piece.elements), -1)], 1)
    elements = flat[:, at]
    wide = jnp.broadcast_to(piece.coefficients(), piece.elements.shape)
    return stored(elements, jnp.where(elements >= 0, jax.vmap(run)(wide), 0))


def summed(piece: Piece, axes: Sequence[int]) -> Piece:
    """Sum over axes."""
    order = [0, *(1 + a for a in axes), *(1 + a for a in range(len(piece.shape)) if a not in axes)]
    _check(piece.elements.size)
    elements = piece.elements.transpose(order)
    shape = (math.prod(elements.shape[: 1 + len(axes)]), *elements.shape[1 + len(axes) :])
    wide = jnp.broadcast_to(piece.coefficients(), piece.elements.shape).transpose(order)
    return stored(elements.reshape(shape), wide.reshape(shape))


def contracted(piece: Piece, matrix: Any, dimensions: Any, first: bool) -> Piece:
    """Multiply with a constant by `dot_general`; the sum is its operand on the left if `first`."""
    (contract, batch), rank = dimensions, len(piece.shape)
    mine, theirs = (0, 1) if first else (1, 0)
    c, b = (tuple(x[mine]) for x in (contract, batch))
    cm, bm = (tuple(x[theirs]) for x in (contract, batch))
    free = [a for a in range(rank) if a not in c and a not in b]
    free_m = [a for a in range(jnp.ndim(matrix)) if a not in cm and a not in bm]
    sizes = [piece.shape[a] for a in (*c, *b, *free)]
    lengths_m = [jnp.shape(matrix)[a] for a in free_m]
    R, k, nb = len(piece.elements), len(c), len(b)
    terms = R * math.prod(sizes[:k])
    batches, rows, columns = sizes[k : k + nb], sizes[k + nb :], lengths_m
    shape = (*batches, *rows, *columns) if first else (*batches, *columns, *rows)
    _check(terms * math.prod(sizes[k:]))
    inner = piece.elements.transpose(0, *(1 + a for a in (*c, *b, *free))).reshape(terms, *batches, *rows)
    ones = (1,) * len(columns)
    elements = inner.reshape(terms, *batches, *((*rows, *ones) if first else (*ones, *rows)))
    elements = np.broadcast_to(elements, (terms, *shape))
    spans = [slice(nb, nb + len(rows)), slice(nb + len(rows), None)]
    if not first:
        spans = [slice(nb + len(columns), None), slice(nb, nb + len(columns))]

    def pick(r: np.ndarray) -> Any:
        index = [np.broadcast_to(i, shape) for i in np.indices(shape, sparse=True)]
        which = np.unravel_index(r, (R, *sizes[:k]))
        at_mine: list[Any] = [None] * rank
        at_theirs: list[Any] = [None] * jnp.ndim(matrix)
        for axis, other, i in zip(c, cm, which[1:], strict=True):
            at_mine[axis] = at_theirs[other] = i
        for axis, other, i in zip(b, bm, index[:nb], strict=True):
            at_mine[axis] = at_theirs[other] = i
        for axis, i in zip(free, index[spans[0]], strict=True):
            at_mine[axis] = i
        for axis, i in zip(free_m, index[spans[1]], strict=True):
            at_theirs[axis] = i
        wide = jnp.broadcast_to(piece.coefficients(), piece.elements.shape)
        return wide[(which[0], *at_mine)] * jnp.asarray(matrix)[tuple(at_theirs)]

    def coefficients() -> Any:
        _check(terms * math.prod(shape))
        wide = jnp.broadcast_to(piece.coefficients(), piece.elements.shape)
        left = wide.transpose(0, *(1 + a for a in (*c, *b, *free)))
        left = left.reshape(terms, *batches, *((*rows, *ones) if first else (*ones, *rows)))
        right = jnp.transpose(matrix, (*cm, *bm, *free_m)).reshape(*sizes[:k], *batches, *lengths_m)
        middle = (1,) * len(rows)
        right = right.reshape(1, *sizes[:k], *batches, *((*middle, *columns) if first else (*columns, *middle)))
        right = jnp.broadcast_to(right, (R, *right.shape[1:]))
        return left * right.reshape(terms, *right.shape[1 + k :])

    return Piece(elements, coefficients, pick)


def covariance(left: Sequence[Piece], right: Sequence[Piece], variances: Any) -> Any:
    """Return the covariance of two arrays of sums at each position.

    Args:
        left: the pieces of one array.
        right: the pieces of the other, of the same shape.
        variances: the variance of every element, by its number.
    """
    total: Any = 0.0
    for a in left:
        for b in right:
            total = total + _of_pieces(a, b, variances)
    return total


def _of_pieces(a: Piece, b: Piece, variances: Any) -> Any:
    if len(a.elements) > len(b.elements):
        a, b = b, a
    if len(a.elements) == len(b.elements) and np.array_equal(a.elements, b.elements) and _distinct(a.elements):
        e = a.elements[(slice(None), *_kept(a.elements))]
        weights = jnp.where(e >= 0, variances[np.maximum(e, 0)], 0)
        return jnp.sum(a.coefficients() * b.coefficients() * weights, axis=0)
    total: Any = 0.0
    if len(a.elements) * len(b.elements) > _PAIRS and not _distinct(b.elements):
        raise Unknown("a sum has an element several times, among too many to be matched")
    for r in range(len(a.elements)):
        e = a.elements[r]
        mine = a.pick(np.full(a.shape, r)) * variances[np.maximum(e, 0)]
        if _distinct(b.elements):
            match = _find(b.elements, e)
            total = total + jnp.where(match >= 0, mine * b.pick(np.maximum(match, 0)), 0)
            continue
        for s in range(len(b.elements)):
            same = (b.elements[s] == e) & (e >= 0)
            if same.any():
                total = total + jnp.where(same, mine * b.pick(np.full(b.shape, s)), 0)
    return total


def _find(elements: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return where each wanted element is among those on the leading axis, −1 where it is not."""
    found = np.full(wanted.shape, -1)
    for r, row in enumerate(elements):
        found = np.where((row == wanted) & (wanted >= 0), r, found)
    return found


def _distinct(elements: np.ndarray) -> bool:
    """Say whether no element is listed twice on the leading axis, at any position."""
    if len(elements) < 2:
        return True
    ordered = np.sort(elements[(slice(None), *_kept(elements))], axis=0)
    return not np.any((ordered[1:] == ordered[:-1]) & (ordered[1:] >= 0))


def _kept(elements: np.ndarray) -> tuple[slice, ...]:
    """Return one position along each axis along which all positions have the same elements."""
    return tuple(slice(0, 1) if _same(elements, axis) else slice(None) for axis in range(1, elements.ndim))


def _same(elements: np.ndarray, axis: int) -> bool:
    """Say whether all positions along an axis have the same elements, by how they are stored."""
    return elements.strides[axis] == 0 or elements.shape[axis] == 1


def _check(count: int) -> None:
    if count > MOST:
        raise Unknown(f"{count:,} coefficients would be needed")
