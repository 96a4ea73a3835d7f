"""The warning about a fit that does not stop the fit."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

_OURS = str(Path(__file__).resolve().parents[1])


class FitWarning(UserWarning):
    """A fit has run, but should not be trusted as it is: the message says why and what to try."""


def warn(message: str) -> None:
    """Warn about a fit, at the line outside this package that called it."""
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, FitWarning, stacklevel=level)
