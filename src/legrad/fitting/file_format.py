"""A file of named arrays and JSON that cannot run code and cannot be half written.

    line 1   legrad 1 <kind>
    line 2   the SHA-256 of all that follows
    rest     a NumPy .npz (no pickles), in which the array "json" holds the text

A file is written under a temporary name, flushed to the disk, and then renamed, so a file that exists is complete.
Reading checks the file first, and never changes it.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from legrad.fitting.processes import on_host

_FORMAT = 1
_FIRST = f"legrad {_FORMAT} ".encode()


class FileError(ValueError):
    """A file that is not a complete legrad file."""


def write(path: Path, kind: str, numbers: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    """Write a file in one piece; an OSError (a full disk) leaves the previous file in place."""
    text = np.frombuffer(json.dumps(numbers).encode(), np.uint8)
    body = io.BytesIO()
    np.savez(body, allow_pickle=False, json=text, **{f"array {name}": np.asarray(a) for name, a in arrays.items()})
    content = body.getvalue()
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            file.write(_FIRST + kind.encode() + b"\n" + hashlib.sha256(content).hexdigest().encode() + b"\n")
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the renaming itself
    finally:
        os.close(folder)


def read(path: Path, kind: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the numbers and arrays given to `write`; a FileError says what is wrong with the file."""
    content = path.read_bytes()
    first, _, rest = content.partition(b"\n")
    digest, _, body = rest.partition(b"\n")
    named, number = first[:64].split(b" ")[:2] if first.count(b" ") else (b"", b"")
    if named == b"legrad" and number.isdigit() and int(number) > _FORMAT:
        raise FileError(
            f"'{path}' was written by a newer version of legrad (format {int(number)}; this version reads up to "
            f"{_FORMAT}): upgrade legrad to read it"
        )
    if not first.startswith(_FIRST):
        raise FileError(f"'{path}' is not a file that legrad wrote (or its beginning is damaged)")
    if first != _FIRST + kind.encode():
        raise FileError(f"'{path}' is not a {kind} but a {first[len(_FIRST) :].decode(errors='replace')[:40]!r}")
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise FileError(f"'{path}' is damaged: its {len(body):,} bytes do not match the checksum in the file")
    with np.load(io.BytesIO(body), allow_pickle=False) as file:
        arrays = {name.removeprefix("array "): file[name] for name in file.files if name != "json"}
        return json.loads(file["json"].tobytes().decode()), arrays


def flat(name: str, tree: Any) -> dict[str, np.ndarray]:
    """Return the leaves of a tree as named arrays, in order."""
    leaves = on_host([_plain(leaf) for leaf in jax.tree.leaves(tree)])
    return {f"{name} {i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}


def unflat(name: str, like: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Invert `flat`, for a tree of known structure."""
    leaves, structure = jax.tree.flatten(like)
    found = [_restored(arrays[f"{name} {i}"], leaf) for i, leaf in enumerate(leaves)]
    return jax.tree.unflatten(structure, found)


def _plain(leaf: Any) -> Any:
    """Return a random key as its numbers, and any other leaf unchanged."""
    is_key = isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf


def _restored(array: np.ndarray, like: Any) -> Any:
    if _plain(like) is not like:
        return jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(like))
    return array.view(like.dtype) if array.dtype.kind == "V" else array  # NumPy does not know bfloat16


def described(tree: Any, arrays: dict[str, np.ndarray]) -> Any:
    """Describe a tree of dicts, lists and tuples as JSON, and put its leaves into `arrays`."""
    if isinstance(tree, Mapping):
        return {"dict": [[str(key), described(value, arrays)] for key, value in tree.items()]}
    if isinstance(tree, list | tuple) and not hasattr(tree, "_fields"):
        return {type(tree).__name__: [described(value, arrays) for value in tree]}
    if not (isinstance(tree, np.ndarray | np.generic | int | float | bool) or hasattr(tree, "__array__")):
        raise TypeError(f"a {type(tree).__name__} cannot be saved: parameters are arrays in dicts, lists and tuples")
    arrays[name := f"leaf {len(arrays)}"] = np.asarray(tree)
    return {"leaf": [name, str(arrays[name].dtype)]}


def undescribed(text: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Invert `described`."""
    ((kind, value),) = text.items()
    if kind == "leaf":
        array = arrays[value[0]]
        return array.view(jnp.dtype(value[1])) if array.dtype.kind == "V" else array
    if kind == "dict":
        return {key: undescribed(inner, arrays) for key, inner in value}
    return (tuple if kind == "tuple" else list)(undescribed(inner, arrays) for inner in value)
