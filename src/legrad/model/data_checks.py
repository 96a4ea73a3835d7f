"""Checks of the data before a fit: are observed values numbers, and inside the support of their distribution?

A log-density outside its support is often finite (a negative time under an Exponential, a category 5 of 3), so a fit
would run, and its answer would be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import handlers
from numpyro.distributions import constraints

from legrad.distributions.unwrap import unwrap
from legrad.model.frames import Names, argument_names
from legrad.model.log_density import LogDensity
from legrad.model.prior_draw import prior_draw
from legrad.model.sites import over_events, sample_sites
from legrad.model.threads import one_at_a_time

_DRAWS = 4  # of the prior, to see whether a support or a value depends on latents
_ROUNDING = 1e-5  # how far outside a bound a value may be


def check_data(model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raise if an observed value is not a number, or lies outside its support, and neither depends on a latent.

    Values on the edge of a support pass. So do numbers between 0 and 1 under a Bernoulli, which are often used as
    soft labels. A model that does not run here is left to the fit, which names what is wrong.
    """
    if isinstance(model, LogDensity):
        return
    trace = _observed(model, args, kwargs, 0)
    for name, site in trace.items():
        found = _not_numbers(name, site)
        if found and not _varies(model, args, kwargs, name, site):
            raise ValueError(found)
        bad = _outside(site)
        if bad is not None and bad.any() and not _varies(model, args, kwargs, name, site):
            raise ValueError(_outside_words(name, site, bad))


def describe_missing(
    model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], names: Sequence[Names] = ()
) -> str:
    """Name the first argument that holds NaN or infinite values, with its row and column; empty if there is none."""
    called = argument_names(model, args, kwargs)
    for name, x in zip(called, [*args, *kwargs.values()], strict=True):
        if not isinstance(x, np.ndarray | jax.Array) or not jnp.issubdtype(x.dtype, jnp.inexact) or not np.ndim(x):
            continue
        bad = ~np.isfinite(np.asarray(x))
        if bad.any():
            first = np.argwhere(bad)[0]
            where = f"row {first[0]}"
            if len(first) == 2:
                columns = {one.argument: one.values for one in names if one.axis == 1}.get(name)
                where += f", column {columns[first[1]]!r}" if columns else f", column {first[1]}"
            elif len(first) > 2:
                where = f"position {[int(i) for i in first]}"
            return f"argument '{name}' is {np.asarray(x)[tuple(first)]} in {where}{_more(bad)}"
    return ""


def describe_text(model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Name the first argument that is an array of text or other objects; empty if there is none."""
    called = argument_names(model, args, kwargs)
    for name, x in zip(called, [*args, *kwargs.values()], strict=True):
        if isinstance(x, np.ndarray) and x.dtype.kind not in "biufc":
            first = f", such as {x.ravel()[0]!r}" if x.size else ""
            return (
                f"argument '{name}' is an array of {x.dtype}{first}, not of numbers: encode it, as in "
                f"np.unique({name}, return_inverse=True)[1]"
            )
    return ""


def discrete_latent(model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return the name of the first discrete latent of a model, for messages; empty if there is none."""
    sites = _sites(model, tuple(args), kwargs, 0)
    return next((n for n, s in sites.items() if not s["is_observed"] and s["fn"].support.is_discrete), "")


def _observed(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], seed: int
) -> dict[str, Any]:
    return {name: site for name, site in _sites(model, args, kwargs, seed).items() if site["is_observed"]}


