"""The catalogue: one row a problem, which every estimator that can treat it must pass against the exact gradient."""

import catalogue_discrete  # noqa: F401
import catalogue_mixed
from catalogue_row import ROWS, Row

normal_mean = catalogue_mixed.normal_mean


def named(name: str) -> Row:
    """Return a row by its name."""
    (row,) = [row for row in ROWS if row.name == name]
    return row


__all__ = ["ROWS", "Row", "named", "normal_mean"]
