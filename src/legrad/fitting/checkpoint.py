"""Checkpoints: everything that the next step depends on, in one file that is replaced as a whole.

A checkpoint identifies its fit: parameters, key, estimator, data, the ELBO of the first draw term by term, and the
optimizer's updates for some gradients. A fit resumes only from its own checkpoint, and ends as if it had never been
interrupted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from legrad.fitting import file_format
from legrad.fitting.compiled_loop import State
from legrad.fitting.data import Minibatches
from legrad.fitting.processes import agreed, is_first, is_spread
from legrad.fitting.stopping import _TREES, PhaseRecord
from legrad.model.frames import Arguments

FILE = "checkpoint.legrad"
_KIND = "checkpoint"
_READ_WHOLE = 1 << 28  # bytes: larger arrays are compared by a sample of their rows


class CheckpointError(ValueError):
    """A checkpoint from which this fit cannot resume. The file is left unchanged."""


@dataclass
class Progress:
    """A fit between two steps.

    Attributes:
        state: the state of all starts.
        at: how many steps were taken.
        limits: for each start, the step at which it ends.
        failures: the starts that met a step that is not finite, with that step.
        records: for each start, what its stopping rule remembers; empty without a stopping rule.
        clock: rows of (steps, seconds).
    """

    state: State
    at: int
    limits: np.ndarray
    failures: dict[int, int] = field(default_factory=dict)
    records: list[PhaseRecord] = field(default_factory=list)
    clock: list[tuple[float, float]] = field(default_factory=lambda: [(0.0, 0.0)])


class Checkpoint:
    """The checkpoint of one fit.

    Args:
        folder: the folder of the file; created if it does not exist.
        identity: what must be the same in a fit that resumes from the checkpoint; JSON.
    """

    def __init__(self, folder: Any, identity: Mapping[str, Any]) -> None:
        self.path = Path(folder) / FILE
        self.identity = json.loads(json.dumps(identity))
        if self.path.parent.exists() and not self.path.parent.is_dir():
            raise NotADirectoryError(f"checkpoint='{folder}' is a file: give the name of a folder")
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def save(self, progress: Progress) -> None:
        """Write a checkpoint, replacing the previous one."""
        done = progress.at
        state = progress.state._replace(elbo=progress.state.elbo[..., :done], noise=progress.state.noise[..., :done])
        arrays = file_format.flat("state", state)
        for i, record in enumerate(progress.records):
            for name in _TREES:
                arrays |= file_format.flat(f"{name} {i}", getattr(record, name))
        numbers = {
            "identity": self.identity,
            "at": done,
            "limits": [int(limit) for limit in progress.limits],
            "failures": list(progress.failures.items()),
            "watches": [record.to_json() for record in progress.records],
            "clock": progress.clock,
        }
        if is_first():
            file_format.write(self.path, _KIND, numbers, arrays)

    def load(self, begin: Progress, steps: int) -> Progress | None:
        """Return the progress in the checkpoint, or None if there is no checkpoint.

        Args:
            begin: the same fit before its first step, which gives the structure of all trees.
            steps: the maximum number of steps of the whole fit.
        """
        exists = self.path.exists()
        if exists != bool(agreed(exists)):
            raise CheckpointError(
                f"process {jax.process_index()} {'sees' if exists else 'does not see'} '{self.path}', unlike "
                "process 0: give checkpoint= a folder on a disk that all processes share"
            )
        if not exists:
            return None
        remedy = "delete the file to start anew, or give checkpoint= another folder"
        try:
            numbers, arrays = file_format.read(self.path, _KIND)
        except file_format.FileError as error:
            raise CheckpointError(f"{error}. The file is left unchanged: {remedy}") from None
        self._check_identity(numbers["identity"], remedy)
        at, old_steps = numbers["at"], numbers["limits"]
        if at > steps:
            raise CheckpointError(
                f"the checkpoint in '{self.path.parent}' is {at} steps into the fit, but steps={steps}: give "
                f"at least steps={at}, or {remedy}"
            )
        leaves = file_format.unflat("state", begin.state, arrays)
        room = [(0, 0)] * (begin.state.elbo.ndim - 1) + [(0, steps - at)]
        elbo, noise = (np.pad(x, room, constant_values=np.nan) for x in (leaves.elbo, leaves.noise))
        state = jax.tree.map(jnp.asarray, leaves._replace(elbo=elbo, noise=noise))
        failures = {int(start): int(step) for start, step in numbers["failures"]}
        records = [self._record(i, found, begin, arrays) for i, found in enumerate(numbers["watches"])]
        ended = {i for i, record in enumerate(records) if record.done} | set(failures)
        limits = np.asarray([old if i in ended else steps for i, old in enumerate(old_steps)])
        clock = [(float(a), float(b)) for a, b in numbers["clock"]]
        return Progress(state, at, limits, failures, records, clock)

    def _record(
        self, i: int, numbers: dict[str, Any], begin: Progress, arrays: Mapping[str, np.ndarray]
    ) -> PhaseRecord:
        several = len(begin.limits) > 1
        like = jax.tree.map(lambda x: x[0] if several else x, begin.state.unconstrained)
        trees = {name: file_format.unflat(f"{name} {i}", like, arrays) for name in numbers["has"]}
        return PhaseRecord.from_json(numbers, jax.tree.map(jnp.asarray, trees))

    def _check_identity(self, theirs: Mapping[str, Any], remedy: str) -> None:
        for what, mine in self.identity.items():
            other = theirs.get(what)
            if not _same(mine, other):
                raise CheckpointError(
                    f"the checkpoint in '{self.path.parent}' is of another fit: its {what} is {_short(other)}, "
                    f"here it is {_short(mine)}. The file is left unchanged: {remedy}"
                )


def identity(
    *,
    key: jax.Array,
    starts: list[Any],
    estimator: Any,
    optimizer: optax.GradientTransformation,
    stop: Any,
    args: Any,
    data: Minibatches | None,
    terms: Mapping[str, float],
) -> dict[str, Any]:
    """Return what identifies a fit."""
    unconstrained = starts[0]
    return {
        "parameters": {name: _spec(value) for name, value in unconstrained.items()},
        "number of starts": len(starts),
        "random key": np.asarray(jax.random.key_data(key)).tolist(),
        "estimator": _settings(estimator),
        "optimizer": [_spec(optimizer.init(unconstrained)), *_updates(optimizer, unconstrained)],
        "stopping rule": repr(stop),
        "data": [_digest(leaf) for leaf in jax.tree.leaves(args)],
        "minibatches": None if data is None else [repr(data), *(_digest(a) for a in data.arrays)],
        "ELBO of the first draw": dict(terms),
    }


def described(key: jax.Array, given: Arguments, settings: Mapping[str, Any]) -> dict[str, str]:
    """Describe a call of `fit`, so that processes can compare theirs; large arrays by some of their rows."""
    data = settings.get("data")
    found = {"the random key": str(np.asarray(jax.random.key_data(key)).tolist())}
    for name, tree in (("args", given.args), ("kwargs", given.kwargs)):
        for path, leaf in jax.tree.leaves_with_path(tree):
            found[f"{name}{jax.tree_util.keystr(path)}"] = _digest(leaf)
    if data is not None:
        found["minibatches"] = repr(data)
    for name, value in settings.items():
        if isinstance(value, bool | int | float | str) or name == "mesh":
            found[name] = repr(value)
    return found


def estimator_of(folder: Any, candidates: Sequence[Any]) -> Any:
    """Return the candidate that the fit in a checkpoint uses; None if no checkpoint can be read or none matches."""
    try:
        theirs = file_format.read(Path(folder) / FILE, _KIND)[0]["identity"]["estimator"]
    except (OSError, file_format.FileError, KeyError):
        return None  # loading the checkpoint says what is wrong
    return next((estimator for estimator in candidates if _settings(estimator) == theirs), None)


def _settings(estimator: Any) -> str:
    if "legrad." in repr(estimator):
        return repr(estimator)
    plain = {k: v for k, v in sorted(vars(estimator).items()) if isinstance(v, bool | int | float | str)}
    return f"{type(estimator).__name__} {plain}"


def _updates(optimizer: optax.GradientTransformation, at: Any) -> list[float]:
    """Return the optimizer's updates for some gradients at early and late steps: code itself cannot be compared."""
    memory, found = optimizer.init(at), []

    def is_count(x: Any) -> bool:
        return jnp.ndim(x) == 0 and bool(jnp.issubdtype(jnp.result_type(x), jnp.integer))

    def at_step(memory: Any, step: int) -> Any:
        return jax.tree.map(lambda x: jnp.full_like(x, step) if is_count(x) else x, memory)

    for size, step in ((1.0, None), (1.5, None), (2.0, None), (2.5, 1000), (2.5, 100_000)):
        here = memory if step is None else at_step(memory, step)
        gradient = jax.tree.map(partial(jnp.full_like, fill_value=size), at)
        updates, memory = optimizer.update(gradient, here, at)
        found.append(float(sum(jnp.sum(u) for u in jax.tree.leaves(updates))))
    return found


