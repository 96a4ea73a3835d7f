"""A fitted guide in ArviZ's form of a posterior: draws, predictions, the pointwise log-likelihood, and the data."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers

from legrad import _compat
from legrad.diagnostics.replay import (
    Trace,
    Whole,
    axis_names,
    full_shape,
    latent_sites,
    observed_sites,
    replay,
    user_model,
)
from legrad.estimators.base import require_positive
from legrad.guides.protocol import WholePlates
from legrad.model.log_density import LogDensity
from legrad.model.problem import Problem

Groups = dict[str, dict[str, Any]]


def to_arviz(
    problem: Problem,
    key: jax.Array,
    num_samples: int = 1000,
    *,
    coords: Mapping[str, Any] | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
    draws: Mapping[str, Any] | None = None,
    labels: Mapping[int, Sequence[str]] | None = None,
) -> Any:
    """Convert draws of a guide, and the model at these draws, for ArviZ: summaries, LOO, predictive checks, plots.

    The groups are those that ArviZ makes from NumPyro's MCMC. The draws are independent; they are dealt to four
    chains (two, or one, if their number has no such divisor), so that ArviZ can compute what it compares chains for:

    - posterior: the latents, and the model's deterministic sites;
    - posterior_predictive: every observed site drawn anew. Inside NumPyro's `scan`, each step is drawn given the
      observed steps before it;
    - log_likelihood: that of every observation, without the scales of plates and handlers; zero where masked;
    - observed_data.

    Plates that subsample are run at their full size. If a model cannot run at full size (it was given a minibatch),
    the groups of one minibatch would be misleading: there is a warning, and only the posterior of the guide's sites
    outside such plates. A `legrad.log_density` also has only the posterior. A `numpyro.factor` is not an observation.

    Args:
        problem: model, guide, fitted parameters and data: `result.problem`.
        key: the random key.
        num_samples: the number of draws.
        coords: labels along dimensions, by the dimension's name.
        dims: names of the axes of a site, by the site's name, instead of those of its plates.
        draws: draws of all latents of the user's model, with a leading axis; if None, the guide is drawn from.
        labels: labels of the dimensions that `coords` leaves out, by their length.

    Returns:
        An `arviz.InferenceData`, or an `xarray.DataTree` since ArviZ 1.

    Example:
        >>> import arviz
        >>> tree = to_arviz(result.problem, jax.random.key(1))
        >>> arviz.summary(tree), arviz.loo(tree)
    """
    _compat.arviz()
    require_positive(num_samples=num_samples)
    keys = jax.random.split(key, num_samples)
    if isinstance(problem.model, LogDensity):
        groups, trace = _posterior(problem, keys)
    else:
        whole = Whole()
        try:
            groups, trace = _all_groups(problem, keys, whole, draws)
        except (TypeError, ValueError, AssertionError) as error:
            if not whole.enlarged:
                raise
            warnings.warn(_left_out(whole.enlarged, error), stacklevel=2)
            groups, trace = _posterior(problem, keys)
    sites = {name for group in groups.values() for name in group}
    if unknown := sorted(set(dims or {}) - sites):
        raise ValueError(f"dims names '{unknown[0]}', which is not a site: the sites are {', '.join(sorted(sites))}")
    names = {name: axes for name in sites if (axes := axis_names(trace[name]))}
    names |= {name: list(axes) for name, axes in (dims or {}).items()}
    return _compat.arviz_tree(groups, _labelled(groups, names, labels or {}) | dict(coords or {}), names)


def _labelled(
    groups: Groups, names: Mapping[str, Sequence[str]], labels: Mapping[int, Sequence[str]]
) -> dict[str, Sequence[str]]:
    """Return labels for each dimension whose length they fit."""
    found: dict[str, Sequence[str]] = {}
    for group, sites in groups.items():
        for site, value in sites.items():
            shape = value.shape[0 if group == "observed_data" else 2 :]
            for axis, size in zip(
                names.get(site, [f"{site}_dim_{i}" for i in range(len(shape))]), shape, strict=False
            ):
                if size in labels:
                    found[axis] = list(labels[size])
    return found


def _all_groups(
    problem: Problem, keys: jax.Array, whole: Whole, draws: Mapping[str, Any] | None
) -> tuple[Groups, Trace]:
    """Return every group, and a trace of the model with all plates at full size."""
    program = problem.model if draws is None else user_model(problem.model)

    def traces(key: jax.Array, drawn: Mapping[str, Any]) -> tuple[dict[str, Any], Callable[..., Trace]]:
        if draws is None:
            guide = replay(problem.guide, problem.args, problem.kwargs, key, problem.params, whole)
            given = {**problem.params, **{n: s["value"] for n, s in guide.items() if s["type"] == "sample"}}
            drawn = {name: site["value"] for name, site in latent_sites(guide).items()}
        else:
            given = {**problem.params, **drawn}
        # a key of its own for the model: the guide has used this one
        again = partial(replay, program, problem.args, problem.kwargs, jax.random.fold_in(key, 1), given)
        return dict(drawn), again

    def draw(item: tuple[jax.Array, Mapping[str, Any]]) -> Groups:
        drawn, again = traces(*item)
        model, anew = again(whole), again(handlers.uncondition(), whole)
        computed = {name: site["value"] for name, site in model.items() if site["type"] == "deterministic"}
        return {
            "posterior": drawn | computed,
            "posterior_predictive": {name: anew[name]["value"] for name in observed_sites(model)},
            "log_likelihood": {n: s["fn"].log_prob(s["value"]) for n, s in observed_sites(model).items()},
        }

    each = {name: jnp.asarray(value) for name, value in (draws or {}).items()}
    _, again = traces(keys[0], {name: value[0] for name, value in each.items()})
    trace = again(whole)
    observed = observed_sites(trace)
    for name, site in observed.items():
        wanted, got = full_shape(site), jnp.shape(site["value"])
        if wanted != got and any(frame.name in whole.enlarged for frame in site["cond_indep_stack"]):
            raise ValueError(f"site '{name}' has shape {wanted} and data of shape {got}")
    data = {name: _datum(site) for name, site in observed.items()}
    drawn = jax.device_get(jax.lax.map(draw, (keys, each)))
    groups = {group: {name: _chains(value) for name, value in sites.items()} for group, sites in drawn.items()}
    groups["observed_data"] = data
    return {group: sites for group, sites in groups.items() if sites}, trace


def _chains(draws: np.ndarray) -> np.ndarray:
    """Deal draws to chains, each with at least the four draws that ArviZ asks for."""
    n = len(draws)
    number = next((c for c in (4, 2) if n % c == 0 and n // c >= 4), 1)
    return draws.reshape(number, n // number, *draws.shape[1:])


def _datum(site: Any) -> np.ndarray:
    """Return the data of a site; a single datum is broadcast to its whole plate."""
    value = np.asarray(site["value"])
    return np.broadcast_to(value, np.broadcast_shapes(value.shape, full_shape(site)))


def _posterior(problem: Problem, keys: jax.Array) -> tuple[Groups, Trace]:
    """Return the guide's latents outside plates that subsample, and a trace of the guide."""
    guide = problem.guide.whole if isinstance(problem.guide, WholePlates) else problem.guide
    run = partial(replay, guide, problem.args, problem.kwargs)
    trace = run(keys[0], problem.params)
    kept = [name for name, site in latent_sites(trace).items() if not _subsampled(site, trace)]
    if not kept:
        raise ValueError(
            "every latent is in a plate that subsamples, and only some members can be drawn: pass the whole data"
        )

    def draw(key: jax.Array) -> dict[str, Any]:
        drawn = run(key, problem.params)
        return {name: drawn[name]["value"] for name in kept}

    drawn = jax.device_get(jax.lax.map(draw, keys))
    return {"posterior": {name: _chains(value) for name, value in drawn.items()}}, trace


def _subsampled(site: Any, trace: Trace) -> bool:
    return any(f.name in trace and f.size < trace[f.name]["args"][0] for f in site["cond_indep_stack"])


def _left_out(plates: Collection[str], error: Exception) -> str:
    cause = (str(error).splitlines() or [type(error).__name__])[0]
    return (
        f"plate '{min(plates)}' subsamples, and the model does not run with all its members ({cause}): deterministic "
        "sites, posterior_predictive, log_likelihood and observed_data are left out. Pass the whole data, and index "
        "it in the model with the plate's indices"
    )
