"""Tables from files: CSV by the standard library, parquet by pandas, npz by NumPy.

Every problem names the file, and the row or column where it is. Rows are counted as in the file: row 1 of a CSV is
the first line after the header.
"""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from legrad.commands.output import CommandError

_MISSING = {"", "na", "n/a", "nan", "null", "none", "?"}
FORMATS = ".csv, .tsv, .parquet or .npz"


@dataclass(frozen=True)
class Table:
    """Columns by name; those of an npz file may have several axes.

    Attributes:
        path: the file.
        columns: the columns: numbers, with NaN for missing ones, or text (an array of objects, None where missing).
    """

    path: Path
    columns: dict[str, np.ndarray]

    def column(self, name: str, option: str) -> np.ndarray:
        """Return a column; raise if the file does not have it."""
        if name not in self.columns:
            raise CommandError(
                f"{self.path} has no column '{name}' ({option}): its columns are {', '.join(self.columns)}"
            )
        return self.columns[name]

    def numbers(self, name: str, option: str) -> np.ndarray:
        """Return a column of numbers; raise if it is text, or if a value is missing."""
        x = self.column(name, option)
        if x.dtype == object:
            row = next((i for i, value in enumerate(x) if value is not None and _number(value) is None), 0)
            raise CommandError(
                f"{self.path}, row {row + 1}, column '{name}': {x[row]!r} is not a number. Correct it, encode the "
                f"column as numbers, or leave it out with --drop {name}"
            )
        if x.size == 0:
            raise CommandError(
                f"{self.path}, array '{name}' is empty: give it rows, or leave it out with --drop {name}"
            )
        bad = ~np.isfinite(x.reshape(len(x) if x.ndim else 1, -1)).all(1)
        if bad.any():
            row = int(np.argmax(bad))
            what = "missing" if np.isnan(x[row] if x.ndim else x).any() else "infinite"
            rows = "the value missing" if what == "missing" else "such values"
            raise CommandError(
                f"{self.path}, row {row + 1}, column '{name}': the value is {what} ({int(bad.sum())} of {len(bad)} "
                f"rows have {rows}). Correct it, leave rows out with --drop-missing, or the column with --drop {name}"
            )
        return x

    def matrix(self, names: Sequence[str], option: str) -> np.ndarray:
        """Return columns of numbers side by side; raise if they are not columns of one length."""
        found = [self.column(name, option) for name in names]
        for name, x in zip(names, found, strict=True):
            if x.ndim != 1:
                raise CommandError(f"{self.path}, array '{name}' has {x.ndim} axes: give columns, or --drop {name}")
            if len(x) != len(found[0]):
                raise CommandError(
                    f"{self.path}: '{names[0]}' has {len(found[0])} rows, '{name}' has {len(x)}: give columns of one "
                    f"length, or leave one out with --drop {name}"
                )
        return np.stack([self.numbers(name, option) for name in names], axis=1)

    def without(self, names: Sequence[str]) -> Table:
        """Return the table without some columns."""
        for name in names:
            self.column(name, f"--drop {name}")
        return Table(self.path, {name: x for name, x in self.columns.items() if name not in names})

    def complete(self) -> tuple[Table, int]:
        """Return the table without rows in which a value is missing or infinite, and how many rows those are."""
        lengths = {len(x) for x in self.columns.values() if x.ndim}
        if len(lengths) != 1:
            raise CommandError(f"{self.path}: --drop-missing needs columns of one length, not {sorted(lengths)}")
        keep = np.ones(lengths.pop(), bool)
        for x in (x for x in self.columns.values() if x.ndim):
            lacks = np.array([v is None for v in x]) if x.dtype == object else ~np.isfinite(x.astype(float))
            keep &= ~lacks.reshape(len(keep), -1).any(1)
        if not keep.any():
            raise CommandError(f"{self.path}: every row lacks a value: --drop the columns that are mostly empty")
        kept = {name: x[keep] if x.ndim else x for name, x in self.columns.items()}
        return Table(self.path, kept), int((~keep).sum())


