"""Fits that were given no learning rate, and whose ELBO has noise: which steps they take.

    natural steps     where a step sees all data, and all parameters of the guide belong to its factors
    Adam              otherwise: minibatches, inference networks, latents that depend on latents, other estimators

Either way the step size shrinks phase by phase, and the last phase is averaged (`stopping`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import optax

from legrad.estimators import Exact, LocalExpectation
from legrad.fitting.exact_climb import sees_everything
from legrad.guides.mean_field import MeanField
from legrad.guides.structured import Structured
from legrad.model.parameters import Parameters
from legrad.model.problem import Problem
from legrad.model.threads import one_at_a_time
from legrad.natural.steps import Owned, natural_steps, owned

RATE = 5e-2  # of Adam in the first phase


@one_at_a_time
def is_amortized(problem: Problem, parameters: Parameters) -> bool:
    """Whether the factors of a guide share many parameters, as those of an inference network do.

    The climb of an ELBO without noise goes to the nearest optimum, where the network has often given up latents that
    Adam keeps.

    Args:
        problem: model, guide, parameters and data.
        parameters: the parameters of model and guide.
    """
    return not isinstance(problem.guide, MeanField | Structured) and _owned(problem, parameters).amortized


@one_at_a_time
def steps_without_rate(
    problem: Problem, parameters: Parameters, estimator: Any, whole: bool
) -> tuple[optax.GradientTransformation, str]:
    """Return an optimizer whose steps need no learning rate, and what it is in words.

    Args:
        problem: model, guide, parameters and data.
        parameters: the parameters of model and guide.
        estimator: the estimator, or "auto".
        whole: whether the fit has all data on one device.
    """
    adam = optax.adam(RATE)
    if not isinstance(estimator, LocalExpectation | Exact):
        return adam, ""
    if not whole or not _sees_everything(problem):
        return adam, "Adam, as a step sees a part of the data"
    owns = _owned(problem, parameters)
    if owns.amortized:
        return adam, "Adam, as a network infers the latents"
    if not owns.all_of_guide:
        return adam, "Adam, as parameters of the guide do not belong to factors of their own"
    optimizer = natural_steps(problem.guide, problem.args, problem.kwargs, owns, parameters.of_model, adam)
    return optimizer, "natural steps"


def _owned(problem: Problem, parameters: Parameters) -> Owned:
    try:
        return owned(problem.guide, problem.args, problem.kwargs, parameters.start, parameters.of_model)
    except Exception:  # a guide that cannot be read as a map of its parameters
        return Owned(None, None, False, False)


def _sees_everything(problem: Problem) -> bool:
    found: list[bool] = []

    def look(params: Any) -> None:
        found.append(sees_everything(replace(problem, params=params)))

    jax.eval_shape(look, dict(problem.params))
    return found[0]
