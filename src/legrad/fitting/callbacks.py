"""What a fit tells while it runs, and a callback that writes it to a file."""

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
    """A fit between two steps, as callbacks see it. Of several starts it shows the one with the best recent ELBO.

    Attributes:
        step: how many steps were taken.
        seconds: of running so far.
        elbo: the mean estimate over the steps since the last call (not more than 1,000).
        gradient_variance: of a component of the gradient, over the same steps.
        rate: what the optimizer's updates are multiplied with.
        params: a function that gives the parameters, constrained: computed only if it is called.
    """

    step: int
    seconds: float
    elbo: float
    gradient_variance: float
    rate: float
    params: Callable[[], dict[str, Any]]


Callback = Callable[[Snapshot], Any]  # returning True ends the fit


class JsonLines:
    """A callback that appends a line of JSON for each call.

    A fit that was killed and goes on from its checkpoint writes no step twice: lines at or after the first step that
    it writes are dropped.

    Args:
        path: of the file.

    Example:
        >>> legrad.fit(model, guide, key=key, callback=legrad.JsonLines("fit.jsonl"), callback_every=100)
    """

    def __init__(self, path: Any) -> None:
        self.path = Path(path)
        self._begun = False

    def __call__(self, snapshot: Snapshot) -> None:
        """Write a line."""
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
    """The whole lines of earlier steps; the last line may have been cut by a kill."""
    kept = []
    for line in text.splitlines(keepends=True):
        try:
            if line.endswith("\n") and json.loads(line)["step"] < step:
                kept.append(line)
        except (ValueError, KeyError, TypeError):
            continue
    return kept
