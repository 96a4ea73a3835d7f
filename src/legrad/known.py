"""What is known about the numbers in an array while a program is traced.

Inside `jit` the arguments of a program are abstract. A caller that compiles for one set of data, as `fit` does, says
so with `known`, and what those data decide (which links are there, which entries are zero) can then be planned.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from legrad import _compat


class _Local(threading.local):
    """What the thread that traces knows."""

    def __init__(self) -> None:
        self.levels: list[dict[int, tuple[Any, Any]]] = []


_LOCAL = _Local()
_READABLE = 1 << 27  # numbers; larger arrays are not looked into


@contextmanager
def known(tracers: Sequence[Any], values: Sequence[Any]) -> Iterator[None]:
    """Say which arrays stand behind the arguments of a program, while it is traced.

    The compiled program must be run with these values only.
    """
    _LOCAL.levels.append({id(tracer): (tracer, value) for tracer, value in zip(tracers, values, strict=True)})
    try:
        yield
    finally:
        _LOCAL.levels.pop()


def same(new: Any, old: Any) -> Any:
    """`new`, which holds the numbers of `old` and may be read where that can."""
    if _LOCAL.levels and (numbers := read(old)) is not None:
        _LOCAL.levels[-1][id(new)] = (new, numbers)
    return new


def read(value: Any) -> np.ndarray | None:
    """The numbers in an array, or None where they cannot be read now."""
    for level in reversed(_LOCAL.levels):
        if id(value) in level:
            value = level[id(value)][1]
    if not _compat.is_concrete(value) or np.size(value) > _READABLE:
        return None
    dtype = jax.typeof(value).dtype
    if jax.dtypes.issubdtype(dtype, jax.dtypes.extended) or np.dtype(dtype).kind not in "biuf":
        return None
    return np.asarray(value)
