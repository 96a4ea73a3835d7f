"""The warning about a fit that does not stop the fit."""

from __future__ import annotations


class FitWarning(UserWarning):
    """A fit has run, but should not be trusted as it is: the message says why and what to try."""
