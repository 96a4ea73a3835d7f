"""The rules: what each primitive does to a change. A family a file; `fallback` is for whatever has no rule."""

from __future__ import annotations

from legrad.singlesite.change import Change
from legrad.singlesite.rules import (
    bernoulli,
    categorical,
    elementwise,
    lookup,
    movement,
    poisson,
    products,
    reductions,
)
from legrad.singlesite.rules.fallback import fallback, linear
from legrad.singlesite.rules.operand import Operand, Rule, Step


def _solve(step: Step) -> list[Change | None]:
    """A triangular system is linear in its right-hand side."""
    a, b = step.operands
    return linear(step) if a.change is None and b.change is not None else fallback(step)


RULES: dict[str, Rule] = {
    **elementwise.RULES,
    **movement.RULES,
    **reductions.RULES,
    **products.RULES,
    **lookup.RULES,
    **bernoulli.RULES,
    **categorical.RULES,
    **poisson.RULES,
    "triangular_solve": _solve,
}

__all__ = ["RULES", "Operand", "Step", "fallback"]
