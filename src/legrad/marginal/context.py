"""What a rule for tables may ask: the program that is run, its limit, and elements to add."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from legrad.marginal.table import Label, Shape
from legrad.trace.operations import run_equation
from legrad.trace.program import Op, Program


class Given(NamedTuple):
    """Elements that were added: numbers that are known, each one of the candidates."""

    numbers: np.ndarray
    candidates: np.ndarray
    start: int


@dataclass
class Context:
    """The program that is run, and the largest number of joint values in one table.

    `free` is the first number that no element has, None if no element may be added; `given` holds those added.
    """

    program: Program
    limit: int
    free: int | None = None
    given: list[Given] = field(default_factory=list)

    def added(self, numbers: np.ndarray, candidates: np.ndarray) -> Label:
        """Add elements for numbers that are known."""
        assert self.free is not None
        start, self.free = self.free, self.free + numbers.size
        self.given.append(Given(numbers, candidates, start))
        return Label(len(candidates), start + np.arange(numbers.size).reshape(numbers.shape))


def shapes_of(op: Op) -> list[Shape]:
    """Return the shapes of an operation's results."""
    return [tuple(v.aval.shape) for v in op.eqn.outvars]


def run_of(op: Op) -> Callable[..., list[Any]]:
    """Return an operation as a function of arrays."""
    return lambda *operands: list(run_equation(op.eqn, operands))
