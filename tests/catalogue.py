"""The catalogue: one row a problem, which every estimator that can treat it must pass against the exact gradient."""

import catalogue_discrete  # noqa: F401
import catalogue_mixed
from catalogue_row import ROWS, Row

normal_mean = catalogue_mixed.normal_mean

__all__ = ["ROWS", "Row", "normal_mean"]
