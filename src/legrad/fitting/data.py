"""The data of a step: arguments that are the same for all steps, and minibatches read from the host or from disk.

The rows of step t are a function of the seed and t alone: epoch t // (batches per epoch), a shuffle of all rows that
is seeded by the epoch, and its next `size` rows. So the step of a fit determines its position in the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers

from legrad.fitting.mesh import DeviceCut, as_host
from legrad.fitting.processes import on_host, several
from legrad.fitting.row_order import RowOrder
from legrad.fitting.row_source import RowSource, is_source
from legrad.model.arrays import split_arrays
from legrad.model.log_density import LogDensity
from legrad.model.objective import Given
from legrad.model.threads import one_at_a_time
from legrad.trace.concrete import compiled_for

_BUFFER_BYTES = 32 << 20  # of minibatches on the device at a time
_BUFFER_STEPS = 512


class DataError(OSError):
    """Minibatches that could not be read."""


class Minibatches:
    """Minibatches of rows of host arrays or `np.memmap` files: one minibatch per step, shuffled anew each epoch.

    Only the minibatches of the next steps are in memory. The model and the guide take the minibatch after `args`, and
    declare in a plate how many rows there are in all, which scales the ELBO:

        with numpyro.plate("rows", 10_000_000, subsample_size=len(y)): ...

    The indices of that plate are the row numbers, so `numpyro.param` inside the plate picks the parameters of these
    rows. Rows that do not fill the last minibatch of an epoch wait for the next shuffle; without shuffling, the
    minibatches wrap around from the last row to the first.

    Args:
        arrays: arrays of the same length, rows first; or a single data source with `len(source)` and `source[i]`,
            such as those of Grain, whose records are an array or a tuple of arrays.
        size: the number of rows in a minibatch.
        shuffle: whether to shuffle the rows anew for each epoch.

    Example:
        >>> X, y = np.load("X.npy", mmap_mode="r"), np.load("y.npy", mmap_mode="r")
        >>> legrad.fit(model, guide, key=key, data=legrad.Minibatches(X, y, size=1000), stop="auto")
    """

    def __init__(self, *arrays: Any, size: int, shuffle: bool = True) -> None:
        if not arrays:
            raise ValueError("there are no arrays: pass them as Minibatches(X, y, size=100)")
        self.source = RowSource(arrays[0]) if len(arrays) == 1 and is_source(arrays[0]) else None
        if self.source is not None:
            last = np.unique(np.asarray([0, self.source.rows // 2, self.source.rows - 1]))
            arrays, lengths = self.source.read(last), {self.source.rows}  # which stand for all in a checkpoint
        self.arrays = tuple(a if isinstance(a, np.ndarray) else np.asarray(a) for a in arrays)
        if self.source is None:
            lengths = {len(a) if a.ndim else 0 for a in self.arrays}
        if len(lengths) > 1 or 0 in lengths:
            shapes = ", ".join(str(a.shape) for a in self.arrays)
            raise ValueError(f"the arrays have shapes {shapes}: give them the same number of rows, at least one")
        (self.rows,) = lengths
        if not isinstance(size, int | np.integer) or isinstance(size, bool) or not 1 <= size <= self.rows:
            raise ValueError(f"size={size!r}: a minibatch has between 1 and all {self.rows} rows")
        for array in self.arrays:
            if array.dtype.kind not in "biuf":
                raise TypeError(f"an array of {array.dtype} is among the minibatches: make it numbers")
        self.size, self.shuffle = int(size), shuffle
        self.per_epoch = self.rows // self.size
        self._order = RowOrder(self.rows)

    def at(self, seed: int, step: int) -> np.ndarray:
        """Return the row numbers of a step, ascending (disks read faster in order)."""
        epoch, position = divmod(step, self.per_epoch)
        if not self.shuffle:
            return np.sort((step * self.size + np.arange(self.size)) % self.rows)
        return np.sort(self._order.at(seed, epoch, position * self.size, (position + 1) * self.size))

    def read(self, rows: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the rows with the given numbers, which may be an array of several steps."""
        flat = rows.ravel()
        found = tuple(a[flat] for a in self.arrays) if self.source is None else self.source.read(flat)
        return tuple(a.reshape(*rows.shape, *a.shape[1:]) for a in found)

    def __repr__(self) -> str:
        shapes = ", ".join(f"{a.dtype}{[self.rows, *a.shape[1:]]}" for a in self.arrays)
        return f"legrad.Minibatches({shapes}, size={self.size})"


class Loaded(NamedTuple):
    """The data that a compiled chunk of steps reads.

    Attributes:
        arrays: the arrays among `args` and `kwargs`.
        first: the step of the first minibatch.
        rows: the row numbers, as an array of shape (step, row); None without minibatches.
        batches: the minibatches, one array of shape (step, row, ...) for each array of the data.
    """

    arrays: list[Any]
    first: Any = 0
    rows: Any = None
    batches: tuple[Any, ...] = ()


