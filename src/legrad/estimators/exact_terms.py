"""The exact terms of an estimate: expectations that replace terms of f, for latents that nothing in the guide ties.

A site of the guide without sampled parents and children, whose elements have a known law, is free. A term that sees
free sites is replaced by its expectation over them where that can be computed, as a function of the other latents and
of all parameters (Rao–Blackwell). A free site that no other term sees needs no draw and no score.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import jax

from legrad.distributions import support
from legrad.estimators.quadratic_surrogates import Surrogates, surrogates
from legrad.exact.expect import Term, expectations
from legrad.exact.laws import is_known, law
from legrad.model.problem import Evaluation, Noise, Problem
from legrad.model.sites import Draw, Factor

_LOG_P, _LOG_Q = "log p({})", "-log q({})"


class Split(NamedTuple):
    """Which terms are exact.

    Attributes:
        free: the free sites.
        terms: what was found of each term of f that sees a free site, by name.
        done: the free sites that only exact terms see.
        sampled: the sites that still need a draw.
    """

    free: tuple[str, ...]
    terms: dict[str, Term]
    done: frozenset[str]
    sampled: tuple[str, ...]

    @property
    def exact(self) -> list[str]:
        """The names of the exact terms."""
        return [name for name, term in self.terms.items() if term.mean is not None]

    @property
    def deterministic(self) -> bool:
        """Whether nothing is sampled."""
        return not self.sampled


NONE = Split((), {}, frozenset(), ())


def free_sites(pivot: Draw, parents: Mapping[str, frozenset[str]]) -> tuple[str, ...]:
    """List the sites with known laws that depend on no site, and on which no site depends."""
    needed = frozenset[str]().union(*parents.values())
    return tuple(
        name
        for name, factor in pivot.items()
        if not parents[name] and name not in needed and not factor.in_scan and is_known(factor.scalar)
    )


def split(problem: Problem, pivot: Draw, noise: Noise, parents: Mapping[str, frozenset[str]]) -> Split:
    """Decide which terms are exact, from shapes and constants alone. Nothing is computed."""
    free = free_sites(pivot, parents)
    if not free:
        return NONE._replace(sampled=tuple(pivot))
    entropies = known_entropies(problem, pivot, free)
    found: dict[str, Term] = {}

    def look() -> None:
        here = problem.evaluate({}, noise, pivot=pivot, exact_entropy=entropies)
        terms = _expected(problem, pivot, noise, here, {}, free, entropies, None)
        found.update({name: term for name, term in terms.items() if term.sites})

    jax.eval_shape(look)
    left = frozenset[str]().union(*(term.sites for term in found.values() if term.mean is None))
    found = {n: term if term.mean is None else term._replace(mean=True) for n, term in found.items()}
    done = frozenset(free) - left
    return Split(free, found, done, tuple(n for n in pivot if n not in done))


def errors(problem: Problem, pivot: Draw, noise: Noise, at: Mapping[str, jax.Array], found: Split) -> dict[str, Any]:
    """Estimate the relative errors of exact terms that are summed over nodes; see `replaced` for the arguments."""
    here = problem.evaluate(dict(at), noise, pivot=pivot)
    terms = _expected(problem, pivot, noise, here, at, found.free, (), frozenset(found.exact), with_errors=True)
    return {name: term.error for name, term in terms.items() if term.error is not None}


def quieted(
    problem: Problem, pivot: Draw, noise: Noise, here: Evaluation, at: Mapping[str, jax.Array], found: Split
) -> Surrogates | None:
    """Return the surrogates of the sampled terms of log p; see `replaced` for the arguments.

    There are none if other latents than the free ones are held, which the surrogates would change with.
    """
    names = [name for name, term in found.terms.items() if term.mean is None and name.startswith("log p")]
    return surrogates_of(problem, pivot, noise, here, at, found.free, names)


def surrogates_of(
    problem: Problem,
    pivot: Draw,
    noise: Noise,
    here: Evaluation,
    at: Mapping[str, jax.Array],
    free_sites: Collection[str],
    names: Collection[str],
) -> Surrogates | None:
    """Return the surrogates of some terms of log p, if only free sites are held."""
    free = {name: at[name] for name in free_sites if name in at}
    if not names or set(at) != set(free):
        return None

    def terms(x: dict[str, jax.Array]) -> dict[str, jax.Array]:
        there = problem.evaluate({**at, **x}, noise, pivot=pivot)
        return {name: term for name, term in there.terms().items() if name in names}

    laws = {name: law(here.factors[name].elements, here.factors[name].coordinate.dtype) for name in free}
    return surrogates(terms, laws, free)


def known_entropies(problem: Problem, pivot: Draw, names: Collection[str]) -> list[str]:
    """List the sites among some whose entropy is known, if log q is part of f."""
    return [n for n in names if problem.entropy and support.entropy(pivot[n].elements.base) is not None]


def replaced(
    problem: Problem,
    pivot: Draw,
    noise: Noise,
    here: Evaluation,
    at: Mapping[str, jax.Array],
    found: Split,
    entropies: Collection[str],
) -> Evaluation:
    """Return an evaluation with the exact terms replaced by their expectations.

    Args:
        problem: the problem that was evaluated.
        pivot: the pivot.
        noise: its noise.
        here: the evaluation.
        at: the coordinates that were held fixed in it.
        found: which terms are exact.
        entropies: the sites whose -log q is replaced by its expectation.
    """
    if not found.exact:
        return here
    terms = _expected(problem, pivot, noise, here, at, found.free, entropies, frozenset(found.exact))
    log_p = {n: _known(terms, _LOG_P.format(n), value) for n, value in here.log_p.items()}
    minus_log_q = {}
    for name, value in here.minus_log_q.items():
        key = _LOG_Q.format(name)
        # under another name, since a fixed site's own -log q has no gradient
        minus_log_q[f"expected {name}" if key in terms else name] = _known(terms, key, value)
    return here._replace(log_p=log_p, minus_log_q=minus_log_q)


def _known(terms: Mapping[str, Term], name: str, otherwise: jax.Array) -> jax.Array:
    return terms[name].mean if name in terms else otherwise


def _expected(
    problem: Problem,
    pivot: Draw,
    noise: Noise,
    here: Evaluation,
    at: Mapping[str, jax.Array],
    free: Collection[str],
    entropies: Collection[str],
    only: frozenset[str] | None,
    with_errors: bool = False,
) -> dict[str, Term]:
    def terms(x: dict[str, jax.Array]) -> dict[str, jax.Array]:
        there = problem.evaluate({**at, **x}, noise, pivot=pivot, exact_entropy=entropies)
        return {name: term for name, term in there.terms().items() if only is None or name in only}

    def law_of(factor: Factor) -> object:
        return law(factor.elements, factor.coordinate.dtype)

    laws = {name: law_of(here.factors[name]) for name in free}
    return expectations(terms, laws, with_errors)  # type: ignore[arg-type]