def read_table(path: Path) -> Table:
    """Read a table; its format is that of the file's ending."""
    if not path.exists():
        raise CommandError(f"{path} does not exist: check the path")
    readers = {".csv": _csv, ".tsv": _csv, ".parquet": _parquet, ".npz": _npz}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise CommandError(f"{path} is no table that legrad reads: give a file that ends in {FORMATS}")
    try:
        columns = reader(path)
    except (OSError, UnicodeDecodeError, zipfile.BadZipFile) as error:
        raise CommandError(f"{path} cannot be read as {path.suffix[1:]} ({error}): check the file") from error
    if not columns or all(x.size == 0 for x in columns.values()):
        raise CommandError(f"{path} holds no rows: check the file")
    return Table(path, columns)


def _csv(path: Path) -> dict[str, np.ndarray]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        try:
            rows = [row for row in csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",") if row]
        except csv.Error as error:
            raise CommandError(f"{path} cannot be read as a table ({error}): check its quotes and ending") from error
    if not rows:
        return {}
    head = [name.strip() for name in rows[0]]
    if len(head) == 1 and ";" in head[0]:
        raise CommandError(f"{path} is separated by semicolons: save it with commas")
    for name in head:
        if not name or head.count(name) > 1:
            what = f"has several columns '{name}'" if name else "has a column without a name"
            raise CommandError(f"{path} {what}, by its first line: give each column a name of its own")
    if all(_number(name) is not None for name in head):
        raise CommandError(f"{path} begins with numbers ({', '.join(head[:4])}): write the columns' names above them")
    for i, row in enumerate(rows[1:]):
        if len(row) != len(head):
            raise CommandError(
                f"{path}, row {i + 1}: {len(row)} values for {len(head)} columns; check its commas and quotes"
            )
    return {name: _typed([row[j].strip() for row in rows[1:]]) for j, name in enumerate(head)}


def _number(text: Any) -> float | None:
    try:
        return float(text)
    except (TypeError, ValueError):
        return None


def _typed(values: list[str]) -> np.ndarray:
    """Return whole numbers, numbers or text; text if any value that is there is no number."""
    lacks = [value.lower() in _MISSING for value in values]
    numbers = [np.nan if lack else _number(value) for value, lack in zip(values, lacks, strict=True)]
    if any(number is None for number in numbers):
        found = np.empty(len(values), object)
        found[:] = [None if lack else value for value, lack in zip(values, lacks, strict=True)]
        return found
    array = np.array(numbers, float)
    whole = not any(lacks) and all(value.lstrip("+-").isdecimal() for value in values)
    return array.astype(np.int64) if whole and np.abs(array).max(initial=0) < 2**53 else array


def _parquet(path: Path) -> dict[str, np.ndarray]:
    try:
        from pandas import read_parquet  # type: ignore[import-untyped,unused-ignore]

        frame = read_parquet(path)
    except ImportError as error:
        raise CommandError(
            f"{path}: parquet files need pandas and pyarrow (pip install pandas pyarrow), or save the table as .csv"
        ) from error
    except ValueError as error:  # what pyarrow raises for other files
        raise CommandError(f"{path} cannot be read as parquet ({error}): check the file") from error
    found = {}
    for name in frame.columns:
        series = frame[name]
        values = series.to_numpy()
        if values.dtype.kind not in "biuf":
            numeric = series.dtype.kind in "biuf" if hasattr(series.dtype, "kind") else False
            values = series.to_numpy(dtype=float, na_value=np.nan) if numeric else _objects(series)
        found[str(name)] = values
    return found


def _objects(series: Any) -> np.ndarray:
    values = np.empty(len(series), object)
    values[:] = [None if lack else str(value) for value, lack in zip(series, series.isna(), strict=True)]
    return values


def _npz(path: Path) -> dict[str, np.ndarray]:
    try:
        with path.open("rb") as handle:
            file = np.load(handle, allow_pickle=False)
            if isinstance(file, np.ndarray):
                raise CommandError(f"{path} is one array, not an npz file: save it with np.savez(path, X=..., y=...)")
            columns = {name: file[name] for name in file.files}
    except ValueError as error:
        raise CommandError(f"{path} cannot be read as npz ({error}): save arrays of numbers with np.savez") from error
    for name, x in columns.items():
        if x.dtype.kind not in "biuf":
            raise CommandError(f"{path}, array '{name}' is {x.dtype}, not numbers: convert it before np.savez")
    return columns
