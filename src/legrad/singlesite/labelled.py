"""Arrays with labelled axes, which store the changes of all elements and candidates.

An axis is ("k", 0), the candidates; ("e", j), axis j of the latent whose elements change; ("m", 0), a list of
entries; or ("v", a), axis a of the value in the program. An array is constant along the axes that it lacks, so no
array is larger than it must be, and no array has an axis of size 1 (a trailing one makes XLA's CPU code many times
slower).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from string import ascii_letters
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Axis = tuple[str, int]
K: Axis = ("k", 0)
M: Axis = ("m", 0)


def E(j: int) -> Axis:
    """Return the name of axis j of the latent."""
    return ("e", j)


def V(a: int) -> Axis:
    """Return the name of axis a of a value."""
    return ("v", a)


class Labelled(NamedTuple):
    """An array and the names of its axes."""

    data: jax.Array
    axes: tuple[Axis, ...]

    def size_of(self, axis: Axis) -> int:
        """Return the length of an axis; 1 if the array lacks the axis."""
        return int(self.data.shape[self.axes.index(axis)]) if axis in self.axes else 1

    def has(self, kind: str) -> bool:
        """Return whether the array has an axis of this kind."""
        return any(axis[0] == kind for axis in self.axes)

    def rename(self, names: Mapping[Axis, Axis]) -> Labelled:
        """Return the same array with other names of its axes."""
        return Labelled(self.data, tuple(names.get(axis, axis) for axis in self.axes))

    def squeezed(self) -> Labelled:
        """Return the same array without its axes of size 1."""
        unit = tuple(i for i, n in enumerate(self.data.shape) if n == 1)
        kept = tuple(axis for i, axis in enumerate(self.axes) if i not in unit)
        return Labelled(jnp.squeeze(self.data, unit), kept)


class Order:
    """The order in which axes are laid out in memory: those of the value last, or first.

    Which order is faster depends on the constants that a program multiplies by: a product with the columns of a
    row-major matrix wants the elements side by side, a product with its rows wants the values side by side.
    """

    def __init__(self, values_first: bool = False) -> None:
        kinds = "cvkem" if values_first else "kemcv"
        self.rank = {kind: i for i, kind in enumerate(kinds)}

    def sort(self, axes: Collection[Axis]) -> tuple[Axis, ...]:
        """Sort axes in the order of memory."""
        return tuple(sorted(axes, key=lambda axis: (self.rank[axis[0]], axis[1])))

    def around(self, axes: Iterable[Axis]) -> tuple[list[Axis], list[Axis]]:
        """Split axes into those that come before the axes of the elements, and those that come after."""
        ordered = self.sort(list(axes))
        before = [axis for axis in ordered if self.rank[axis[0]] < self.rank["e"]]
        return before, [axis for axis in ordered if axis not in before]

    def combine(self, fn: Callable[..., Any], *arrays: Labelled) -> Labelled:
        """Apply an elementwise function to arrays with different axes."""
        axes = self.sort({axis for array in arrays for axis in array.axes})
        parts = [arrange(array, axes) for array in arrays]
        shape = jnp.broadcast_shapes(*(part.shape for part in parts))
        return Labelled(fn(*(jnp.broadcast_to(part, shape) for part in parts)), axes)

    def multiply(self, arrays: Sequence[Labelled]) -> Labelled:
        """Multiply several arrays."""
        total = arrays[0]
        for array in arrays[1:]:
            total = self.combine(jnp.multiply, total, array)
        return total

    def contract(self, arrays: Sequence[Labelled], over: Collection[Axis]) -> Labelled:
        """Multiply several arrays, and sum the product over some axes."""
        if len(arrays) == 1:
            return _sum(arrays[0], over)
        names = {axis: ascii_letters[i] for i, axis in enumerate({a: None for x in arrays for a in x.axes})}
        kept = self.sort([axis for axis in names if axis not in over])
        spec = ",".join("".join(names[axis] for axis in x.axes) for x in arrays)
        spec += "->" + "".join(names[axis] for axis in kept)
        dtype = jnp.result_type(*(x.data for x in arrays))
        return Labelled(jnp.einsum(spec, *(x.data for x in arrays), preferred_element_type=dtype), kept)


def _sum(array: Labelled, over: Collection[Axis]) -> Labelled:
    """Sum an array over some axes."""
    gone = tuple(i for i, axis in enumerate(array.axes) if axis in over)
    rest = tuple(axis for axis in array.axes if axis not in over)
    return Labelled(jnp.sum(array.data, axis=gone, dtype=array.data.dtype) if gone else array.data, rest)


def arrange(array: Labelled, axes: Sequence[Axis]) -> jax.Array:
    """Return the plain array with exactly these axes in this order; those that the array lacks have size 1."""
    data = jnp.transpose(array.data, [array.axes.index(axis) for axis in axes if axis in array.axes])
    missing = [i for i, axis in enumerate(axes) if axis not in array.axes]
    return jnp.expand_dims(data, missing)


def spread(array: Labelled, axes: Sequence[Axis], sizes: Mapping[Axis, int]) -> jax.Array:
    """Return the plain array with exactly these axes in this order, all at full size."""
    data = arrange(array, axes)
    return jnp.broadcast_to(data, [sizes[axis] for axis in axes])
