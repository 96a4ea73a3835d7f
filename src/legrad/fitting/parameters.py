"""The parameters of a model and guide: initial values, constraints, and the way to unconstrained space and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.distributions import biject_to, constraints

from legrad.problem import LogDensity

Params = dict[str, Any]


class Parameters:
    """What `numpyro.param` statements of model and guide declare.

    Args:
        model: the model (or `legrad.log_density`).
        guide: the guide.
        args: their arguments.
        kwargs: their keyword arguments.
        key: for initial values that are random.
        given: values that replace the initial ones, constrained.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        key: jax.Array,
        given: Mapping[str, Any] | None = None,
    ) -> None:
        given = dict(given or {})
        _check_finite(given)
        of_guide, of_model = jax.random.split(key)
        with handlers.seed(rng_seed=of_guide), handlers.trace() as trace, handlers.substitute(data=given):
            guide(*args, **kwargs)
        sites = _params(trace)
        if not isinstance(model, LogDensity):
            data = {name: site["value"] for name, site in trace.items() if site["type"] in _SHARED} | given
            with handlers.seed(rng_seed=of_model), handlers.trace() as trace, handlers.substitute(data=data):
                model(*args, **kwargs)
            sites = _params(trace) | sites
        unknown = sorted(set(given) - set(sites))
        if unknown:
            raise ValueError(
                f"'{unknown[0]}' is no parameter of the model or guide, which have: "
                f"{', '.join(sorted(sites)) or 'none'}"
            )
        if not sites:
            raise ValueError("neither model nor guide has a numpyro.param: there is nothing to optimize")
        self.transforms = {
            name: biject_to(site["kwargs"].get("constraint", constraints.real)) for name, site in sites.items()
        }
        for name, site in sites.items():
            for leaf in jax.tree.leaves(site["value"]):
                if not jnp.issubdtype(jnp.result_type(leaf), jnp.inexact):
                    raise TypeError(f"parameter '{name}' is {jnp.result_type(leaf)}: start it with a float")
        self.initial: Params = {name: _strong(site["value"]) for name, site in sites.items()}
        _check_finite(self.initial)
        for name, value in self.unconstrain(self.initial).items():
            if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(value)):
                constraint = sites[name]["kwargs"].get("constraint", constraints.real)
                raise ValueError(
                    f"parameter '{name}' starts outside, or on the edge, of its constraint {constraint}: "
                    "start it inside"
                )

    def constrain(self, unconstrained: Params) -> Params:
        """To the space in which model and guide take them."""
        return {name: self.transforms[name](value) for name, value in unconstrained.items()}

    def unconstrain(self, params: Params) -> Params:
        """To the space in which they are optimized."""
        return {name: _strong(self.transforms[name].inv(value)) for name, value in params.items()}


_SHARED = ("param", "sample", "plate")


def _params(trace: Mapping[str, Any]) -> dict[str, Any]:
    return {name: site for name, site in trace.items() if site["type"] == "param"}


def _check_finite(params: Mapping[str, Any]) -> None:
    for name, value in params.items():
        for leaf in jax.tree.leaves(value):
            bad = int(np.sum(~np.isfinite(leaf)))
            if bad:
                raise ValueError(
                    f"parameter '{name}' starts with {bad} of {np.size(leaf)} values not finite: "
                    "check its initial value"
                )


def _strong(tree: Any) -> Any:
    """Arrays with a definite type, so that a compiled step keeps the types it was given."""
    return jax.tree.map(lambda x: jax.lax.convert_element_type(x, jnp.result_type(x)), tree)
