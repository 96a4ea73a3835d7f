"""The parameters of a model and guide: initial values, constraints, and the maps to unconstrained space and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from types import FunctionType, MethodType
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.distributions import biject_to, constraints

from legrad._compat import Tracer, is_outside
from legrad._compiled import outcome
from legrad.model.arrays import split_arrays
from legrad.model.log_density import LogDensity
from legrad.model.threads import one_at_a_time

Params = dict[str, Any]


@runtime_checkable
class SetUp(Protocol):
    """A guide that looks at its model at its first call, and can be told to do so before."""

    def set_up(self, *args: Any, **kwargs: Any) -> None:
        """Look at the model with these arguments."""
        ...


class Parameters:
    """The parameters that `numpyro.param` statements of model and guide declare.

    Attributes:
        transforms: the map from unconstrained to constrained values of each parameter.
        initial: the initial values, constrained.
        start: the same, unconstrained.
        of_model: the names of those that the model declares, whether the guide does or not.

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
        self.of_model = frozenset(name for name, site in sites.items() if site.get("of_model"))
        self.transforms = {
            name: biject_to(site["kwargs"].get("constraint", constraints.real)) for name, site in sites.items()
        }
        for name, site in sites.items():
            for leaf in jax.tree.leaves(site["value"]):
                if not jnp.issubdtype(jnp.result_type(leaf), jnp.inexact):
                    raise TypeError(f"parameter '{name}' is {jnp.result_type(leaf)}: start it with a float")
        self.initial: Params = {name: _strong(site["value"]) for name, site in sites.items()}
        _check_finite(self.initial)
        self.start = self.unconstrain(self.initial)
        for name, value in self.start.items():
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
_FUNCTIONS = (FunctionType, MethodType)


@one_at_a_time
def declared(
    model: Callable[..., Any] | None,
    guide: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    key: jax.Array,
    given: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the sites of the `numpyro.param` statements of guide and model, by name; the model may be None.

    A model that is a function is traced and runs as one program, and so does a guide that can be set up before. All
    others are run operation by operation: they may keep what they find at their first call. So is what cannot be
    traced, and what has distributions with parameters that NumPyro refuses, and names.
    """
    if isinstance(guide, SetUp):
        guide.set_up(*args, **kwargs)
    of_guide, of_model = jax.random.split(key)
    # A guide that sets itself up at its first call runs once: after an error, a second call would raise another.
    before = None if isinstance(guide, SetUp) else _run(guide, args, kwargs, of_guide, given)
    if is_outside() and isinstance(model, _FUNCTIONS):
        with suppress(Exception):
            found = _in_one_program(model, guide, args, kwargs, key, given, before)
            if found is not None:
                return found
    trace = _run(guide, args, kwargs, of_guide, given) if before is None else before
    if model is None or isinstance(model, LogDensity):
        return _params(trace)
    return _joined(trace, _run(model, args, kwargs, of_model, _values(trace) | dict(given)))


def _in_one_program(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    key: jax.Array,
    given: Mapping[str, Any],
    before: dict[str, Any] | None,
) -> dict[str, Any] | None:
    """Return the sites; None if a distribution's parameters are outside their constraints.

    `before` is the trace of a guide that has run already.
    """
    arrays, rebuild = split_arrays((args, dict(kwargs)))
    sites: dict[str, Any] = {}

    def program(arrays: list[Any], key: Any, given: Any, shared: Any) -> tuple[dict[str, Any], list[jax.Array]]:
        (args, kwargs), keys = rebuild(arrays), jax.random.split(key)
        trace = _run(guide, args, kwargs, keys[0], given) if before is None else before
        values = _values(trace) if before is None else shared
        with jax.ensure_compile_time_eval():  # a model may keep what does not depend on its arguments
            of_model = _run(model, args, kwargs, keys[1], values | given)
        sites.update(_joined(trace, of_model))
        made = {n: site for n, site in sites.items() if before is None or before.get(n) is None}
        valid = [*_valid(of_model), *([] if before is not None else _valid(trace))]
        return {n: (site["value"], site["kwargs"].get("constraint", ())) for n, site in made.items()}, valid

    shared = {} if before is None else _values(before)
    found, valid = outcome(program, arrays, key, dict(given), shared)
    if not all(jax.device_get(valid)):
        return None
    for name, (value, constraint) in found.items():
        traced = any(isinstance(x, Tracer) for x in jax.tree.leaves(sites[name]["kwargs"].get("constraint", ())))
        settings = sites[name]["kwargs"] | ({"constraint": constraint} if traced else {})
        sites[name] = sites[name] | {"value": value, "kwargs": settings}
    return sites


def _run(
    program: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], key: jax.Array, data: Any
) -> dict[str, Any]:
    with handlers.seed(rng_seed=key), handlers.trace() as trace, handlers.substitute(data=data):
        program(*args, **kwargs)
    return trace


def _values(trace: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a model takes from a guide."""
    return {name: site["value"] for name, site in trace.items() if site["type"] in _SHARED}


def _joined(guide: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of guide and model, and mark those of the model."""
    of_guide, of_model = _params(guide), _params(model)
    return {name: site | {"of_model": name in of_model} for name, site in (of_model | of_guide).items()}


def _valid(trace: Mapping[str, Any]) -> list[jax.Array]:
    """Return, as NumPyro asks of distributions that have numbers, whether parameters are inside their constraints."""
    found = []
    for site in trace.values():
        d = site["fn"] if site["type"] == "sample" else None
        while d is not None:
            for name, constraint in d.arg_constraints.items() if getattr(d, "_validate_args", False) else ():
                value = d.__dict__.get(name)
                if isinstance(value, Tracer) and not constraints.is_dependent(constraint):  # all others were checked
                    found.append(jnp.all(constraint(value)))
            d = getattr(d, "base_dist", None)
    return found


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
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return int(jnp.sum(~jnp.isfinite(leaf)))
    return int(np.sum(~np.isfinite(np.asarray(leaf))))


def _strong(tree: Any) -> Any:
    """Return arrays with a definite type, so that a compiled step keeps the types it was given."""

    def strong(x: Any) -> Any:
        kept = isinstance(x, jax.Array) and not x.aval.weak_type
        return x if kept else jax.lax.convert_element_type(x, jnp.result_type(x))

    return jax.tree.map(strong, tree)
