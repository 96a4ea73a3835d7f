"""The terms of f that matter to a score: those that the element or a descendant of it touches.

    cost_e = Σ_t term_t · [term t sees element e, directly or through a descendant of e in the guide]

A term that sees neither adds noise and nothing else, as the expectation of a score is zero. What a term sees is
proved from the program (`reach`), down to single elements; where the proof fails the term counts for all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from legrad.problem import Evaluation
from legrad.reach import EMPTY, Program, own_boxes


def among(fixed: Collection[str], parents: Mapping[str, frozenset[str]]) -> dict[str, frozenset[str]]:
    """The parents among the fixed sites, through any path of sites that are recomputed."""

    def nearest(name: str, passed: frozenset[str]) -> frozenset[str]:
        found = frozenset(p for p in parents[name] if p in fixed)
        through = parents[name] - found - passed
        return found.union(*(nearest(p, passed | through) for p in through))

    return {name: nearest(name, frozenset({name})) for name in parents if name in fixed}


def descendants(parents: Mapping[str, frozenset[str]]) -> dict[str, frozenset[str]]:
    """Who comes after whom: every site that depends on a site, directly or through others.

    A site that comes after itself has elements that depend on each other. Two sites of one `scan` may each come
    after the other.
    """
    after = {name: frozenset(n for n in parents if name in parents[n]) for name in parents}
    for _ in after:
        after = {name: later.union(*(after[n] for n in later)) for name, later in after.items()}
    return after


class Costs:
    """The costs of every element of every fixed site.

    Args:
        x: the coordinates of the fixed sites, in ancestral order.
        parents: who is whose parent among them; see `among`.
        evaluate: `evaluate(x)` runs the problem at other coordinates.
    """

    def __init__(
        self,
        x: Mapping[str, jax.Array],
        parents: Mapping[str, frozenset[str]],
        evaluate: Callable[[dict[str, jax.Array]], Evaluation],
    ) -> None:
        def program(x: dict[str, jax.Array]) -> tuple[dict[str, Any], dict[str, Any]]:
            here = evaluate(x)
            return {name: here.factors[name].log_prob() for name in x}, here.terms()

        self.x, self.after = dict(x), descendants(parents)
        self.run = program

    @cached_property
    def program(self) -> Program:
        """The program of all terms, traced when first needed."""
        return Program(self.run, self.x)

    def of(self, site: str, here: Mapping[str, jax.Array], shape: tuple[int, ...]) -> jax.Array:
        """cost_e for the elements of one site.

        Args:
            site: whose elements.
            here: the terms' values, as `Evaluation.terms` gives them.
            shape: the shape of the site's elements, that of its elementwise log q.
        """
        total = jnp.zeros(shape)
        for name, box in self._boxes(site, shape).items():
            if box is not None:
                total = total + _add_up(here[name], box, shape)
        return total

    def _boxes(self, site: str, shape: tuple[int, ...]) -> dict[str, np.ndarray | None]:
        own = own_boxes(jnp.shape(self.x[site]), jnp.ndim(self.x[site]) - len(shape))
        everything = own.reshape(len(own), math.prod(own.shape[1:])).min(axis=1, initial=EMPTY)
        seen: dict[str, np.ndarray | None] = dict.fromkeys(self.x) | {site: own}
        for name in self.x:
            if name in self.after[site]:
                # An element of a descendant sees what its own factor sees; among elements that depend on each
                # other, whatever one sees all may see.
                box = everything if name in self.after[name] else self.program.reach(seen)[0][name]
                target = jnp.shape(self.x[name])
                box = box.reshape(box.shape + (1,) * (len(target) + 1 - box.ndim))
                seen[name] = np.broadcast_to(box, (len(box), *target))
        return self.program.reach(seen)[1]


def _add_up(term: jax.Array, box: np.ndarray, shape: tuple[int, ...]) -> jax.Array:
    """Add each number of a term to the elements in its box. An interval of an axis counts as the whole axis."""
    rank = len(box) // 2
    term, box = jnp.ravel(term), box.reshape(len(box), -1)
    lo, hi = box[:rank], -box[rank:]
    point = (lo == hi).T  # (numbers, axes)
    live = lo[0] != EMPTY
    total: Any = jnp.zeros((), term.dtype)
    for pattern in np.unique(point[live], axis=0):
        (chosen,) = np.nonzero(live & (point == pattern).all(axis=1))
        target = tuple(n if p else 1 for n, p in zip(shape or (1,), pattern, strict=True))
        where = tuple(lo[a, chosen] if pattern[a] else np.zeros_like(chosen) for a in range(rank))
        total = total + _sum_into(term, chosen, np.ravel_multi_index(where, target), target)
    return jnp.broadcast_to(total, shape or (1,)).reshape(shape)


def _sum_into(term: jax.Array, chosen: np.ndarray, where: np.ndarray, target: tuple[int, ...]) -> jax.Array:
    """The sum of term[chosen] at each place of an array: by one gather, as all indices are known here."""
    size, counts = math.prod(target), np.bincount(where, minlength=math.prod(target))
    order = np.argsort(where, kind="stable")
    position = np.arange(len(where)) - np.repeat(np.cumsum(counts) - counts, counts)
    index = np.full((size, counts.max(initial=0)), len(term))  # one past the end: a zero
    index[where[order], position] = chosen[order]
    padded = jnp.concatenate([term, jnp.zeros(1, term.dtype)])
    return padded[index].sum(axis=1).reshape(target)
