"""Variables that tables are summed over: the elements of all sites, and standardized projections.

A label of a table names the variable at each position. Variables have one numbering: first the elements of the sites,
then, in blocks, projections ξ of Normal elements (u = m + s·ξ), each block for one array of the program. Two
different elements are independent; a projection is independent of what sees none of the elements that are in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from legrad.exact.laws import Law
from legrad.exact.nodes import crowded, plain, rule_error
from legrad.exact.sight import Seen, Sight
from legrad.exact.unknown import Unknown
from legrad.marginal.table import Label, Table

_FEW = 8  # positions for each one where labels meet, above which these are summed apart


class _Block(NamedTuple):
    """A run of variables: the shape of their array, and their weights, (K, *shape), or those of equidistant nodes."""

    start: int
    end: int
    shape: tuple[int, ...]
    weights: Any
    plain: bool


class Variables:
    """The variables of one program.

    Args:
        laws: the laws of the sites, in the order of the program's inputs.
        sight: what the program's values see.
        dtype: the type in which projections are computed.
    """

    def __init__(self, laws: Mapping[str, Law], sight: Sight, dtype: Any) -> None:
        self.laws, self.sight, self.dtype = dict(laws), sight, dtype
        self.z, self.node_weights = (x.astype(dtype) for x in plain(dtype))
        self._placed: list[_Block] = []
        sizes = [math.prod(law.shape) for law in laws.values()]
        self.ends = np.cumsum([0, *sizes])
        self.elements = self.free = int(self.ends[-1])
        self.seen = sight.own
        self.infinite = False  # whether means may be infinite and are left out further on
        self.errors: list[Any] | None = None  # of each sum over nodes, if they are asked for

    def label(self, name: str) -> Label:
        """Return the label of a site's own elements."""
        law, start = self.laws[name], self.sight.starts[name]
        return Label(law.size, np.asarray(start + np.arange(math.prod(law.shape)).reshape(law.shape)))

    def projections(self, shape: tuple[int, ...], seen: Seen) -> Label:
        """Add a projection for each position of an array, and return the label."""
        count = math.prod(shape)
        block = np.zeros((len(self.seen), count), self.seen.dtype) if seen is None else seen.reshape(len(seen), count)
        self.seen = np.concatenate([self.seen, block], axis=1)
        start, self.free = self.free, self.free + count
        return Label(len(self.z), np.asarray(start + np.arange(count).reshape(shape)))

    def place(self, label: Label, center: Any, width: Any) -> Any:
        """Return the nodes of all variables of a new label, (K, *shape), denser near a center."""
        xi, weights = crowded(center, width, self.dtype)
        elements = label.elements
        if elements.size:
            start = int(elements.flat[0])
            self._placed.append(_Block(start, start + elements.size, elements.shape, weights, False))
        return xi

    def is_continuous(self, label: Label) -> bool:
        """Say whether a label's candidates are nodes."""
        found = label.elements[label.elements >= 0]
        return any(number >= self.elements or self._law(int(number)).normal for number in found[:1])

    def hidden(self, label: Label) -> np.ndarray:
        """Return the elements that a label names, −1 where it names none or a projection."""
        return np.where(label.elements < self.elements, label.elements, -1)

    # --- sums over candidates ------------------------------------------------------------------------------------

    def weights(self, label: Label) -> Any:
        """Return the weights of a label's candidates at each position: (K, *positions), or length 1 where equal."""
        elements, rank = label.elements, label.elements.ndim
        blocks, everywhere = self._blocks(elements), bool((elements >= 0).all())
        if everywhere and blocks and all(block.plain for block in blocks):
            return self.node_weights.reshape(-1, *(1,) * rank)
        if everywhere and len(blocks) == 1 and not blocks[0].plain:
            (block,) = blocks
            index = elements - block.start
            window = _window(index, block.shape)
            if window is not None:
                return block.weights[(slice(None), *window)].reshape(label.size, *elements.shape)
            return block.weights.reshape(label.size, -1)[:, index]
        columns = [jnp.zeros((label.size, 1), self.dtype).at[0].set(1.0)]  # a position without an element
        index, begin = np.zeros(elements.shape, int), 1
        for block in blocks:
            columns.append(jnp.reshape(block.weights, (label.size, -1)))
            within = (elements >= block.start) & (elements < block.end)
            index = np.where(within, begin + (0 if block.plain else elements - block.start), index)
            begin += columns[-1].shape[1]
        return jnp.concatenate(columns, axis=1)[:, index]

    def _blocks(self, elements: np.ndarray) -> list[_Block]:
        """Return the weights of all variables among some: of sites, and of projections."""
        found, left = [], elements[elements >= 0]

        def look(block: _Block) -> None:
            nonlocal left
            within = (left >= block.start) & (left < block.end)
            if within.any():
                found.append(block)
                left = left[~within]

        for block in self._placed:
            look(block)
        for law, (start, end) in zip(self.laws.values(), pairwise(self.ends), strict=True):
            weights = law.weights
            if not law.normal:
                weights = jnp.broadcast_to(weights, (len(weights), *law.shape))
            look(_Block(int(start), int(end), law.shape, weights, law.normal))
        look(_Block(self.elements, self.free, (), self.node_weights, True))
        return found

    def expectation(self, table: Table, drop: Sequence[Label] | None = None) -> Table:
        """Sum a table over its labels, or over some of them, with their weights.

        Where two labels name one variable, only the entries in which they agree count.
        """
        self._check(table.labels)
        labels, values = list(table.labels), jnp.asarray(table.values)
        gone = [label for label in labels if drop is None or any(label is x for x in drop)]
        values = self._possible(values, labels, gone)
        table = Table(values, table.labels, table.shape)
        twice = _twice(labels)
        apart = self._meet(table, gone, twice) if twice is not None else None
        for place in reversed(range(len(labels))):
            if any(labels[place] is label for label in gone):
                values = self._summed(values, labels, place, twice is not None and apart is None)
                del labels[place]
        if apart is not None:
            index, right = apart
            values = values.at[(..., *index)].set(right)
        return Table(values, tuple(labels), table.shape)

    def _possible(self, values: Any, labels: list[Label], gone: list[Label]) -> Any:
        """Replace what is infinite by zero where some candidate has weight zero: 0 · ∞ = 0, also in derivatives.

        All labels decide before the first sum: after it, an infinite number would meet a weight of zero again.
        """
        if not jnp.issubdtype(values.dtype, jnp.floating):
            return values
        for place, label in enumerate(labels):
            if any(label is x for x in gone) and not self.is_continuous(label):
                weights = self.weights(label)
                lead = [label.size if i == place else 1 for i in range(len(labels))]
                values = jnp.where(weights.reshape(*lead, *weights.shape[1:]) > 0, values, 0)
        return values

    def _meet(self, table: Table, gone: list[Label], twice: np.ndarray) -> tuple[Any, Any] | None:
        """Sum at the few positions where two labels name one variable; None if they are many."""
        if table.own != table.shape or twice.size < _FEW * np.sum(twice):
            return None
        index = np.nonzero(np.broadcast_to(twice, table.shape))
        few = [Label(x.size, np.broadcast_to(x.elements, table.shape)[index]) for x in table.labels]
        values, labels = jnp.asarray(table.values)[(..., *index)], list(few)
        for place in reversed(range(len(labels))):
            if any(table.labels[place] is label for label in gone):
                values = self._summed(values, labels, place, True)
                del labels[place]
        return index, values

    def _summed(self, values: Any, labels: list[Label], place: int, meeting: bool) -> Any:
        label, lead = labels[place], len(labels)
        own = values.shape[lead:]
        weights = self.weights(label)
        weights = weights.reshape(*(label.size if i == place else 1 for i in range(lead)), *weights.shape[1:])
        if jnp.issubdtype(values.dtype, jnp.floating):
            weights = weights.astype(values.dtype)
        total = self._averaged(weights, values, place, label)
        if self.errors is not None and self.is_continuous(label):
            self.errors.append(rule_error(weights * values, total, place))
        for other in range(lead) if meeting else ():
            if other == place or labels[other].size != label.size:
                continue
            same = (labels[other].elements == label.elements) & (label.elements >= 0)
            if not same.any():
                continue
            diagonal = jnp.moveaxis(jnp.diagonal(values, axis1=other, axis2=place), -1, other - (place < other))
            total = jnp.where(_aligned(same, own), diagonal, total)
        return total

    def _averaged(self, weights: Any, values: Any, place: int, label: Label) -> Any:
        """Return Σ w v; of discrete elements as v_0 + Σ w (v − v_0), as the weights add up to one.

        The derivative by a weight then has the digits of the difference, however large the values are.
        """
        if self.is_continuous(label) or not jnp.issubdtype(values.dtype, jnp.floating):
            return jnp.sum(weights * values, axis=place)
        first = jax.lax.slice_in_dim(values, 0, 1, axis=place)
        first = jax.lax.stop_gradient(jnp.where(jnp.isfinite(first), first, 0.0))
        times = _weighted if self.infinite else jnp.multiply
        return jnp.squeeze(first, place) + jnp.sum(times(weights, values - first), axis=place)

    def _check(self, labels: Sequence[Label]) -> None:
        """Raise unless the variables of all labels are independent wherever they are not the same."""
        for i, a in enumerate(labels):
            for b in labels[i + 1 :]:
                both = (a.elements >= 0) & (b.elements >= 0) & (a.elements != b.elements)
                both &= (a.elements >= self.elements) | (b.elements >= self.elements)
                if not both.any():
                    continue
                seen = (self.seen[:, np.maximum(x.elements, 0)] for x in (a, b))
                if np.any(both & ~self.sight.disjoint(*seen)):
                    raise Unknown("two sums of the same latents meet, which are dependent")

    def _law(self, number: int) -> Law:
        name = self._site(number)
        assert name is not None
        return self.laws[name]

    def _site(self, number: int) -> str | None:
        """Return the site of a variable; None for a projection."""
        for name, (start, end) in zip(self.laws, pairwise(self.ends), strict=True):
            if start <= number < end:
                return name
        return None


