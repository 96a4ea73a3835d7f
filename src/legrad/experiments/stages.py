"""Long work in stages that are kept: an interrupted run resumes where it stopped.

A stage is a function of the stages before it that gives arrays. They are written to a file of arrays (never code) as
soon as they are there, with a mark of the settings, data and versions that made them. Other settings have other
files; a stage that runs again lets all stages after it run again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np

import legrad

Arrays = dict[str, np.ndarray]
Results = dict[str, Arrays]
Stage = Callable[[Results, str], Arrays]  # (results of the stages before, label of the progress bar) → arrays

_TOOK, _MARK = "seconds taken", "made by"


class StageError(OSError):
    """The results of a stage could not be kept."""


class Stages:
    """The store of the stages of all experiments.

    Args:
        folder: for their files.
        total: how many there are, for the labels.
        fresh: make all of them anew.
        say: prints a line.
    """

    def __init__(self, folder: Path, total: int, fresh: bool = False, say: Callable[[str], None] = print) -> None:
        self.folder, self.total, self.fresh, self.say, self.count = folder, total, fresh, say, 0
        self.seconds = 0.0  # of all stages, those of earlier runs included

    def run(self, experiment: str, stages: Mapping[str, Stage], settings: Any, data: Any) -> Results:
        """Run the stages of one experiment in order, but for those that are kept; `data` are the arrays it reads."""
        made_by = {"settings": asdict(settings), "data": _digest(data), "versions": _versions()}
        results: Results = {}
        still = not self.fresh
        for name, stage in stages.items():
            self.count += 1
            label = f"[{self.count}/{self.total}] {experiment}: {name}"
            mark = hashlib.sha256(json.dumps([name, made_by], sort_keys=True).encode()).hexdigest()
            words = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")
            path = self.folder / f"{experiment}-{words}-{mark[:8]}.npz"
            kept = self._kept(path, mark) if still else None
            still = kept is not None
            if kept is not None:
                self.say(f"{label}: kept from an earlier run")
            else:
                begun = time.perf_counter()
                kept = stage(results, label)
                kept |= {_TOOK: np.asarray(time.perf_counter() - begun)}
                _write(path, mark, kept)
            self.seconds += float(kept.pop(_TOOK))
            results[name] = kept
        return results

    def _kept(self, path: Path, mark: str) -> Arrays | None:
        if not path.exists():
            return None
        try:
            # Opened here: where NumPy fails to read it, NumPy would leave it open.
            with path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
        except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
            self.say(f"{path.name} cannot be read ({error}): that stage runs again")
            return None
        if _TOOK not in arrays or str(arrays.pop(_MARK, "")) != mark:
            self.say(f"{path.name} is not what it was made as: that stage runs again")
            return None
        return arrays


def _digest(data: Any) -> str:
    """A mark of the numbers in some arrays."""
    found = hashlib.sha256()
    for leaf in jax.tree.leaves(data):
        found.update(np.ascontiguousarray(leaf).tobytes())
    return found.hexdigest()


def _versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in ("jax", "jaxlib", "numpyro", "optax")} | {
        "legrad": legrad.__version__
    }


def _write(path: Path, mark: str, arrays: Arrays) -> None:
    """Write a file as a whole or not at all: a new file replaces the old one only when it is complete."""
    named: dict[str, Any] = {_MARK: np.asarray(mark), **arrays}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                np.savez(file, **named)
            os.replace(temporary, path)
        finally:
            Path(temporary).unlink(missing_ok=True)
    except OSError as error:
        raise StageError(
            f"the stage's results could not be written to {path} ({error.strerror or error}): free some space or "
            "choose another --out; the stages before it are kept"
        ) from error
