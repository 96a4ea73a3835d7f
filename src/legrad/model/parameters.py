"""The parameters of a model and guide: initial values, constraints, and the maps to unconstrained space and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.distributions import biject_to, constraints

from legrad.model.log_density import LogDensity
from legrad.model.threads import one_at_a_time

Params = dict[str, Any]


class Parameters:
    """The parameters that `numpyro.param` statements of model and guide declare.

    Args:
        model: the model (or `legrad.log_density`).
        guide: the guide.
        args: positional arguments of model and guide.
        kwargs: keyword arguments of model and guide.
        key: the random key of initial values that are random.
        given: values that replace the initial values, constrained.
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
        sites = declared(model, guide, args, kwargs, key, given)
        unknown = sorted(set(given) - set(sites))
        if unknown:
            near = get_close_matches(unknown[0], sites, 1)
            raise ValueError(
                f"'{unknown[0]}' is not a parameter of the model or guide, which have: "
                f"{', '.join(sorted(sites)) or 'none'}" + (f". Did you mean '{near[0]}'?" if near else "")
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
            if any(_not_finite(leaf) for leaf in jax.tree.leaves(value)):
                constraint = sites[name]["kwargs"].get("constraint", constraints.real)
                raise ValueError(
                    f"parameter '{name}' starts outside, or on the edge, of its constraint {constraint}: "
                    "start it inside"
                )

    def constrain(self, unconstrained: Params) -> Params:
        """Map parameters to the constrained space, in which model and guide take them."""
        return {name: self.transforms[name](value) for name, value in unconstrained.items()}

    def unconstrain(self, params: Params) -> Params:
        """Map parameters to the unconstrained space, in which they are optimized."""
        return {name: _strong(self.transforms[name].inv(value)) for name, value in params.items()}


_SHARED = ("param", "sample", "plate")


@one_at_a_time
def declared(
    model: Callable[..., Any] | None,
    guide: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    key: jax.Array,
    given: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the sites of the `numpyro.param` statements of guide and model, by name; the model may be None."""
    of_guide, of_model = jax.random.split(key)
    with handlers.seed(rng_seed=of_guide), handlers.trace() as trace, handlers.substitute(data=given):
        guide(*args, **kwargs)
    sites = _params(trace)
    if model is None or isinstance(model, LogDensity):
        return sites
    data = {name: site["value"] for name, site in trace.items() if site["type"] in _SHARED} | dict(given)
    with handlers.seed(rng_seed=of_model), handlers.trace() as trace, handlers.substitute(data=data):
        model(*args, **kwargs)
    return _params(trace) | sites


def require_same(
    params: Mapping[str, Any],
    model: Callable[..., Any] | None,
    guide: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    file: str,
) -> None:
    """Raise if model and guide do not have the parameters of a file, by names and shapes.

    Args:
        params: the parameters in the file.
        model: the model; None if it is not known, so that parameters that the guide lacks may belong to the model.
        guide: the guide.
        args: positional arguments of model and guide.
        kwargs: keyword arguments of model and guide.
        file: the name of the file, for the message.
    """
    sites = declared(model, guide, args, kwargs, jax.random.key(0), {})
    lacks, more = sorted(set(sites) - set(params)), sorted(set(params) - set(sites)) if model is not None else []
    remedy = "pass the model, guide and args that were fitted, or fit these"
    if lacks or more:
        says = [f"it has no parameter '{lacks[0]}', which they have"] if lacks else []
        says += [f"it has a parameter '{more[0]}', which they do not have"] if more else []
        raise ValueError(f"{file} is not of this model and guide: {', and '.join(says)}. Remedy: {remedy}")
    for name, site in sites.items():
        here, there = _shapes(site["value"]), _shapes(params[name])
        for leaf in here | there:
            if here.get(leaf) != there.get(leaf):
                raise ValueError(
                    f"{file} is not of this model, guide and data: parameter '{name}'{leaf} has the shape "
                    f"{there.get(leaf)} in it, and {here.get(leaf)} here. Remedy: {remedy}"
                )


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the leaves, by their paths."""
    return {jax.tree_util.keystr(path): jnp.shape(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _params(trace: Mapping[str, Any]) -> dict[str, Any]:
    return {name: site for name, site in trace.items() if site["type"] == "param"}


def _check_finite(params: Mapping[str, Any]) -> None:
    for name, value in params.items():
        for leaf in jax.tree.leaves(value):
            bad = _not_finite(leaf)
            if bad:
                raise ValueError(
                    f"parameter '{name}' starts with {bad} of {np.size(leaf)} values not finite: "
                    "check its initial value"
                )


def _not_finite(leaf: Any) -> int:
    """Count the values that are not finite; an array that is spread over processes is counted by all of them."""
    return int(jnp.sum(~jnp.isfinite(leaf)) if isinstance(leaf, jax.Array) else np.sum(~np.isfinite(leaf)))


def _strong(tree: Any) -> Any:
    """Return arrays with a definite type, so that a compiled step keeps the types it was given."""
    return jax.tree.map(lambda x: jax.lax.convert_element_type(x, jnp.result_type(x)), tree)
