"""Checks of the data before a fit: are observed values numbers, and inside the support of their distribution?

A log-density outside its support is often finite (a negative time under an Exponential, a category 5 of 3), so a fit
would run, and its answer would be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import handlers
from numpyro.distributions import constraints

from legrad._compiled import outcome
from legrad.distributions.unwrap import unwrap
from legrad.model.arrays import split_arrays
from legrad.model.frames import Names, argument_names
from legrad.model.log_density import LogDensity
from legrad.model.prior_draw import prior_draw
from legrad.model.sites import over_events, sample_sites
from legrad.model.threads import one_at_a_time

_DRAWS = 4  # of the prior, to see whether a support or a value depends on latents
_ROUNDING = 1e-5  # how far outside a bound a value may be


class _Seen(NamedTuple):
    """An observed site at a draw of the prior: its value, where it counts, and the bounds of its support."""

    value: Any
    mask: Any
    low: Any
    high: Any
    support: Any  # None if the distribution has none
    family: str


def check_data(model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raise if an observed value is not a number, or lies outside its support, and neither depends on a latent.

    Values on the edge of a support pass. So do numbers between 0 and 1 under a Bernoulli, which are often used as
    soft labels. A model that does not run here is left to the fit, which names what is wrong.
    """
    if isinstance(model, LogDensity):
        return
    for name, site in _observed(model, args, kwargs, 0).items():
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


@one_at_a_time
def _observed(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], seed: int
) -> dict[str, _Seen]:
    """Return the observed sites at a draw of the prior; none if the model does not run.

    The model is traced, and only values and bounds are computed; a model that cannot be traced is run.
    """
    arrays, rebuild = split_arrays((args, dict(kwargs)))
    kinds: dict[str, tuple[Any, str]] = {}

    def numbers(arrays: list[Any], seed: Any) -> dict[str, tuple[Any, ...]]:
        key, found = jax.random.key(seed), {}
        with jax.ensure_compile_time_eval():  # a model may keep what does not depend on its arguments
            args, kwargs = rebuild(arrays)
            sites = _run(model, args, kwargs, key)
        for name, site in sites.items():
            if site["is_observed"]:
                support = _support(site)
                low, high = (getattr(support, f"{side}_bound", None) for side in ("lower", "upper"))
                if support is constraints.boolean:
                    low, high = 0, 1
                kinds[name] = support, type(unwrap(site["fn"]).bare).__name__
                found[name] = site["value"], _mask(site), low, high
        return found

    found: dict[str, tuple[Any, ...]] = {}
    for how in (partial(outcome, numbers), numbers):
        with suppress(Exception):  # whatever a model raises: the fit will raise it again
            found = jax.device_get(how(arrays, seed))
            break
    return {name: _Seen._make([*found[name], *kinds[name]]) for name in found}


@one_at_a_time
def _sites(model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return the sample sites at a draw of the prior; none if the model does not run."""
    with suppress(Exception):
        return _run(model, args, kwargs, jax.random.key(seed))
    return {}


def _run(model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], key: Any) -> dict[str, Any]:
    seeded = handlers.substitute(handlers.seed(model, key), substitute_fn=prior_draw)
    with handlers.block(), numpyro.validation_enabled(False):
        trace = handlers.trace(seeded).get_trace(*args, **kwargs)
    return dict(sample_sites(trace))


def _mask(site: Mapping[str, Any]) -> Any:
    bare, mask = unwrap(site["fn"])
    return True if mask is None else over_events(mask, bare)


def _not_numbers(name: str, site: _Seen) -> str:
    value = np.asarray(site.value)
    if value.dtype.kind != "f":
        return ""
    bad = np.asarray(~np.isfinite(value) & np.asarray(site.mask))
    if not bad.any():
        return ""
    return (
        f"the data of site '{name}' is {value[tuple(np.argwhere(bad)[0])]} in {_place(bad)}{_more(bad)}: drop such "
        "rows, or mask them with numpyro.handlers.mask"
    )


def _support(site: Mapping[str, Any]) -> Any:
    try:
        support = unwrap(site["fn"]).bare.support
    except NotImplementedError:
        return None
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support


def _outside(site: _Seen) -> np.ndarray | None:
    """Return where a value is clearly outside a scalar support; None for supports of other kinds."""
    support, low, high = site.support, site.low, site.high
    if support is None or support.event_dim or (low is None and high is None):
        return None
    value = np.asarray(site.value, float)
    bad = np.zeros(value.shape, bool)
    if low is not None:
        bad = bad | (value < np.asarray(low) - _ROUNDING * (1 + np.abs(np.asarray(low))))
    if high is not None:
        bad = bad | (value > np.asarray(high) + _ROUNDING * (1 + np.abs(np.asarray(high))))
    if support.is_discrete and support is not constraints.boolean:
        bad = bad | (value != np.round(value))
    return np.asarray(bad & np.asarray(site.mask))


def _varies(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str, site: _Seen
) -> bool:
    """Whether a site's support or its value depends on latents: whether they differ between draws of the prior."""
    for seed in range(1, _DRAWS):
        other = _observed(model, args, kwargs, seed).get(name)
        if other is None or not all(map(_same, site[:4], other[:4])):
            return True
    return False


def _same(a: Any, b: Any) -> bool:
    a, b = np.asarray(a), np.asarray(b)
    return np.array_equal(a, b, equal_nan=a.dtype.kind == "f" and b.dtype.kind == "f")


def _more(bad: np.ndarray) -> str:
    more = int(bad.sum()) - 1
    return f" (and {more:,} more)" if more else ""


def _place(bad: np.ndarray) -> str:
    first = [int(i) for i in np.argwhere(bad)[0]]
    return f"row {first[0]}" if len(first) == 1 else f"position {first}" if first else "its only value"


def _outside_words(name: str, site: _Seen, bad: np.ndarray) -> str:
    support, family = site.support, site.family
    shown = np.broadcast_to(np.asarray(site.value), bad.shape)[tuple(np.argwhere(bad)[0])]
    low, high = _at(site.low, bad), _at(site.high, bad)
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
