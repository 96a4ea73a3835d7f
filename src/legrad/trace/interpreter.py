"""An interpreter that walks a jaxpr with values of any kind.

The loop, the environment and the handling of nested programs are written once, here; the `rule` that the caller
passes decides what a value is and what a primitive does to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from legrad import _compat
from legrad.trace.operations import wrapped_program

Rule = Callable[[Any, list[Any]], Sequence[Any]]
Unwrap = Callable[[Any, list[Any]], tuple[Any, list[Any]] | None]


def unwrap_all(eqn: Any, operands: list[Any]) -> tuple[Any, list[Any]] | None:
    """Return the program that an equation wraps, whatever its operands."""
    return wrapped_program(eqn)


def interpret(
    jaxpr: Any,
    consts: Sequence[Any],
    inputs: Sequence[Any],
    rule: Rule,
    lift: Callable[[Any], Any],
    enter: Callable[[Any], AbstractContextManager[None]] = lambda eqn: nullcontext(),
    unwrap: Unwrap = unwrap_all,
) -> list[Any]:
    """Run `jaxpr` on abstract `inputs`.

    Args:
        jaxpr: the open jaxpr to walk; programs that an equation merely wraps are walked in place.
        consts: the jaxpr's constants, as plain arrays (or tracers).
        inputs: one abstract value for each input variable.
        rule: `rule(equation, operands)` returns the abstract values of the equation's results.
        lift: a function that makes an abstract value of a plain constant.
        enter: a function from the equation that wraps a nested program to the context in which to walk that program.
        unwrap: `unwrap(equation, operands)` returns the program to walk in the equation's place, or None to apply the
            rule to the equation itself.
    """
    env: dict[Any, Any] = dict(zip(jaxpr.constvars, map(lift, consts), strict=True))
    env.update(zip(jaxpr.invars, inputs, strict=True))

    def read(atom: Any) -> Any:
        return lift(_compat.literal(atom)) if isinstance(atom, _compat.Literal) else env[atom]

    for eqn in jaxpr.eqns:
        operands = [read(atom) for atom in eqn.invars]
        inner = unwrap(eqn, operands)
        if inner is None:
            results = rule(eqn, operands)
        else:
            with enter(eqn):
                results = interpret(*inner, operands, rule, lift, enter, unwrap)
        env.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]
