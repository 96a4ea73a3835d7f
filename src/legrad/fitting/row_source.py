"""Rows of a random-access data source, such as those of Grain, read as arrays.

A source has `len(source)` and `source[i]`, the record of row i: an array or number, or a tuple, list or dict of them.
A source that also has `__getitems__` is asked for many rows at a time.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


class RowSource:
    """A data source as columns: one array for each part of its records.

    Args:
        source: the source. The record of its first row tells types and shapes.
    """

    def __init__(self, source: Any) -> None:
        self.source = source
        self.rows = len(source)
        if not self.rows:
            raise ValueError(f"the {type(source).__name__} has no rows: give a source with at least one")
        self.layout = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in self._parts(0, source[0])]

    def read(self, rows: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the rows with the given numbers, a list, as one array for each part of a record."""
        numbers = [int(i) for i in rows]
        many = getattr(self.source, "__getitems__", None)
        records = many(numbers) if many is not None else (self.source[i] for i in numbers)
        columns = [np.empty((len(numbers), *part.shape), part.dtype) for part in self.layout]
        for at, (i, record) in enumerate(zip(numbers, records, strict=True)):
            parts = self._parts(i, record)
            shapes = [part.shape for part in parts]
            if shapes != [part.shape for part in self.layout]:
                raise ValueError(
                    f"row {i} of the {type(self.source).__name__} has parts of shapes {shapes}, the first row of "
                    f"{[part.shape for part in self.layout]}: give all rows the same shapes"
                )
            for column, part in zip(columns, parts, strict=True):
                column[at] = part
        return tuple(columns)

    def _parts(self, row: int, record: Any) -> list[np.ndarray]:
        parts = [np.asarray(leaf) for leaf in jax.tree.leaves(record)]
        for part in parts:
            if part.dtype.kind not in "biuf":
                raise TypeError(
                    f"row {row} of the {type(self.source).__name__} holds {part.dtype}, not numbers: map the source "
                    "to records of numbers"
                )
        return parts


def is_source(data: Any) -> bool:
    """Whether data are a source of records rather than an array."""
    if isinstance(data, list | tuple | str | bytes | dict) or hasattr(data, "__array__") or hasattr(data, "dtype"):
        return False
    return hasattr(data, "__getitem__") and hasattr(data, "__len__")
