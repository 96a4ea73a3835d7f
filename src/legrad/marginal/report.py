"""What `legrad.explain(model)` says: which discrete latents are summed, at what cost, and why others are not."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from legrad.marginal.eliminate import Work
from legrad.marginal.marginalize import Marginal, marginalize
from legrad.marginal.plan import Obstacle, Plan, given_values, in_words, look


@dataclass(frozen=True)
class Site:
    """One discrete latent.

    Attributes:
        name: its name.
        elements: how many elements it has.
        values: how many values an element can take; None where they cannot be listed.
        line: the line of the model that samples it.
        work: how it is summed, a part of the sum at a time; empty if it is not.
        obstacle: why it stays a latent, None if it is summed.
    """

    name: str
    elements: int
    values: int | None
    line: str
    work: tuple[Work, ...]
    obstacle: Obstacle | None

    @property
    def summed(self) -> bool:
        """Whether the site is summed out."""
        return self.obstacle is None

    def __str__(self) -> str:
        at = f" ({self.line})" if self.line else ""
        if self.obstacle is not None:
            return f"{self.name}{at} stays a latent: {self.obstacle}."
        size = f"{_count(self.elements, 'element')} of {self.values:,} values" if self.values else "elements"
        parts = "; ".join(dict.fromkeys(_part(w, self.name) for w in self.work))
        return f"{self.name}{at} is summed: {size}, {parts}."


@dataclass(frozen=True)
class Sums:
    """The findings of `legrad.explain(model)`, which print as sentences.

    Attributes:
        sites: one for each discrete latent.
        numbers: how many numbers one evaluation of the sum computes.
        limit: the largest number of joint values in one table.
    """

    sites: tuple[Site, ...]
    numbers: int
    limit: int

    def of(self, name: str) -> Site:
        """Return the site of a name."""
        return next(site for site in self.sites if site.name == name)

    def __str__(self) -> str:
        if not self.sites:
            return "The model has no discrete latent: there is nothing to sum."
        lines = [str(site) for site in self.sites]
        summed = [site for site in self.sites if site.summed]
        if summed:
            joint = math.prod(site.values**site.elements for site in summed if site.values)
            lines.append(f"The sum takes {self.numbers:,} numbers; there are {in_words(joint)} joint values.")
        if any(site.obstacle is not None and site.obstacle.values for site in self.sites):
            lines.append(f"A table may have {self.limit:,} joint values: legrad.marginalize(model, limit=...).")
        return "\n".join(lines)


def explain_sum(model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Sums:
    """Find out which discrete latents of a model are summed out, and at what cost. Nothing is computed."""
    marginal = model if isinstance(model, Marginal) else marginalize(model)
    run, plan = look(marginal.model, args, kwargs), marginal.plan(*args, **kwargs)
    work, sizes = _work(marginal, plan, run.trace, args, kwargs) if plan.summed else ([], {})
    names = [name for name in run.latents if name in plan.kept or name in plan.summed]
    sites = tuple(
        Site(
            name,
            math.prod(plan.shapes[name]),
            sizes.get(name),
            plan.lines.get(name, ""),
            tuple(w for w in work if name in w.sites),
            plan.kept.get(name),
        )
        for name in names
    )
    return Sums(sites, sum(w.numbers for w in work), marginal.limit)


def _work(marginal: Marginal, plan: Plan, trace: Any, args: Any, kwargs: Any) -> tuple[list[Work], dict[str, int]]:
    found: list[Work] = []
    sizes: dict[str, int] = {}
    values = {name: value for name, value in given_values(trace).items() if name not in plan.summed}

    def total() -> Any:
        graph = marginal.graph(plan, values, args, kwargs)
        found.extend(w for w in graph.work if any(name in plan.summed for name in w.sites))
        sizes.update({name: graph.supports[name].size for name in plan.summed})
        return graph.total

    jax.eval_shape(total)
    return found, sizes


def _part(work: Work, name: str) -> str:
    others = [other for other in work.sites if other != name]
    with_others = f" with {' and '.join(others)}" if others else ""
    return f"{work.how}{with_others} ({_count(work.numbers, 'number')})"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' if number != 1 else ''}"