@jax.custom_jvp
def _weighted(weights: Any, values: Any) -> Any:
    """Return w v, with a derivative by w of zero where v is infinite.

    A mean that is infinite may be one of an array of which only the others are used: 0 · ∞ would be NaN there.
    """
    return weights * values


@_weighted.defjvp
def _weighted_jvp(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    (weights, values), (of_weights, of_values) = primals, tangents
    return weights * values, of_weights * jnp.where(jnp.isfinite(values), values, 0) + weights * of_values


def _window(index: np.ndarray, shape: tuple[int, ...]) -> tuple[slice, ...] | None:
    """Return the slices of an array that hold these flat positions in their order; None if no slices do.

    A slice stays on the device that holds its numbers, where a look-up gathers them from all.
    """
    if not index.size:
        return None
    places = np.unravel_index(index, shape) if shape else ()
    window = tuple(slice(int(p.min()), int(p.max()) + 1) for p in places)
    inside = np.arange(math.prod(shape)).reshape(shape)[window]
    return window if np.array_equal(inside.ravel(), index.ravel()) else None


def _twice(labels: Sequence[Label]) -> np.ndarray | None:
    """Say at which positions two labels name one variable; None if at no position."""
    found: Any = False
    for i, a in enumerate(labels):
        for b in labels[i + 1 :]:
            found = found | ((a.elements == b.elements) & (a.elements >= 0) & (a.size == b.size))
    return np.asarray(found) if np.any(found) else None


def _aligned(mask: np.ndarray, own: tuple[int, ...]) -> Any:
    """Return a mask of positions for stored axes, which must vary where the mask does."""
    return jnp.asarray(mask.reshape((1,) * (len(own) - mask.ndim) + mask.shape))
