"""The snapshot that a running fit passes to callbacks, and a callback that logs it to a file."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from legrad.model.messages import FitWarning


@dataclass(frozen=True)
class Snapshot:
    """A fit between two steps, as callbacks see it. With several starts, that of the start with the best recent ELBO.

    Attributes:
        step: how many steps were taken.
        seconds: the running time so far.
        elbo: the mean ELBO estimate over the steps since the last call (at most the last 1,000).
        gradient_variance: the mean variance of a component of the gradient over the same steps.
        rate: the factor that multiplies the optimizer's updates.
        params: a function that returns the constrained parameters, which are computed only if it is called.
    """

    step: int
    seconds: float
    elbo: float
    gradient_variance: float
    rate: float
    params: Callable[[], dict[str, Any]]


Callback = Callable[[Snapshot], Any]  # returning True ends the fit


class JsonLines:
    """A callback that appends one line of JSON to a file at each call.

    A fit that resumes from its checkpoint writes no step twice: its first call drops the lines of that step and of
    later ones.

    Args:
        path: the path of the file.

    Example:
        >>> legrad.fit(model, guide, key=key, callback=legrad.JsonLines("fit.jsonl"), callback_every=100)
    """

    def __init__(self, path: Any) -> None:
        self.path = Path(path)
        self._begun = False

    def __call__(self, snapshot: Snapshot) -> None:
        """Write the line of a snapshot."""
        line = {
            "step": snapshot.step,
            "seconds": round(snapshot.seconds, 3),
            "elbo": snapshot.elbo,
            "gradient_variance": snapshot.gradient_variance,
            "rate": snapshot.rate,
        }
        try:
            if not self._begun and self.path.exists():
                self.path.write_text("".join(_before(self.path.read_text(), snapshot.step)))
            self._begun = True
            with self.path.open("a") as file:
                file.write(json.dumps({k: v if np.isfinite(v) else None for k, v in line.items()}) + "\n")
        except OSError as error:  # a full disk must not end a fit for the sake of its log
            warnings.warn(f"step {snapshot.step} could not be logged: {error}", FitWarning, stacklevel=2)


def _before(text: str, step: int) -> list[str]:
    """Return the complete lines of earlier steps; a kill may have cut the last line."""
    kept = []
    for line in text.splitlines(keepends=True):
        try:
            if line.endswith("\n") and json.loads(line)["step"] < step:
                kept.append(line)
        except (ValueError, KeyError, TypeError):
            continue
    return kept
