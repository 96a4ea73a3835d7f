"""The change in the gradient of a fit with many more quadrature nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from legrad._compiled import jit_once
from legrad.estimators import LocalExpectation
from legrad.estimators.quadrature_accuracy import Error, concern, concern_of_terms, errors, sums_over_nodes, worst
from legrad.model.keys import Key, as_key
from legrad.model.objective import Given, Objective
from legrad.model.parameters import Parameters
from legrad.model.problem import Problem

if TYPE_CHECKING:
    from legrad.fitting.result import FitResult


def quadrature_error(result: FitResult, key: Key | None = None, draws: int = 16) -> dict[str, Any]:
    """Return the change in the gradient with many more nodes at the fitted parameters, with the same pivots.

    Args:
        result: a result of `legrad.fit` with `LocalExpectation` as its estimator.
        key: the random key of the pivots.
        draws: the number of pivots over which the change is averaged.

    Returns:
        For each parameter the largest change over its components, in the unit of the gradient (in unconstrained
        space), and under "relative" the largest change relative to the sum of the single nodes' contributions to
        that component, which does not vanish at an optimum, or the relative error of an exact term that is summed
        over nodes, if that is larger. All are zero where nothing is integrated by quadrature.

    Example:
        >>> legrad.quadrature_error(result)["relative"] < 0.02
        True
    """
    if not isinstance(result.estimator, LocalExpectation):
        raise TypeError(
            f"the fit was made with {result.estimator_name}, which has no quadrature: fit with LocalExpectation()"
        )
    found, terms = _found(result, as_key(0 if key is None else key), draws)
    relative = max([0.0, *(error.relative for error in found.values()), *(float(x) for x in terms.values())])
    return {**{name: error.change for name, error in found.items()}, "relative": relative}


def quadrature_concern(result: FitResult, key: jax.Array, draws: int = 16) -> str:
    """Return a sentence if the quadrature of a fit is off by more than 2%; else nothing."""
    if not isinstance(result.estimator, LocalExpectation):
        return result.quadrature
    found, terms = _found(result, key, draws)
    return concern(result.estimator, found) or concern_of_terms(terms)


def _found(result: FitResult, key: jax.Array, draws: int) -> tuple[dict[str, Error], dict[str, Any]]:
    estimator, at_end = result.estimator, result.problem
    parameters = Parameters(at_end.model, at_end.guide, at_end.args, at_end.kwargs, key, result.params)
    rows = {name: value for name, value in at_end.params.items() if name not in parameters.initial}  # of plates
    objective, at = Objective(at_end.model, at_end.guide, parameters), parameters.unconstrain(parameters.initial)
    given = Given(at_end.args, dict(at_end.kwargs), rows)

    def problem(unconstrained: Any, draw: Any) -> Problem:
        return objective.problem(unconstrained, given)

    sites, terms = sums_over_nodes(estimator, problem, at, key)
    found, of_terms = {name: Error(0.0, 0.0) for name in at}, dict[str, Any]()
    if sites:
        keys = jax.random.split(key, draws)
        both = jit_once(lambda at, keys: errors(estimator, problem, at, keys))(at, keys)
        found = worst(*jax.device_get(both))
    if terms:
        run = jit_once(lambda at, key: estimator.term_errors(problem(at, 0), key))
        of_terms = jax.device_get(run(at, key))
    return found, of_terms
