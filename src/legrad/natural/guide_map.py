"""A guide as a map from its unconstrained parameters to the parameters of the distributions of its factors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from numpyro import handlers
from numpyro.distributions import biject_to, constraints

from legrad.diagnostics.replay import Whole
from legrad.distributions.unwrap import unexpanded, unwrap
from legrad.guides.protocol import WholePlates
from legrad.model.parameters import declared
from legrad.model.problem import Noise, Problem
from legrad.model.sites import Factor
from legrad.natural.fisher import FAMILIES, Family, parameters_of

Values = dict[str, dict[str, jax.Array]]


class Known(NamedTuple):
    """A site whose distribution has a known Fisher information: its family, batch shape, and kind."""

    family: Family
    shape: tuple[int, ...]
    discrete: bool


class GuideMap:
    """The guide's parameters, and what its distributions make of them; plates have their full size.

    Args:
        guide: a NumPyro guide.
        args: its positional arguments.
        kwargs: its keyword arguments.

    Attributes:
        transforms: the map from unconstrained to constrained values of each parameter.
        sites: the sites whose Fisher information is known.
        refused: the other random sites, each with the reason.
    """

    def __init__(self, guide: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._args, self._kwargs = args, dict(kwargs)
        self._held: dict[str, Any] = {}  # the latents, so that a conditional does not see its parents' parameters
        self._guide = self._whole(guide)
        sites = declared(None, self._guide, args, self._kwargs, jax.random.key(0), {})
        self.transforms = {n: biject_to(s["kwargs"].get("constraint", constraints.real)) for n, s in sites.items()}
        self.sites: dict[str, Known] = {}
        self.refused: dict[str, str] = {}
        initial = {name: site["value"] for name, site in sites.items()}
        problem, noise = self._problem(initial), _noise()
        pivot = problem.draw(noise)
        parents = problem.parents(pivot, noise)
        self._held = {name: factor.value for name, factor in pivot.items()}
        for name, factor in pivot.items():
            bare, shape = _bare(factor)
            family = FAMILIES.get(type(bare))
            if parents[name] or factor.in_scan:
                others = ", ".join(sorted(parents[name] - {name})) or "its own elements"
                self.refused[name] = f"'{name}' is not a factor of its own: it depends on {others}"
            elif family is None:
                self.refused[name] = f"the Fisher information of '{name}', {factor.family}, is not known"
            else:
                self.sites[name] = Known(family, shape, bool(bare.is_discrete))

    def constrain(self, unconstrained: Mapping[str, Any]) -> dict[str, Any]:
        """Map the guide's parameters to the space in which the guide takes them."""
        return {name: self.transforms[name](unconstrained[name]) for name in self.transforms}

    def values(self, params: Mapping[str, Any]) -> Values:
        """Return the parameters of the distributions of `sites` at constrained parameters, with all batch axes."""
        draw = self._problem(params).draw(_noise())
        return {name: parameters_of(known.family, *_bare(draw[name])) for name, known in self.sites.items()}

    def of_refused(self, params: Mapping[str, Any]) -> dict[str, list[jax.Array]]:
        """Return the arrays that the distributions of `refused` are made of, at constrained parameters."""
        draw = self._problem(params).draw(_noise())
        return {name: [jnp.asarray(x) for x in jax.tree.leaves(draw[name].fn)] for name in self.refused}

    def _whole(self, guide: Callable[..., Any]) -> Callable[..., Any]:
        """Return the guide with plates at full size, and with the latents held where they are known."""
        program = guide.whole if isinstance(guide, WholePlates) else guide

        def whole(*args: Any, **kwargs: Any) -> Any:
            with Whole(), handlers.substitute(data=self._held):
                return program(*args, **kwargs)

        return whole

    def _problem(self, params: Mapping[str, Any]) -> Problem:
        return Problem(_no_model, self._guide, dict(params), self._args, self._kwargs)


def _no_model(*args: Any, **kwargs: Any) -> None: ...


def _noise() -> Noise:
    return Noise(jax.random.key(0), jax.random.key(1))


def _bare(factor: Factor) -> tuple[Any, tuple[int, ...]]:
    """Return the distribution of a factor's elements, and the shape of the elements."""
    scalar = factor.scalar
    if scalar is not None:
        return unexpanded(scalar.base), scalar.base.batch_shape
    bare, shape = unwrap(factor.fn).bare, factor.fn.shape()
    return bare, shape[: len(shape) - bare.event_dim]
