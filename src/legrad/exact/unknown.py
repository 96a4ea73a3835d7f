"""The exception that says why an expectation is not known."""

from __future__ import annotations


class Unknown(Exception):
    """An expectation, variance or table that no rule gives.

    Attributes:
        reason: why, as the end of a sentence that begins with "because".
        line: the line of the user's program, "" if it is inside a density.
    """

    def __init__(self, reason: str, line: str = "") -> None:
        super().__init__(reason)
        self.reason, self.line = reason, line

    def __str__(self) -> str:
        return f"{self.reason} at {self.line}" if self.line else self.reason
