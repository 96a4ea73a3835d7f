"""Expectations of additive terms over independent elements: exact where a rule gives them, with the reason where none does.

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
    """

    mean: Any
    how: str
    line: str
    sites: frozenset[str]


def expectations(f: Callable[[dict[str, Any]], dict[str, Any]], laws: Mapping[str, Law]) -> dict[str, Term]:
    """Return for each term of f its expectation over the sites, as an array of the term's shape.

    Args:
        f: a function from the sites' values to arrays of additive terms, by name.
        laws: the laws of the sites.
    """
    laws = {name: laws[name] for name in sorted(laws)}
    like = {name: jax.ShapeDtypeStruct(law.shape, law.dtype) for name, law in laws.items()}
    program = Program(f, like, rewrite=rewrite, unwrap=unwrap)
    known = Known(program, laws)
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
    try:
        mean = known.mean(i)
    except Unknown as error:
        return Term(None, error.reason, error.line, sites)
    how = ", ".join(dict.fromkeys(known.rules.values())) or "sums"
    return Term(jnp.broadcast_to(mean, program.shapes[i]), how, "", sites)
