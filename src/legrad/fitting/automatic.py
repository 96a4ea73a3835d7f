"""Fits without a guide: what is done to the model first, whether it can be solved, and the result of solving it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from legrad.diagnostics.diagnosis import TOLERANCE
from legrad.diagnostics.psis import LIMIT
from legrad.estimators import Reparameterized
from legrad.fitting.result import FitResult
from legrad.fitting.solve import MUCH_WORSE, Attempt, Solver
from legrad.guides.structured import Structured
from legrad.marginal.marginalize import Marginal, marginalize
from legrad.marginal.plan import is_discrete, look
from legrad.model.abstract import abstract_trace
from legrad.model.log_density import LogDensity
from legrad.model.messages import warn
from legrad.model.problem import Problem
from legrad.model.sites import sample_sites
from legrad.model.threads import one_at_a_time

_APART = 0.5  # standard deviations: Gaussians this far apart are not the same


def prepared(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], whole: bool
) -> Callable[..., Any]:
    """Return the model to fit: without the discrete latents that can be summed out.

    The discrete latents that remain get their factors in `Structured`, and the stochastic loop fits them. If nothing
    would remain but parameters of the model, the model is left as it is: a guide needs a latent.

    Args:
        model: the user's model.
        args: its positional arguments.
        kwargs: its keyword arguments.
        whole: whether these are all its arguments; minibatches come later.
    """
    if isinstance(model, LogDensity | Marginal):
        return model
    marginal = marginalize(model)
    if not whole:
        return marginal
    sites = sample_sites(abstract_trace(model, args, kwargs))
    if not any(is_discrete(site) for _, site in sites if not site["is_observed"]):
        return model
    marginal = _without_pairs(marginal, args, kwargs)
    if not marginal.summed(*args, **kwargs) or (
        marginal.is_exact(*args, **kwargs) and _has_params(model, args, kwargs)
    ):
        return model
    return marginal


def _without_pairs(marginal: Marginal, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Marginal:
    """Leave discrete latents to the guide that it pairs with continuous ones, if their sum is over many at once.

    A slope whose inclusion is summed out has a spike and a slab, which no Gaussian holds; its guide holds both.
    """
    summed, paired = marginal.summed(*args, **kwargs), paired_sites(marginal.model, args, kwargs)
    left = []
    for name in summed:
        if name in paired:
            few = marginalize(marginal.model, [name], limit=paired[name] ** 2)
            try:
                few.summed(*args, **kwargs)
            except ValueError:
                left.append(name)
    return marginalize(marginal.model, [name for name in summed if name not in left]) if left else marginal


@one_at_a_time
def paired_sites(model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, int]:
    """Return the discrete latents that share plates and shape with a continuous one, with their number of values."""
    run = look(model, args, kwargs)
    places = {
        name: (tuple(frame.name for frame in site["cond_indep_stack"]), np.shape(site["value"]))
        for name, site in run.latents.items()
        if site["cond_indep_stack"]
    }
    continuous = {place for name, place in places.items() if not is_discrete(run.latents[name])}
    found = {}
    for name, place in places.items():
        fn = run.latents[name]["fn"]
        if is_discrete(run.latents[name]) and place in continuous and fn.has_enumerate_support:
            found[name] = len(fn.enumerate_support(expand=False))
    return found


def _has_params(model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    return any(site["type"] == "param" for site in abstract_trace(model, args, kwargs).values())


def solvable(guide: Structured, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a deterministic solver can fit a guide: one Gaussian, no parameters of the model, no subsampling."""
    guide.space(*args, **kwargs)
    if not guide.is_one_gaussian:
        return False
    for site in abstract_trace(guide.model, args, kwargs).values():
        if site["type"] in ("param", "mutable", "prng_key"):
            return False
        if site["type"] == "plate" and len(site["value"]) < site["args"][0]:
            return False
    return True


def solve(
    guide: Structured,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    key: jax.Array,
    seconds: float | None,
    restarts: int | None,
    begun: float,
) -> FitResult:
    """Fit a structured guide by the solver; warn if the result should not be trusted."""
    limit = math.inf if seconds is None else seconds
    solver = Solver(guide, args, kwargs, key, time.perf_counter() + limit)
    attempts = solver.run(restarts)
    took = time.perf_counter() - begun
    results = [_result(one, solver, args, kwargs, took) for one in attempts]
    number = len(results)
    best = max(range(number), key=lambda i: (attempts[i].converged, attempts[i].elbo))
    result = results[best]
    if number > 1:
        other = tuple(i for i in range(number) if i != best and _is_elsewhere(attempts[best], attempts[i]))
        result = replace(result, restarts=tuple(results), other_modes=other)
        words = f"the best of {number} starts" + (f"; {result._other_modes_flag()}" if other else "")
        result = replace(result, status=f"{result.status} ({words})")
    if not result.converged or result.other_modes or attempts[best].khat > LIMIT or attempts[best].shift > TOLERANCE:
        warn(result.status)
    return result


