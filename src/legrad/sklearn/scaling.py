"""Standardized columns, and what estimators share: settings that are checked, labels, random generators."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets


@dataclass(frozen=True)
class Scaling:
    """The means and standard deviations of columns; a column that is constant has standard deviation one."""

    center: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, X: np.ndarray) -> Scaling:
        """Return the scaling of a table or of a vector."""
        center = X.mean(0)
        scale = X.std(0)
        tiny = scale <= 1e-10 * np.maximum(np.abs(center), 1e-290)
        return cls(np.asarray(center), np.where(tiny, 1.0, scale))

    def __call__(self, X: np.ndarray) -> np.ndarray:
        """Return standardized columns."""
        return np.asarray((X - self.center) / self.scale)


def generator(random_state: Any) -> np.random.Generator:
    """Return a NumPy generator from scikit-learn's `random_state`."""
    return np.random.default_rng(check_random_state(random_state).randint(0, 2**31 - 1, size=4))


def positive_or_auto(name: str, value: Any, below: float = np.inf) -> float | None:
    """Return a positive number, or None for "auto"; raise for anything else."""
    if isinstance(value, str) and value == "auto":
        return None
    if isinstance(value, Real) and 0 < float(value) < below:
        return float(value)
    limit = "" if np.isinf(below) else f" below {below:g}"
    raise ValueError(f"{name}={value!r}: give 'auto', or a positive number{limit}")


def positive(name: str, value: Any) -> float:
    """Return a positive number; raise for anything else."""
    if isinstance(value, Real) and float(value) > 0:
        return float(value)
    raise ValueError(f"{name}={value!r}: give a positive number")


def whole(name: str, value: Any) -> int:
    """Return a whole number of at least one; raise for anything else."""
    if isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1:
        return int(value)
    raise ValueError(f"{name}={value!r}: give a whole number of at least 1")


def level_of(level: Any) -> tuple[float, float]:
    """Return the two quantiles of a central interval; raise if its level is not between 0 and 1."""
    if isinstance(level, Real) and 0 < float(level) < 1:
        return (1 - float(level)) / 2, (1 + float(level)) / 2
    raise ValueError(f"level={level!r}: give a number between 0 and 1, such as 0.9")


def encoded(y: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the classes, and the position of each label among them; raise unless there are two or more."""
    check_classification_targets(y)
    classes, positions = np.unique(y, return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"y has one class, {classes[0]!r}: a classifier needs at least two")
    return classes, positions


def binarized(X: np.ndarray, threshold: float | None) -> np.ndarray:
    """Return zeros and ones: whether each value is above a threshold; without one, X must be between 0 and 1."""
    if threshold is not None:
        return (threshold < X).astype(float)
    bad = (X < 0) | (X > 1)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise ValueError(
            f"X is {X[row, column]:g} in row {row}, column {column}, which is not between 0 and 1: set binarize to a "
            "threshold"
        )
    return X
