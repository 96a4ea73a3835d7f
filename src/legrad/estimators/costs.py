"""The terms of f that weigh a score: the learning signal of each element.

    cost_e = Σ_t term_t · [term t sees element e, directly or through a descendant of e in the guide]
           + Σ_t term_t · [term t sees one other element j, and all that sees j and others sees e]

The first sum is what the gradient needs. What a term sees is proved from the program (`reach`), down to single
elements; where the proof fails, the term counts for all elements.

The second sum is there for its noise, which is correlated with that of the first. At the optimum of a factorized
guide log q(x_j) is log p averaged over everything but x_j, up to a constant: −log q(x_j) and the other terms that see
j alone cancel the effect of x_j on log p. That helps where e's own terms contain the whole effect of x_j: the pixels
of an image see all of its hidden units, so each unit has the image's whole log p − log q as its signal, with half the
variance. Where e's own terms contain only a part of the effect (neighbours in a chain, two causes of one finding),
the second sum would add more noise than it removes, and such terms are left out.

The estimate is unbiased whatever is in the second sum. A term g that sees neither e nor a descendant of e is
independent of x_e given e's parents, so E[g · ∇ log q(x_e | pa_e)] = E[E[g | pa_e] · E[∇ log q(x_e | pa_e) | pa_e]]
= 0. The expectation of that score given all other elements, which `LocalExpectation` takes, times g has the same
mean. `DisARM` weighs with g at one partner minus g at the other, a difference that is independent of the pair of x_e
and has mean zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient

from legrad.estimators.adding import add_up
from legrad.estimators.signals import Groups, groups
from legrad.model.problem import Evaluation
from legrad.trace.dependence import join, join_over, nothing, own_boxes, own_sets, reach
from legrad.trace.program import Program

_SETS = 1 << 26  # elements times numbers: programs up to this size are followed with sets, larger ones with boxes


def fixed_parents(fixed: Collection[str], parents: Mapping[str, frozenset[str]]) -> dict[str, frozenset[str]]:
    """Return the parents of each fixed site among the fixed sites, through any path of recomputed sites."""

    def nearest(name: str, passed: frozenset[str]) -> frozenset[str]:
        found = frozenset(p for p in parents[name] if p in fixed)
        through = parents[name] - found - passed
        return found.union(*(nearest(p, passed | through) for p in through))

    return {name: nearest(name, frozenset({name})) for name in parents if name in fixed}


def descendants(parents: Mapping[str, frozenset[str]]) -> dict[str, frozenset[str]]:
    """Return the descendants of each site: every site that depends on it, directly or through others.

    A site that is its own descendant has elements that depend on each other. Two sites of one `scan` may each be a
    descendant of the other.
    """
    after = {name: frozenset(n for n in parents if name in parents[n]) for name in parents}
    for _ in after:
        after = {name: later.union(*(after[n] for n in later)) for name, later in after.items()}
    return after


class Costs:
    """The costs of every element of every fixed site.

    Args:
        x: the coordinates of the fixed sites, in ancestral order.
        parents: the parents of each fixed site among the fixed sites; see `fixed_parents`.
        evaluate: `evaluate(x)` runs the problem at other coordinates.
        exact: the sites whose -log q is not among the terms, but replaced by its expectation. Their -log q still
            weighs the scores of other elements where it sees one element alone: the expectation has no noise that
            could cancel theirs.
        company: whether the second sum is taken; not where surrogates have taken out the noise that it would cancel.
    """

    def __init__(
        self,
        x: Mapping[str, jax.Array],
        parents: Mapping[str, frozenset[str]],
        evaluate: Callable[[dict[str, jax.Array]], Evaluation],
        exact: Collection[str] = (),
        company: bool = True,
    ) -> None:
        def program(x: dict[str, jax.Array]) -> tuple[dict[str, Any], dict[str, Any]]:
            here = evaluate(x)
            return {name: here.factors[name].log_prob() for name in x}, here.terms()

        self.x, self.after = dict(x), descendants(parents)
        self.run, self.company = program, company
        self.exact = [name for name in x if name in exact]
        self._groups: dict[tuple[str, ...], Groups] = {}

    def values(self, here: Evaluation) -> dict[str, jax.Array]:
        """Return what `of` adds up, without gradients: the terms, and -log q of the `exact` sites for other sites."""
        factors = {name: here.factors[name] for name in self.exact}
        terms = here.terms() | {_filler(n): -factor.counted(factor.log_prob()) for n, factor in factors.items()}
        return {name: stop_gradient(term) for name, term in terms.items()}

    def of(self, site: str, values: Mapping[str, jax.Array]) -> jax.Array:
        """Return cost_e for the elements of one site.

        Args:
            site: the site.
            values: the result of `values`, or any linear combination of such results.
        """
        if 0 in self._shapes[site]:
            return jnp.zeros(self._shapes[site])
        related = {n for n in self.x if n in self.after[site] or site in self.after[n]} - {site}
        # Ancestors and descendants are left out, as they are not independent of this site; empty sites add nothing.
        beside = tuple(n for n in self.x if n not in related and 0 not in self._shapes[n])
        found, sizes = self._grouped(beside), {n: max(1, math.prod(self._shapes[n])) for n in beside}
        begin = sum(sizes[n] for n in beside[: beside.index(site)])
        cost = add_up(values, found, slice(begin, begin + sizes[site]), self._shapes[site])
        own = _filler(site)
        if own in found.labels:  # the site's own filler is only for other sites
            cost = cost - jnp.where(found.labels[own] >= 0, values[own], 0.0)
        return cost

    @cached_property
    def _program(self) -> Program:
        """The program of all terms, traced when first needed."""
        return Program(self.run, self.x)

    @property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the sites' elements."""
        return {name: tuple(log_q.shape) for name, log_q in self._program.result[0].items()}

    def _grouped(self, beside: tuple[str, ...]) -> Groups:
        if beside not in self._groups:
            rows, factors, terms = self._seen
            fillers = {_filler(n): factors[n] for n in self.exact if n in beside}
            seen = {name: found for name, found in {**terms, **fillers}.items() if found is not None}
            self._groups[beside] = groups(seen, [(rows[n], self._shapes[n]) for n in beside], fillers, self.company)
        return self._groups[beside]

    @cached_property
    def _seen(self) -> tuple[dict[str, slice], dict[str, Any], dict[str, Any]]:
        """The rows of each site, and what every factor and every term sees, also through descendants."""
        program, shapes = self._program, self._shapes
        elements = sum(math.prod(shape) for shape in shapes.values())
        form = own_sets if elements * program.largest() <= _SETS else own_boxes
        own = {n: form(jnp.shape(z), jnp.ndim(z) - len(shapes[n])) for n, z in self.x.items()}
        ends = np.cumsum([0, *map(len, own.values())])
        rows = {n: slice(*between) for n, between in zip(own, pairwise(ends), strict=True)}
        seen: dict[str, np.ndarray | None] = dict.fromkeys(own)
        for name, z in self.x.items():
            here = nothing(np.empty(ends[-1], own[name].dtype), jnp.shape(z))
            here[rows[name]] = own[name]
            above = [n for n in self.x if name in self.after[n]]
            if name in above:
                for n in above:  # among elements that depend on each other, all may see what one sees
                    everything = join_over(own[n], tuple(range(1, own[n].ndim)))
                    here[rows[n]] = everything.reshape(-1, *(1,) * jnp.ndim(z))
            elif above:  # an element of a descendant sees what its own factor sees
                factor = reach(program, seen)[0][name]
                if factor is not None:
                    here = join(here, factor.reshape(factor.shape + (1,) * (here.ndim - factor.ndim)))
            seen[name] = here
        return rows, *reach(program, seen)


def _filler(site: str) -> str:
    return f"-log q({site}), for others"