def _spec(tree: Any) -> list[str]:
    leaves, structure = jax.tree.flatten(tree)
    return [str(structure), *(f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}" for leaf in leaves)]


def _digest(leaf: Any) -> str:
    if not isinstance(leaf, jax.Array | np.ndarray):
        return repr(leaf) if isinstance(leaf, bool | int | float | str) else type(leaf).__name__
    if is_spread(leaf):  # no process holds it whole: compare its shape, and sums
        return f"{leaf.dtype}{list(leaf.shape)} {float(jnp.sum(leaf)):.4g} {float(jnp.sum(jnp.abs(leaf))):.4g}"
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    some = leaf
    if leaf.nbytes > _READ_WHOLE:
        some = leaf[np.linspace(0, len(leaf) - 1, 1000).astype(int)]
    content = np.ascontiguousarray(some).tobytes()
    return f"{leaf.dtype}{list(leaf.shape)} {hashlib.sha256(content).hexdigest()[:16]}"


def _same(mine: Any, theirs: Any) -> bool:
    """Whether two values are equal; floats only up to rounding, which may differ between machines."""
    if isinstance(mine, dict) and isinstance(theirs, dict):
        return mine.keys() == theirs.keys() and all(_same(mine[k], theirs[k]) for k in mine)
    if isinstance(mine, list) and isinstance(theirs, list):
        return len(mine) == len(theirs) and all(map(_same, mine, theirs))
    if isinstance(mine, float) and isinstance(theirs, float):
        return bool(np.isclose(mine, theirs, rtol=1e-4, atol=0.0))
    return bool(mine == theirs)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