class Feed:
    """The source of each step's data; a thread reads the next minibatches while a chunk of steps runs.

    Args:
        args: the positional arguments that are the same for all steps.
        kwargs: the keyword arguments that are the same for all steps.
        data: minibatches, or None.
        seed: the seed of the order of the minibatches.
        cut: what is cut across devices, or None for one device.

    Attributes:
        arrays: the arrays among the arguments, as planning reads them.
        placed: the same arrays, on the devices.
    """

    def __init__(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        data: Minibatches | None,
        seed: int,
        cut: DeviceCut | None = None,
    ) -> None:
        self.data, self.seed, self.cut = data, seed, cut
        self.plates: tuple[str, ...] = ()
        self.arrays, self.rebuild = split_arrays((args, dict(kwargs)), jnp.asarray if cut is None else as_host)
        self.placed = self.arrays if cut is None else [cut.place(array) for array in self.arrays]
        self._thread = ThreadPoolExecutor(1, "legrad-data") if data is not None else None
        self._reads: dict[int, Future[Loaded]] = {}
        self._last: tuple[Loaded, int] = (Loaded(self.placed), 0)
        self.capacity: float = np.inf
        if data is not None:
            row = sum(a.dtype.itemsize * int(np.prod(a.shape[1:])) for a in data.arrays)
            self.capacity = int(np.clip(_BUFFER_BYTES // max(1, row * data.size), 1, _BUFFER_STEPS))

    def find_plates(self, model: Callable[..., Any], guide: Callable[..., Any]) -> None:
        """Find the plates whose rows the minibatches are; raise if the ELBO would not be scaled to all rows."""
        if self.data is None:
            return
        args, kwargs, _ = self.at(self.load(0), 0)
        found: set[str] = set()
        seen: list[str] = []
        for program in (guide, model):
            if isinstance(program, LogDensity):
                continue
            with one_at_a_time, handlers.block(), handlers.seed(rng_seed=0), handlers.trace() as trace:
                program(*args, **kwargs)
            plates = {name: site["args"] for name, site in trace.items() if site["type"] == "plate"}
            seen += [f"'{name}' of {size}, subsample_size={part}" for name, (size, part) in plates.items()]
            found |= {
                name
                for name, (size, part) in plates.items()
                if size == self.data.rows and (part or size) == self.data.size
            }
        if not found and self.data.size < self.data.rows:
            raise ValueError(
                f"no plate of the model has {self.data.rows} rows and subsample_size={self.data.size}, so the ELBO "
                f"of a minibatch would not be scaled to all rows: write numpyro.plate('rows', {self.data.rows}, "
                f"subsample_size={self.data.size}) around the data. Its plates are: {'; '.join(seen) or 'none'}"
            )
        self.plates = tuple(sorted(found))

    def load(self, step: int) -> Loaded:
        """Return the data of the steps from `step` to the next multiple of `capacity`, and start reading the next."""
        if self.data is None:
            return Loaded(self.placed)
        assert self._thread is not None
        number = step // int(self.capacity)
        for wanted in (number, number + 1):
            if wanted not in self._reads:
                self._reads[wanted] = self._thread.submit(self._read, wanted)
        for done in set(self._reads) - {number, number + 1}:
            del self._reads[done]
        try:
            loaded = self._reads[number].result()
        except OSError as error:
            del self._reads[number]
            raise DataError(f"minibatches from step {number * int(self.capacity):,} on: {error}") from error
        self._last = (loaded, step)
        return loaded

    @property
    def last(self) -> Given:
        """The arguments of the last step that was loaded; several processes gather its minibatch on their hosts."""
        loaded, step = self._last
        if not several():
            return self.at(loaded, step)
        args, kwargs, plates = self.at(loaded._replace(arrays=self.arrays), step)
        given = len(args) - len(loaded.batches)
        return Given((*args[:given], *on_host(args[given:])), kwargs, on_host(plates))

    def left(self, step: int) -> float:
        """Return how many steps, from this one on, are loaded together."""
        return self.capacity - step % self.capacity if self.data is not None else np.inf

    def _read(self, number: int) -> Loaded:
        data, first = self.data, number * int(self.capacity)
        assert data is not None
        rows = np.stack([data.at(self.seed, first + i) for i in range(int(self.capacity))])
        begin = jnp.asarray(first, jnp.int32)
        if self.cut is not None:
            return Loaded(self.placed, begin, self.cut.copies(rows), self.cut.batches(data.read, rows))
        return Loaded(self.placed, begin, jnp.asarray(rows), tuple(map(jnp.asarray, data.read(rows))))

    @contextmanager
    def tracing(self, loaded: Loaded) -> Iterator[None]:
        """Declare the arrays behind a program's arguments, and what is cut across devices, while it is traced.

        The program is compiled for these arrays alone, so plans may rely on which of their entries are zero.
        """
        with compiled_for(loaded.arrays, self.arrays), nullcontext() if self.cut is None else self.cut.tracing():
            yield

    def at(self, loaded: Loaded, step: Any) -> Given:
        """Return the arguments of one step (compiled or not)."""
        args, kwargs = self.rebuild(loaded.arrays)
        if loaded.rows is None:
            return Given(args, kwargs, {})
        i = step - loaded.first
        batch = tuple(jax.lax.dynamic_index_in_dim(b, i, keepdims=False) for b in loaded.batches)
        rows = jax.lax.dynamic_index_in_dim(loaded.rows, i, keepdims=False)
        return Given((*args, *batch), kwargs, dict.fromkeys(self.plates, rows))

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
