"""What a fit is doing while no bar is shown: one line, such as "fit: looking for the mode [00:03]".

Reading a model, compiling, looking for modes and weighing draws take seconds, with no steps to count. Whoever does
such a thing calls `tell`; a bar of steps calls `quiet` before it begins.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tqdm.auto import tqdm

from legrad.fitting.processes import is_first

_EVERY = 0.5  # seconds between two looks at the clock
_HERE = threading.local()


@contextmanager
def telling(progress: bool | str | None) -> Iterator[None]:
    """Show what a fit is doing; inside another fit, that one goes on showing it.

    Args:
        progress: whether to show it; a string is its label; if None, only where the output is a terminal.
    """
    outer = getattr(_HERE, "line", None)
    if outer is not None:
        yield
        return
    _HERE.line = line = _Line(progress)
    try:
        yield
    finally:
        _HERE.line = None
        line.close()


def tell(words: str) -> None:
    """Say what is being done now."""
    line = getattr(_HERE, "line", None)
    if line is not None:
        line.tell(words)


def quiet() -> None:
    """Remove the line, for a bar that takes its place."""
    line = getattr(_HERE, "line", None)
    if line is not None:
        line.close()


def is_hidden(progress: bool | str | None) -> bool:
    """Whether `progress` of a fit shows nothing."""
    return not (is_first() and (sys.stderr.isatty() if progress is None else progress))


class _Line:
    def __init__(self, progress: bool | str | None) -> None:
        self._label = progress if isinstance(progress, str) else "fit"
        self._hidden = is_hidden(progress)
        self._bar: Any = None
        self._ended = threading.Event()  # of the thread of the line that is shown

    def tell(self, words: str) -> None:
        if self._hidden:
            return
        text = f"{self._label}: {words}"
        if self._bar is None:
            self._bar = tqdm(desc=text, bar_format="{desc} [{elapsed}]", leave=False)
            if sys.stderr.isatty():  # in a file, each look at the clock would be a line
                threading.Thread(target=self._tick, args=(self._bar, self._ended), daemon=True).start()
        else:
            self._bar.set_description_str(text)

    def _tick(self, bar: Any, ended: threading.Event) -> None:
        while not ended.wait(_EVERY):
            bar.refresh()

    def close(self) -> None:
        bar, self._bar = self._bar, None
        self._ended.set()
        self._ended = threading.Event()
        if bar is not None:
            bar.close()
