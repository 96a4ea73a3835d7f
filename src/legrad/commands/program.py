"""Models and guides from files, and their arguments from a table: a column is the argument of its name."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from legrad.commands.output import CommandError
from legrad.commands.table import Table
from legrad.model.frames import Names


class Bound(NamedTuple):
    """The arguments of a model, from a table.

    Attributes:
        kwargs: the arguments, by name.
        names: the columns of each matrix among them.
        words: what came from where, in one line.
    """

    kwargs: dict[str, Any]
    names: tuple[Names, ...]
    words: str


def load(spec: str, option: str = "") -> Callable[..., Any]:
    """Return the function that "model.py:model", or "package.module:model", names."""
    where, separator, name = spec.rpartition(":")
    if not separator or not where or not name:
        raise CommandError(f"{option or 'the model'} is {spec!r}: write FILE.py:FUNCTION, such as model.py:model")
    module = _file(Path(where)) if where.endswith(".py") else _module(where)
    if not hasattr(module, name):
        functions = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        near = get_close_matches(name, functions, 1)
        hint = f": did you mean {where}:{near[0]}?" if near else f": it has {', '.join(functions) or 'no functions'}"
        raise CommandError(f"{where} has no function '{name}'{hint}")
    found = getattr(module, name)
    if not callable(found):
        raise CommandError(f"{spec} is a {type(found).__name__}, not a function: name a NumPyro model")
    return found


def _file(path: Path) -> Any:
    if not path.exists():
        raise CommandError(f"{path} does not exist: check the path of the model")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # as an import would: dataclasses look there
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # the file's own imports
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever a user's file raises
        frame = traceback.extract_tb(error.__traceback__)[-1]
        line = getattr(error, "lineno", None) or frame.lineno
        raise CommandError(f"{path} does not run: {type(error).__name__}: {error} (line {line})") from error
    return module


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise CommandError(f"the module {name} cannot be imported ({error}): give a path such as model.py") from error


def required(model: Callable[..., Any]) -> list[str]:
    """Return the names of the arguments that a model cannot do without."""
    named = [p for p in _parameters(model) if p.kind is not p.VAR_POSITIONAL]
    return [p.name for p in named if p.default is p.empty]


def _parameters(model: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        found = inspect.signature(model).parameters.values()
    except (TypeError, ValueError) as error:
        raise CommandError(f"the arguments of the model have no names ({error}): write it as a function") from error
    return [p for p in found if p.kind is not p.VAR_KEYWORD]


def bind(model: Callable[..., Any], table: Table, matrices: Sequence[str] = ()) -> Bound:
    """Give a model the columns of a table as arguments.

    Each argument takes the column of its name. `matrices` are "X=age,income" or "X=*", the columns that are not used
    otherwise. If one required argument has no column and a name in capitals, such as X, it takes these columns, too.

    Raises:
        CommandError: if an argument has no column, or a column does not hold numbers.
    """
    parameters = _parameters(model)
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        raise CommandError(
            "the model takes *args, which have no names: give its arguments names, as the columns have"
        )
    chosen = dict(_matrix(text) for text in matrices)
    known = {p.name for p in parameters}
    for name in chosen:
        if name not in known:
            raise CommandError(f"--arg {name}=...: the model has no argument '{name}': it has {', '.join(known)}")
    plain = [p.name for p in parameters if p.name not in chosen and p.name in table.columns]
    open_ = [
        p.name for p in parameters if p.name not in chosen and p.name not in table.columns and p.default is p.empty
    ]
    listed = {column for columns in chosen.values() for column in columns if column != "*"}
    rest = [c for c, x in table.columns.items() if c not in plain and c not in listed and x.ndim == 1]
    if len(open_) == 1 and open_[0].isupper() and rest and not any("*" in columns for columns in chosen.values()):
        chosen[open_[0]] = ["*"]
    elif open_:
        raise CommandError(
            f"the model's argument '{open_[0]}' has no column in {table.path}, which has {', '.join(table.columns)}: "
            f"rename a column or the argument, or choose columns with --arg {open_[0]}=column,column"
        )
    kwargs: dict[str, Any] = {name: table.numbers(name, f"argument '{name}'") for name in plain}
    words, names = [f"{name} ({_shape(kwargs[name])})" for name in plain], []
    for name, columns in chosen.items():
        taken = [c for column in columns for c in (rest if column == "*" else [column])]
        if not taken:
            raise CommandError(f"--arg {name}=*: all columns of {table.path} are used by other arguments")
        kwargs[name] = table.matrix(taken, f"--arg {name}")
        names.append(Names(name, 1, tuple(taken)))
        words.append(f"{name} ({_shape(kwargs[name])}: {', '.join(taken[:6])}{', …' if len(taken) > 6 else ''})")
    order = [p.name for p in parameters if p.name in kwargs]
    return Bound({name: kwargs[name] for name in order}, tuple(names), "; ".join(words))


def _matrix(text: str) -> tuple[str, list[str]]:
    name, separator, columns = text.partition("=")
    if not separator or not name or not columns:
        raise CommandError(f"--arg {text}: write --arg X=column,column or --arg X=*")
    return name.strip(), [c.strip() for c in columns.split(",") if c.strip()]


def _shape(x: np.ndarray) -> str:
    return " × ".join(map(str, x.shape)) or "one number"
