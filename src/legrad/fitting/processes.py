"""Several processes of one fit: the same decisions in all of them, and arrays that no process holds whole."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding

_HERE = threading.local()


@contextmanager
def joined() -> Iterator[None]:
    """Run a fit that all processes take part in. Without it, the fits of several processes are fits of their own."""
    _HERE.joined = True
    try:
        yield
    finally:
        _HERE.joined = False


def several() -> bool:
    """Whether the fit of this thread is one of several processes."""
    return jax.process_count() > 1 and getattr(_HERE, "joined", False)


def agreed(numbers: Any) -> np.ndarray:
    """Return the numbers that process 0 has: a decision that depends on the clock must be one decision."""
    numbers = np.asarray(numbers)
    return numbers if not several() else np.asarray(multihost_utils.broadcast_one_to_all(numbers))


def clock() -> float:
    """Return the seconds of the clock of process 0."""
    seconds = time.perf_counter()
    if not several():
        return seconds
    milliseconds = agreed(np.asarray(divmod(int(seconds * 1e6), 1 << 30), np.int32))  # float64 may be off
    return float((int(milliseconds[0]) << 30) + int(milliseconds[1])) * 1e-6


def is_first() -> bool:
    """Whether this process writes files and shows progress for all of them."""
    return not several() or jax.process_index() == 0


def is_spread(value: Any) -> bool:
    """Whether an array is spread over several processes, none of which holds it whole."""
    return isinstance(value, jax.Array) and not (value.is_fully_addressable or value.is_fully_replicated)


def whole(value: Any) -> Any:
    """Return an array that is spread over processes as one on the host; any other value unchanged."""
    return multihost_utils.process_allgather(value, tiled=True) if is_spread(value) else value


def on_host(tree: Any) -> Any:
    """Return arrays as NumPy arrays, gathered from all processes where they are spread; all processes take part."""
    return jax.device_get(jax.tree.map(whole, tree))


def resharded(value: jax.Array, sharding: NamedSharding) -> jax.Array:
    """Return an array that several processes hold in another sharding."""
    return jax.jit(lambda x: x, out_shardings=sharding)(value)


def require_alike(given: dict[str, str]) -> None:
    """Raise if the processes of a fit do not have the same settings, shapes and data, naming what differs.

    Args:
        given: a description of each thing that must be alike, by its name.
    """
    if jax.process_count() == 1:
        return
    mine = np.frombuffer(json.dumps(given).encode(), np.uint8)
    lengths = multihost_utils.process_allgather(np.asarray([len(mine)], np.int32)).ravel()
    padded = np.zeros(int(lengths.max()), np.uint8)
    padded[: len(mine)] = mine
    texts = multihost_utils.process_allgather(padded)
    all_given = [json.loads(bytes(t[:n]).decode()) for t, n in zip(np.atleast_2d(texts), lengths, strict=True)]
    first = all_given[0]
    for process, other in enumerate(all_given):
        for name in [*first, *other]:
            a, b = first.get(name, "nothing"), other.get(name, "nothing")
            if a != b:
                raise ValueError(
                    f"the processes of this fit differ in {name}: process 0 has {a}, process {process} has {b}. Give "
                    "every process the same call and the same arrays, of which each reads the part of its own "
                    "devices. Parts that only one process has become one array by "
                    "jax.make_array_from_process_local_data"
                )
