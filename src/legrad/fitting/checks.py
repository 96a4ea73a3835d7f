"""Checks of the ELBO, term by term: of the first draw before a fit begins, and of a step that failed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from legrad._compiled import jit, jit_once
from legrad.diagnostics.replay import user_model
from legrad.estimators.base import draws
from legrad.fitting.compiled_loop import CompiledLoop
from legrad.fitting.processes import is_spread
from legrad.model.arrays import split_arrays
from legrad.model.data_checks import check_data
from legrad.model.objective import Given
from legrad.model.problem import Noise, Problem

_OTHER_DRAWS = 1000


def check_start(problem: Problem, key: jax.Array) -> dict[str, float]:
    """Return the terms of the initial ELBO; raise if they or the data are not finite, naming the site."""
    noise = Noise(*jax.random.split(key))
    bad, terms = _look(problem, noise)
    if any(bad.values()) or not all(np.isfinite(total) for total in terms.values()):
        problem.evaluate({}, noise, pivot=problem.draw(noise))  # with numbers to read, NumPyro may name the cause
    for name, count in bad.items():
        if count:
            raise ValueError(
                f"the data of site '{name}' holds {int(count)} values that are NaN or infinite: drop them, or mask "
                "them with numpyro.handlers.mask"
            )
    for name, total in terms.items():
        if not np.isfinite(total):
            raise ValueError(
                f"the initial ELBO is not finite: {name} is {float(total)} at the first draw. Check the data and the "
                "initial parameters of that site, and that the guide's support lies inside the model's"
            )
    return {name: float(total) for name, total in terms.items()}


def check_observed(model: Any, placed: Given, given: Given) -> None:
    """Check the data of a fit on several devices, on these devices; several processes check what each holds whole."""
    here = placed if jax.process_count() == 1 else given
    if not any(is_spread(leaf) for leaf in jax.tree.leaves((here.args, here.kwargs))):
        check_data(user_model(model), here.args, here.kwargs)


def name_failure(program: CompiledLoop, unconstrained: dict[str, Any], key: jax.Array, given: Given) -> str:
    """Say why a step is not finite: name the first term, site or parameter that is not finite.

    Args:
        program: the compiled steps of the fit.
        unconstrained: the parameters before the step.
        key: the random key of the step.
        given: the data of the step.
    """
    objective = program.objective
    here = objective.problem(unconstrained, given)
    noise = draws(key, 1)
    pivot = Noise(noise.sites[0], noise.plates)
    bad, terms = _look(here, pivot)
    for name, count in bad.items():
        if count:
            rows = _rows(given)
            return f"the data of site '{name}' holds {int(count)} values that are NaN or infinite{rows}"
    for name, total in terms.items():
        if not np.isfinite(total):
            return f"{name} is {float(total)}"
    # A term that is finite at the draw need not be finite at other values that the estimator evaluates.
    for name, totals in _terms(here, draws(key, _OTHER_DRAWS)).items():
        if not np.isfinite(totals).all():
            value = totals[~np.isfinite(totals)][0]
            return f"{name} is {float(value)} at other values of the latents"

    def term(unconstrained: dict[str, Any], name: str) -> jax.Array:
        return jnp.sum(objective.at_a_draw(unconstrained, pivot, given).terms()[name])

    for name in terms:
        for parameter in _not_finite(jax.grad(term)(unconstrained, name)):
            return f"the gradient of {name} with respect to '{parameter}' is not finite"

    value, gradient = jax.value_and_grad(lambda u: objective.loss(program.estimator, u, key, given))(unconstrained)
    for parameter in _not_finite(gradient):
        return f"the gradient with respect to '{parameter}' is not finite"
    return (
        "the parameters or the optimizer after the step overflow"
        if np.isfinite(value)
        else f"the ELBO is {-float(value)}"
    )


def _look(problem: Problem, noise: Noise) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the number of data that are not finite for each observed site, and the sum of each term of the ELBO."""
    arrays, rebuild = split_arrays((problem.args, dict(problem.kwargs)))

    def look(params: dict, arrays: list, noise: Noise) -> tuple[dict, dict]:
        here = Problem(problem.model, problem.guide, params, *rebuild(arrays))
        evaluation = here.evaluate({}, noise, pivot=here.draw(noise))
        bad = {name: jnp.sum(~jnp.isfinite(value)) for name, value in evaluation.observed.items()}
        return bad, {name: jnp.sum(term) for name, term in evaluation.terms().items()}

    return jax.device_get(jit_once(look)(dict(problem.params), arrays, noise))


def _terms(problem: Problem, noise: Noise) -> dict[str, np.ndarray]:
    """Return the sum of each term of the ELBO at many draws."""

    def one(sites: jax.Array) -> dict[str, jax.Array]:
        at = Noise(sites, noise.plates)
        return {k: jnp.sum(v) for k, v in problem.evaluate({}, at, pivot=problem.draw(at)).terms().items()}

    return jax.device_get(jit(lambda sites: jax.lax.map(one, sites))(noise.sites))


def _not_finite(tree: dict[str, Any]) -> list[str]:
    return [k for k, v in tree.items() if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(v))]


def _rows(given: Given) -> str:
    """Name the first row of the data that is not finite, if the minibatches show it; otherwise return nothing."""
    for rows in given.plates.values():
        for argument in given.args:
            if np.ndim(argument) and len(argument) == len(rows):
                bad = ~np.isfinite(np.asarray(argument, float)).reshape(len(rows), -1).all(1)
                if bad.any():
                    return f", in row {int(np.asarray(rows)[bad][0])} of the data"
    return ""
