"""What a program's checks always say: conditions that hold for every value of the elements, and choices they decide.

NumPyro's log-densities ask whether a value is in the support: x == x, x > 0, x < ∞. For continuous elements these are
comparisons, which no quadrature may pass; they hold for every value, and `where(check, log p, −∞)` is log p.
"""

from __future__ import annotations

import numpy as np

from legrad.exact.smooth import Sign, Signs, obstacle
from legrad.trace.program import Op, Program

_MOVES = {"reshape", "squeeze", "broadcast_in_dim", "transpose", "slice", "copy", "reduce_and", "reduce_or", "rev"}


class Certain:
    """Conditions that are known to be true or false everywhere, and the values that choices by them stand for.

    Attributes:
        truth: what is known of conditions, by number.
        same: the value that a choice stands for, by the number of its result.
        fixed: further values that depend on no element.
    """

    def __init__(self, program: Program, signs: Signs) -> None:
        self.program, self.signs = program, signs
        self.truth: dict[int, bool] = {}
        self.same: dict[int, int] = {}
        self.fixed: set[int] = set()
        for op in program.ops:
            self._look(op._replace(inputs=tuple(map(self.resolve, op.inputs))))

    def resolve(self, i: int) -> int:
        """Return the number of the value that another stands for."""
        return self.same.get(i, i)

    def is_constant(self, i: int) -> bool:
        """Say whether a value depends on no element."""
        return self.program.is_constant(i) or i in self.truth or i in self.fixed

    def _look(self, op: Op) -> None:
        if len(op.outputs) != 1:
            return
        (out,) = op.outputs
        if all(map(self.program.is_constant, op.inputs)):
            return
        truth = self._truth(op)
        if truth is not None and self.program.dtypes[out] == np.dtype(bool):
            self.truth[out] = truth
        elif op.name == "select_n" and op.inputs[0] in self.truth:
            chosen = op.inputs[2 if self.truth[op.inputs[0]] else 1]
            if self.program.shapes[chosen] == self.program.shapes[out] and len(op.inputs) == 3:
                self.same[out] = chosen
        elif all(map(self.is_constant, op.inputs)) or (op.name == "is_finite" and self._is_total(op.inputs[0])):
            self.fixed.add(out)

    def _is_total(self, i: int) -> bool:
        """Say whether a value is finite for all that its elements can be, or for nothing, as its constants are."""
        if self.is_constant(i) or i in self.program.inputs:
            return True
        op = self.program.maker(i)
        if op is None or obstacle(self.program, self.signs, op, [True] * len(op.inputs)) is not None:
            return False
        return all(map(self._is_total, map(self.resolve, op.inputs)))

    def _truth(self, op: Op) -> bool | None:
        known = [self._known(i) for i in op.inputs]
        if op.name in _MOVES:
            return known[0]
        if op.name == "not":
            return None if known[0] is None else not known[0]
        if op.name == "and":
            return False if False in known else True if None not in known else None
        if op.name == "or":
            return True if True in known else False if None not in known else None
        if op.name in ("eq", "ne") and op.inputs[0] == op.inputs[1]:
            return op.name == "eq"
        if op.name in ("eq", "ne", "lt", "le", "gt", "ge") and len(op.inputs) == 2:
            return self._compared(op)
        return None

    def _known(self, i: int) -> bool | None:
        if i in self.truth:
            return self.truth[i]
        numbers = self.program.read(i) if self.program.dtypes[i] == np.dtype(bool) else None
        if numbers is None or numbers.size == 0:
            return None
        return True if numbers.all() else False if not numbers.any() else None

    def _compared(self, op: Op) -> bool | None:
        """Compare a real value with known numbers: with ±∞, or with zero by its sign."""
        name, (a, b) = op.name, op.inputs
        numbers = self.program.read(b)
        if numbers is None:
            numbers, a = self.program.read(a), b
            name = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}.get(name, name)
        if numbers is None or numbers.size == 0 or self.program.dtypes[a].kind != "f":
            return None
        low, high = float(np.min(numbers)), float(np.max(numbers))
        if low == high and np.isinf(low):
            return {"eq": False, "ne": True, "lt": low > 0, "le": low > 0, "gt": low < 0, "ge": low < 0}[name]
        sign = self.signs.of(a)
        positive = high <= 0 and sign == Sign.POSITIVE
        if positive or (high <= 0 and sign == Sign.NONNEGATIVE and name in ("ge", "lt")):
            return {"eq": False, "ne": True, "lt": False, "le": False, "gt": True, "ge": True}[name]
        if low >= 1 and self._below_one(a):
            return {"eq": False, "ne": True, "lt": True, "le": True, "gt": False, "ge": False}[name]
        return None

    def _below_one(self, i: int) -> bool:
        op = self.program.maker(i)
        if op is None:
            return False
        if op.name in ("reshape", "squeeze", "broadcast_in_dim", "transpose", "slice", "copy"):
            return self._below_one(op.inputs[0])
        return op.name == "logistic"