@one_at_a_time
def _sites(model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return the sample sites at a draw of the prior; none if the model does not run."""
    seeded = handlers.substitute(handlers.seed(model, seed), substitute_fn=prior_draw)
    try:
        with handlers.block(), numpyro.validation_enabled(False):
            trace = handlers.trace(seeded).get_trace(*args, **kwargs)
    except Exception:  # whatever a model raises: the fit will raise it again
        return {}
    return dict(sample_sites(trace))


def _mask(site: Mapping[str, Any]) -> Any:
    bare, mask = unwrap(site["fn"])
    return True if mask is None else over_events(mask, bare)


def _not_numbers(name: str, site: Mapping[str, Any]) -> str:
    value = np.asarray(site["value"])
    if value.dtype.kind != "f":
        return ""
    bad = np.asarray(~np.isfinite(value) & _mask(site))
    if not bad.any():
        return ""
    return (
        f"the data of site '{name}' is {value[tuple(np.argwhere(bad)[0])]} in {_place(bad)}{_more(bad)}: drop such "
        "rows, or mask them with numpyro.handlers.mask"
    )


def _support(site: Mapping[str, Any]) -> Any:
    support = unwrap(site["fn"]).bare.support
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support


def _outside(site: Mapping[str, Any]) -> np.ndarray | None:
    """Return where a value is clearly outside a scalar support; None for supports of other kinds."""
    try:
        support = _support(site)
    except NotImplementedError:
        return None
    low, high = (getattr(support, f"{side}_bound", None) for side in ("lower", "upper"))
    if support is constraints.boolean:
        low, high = 0, 1
    if support.event_dim or (low is None and high is None):
        return None
    value = np.asarray(site["value"], float)
    bad = np.zeros(value.shape, bool)
    if low is not None:
        bad = bad | (value < np.asarray(low) - _ROUNDING * (1 + np.abs(np.asarray(low))))
    if high is not None:
        bad = bad | (value > np.asarray(high) + _ROUNDING * (1 + np.abs(np.asarray(high))))
    if support.is_discrete and support is not constraints.boolean:
        bad = bad | (value != np.round(value))
    return np.asarray(bad & _mask(site))


def _varies(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str, site: Mapping[str, Any]
) -> bool:
    """Whether a site's support or its value depends on latents: whether they differ between draws of the prior."""
    bounds = _bounds(site)
    for seed in range(1, _DRAWS):
        other = _observed(model, args, kwargs, seed).get(name)
        if other is None:
            return True
        others = _bounds(other)
        if len(others) != len(bounds) or not all(map(_same, bounds, others)):
            return True
    return False


def _bounds(site: Mapping[str, Any]) -> list[Any]:
    """Return the numbers of a site's support, and its value."""
    try:
        support = jax.tree.leaves(_support(site))
    except NotImplementedError:
        support = []
    return [*support, site["value"]]


def _same(a: Any, b: Any) -> bool:
    a, b = np.asarray(a), np.asarray(b)
    return np.array_equal(a, b, equal_nan=a.dtype.kind == "f" and b.dtype.kind == "f")


def _more(bad: np.ndarray) -> str:
    more = int(bad.sum()) - 1
    return f" (and {more:,} more)" if more else ""


def _place(bad: np.ndarray) -> str:
    first = [int(i) for i in np.argwhere(bad)[0]]
    return f"row {first[0]}" if len(first) == 1 else f"position {first}" if first else "its only value"


def _outside_words(name: str, site: Mapping[str, Any], bad: np.ndarray) -> str:
    support, family = _support(site), type(unwrap(site["fn"]).bare).__name__
    shown = np.broadcast_to(np.asarray(site["value"]), bad.shape)[tuple(np.argwhere(bad)[0])]
    low, high = (_at(getattr(support, f"{side}_bound", None), bad) for side in ("lower", "upper"))
    kind = "whole numbers" if support.is_discrete else "numbers"
    words = f"{kind} from {low} to {high}" if None not in (low, high) else f"{kind} from {low} on"
    words = "0 and 1" if support is constraints.boolean else f"{kind} up to {high}" if low is None else words
    return (
        f"the data of site '{name}' is {shown} in {_place(bad)}, which is outside the support of {family}: {words}"
        f"{_more(bad)}. Correct or drop these rows, or choose a distribution that allows them"
    )


def _at(bound: Any, bad: np.ndarray) -> Any:
    if bound is None:
        return None
    try:
        return np.broadcast_to(np.asarray(bound), bad.shape)[tuple(np.argwhere(bad)[0])]
    except ValueError:
        return np.asarray(bound)
