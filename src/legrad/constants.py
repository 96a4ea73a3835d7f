"""What a program's constants hold, found out where somebody asks: one reader for all that walk a program.

A constant is a value of a traced program that depends on none of its inputs: an array that the program closes over,
a literal, or the result of an equation whose operands are all constants. It can be read where the arrays behind it
can, being concrete or `known`; the equations that lead to it are then run, once, and only for those who ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from legrad import _compat
from legrad.known import read

_UNREAD = object()


class Constant:
    """A value of a program that depends on no input; see `results` for those that an equation makes.

    Args:
        value: the array or tracer that it is; None for one that nobody can read.
    """

    def __init__(self, value: Any = None) -> None:
        self._value, self._numbers = value, _UNREAD
        self._eqn: Any = None
        self._operands: Sequence[Constant] = ()
        self._made: list[Constant] = []  # all results of the equation

    def read(self) -> np.ndarray | None:
        """Its numbers, or None where they cannot be read now."""
        ahead = [self]
        while ahead:  # not by recursion: the equations that lead here may be more than Python's stack holds
            constant = ahead[-1]
            unread = [x for x in constant._operands if x._numbers is _UNREAD]
            if constant._numbers is _UNREAD and unread:
                ahead += unread
            else:
                constant._find()
                ahead.pop()
        return self._numbers  # type: ignore[return-value]

    def _find(self) -> None:
        if self._numbers is not _UNREAD:
            return
        if self._eqn is None:
            self._numbers = None if self._value is None else read(self._value)
            return
        operands = [x._numbers for x in self._operands]
        found: list[np.ndarray | None] = [None] * len(self._made)
        if not self._eqn.effects and all(x is not None for x in operands):
            with jax.ensure_compile_time_eval():
                found = [read(result) for result in _compat.run(self._eqn, operands)]
        for constant, numbers in zip(self._made, found, strict=True):
            constant._numbers, constant._operands = numbers, ()


def results(eqn: Any, operands: Sequence[Constant]) -> list[Constant]:
    """The results of an equation that takes constants alone; nothing is run before somebody reads one."""
    made = [Constant() for _ in eqn.outvars]
    for constant in made:
        constant._eqn, constant._operands, constant._made = eqn, operands, made
    return made