def _result(
    attempt: Attempt, solver: Solver, args: tuple[Any, ...], kwargs: Mapping[str, Any], took: float
) -> FitResult:
    real, q = jnp.result_type(float), attempt.q
    params = {name: np.asarray(value, real) for name, value in zip(attempt.guide.names, (q.loc, q.tril), strict=True)}
    steps = len(attempt.history)
    return FitResult(
        params=params,
        converged=attempt.converged,
        status=_status(attempt),
        elbo=np.asarray(attempt.history, real),
        steps=steps,
        seconds=took,
        gradient_variance=np.zeros(steps, real),
        phases=(),
        error=None,
        clock=np.asarray([[steps, took]]),
        problem=Problem(attempt.guide.model, attempt.guide, jax.tree.map(jnp.asarray, params), args, dict(kwargs)),
        estimator=Reparameterized(),
        optimizer_state=None,
        how=_method(attempt, solver, args, kwargs),
        gradients=attempt.gradients,
        double=solver.double,
        moments=_cover(attempt),
    )


def _cover(attempt: Attempt) -> Any:
    """Return what covers the posterior: a mixture, or the moments, if they are known."""
    if attempt.mixture is not None:
        return attempt.mixture.loc, attempt.mixture.tril, attempt.mixture.weights
    return None if attempt.moments is None else (attempt.moments.loc, attempt.moments.tril)


def _method(attempt: Attempt, solver: Solver, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    begin = "the mode (L-BFGS and Newton steps)" if attempt.mode else "the start, as no mode was found"
    text = (
        f"a Gaussian with full covariance over {len(attempt.q.loc)} unconstrained latents, fitted from {begin} by "
        f"L-BFGS to the ELBO of {attempt.draws} fixed draws, in {attempt.gradients['model']} gradients of the model "
        f"and {attempt.gradients['objective']} of the ELBO"
    )
    summed = solver.guide.model.summed(*args, **kwargs) if isinstance(solver.guide.model, Marginal) else ()
    names = ", ".join(summed[:3]) + (f" and {len(summed) - 3} more" if len(summed) > 3 else "")
    notes = [f"{names} summed out"] if summed else []
    notes += list(attempt.notes) if solver.double else [*attempt.notes, "in single precision, as the model needs"]
    if solver.exchangeable:
        notes.append(
            f"the components of {', '.join(solver.exchangeable)} can be relabelled: one order is as good as another"
        )
    return "; ".join([text, *notes])


def _status(attempt: Attempt) -> str:
    if attempt.converged:
        text = (
            f"converged: fresh draws confirm the optimum to {attempt.error:.2g} standard deviations, after "
            f"{attempt.gradients['objective']} gradients of the ELBO"
        )
        text += "" if math.isnan(attempt.khat) else f"; k-hat is {attempt.khat:.2f}"
    else:
        text = (
            f"not converged: with {attempt.draws} fixed draws, fresh ones would still move the optimum by "
            f"{attempt.error:.2g} standard deviations. Try a model with fewer extremes (standardized data, proper "
            "priors, funnels non-centred), legrad.MeanField(model), or NUTS"
        )
    if attempt.khat > LIMIT:
        text += (
            f". But k-hat is {attempt.khat:.2f}, above {LIMIT}: no Gaussian is close to this posterior. Check the "
            "latents that matter against NUTS, or reparameterize the model"
        )
    elif attempt.shift > TOLERANCE:
        text += (
            f". But means or standard deviations are up to {attempt.shift:.2g} posterior standard deviations off, as "
            "this posterior is not Gaussian: take result.sample(key, n, corrected=True)"
        )
    return "; ".join([text, *attempt.notes])


def _is_elsewhere(best: Attempt, other: Attempt) -> bool:
    """Whether another start ended at another Gaussian with an ELBO that is not much worse."""
    if other.elbo < best.elbo - MUCH_WORSE or other.guide.names != best.guide.names:
        return False
    sd = np.sqrt(np.sum(best.q.tril**2, axis=1))
    return bool(np.max(np.abs(other.q.loc - best.q.loc) / sd) > _APART)
