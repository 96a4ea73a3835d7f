"""The rules: what each primitive does to a change. Each file has one family; `fallback` is for all other cases."""

from __future__ import annotations

from legrad.singlesite.change import Change
from legrad.singlesite.rules import elementwise, lookup, movement, products, reductions
from legrad.singlesite.rules.fallback import fallback, linear
from legrad.singlesite.rules.likelihoods import bernoulli, categorical, poisson
from legrad.singlesite.rules.operand import Operand, Rule, Step
from legrad.trace.operations import ELEMENTWISE


def _solve(step: Step) -> list[Change | None]:
    """Solve a triangular system, which is linear in its right-hand side."""
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


def rule_of(name: str) -> Rule | None:
    """Return the rule of a primitive or operation, or None; elementwise operations share one rule."""
    return RULES.get(name, elementwise.nonlinear if name in ELEMENTWISE else None)


__all__ = ["RULES", "Operand", "Step", "fallback", "rule_of"]
