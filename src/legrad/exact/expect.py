"""Expectations of additive terms over independent elements: exact where a rule gives them, else the reason why not.

Ē_t = E[f_t(x)],    x the elements of some sites with known laws; all else that f closes over is held fixed
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from legrad.exact.known import Known
from legrad.exact.laws import Law
from legrad.exact.unknown import Unknown
from legrad.marginal.loops import rewrite, unwrap
from legrad.trace.program import Program


class Term(NamedTuple):
    """What was found of one term.

    Attributes:
        mean: its expectation, None if it is not known.
        how: the rules that gave the expectation, or why there is none; "" for a term that sees no element.
        line: where the reason is, "" if it is inside a density.
        sites: the sites whose elements the term sees.
        error: an estimate of the relative error of its sums over nodes; None if it was not asked for.
    """

    mean: Any
    how: str
    line: str
    sites: frozenset[str]
    error: Any = None

    @property
    def is_exact(self) -> bool:
        """Whether the expectation is known."""
        return self.mean is not None

    def __str__(self) -> str:
        if self.is_exact:
            return f"exact ({self.how}{'' if self.error is None else f', error {self.error:.0e}'})"
        return f"sampled, because of {self.how}" + (f" at {self.line}" if self.line else "")


def expectations(
    f: Callable[[dict[str, Any]], dict[str, Any]], laws: Mapping[str, Law], with_errors: bool = False
) -> dict[str, Term]:
    """Return for each term of f its expectation over the sites, as an array of the term's shape.

    Args:
        f: a function from the sites' values to arrays of additive terms, by name.
        laws: the laws of the sites.
        with_errors: whether to estimate the errors of sums over nodes.
    """
    laws = {name: laws[name] for name in sorted(laws)}
    like = {name: jax.ShapeDtypeStruct(law.shape, law.dtype) for name, law in laws.items()}
    program = Program(f, like, rewrite=rewrite, unwrap=unwrap)
    known = Known(program, laws)
    known.variables.errors = [] if with_errors else None
    found = {}
    for name, i in zip(sorted(program.result), program.outputs, strict=True):
        found[name] = _term(known, i)
    return found


def _term(known: Known, i: int) -> Term:
    program = known.program
    sites = frozenset(known.site[j] for j in program.inputs if i in program.dependents(j))
    if not sites:
        return Term(known.constant(i), "", "", sites)
    known.rules = {}
    errors = known.variables.errors
    if errors is not None:
        errors.clear()
    try:
        mean = known.mean(i)
    except Unknown as error:
        return Term(None, error.reason, error.line, sites)
    except (ValueError, TypeError, IndexError, NotImplementedError) as error:  # a rule met what it was not made for
        return Term(None, f"{type(error).__name__} in a rule", "", sites)
    how = ", ".join(dict.fromkeys(known.rules.values())) or "sums"
    worst = jnp.max(jnp.stack(errors)) if errors else None
    return Term(jnp.broadcast_to(mean, program.shapes[i]), how, "", sites, worst)
