"""Values of a program at every candidate of the discrete elements that they depend on.

A number that depends on elements a and b of a latent is a table, one entry for each pair of candidates. An array of
such numbers is kept as one array: leading axes for the candidates, one `Label` each, then the axes of the value
itself. A label says for each position of the value *which* element its axis stands for, so `z[:-1] * z[1:]` is a
table with two labels, whatever the length of z. Axes of length 1 stand for all positions along them: a table of
transitions that is the same at all times is stored once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Shape = tuple[int, ...]
NONE = -1  # no element: the table does not vary along this axis at this position


class CannotSum(Exception):
    """Elements that meet in one number in a way that cannot be summed, or that would cost too much.

    Attributes:
        elements: the elements that meet.
        reason: why they cannot be summed.
        values: how many joint values the sum would have; None if unknown.
        line: the line of the user's model where they meet, "" if it is inside a density.
        primitive: the primitive that mixes them there.
        term: the site in whose density they meet.
    """

    def __init__(self, elements: Sequence[int], reason: str, values: int | None = None) -> None:
        super().__init__(reason)
        self.elements, self.reason, self.values = list(elements), reason, values
        self.line = self.primitive = self.term = ""


@dataclass(frozen=True)
class Label:
    """One axis of candidates: how many there are, and the element at each position of the value (-1: none)."""

    size: int
    elements: np.ndarray

    def varies(self, axis: int) -> bool:
        """Whether different positions along an axis mean different elements."""
        return bool(self.elements.shape[axis] > 1)

    def some(self, count: int = 2) -> list[int]:
        """Return a few of the elements."""
        found = np.unique(self.elements)
        return [int(e) for e in found[found >= 0][:count]]


@dataclass(frozen=True)
class Table:
    """An array at every candidate: `values` has an axis for each label, then the axes of the array or length 1."""

    values: Any
    labels: tuple[Label, ...]
    shape: Shape

    @property
    def own(self) -> Shape:
        """The lengths of the stored axes of the array itself."""
        return tuple(jnp.shape(self.values)[len(self.labels) :])

    def relabelled(self, place: Callable[[np.ndarray], np.ndarray]) -> Table:
        """Place the elements of the labels elsewhere, for a result of another rank."""
        return Table(self.values, tuple(Label(x.size, place(x.elements)) for x in self.labels), self.shape)

    def moved(self, move: Callable[[Any, int], Any], shape: Shape) -> Table:
        """Apply a movement of numbers, `move(array, leading axes)`, to the values and to the elements."""
        labels = tuple(Label(label.size, move(label.elements, 0)) for label in self.labels)
        return Table(move(self.values, len(self.labels)), labels, shape)

    def full(self, axes: Sequence[int] | None = None) -> Table:
        """Store all positions along some axes, or along all."""
        want = range(len(self.shape)) if axes is None else axes
        own = tuple(self.shape[a] if a in want else n for a, n in enumerate(self.own))
        return self if own == self.own else Table(self.spanning(own), self.labels, self.shape)

    def spanning(self, own: Shape) -> Any:
        """Return the values with stored axes of the given lengths."""
        lead = jnp.shape(self.values)[: len(self.labels)]
        return jnp.broadcast_to(self.values, (*lead, *own))

    def varying(self, axes: Sequence[int]) -> list[int]:
        """List the axes, among some, along which an element of a label changes."""
        return [a for a in axes if any(label.varies(a) for label in self.labels)]


def constant(value: Any) -> Table:
    """Wrap an array that depends on no element."""
    return Table(value, (), tuple(jnp.shape(value)))


def raised(table: Table, rank: int) -> Table:
    """Give a number without axes the rank of an array."""
    if len(table.shape) == rank or table.shape:
        return table
    return table.moved(lambda x, lead: x.reshape(*x.shape[:lead], *(1,) * rank), (1,) * rank)


def merged(a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    """Return the elements of two labels as one if they agree wherever both have one; None if they differ somewhere.

    Labels that are not merged may still name one element in some positions. Only the entries where both axes have the
    same candidate then mean anything; they are picked out when the table becomes a factor.
    """
    if a is b:
        return a
    both = (a >= 0) & (b >= 0)
    if np.any(both & (a != b)):
        return None
    joined: np.ndarray = np.maximum(a, b)
    return joined


def align(
    tables: Sequence[Table], limit: int, arrays: Any = jnp, position_wise: bool = False
) -> tuple[list[Any], tuple[Label, ...]]:
    """Return the values of tables with all labels in common: equal ones on one axis, length 1 where one is absent.

    The stored axes of the arrays are left as they are; all tables must have the same rank. `arrays` is the module
    that makes them, NumPy for numbers that are known.

    If the operation is `position_wise`, labels and stored axes have the same positions, and what two labels of one
    element say of it is made to agree (`_agreeing`).
    """
    labels: list[Label] = []
    places: list[list[int]] = []
    for table in tables:
        mine: list[int] = []
        for label in table.labels:
            for i, other in enumerate(labels):
                joined = (
                    merged(other.elements, label.elements) if other.size == label.size and i not in mine else None
                )
                if joined is not None:
                    labels[i] = Label(label.size, joined)
                    mine.append(i)
                    break
            else:
                labels.append(label)
                mine.append(len(labels) - 1)
        places.append(mine)
    _check_size(labels, limit)
    values = [_expanded(t, mine, len(labels), arrays) for t, mine in zip(tables, places, strict=True)]
    if position_wise and len(tables) > 1:
        values = [_agreeing(v, mine, labels, arrays) for v, mine in zip(values, places, strict=True)]
    return values, tuple(labels)


def _agreeing(values: Any, mine: Sequence[int], labels: Sequence[Label], arrays: Any) -> Any:
    """Put what is possible where two labels give one element different candidates.

    Such entries never count, but functions of them are computed, and their derivative may be infinite: 0 · ∞ is NaN.
    So an operand that has the second label alone is read at the candidate of the first.
    """
    lead = len(labels)
    for j in mine:
        for i in range(j):
            if i in mine or labels[i].size != labels[j].size:
                continue
            same = (labels[i].elements == labels[j].elements) & (labels[i].elements >= 0)
            if not same.any():
                continue
            size = labels[j].size
            apart = ~np.eye(size, dtype=bool).reshape(
                [size if a in (i, j) else 1 for a in range(lead)] + [1] * same.ndim
            )
            values = arrays.where(apart & same, arrays.swapaxes(values, i, j), values)
    return values


def _check_size(labels: Sequence[Label], limit: int) -> None:
    size = math.prod(label.size for label in labels)
    if size > limit:
        elements = [e for label in labels for e in label.some(1)]
        raise CannotSum(elements, f"{len(labels)} elements are seen together", size)


def _expanded(table: Table, places: list[int], count: int, arrays: Any) -> Any:
    order = sorted(range(len(places)), key=lambda i: places[i])
    lead = len(places)
    values = arrays.asarray(table.values).transpose((*order, *range(lead, lead + len(table.own))))
    sizes = [1] * count
    for i, place in enumerate(places):
        sizes[place] = table.labels[i].size
    return values.reshape((*sizes, *table.own))


def common(owns: Sequence[Shape]) -> Shape:
    """Return the stored lengths that arrays of one shape have together."""
    return tuple(max(lengths) for lengths in zip(*owns, strict=True))


def take(table: Table, axis: int, start: int, stop: int) -> Table:
    """Return the positions from start to stop along an axis; labels without an element there are dropped."""

    def move(x: Any, lead: int) -> Any:
        index = (slice(None),) * (lead + axis) + (slice(start, stop),)
        return x if x.shape[lead + axis] == 1 else x[index]

    shape = (*table.shape[:axis], stop - start, *table.shape[axis + 1 :])
    return pruned(table.moved(move, shape))


def pruned(table: Table) -> Table:
    """Drop the labels that have no element at any position, and those that have the elements of another label."""
    index = tuple(slice(None) if (label.elements >= 0).any() else 0 for label in table.labels)
    if any(i == 0 for i in index):
        labels = tuple(label for label, i in zip(table.labels, index, strict=True) if i == slice(None))
        table = Table(table.values[index], labels, table.shape)
    for j, second in enumerate(table.labels):
        for i, first in enumerate(table.labels[:j]):
            if first.size == second.size and np.array_equal(first.elements, second.elements):
                return pruned(_diagonal(table, i, j))
    return table


def _diagonal(table: Table, i: int, j: int) -> Table:
    """Drop the second of two labels that have the same elements."""
    arrays = np if isinstance(table.values, np.ndarray) else jnp
    values = arrays.moveaxis(arrays.diagonal(table.values, axis1=i, axis2=j), -1, i)
    return Table(values, (*table.labels[:j], *table.labels[j + 1 :]), table.shape)


def spread(table: Table, axes: Sequence[int], limit: int) -> Table:
    """Make elements that differ along some axes into labels of their own, which no longer vary along these axes.

    The result has an axis of candidates for every element that is found along the axes.
    """
    for axis in table.varying(axes):
        count = table.shape[axis]
        if count > 64:
            label = next(label for label in table.labels if label.varies(axis))
            raise CannotSum(label.some(), f"{count:,} elements are seen together", label.size**count)
        parts = [take(table, axis, j, j + 1) for j in range(count)]
        values, labels = align(parts, limit, position_wise=True)
        own = common([v.shape[len(labels) :] for v in values])
        sizes = tuple(label.size for label in labels)
        whole = jnp.concatenate([jnp.broadcast_to(v, (*sizes, *own)) for v in values], axis=len(labels) + axis)
        table = Table(whole, labels, table.shape)
    return table


def batched(
    run: Callable[..., list[Any]], tables: Sequence[Table], limit: int
) -> tuple[list[Any], tuple[Label, ...]]:
    """Run a function of arrays at every candidate; return its results, and their labels.

    Each operand is repeated only for the labels that it has. The elements of all labels must have the rank of the
    results, whatever the ranks of the operands.
    """
    labelled = [t for t in tables if t.labels]
    values, labels = align(labelled, limit) if labelled else ([], ())
    given = iter(values)
    operands = [next(given) if t.labels else t.values for t in tables]
    return run_over(run, operands, [bool(t.labels) for t in tables], labels), labels


def run_over(
    run: Callable[..., list[Any]], operands: list[Any], has: list[bool], labels: Sequence[Label]
) -> list[Any]:
    """Run a function once for every joint candidate; operands have all labels' axes (length 1: not repeated)."""
    function = run
    for i in reversed(range(len(labels))):
        axes = [0 if h and jnp.shape(x)[i] > 1 else None for h, x in zip(has, operands, strict=True)]
        if any(a == 0 for a in axes):
            function = jax.vmap(function, in_axes=tuple(axes), out_axes=0)
        else:
            function = _widened(function)
    squeezed = []
    for h, x in zip(has, operands, strict=True):
        drop = tuple(i for i in range(len(labels)) if jnp.shape(x)[i] == 1) if h else ()
        squeezed.append(jnp.squeeze(x, drop) if drop else x)
    return function(*squeezed)


def _widened(function: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    return lambda *operands: [jnp.asarray(x)[None] for x in function(*operands)]
