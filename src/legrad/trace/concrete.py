"""The numbers behind arrays, while a program is traced.

Inside `jit` the arguments of a program are abstract. A caller that compiles for one set of data, as `fit` does, says
so with `compiled_for`; plans can then use what those data determine (which links exist, which entries are zero).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from legrad import _compat

_READABLE = 1 << 27  # numbers; larger arrays are not read


class _Behind(threading.local):
    """The arrays behind the tracers of one thread, by the tracer's identity.

    Each entry holds its tracer, so that no other object can take over its identity.
    """

    def __init__(self) -> None:
        self.arrays: dict[int, tuple[Any, Any]] = {}


_BEHIND = _Behind()


@contextmanager
def compiled_for(tracers: Sequence[Any], values: Sequence[Any]) -> Iterator[None]:
    """Declare which arrays are behind the arguments of a program, while the program is traced.

    The compiled program must be run with these values only.
    """
    before = _BEHIND.arrays
    _BEHIND.arrays = before | {id(t): (t, v) for t, v in zip(tracers, values, strict=True)}
    try:
        yield
    finally:
        _BEHIND.arrays = before


def same_numbers(new: Any, old: Any) -> Any:
    """Return `new`, which holds the numbers of `old`, and make it readable if `old` is."""
    if _BEHIND.arrays and (numbers := read(old)) is not None:
        _BEHIND.arrays[id(new)] = (new, numbers)
    return new


def read(value: Any) -> np.ndarray | None:
    """Return the numbers in an array, or None if they cannot be read now.

    An array that is spread over several processes is not read: no process holds it whole.
    """
    while (behind := _BEHIND.arrays.get(id(value), (None, value))[1]) is not value:
        value = behind  # which may be a tracer of an outer program itself
    if not _compat.is_concrete(value) or np.size(value) > _READABLE:
        return None
    if isinstance(value, jax.Array) and not (value.is_fully_addressable or value.is_fully_replicated):
        return None
    dtype = jax.typeof(value).dtype
    if jax.dtypes.issubdtype(dtype, jax.dtypes.extended) or np.dtype(dtype).kind not in "biuf":
        return None
    return np.asarray(value)
