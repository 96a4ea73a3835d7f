"""Predictions: the observed sites of a model, drawn given draws of a fitted guide, for the same or for new data.

y* ~ p(y* | x*, z*, θ),    θ ~ q(θ),    z* ~ p(z* | θ) for members of a plate that the fit has not seen
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from numpyro import handlers

from legrad._compiled import jit
from legrad.diagnostics.replay import Trace, Whole, full_shape, latent_sites, observed_sites, replay, user_model
from legrad.model.arrays import map_in_batches, split_arrays
from legrad.model.log_density import LogDensity
from legrad.model.messages import warn
from legrad.model.problem import Problem

_TOGETHER = 64
_SCAN = "scan"


def predict(
    problem: Problem,
    draws: Mapping[str, Any],
    key: jax.Array,
    args: tuple[Any, ...] | None,
    kwargs: Mapping[str, Any] | None,
    same: Collection[str] = (),
) -> dict[str, jax.Array]:
    """Draw every observed site of a model; see `FitResult.predict`.

    Args:
        problem: model, guide, fitted parameters and the data of the fit.
        draws: draws of the latents, by name, with a leading axis.
        key: the random key.
        args: the new positional arguments of the model; None for those of the fit.
        kwargs: the new keyword arguments of the model; None for those of the fit.
        same: the names of plates whose members are those of the fit.
    """
    model = user_model(problem.model)
    if isinstance(model, LogDensity):
        raise ValueError("a legrad.log_density has no observed site to predict: write it as a NumPyro model")
    fitted = _traced(model, problem.args, problem.kwargs, problem.params)
    observed = list(observed_sites(fitted))
    if not observed:
        raise ValueError("the model has no observed site to predict: pass the data that it is given with obs=")
    layers: tuple[Any, ...] = ()
    if args is None and kwargs is None:
        args, kwargs, kept = problem.args, problem.kwargs, dict(draws)
        layers = (Whole(),)
        _run(model, args, kwargs, problem.params, layers, _minibatch(layers[0]))
    else:
        args, left_out = _completed(model, args or (), kwargs or {})
        trace = _run(model, args, kwargs or {}, problem.params, (), _without(left_out))
        kept = _known(draws, trace, fitted, observed, same)
    arrays, rebuild = split_arrays((args, dict(kwargs or {}), dict(problem.params)))

    @jit
    def every(keys: jax.Array, values: dict[str, Any], arrays: list[Any]) -> dict[str, Any]:
        given_args, given_kwargs, params = rebuild(arrays)

        def one(item: tuple[jax.Array, dict[str, Any]]) -> dict[str, Any]:
            given = {**params, **item[1]}
            trace = replay(model, given_args, given_kwargs, item[0], given, handlers.uncondition(), *layers)
            return {name: trace[name]["value"] for name in observed}

        return map_in_batches(one, (keys, values), _TOGETHER)

    number = len(next(iter(draws.values())))
    return every(jax.random.split(key, number), {k: jnp.asarray(v) for k, v in kept.items()}, arrays)


def _known(
    draws: Mapping[str, Any], trace: Trace, fitted: Trace, observed: Sequence[str], same: Collection[str]
) -> dict[str, Any]:
    """Return the draws of latents that the fit knows: not those of new members of plates."""
    before = {name: site["args"][0] for name, site in fitted.items() if site["type"] == "plate"}
    now = {name: site["args"][0] for name, site in trace.items() if site["type"] == "plate"}
    if unknown := sorted(set(same) - set(now)):
        raise ValueError(
            f"same names '{unknown[0]}', which is not a plate of the model: its plates are {', '.join(now) or 'none'}"
        )
    new = {name for name in now if now[name] != before.get(name)}
    new |= {plate for name in observed if name in trace for plate in _plates(trace[name])}
    for name in sorted(new & set(same)):
        if now[name] != before.get(name):
            raise ValueError(
                f"same names plate '{name}', which had {before.get(name)} members in the fit and now has "
                f"{now[name]}: leave it out, and its latents are drawn from their prior"
            )
    new -= set(same)
    _warn_of_others(new, trace, fitted, before, now)
    sites = {name: site for name, site in latent_sites(trace).items() if name in draws and not new & _plates(site)}
    return {name: draws[name] for name, site in sites.items() if full_shape(site) == jnp.shape(draws[name])[1:]}


def _warn_of_others(
    new: Collection[str], trace: Trace, fitted: Trace, before: Mapping[str, int], now: Mapping[str, int]
) -> None:
    """Warn of plates that hold no data and have another size than in the fit: perhaps the columns are other ones."""
    of_data = {plate for site in fitted.values() if site.get("is_observed") for plate in _plates(site)}
    for plate in sorted(set(new) & set(before) - of_data):
        latents = [name for name, site in latent_sites(trace).items() if plate in _plates(site)]
        if latents and now[plate] != before[plate]:
            warn(
                f"plate '{plate}' had {before[plate]} members in the fit and has {now[plate]} now, so "
                f"{', '.join(latents)} are drawn from their prior and not from the fit: pass the same columns or "
                "groups, unless these are new ones"
            )


def _plates(site: Mapping[str, Any]) -> set[str]:
    """Return the plates that a site is in; NumPyro's `scan` counts as one."""
    names = {frame.name for frame in site["cond_indep_stack"]}
    return names | ({_SCAN} if "_scan_current_index" in site["infer"] else set())


def _traced(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    params: Mapping[str, Any],
    layers: tuple[Any, ...] = (),
) -> Trace:
    """Return a trace of the model with shapes in place of numbers."""
    found: Trace = {}

    def look(key: jax.Array) -> None:
        found.update(replay(model, args, kwargs, key, params, *layers))

    jax.eval_shape(look, jax.random.key(0))
    return found


def _run(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    params: Mapping[str, Any],
    layers: tuple[Any, ...],
    explain: Callable[[Exception], str],
) -> Trace:
    try:
        return _traced(model, args, kwargs, params, (handlers.uncondition(), *layers))
    except (TypeError, ValueError, AttributeError, AssertionError) as error:
        message = explain(error)
        if not message:
            raise
        raise ValueError(message) from error


def _completed(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], list[str]]:
    """Fill positional arguments that are left out with None; return also the names of those that are None."""
    try:
        parameters = list(inspect.signature(model).parameters.values())
    except (TypeError, ValueError):
        return args, []
    plain = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    left = [p for p in plain[len(args) :] if p.default is p.empty and p.name not in kwargs]
    if left and [p.name for p in left] == [p.name for p in plain[len(args) : len(args) + len(left)]]:
        args = (*args, *[None] * len(left))
    none = [p.name for p, value in zip(plain, args, strict=False) if value is None]
    return args, none + [name for name, value in kwargs.items() if value is None]


def _without(left_out: Sequence[str]) -> Callable[[Exception], str]:
    def explain(error: Exception) -> str:
        if not left_out:
            return ""
        return (
            f"the model does not run with {', '.join(f'{name}=None' for name in left_out)} ({error}): take sizes "
            "from other arguments, as in numpyro.plate('rows', X.shape[0]), or pass any array of the right shape, "
            "which predict does not read: result.predict(key, X, jnp.zeros(len(X)))"
        )

    return explain


def _minibatch(whole: Whole) -> Callable[[Exception], str]:
    def explain(error: Exception) -> str:
        if not whole.enlarged:
            return ""
        return (
            f"the fit saw plate '{sorted(whole.enlarged)[0]}' in parts, and the model does not run with all of it "
            f"({error}): pass the rows to predict, result.predict(key, X, None)"
        )

    return explain
