"""What legrad says about a fit without stopping it."""

from __future__ import annotations


class FitWarning(UserWarning):
    """A fit that ran, and that should not be trusted as it is: the message says why and what to try."""
