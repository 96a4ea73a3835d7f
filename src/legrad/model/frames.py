"""Data frames among the arguments of a model: their numbers become arrays, their columns and rows become names.

A frame (pandas, or anything with `to_numpy` and `columns`) of shape (rows, columns) is an array of that shape, a
series an array of one axis. The names label the axes of latents that have as many members: see `names_by_size`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import jax
import numpy as np
from numpyro import handlers

from legrad.model.arrays import automatic
from legrad.model.threads import one_at_a_time


class Names(NamedTuple):
    """The names along one axis of an argument.

    Attributes:
        argument: the argument's name in the model, or its position.
        axis: 0 for the rows of a frame, 1 for its columns.
        values: the names, one for each member.
    """

    argument: str
    axis: int
    values: tuple[str, ...]


class Arguments(NamedTuple):
    """The arguments of a model as arrays, and the names that frames among them had."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    names: tuple[Names, ...] = ()


def argument_names(model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """Return a name for each argument, positional ones first: that of the model's signature, or "args[0]"."""
    model = getattr(model, "model", model)  # of a Marginal
    try:
        parameters = list(inspect.signature(model).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    plain = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return [plain[i] if i < len(plain) else f"args[{i}]" for i in range(len(args))] + list(kwargs)


def unframed(model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
    """Turn frames and series among the arguments into arrays, and meshes of arrays into meshes with automatic axes.

    A model that picks columns by their names keeps the frame: if the model does not run with arrays and runs with
    frames, the frames stay.

    Raises:
        TypeError: if a column does not hold numbers; the message names the argument and the column.
    """
    args, kwargs = automatic(args), automatic(dict(kwargs))
    both = [*args, *kwargs.values()]
    if not any(_is_frame(x) for x in both):
        return Arguments(args, dict(kwargs))
    called = argument_names(model, args, kwargs)
    names = tuple(found for name, x in zip(called, both, strict=True) if _is_frame(x) for found in _names_of(name, x))
    try:
        arrays = [_array(name, x) if _is_frame(x) else x for name, x in zip(called, both, strict=True)]
    except TypeError:
        if _runs(model, args, kwargs):
            return Arguments(args, dict(kwargs), names)
        raise
    new_args, new_kwargs = tuple(arrays[: len(args)]), dict(zip(kwargs, arrays[len(args) :], strict=True))
    if not _runs(model, new_args, new_kwargs) and _runs(model, args, kwargs):
        return Arguments(args, dict(kwargs), names)
    return Arguments(new_args, new_kwargs, names)


def in_the_order_of(names: Sequence[Names], model: Callable[..., Any], args: Sequence[Any]) -> tuple[Any, ...]:
    """Give new frames the columns of the frames that a model was fitted to, in their order.

    Raises:
        ValueError: if a frame lacks a column that the fitted one had.
    """
    columns = {name.argument: name.values for name in names if name.axis == 1}
    called = argument_names(model, args, {})
    return tuple(
        _ordered(name, x, columns[name]) if _is_table(x) and name in columns else x
        for name, x in zip(called, args, strict=True)
    )


def names_by_size(names: Sequence[Names]) -> dict[int, tuple[str, ...]]:
    """Return the names for an axis of each size; sizes for which frames disagree are left out.

    The rows of several arguments are the same rows: where their names differ, none are used.
    """
    found: dict[int, set[tuple[str, ...]]] = {}
    for one in names:
        found.setdefault(len(one.values), set()).add(one.values)
    return {size: next(iter(values)) for size, values in found.items() if len(values) == 1}


def _is_table(x: Any) -> bool:
    return hasattr(x, "columns") and hasattr(x, "to_numpy")


def _is_frame(x: Any) -> bool:
    return hasattr(x, "to_numpy") and not isinstance(x, np.ndarray | jax.Array)


def _names_of(argument: str, frame: Any) -> list[Names]:
    """Return the names of the columns, and those of the rows.

    Rows that are only counted have no names; but a frame of as many rows as columns records them, so that
    `names_by_size` sees that the size does not tell rows from columns.
    """
    found = []
    if _is_table(frame):
        found.append(Names(argument, 1, tuple(str(c) for c in frame.columns)))
    index = getattr(frame, "index", None)
    index = None if callable(index) or type(index).__name__ == "RangeIndex" else index
    if found and index is None and len(frame) == len(found[0].values):
        found.append(Names(argument, 0, tuple(map(str, range(len(frame))))))
    elif index is not None:
        found.append(Names(argument, 0, tuple(str(i) for i in index)))
    return found


def _array(argument: str, frame: Any) -> np.ndarray:
    if not _is_table(frame):
        return _numbers(argument, None, frame)
    columns = [_numbers(argument, str(c), frame[c]) for c in frame.columns]
    if not columns:
        raise TypeError(f"argument '{argument}' is a frame without columns: choose some")
    return np.stack(columns, axis=1)


def _numbers(argument: str, column: str | None, series: Any) -> np.ndarray:
    """Return the numbers of a column; missing values are NaN."""
    values = np.asarray(series.to_numpy())
    if values.dtype == object:  # numbers with missing values, or text
        with suppress(TypeError, ValueError):
            values = np.asarray(series.to_numpy(dtype=float, na_value=np.nan))
    if values.dtype.kind in "biuf":
        return values
    where = f"argument '{argument}'" if column is None else f"column '{column}' of argument '{argument}'"
    name = column or argument
    raise TypeError(
        f"{where} is {getattr(series, 'dtype', values.dtype)}, not numbers (its first value is {values.flat[0]!r}): "
        f"encode it, as in pandas.get_dummies(frame) or frame['{name}'].astype('category').cat.codes, or leave it out"
    )


def _ordered(argument: str, frame: Any, wanted: tuple[str, ...]) -> Any:
    by_name = {str(c): c for c in frame.columns}
    missing = [name for name in wanted if name not in by_name]
    if missing:
        raise ValueError(
            f"argument '{argument}' has no column '{missing[0]}', which the fitted frame has; its columns are "
            f"{', '.join(by_name)}: rename or add it"
        )
    return frame[[by_name[name] for name in wanted]]


@one_at_a_time
def _runs(model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a model runs with these arguments: traced, as in a fit."""
    with handlers.block(), handlers.seed(rng_seed=0):
        try:
            jax.eval_shape(lambda: (model(*args, **kwargs), 0)[1])
        except Exception:  # whatever a model raises: the fit will raise it again, and name it
            return False
    return True
