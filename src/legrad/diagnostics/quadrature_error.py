"""How much the gradient of a fit would change with two more quadrature nodes."""

from __future__ import annotations

import copy
from typing import Any

import jax
import numpy as np

from legrad.diagnostics.gradients import gradient
from legrad.estimators import LocalExpectation
from legrad.fitting.result import FitResult
from legrad.problem import Problem


def quadrature_error(result: FitResult, key: jax.Array | None = None, draws: int = 16) -> dict[str, Any]:
    """The change of the gradient from K to K+2 nodes at the fitted parameters, with the same pivots.

    Args:
        result: what `legrad.fit` gave, with `LocalExpectation` as its estimator.
        key: the random key of the pivots.
        draws: pivots.

    Returns:
        For each parameter the largest change over its components and draws, in the unit of the gradient (in
        unconstrained space), and under "relative" the largest change relative to the root mean square gradient.

    Example:
        >>> legrad.quadrature_error(result)["relative"] < 0.02
    """
    estimator, problem = result.estimator, result.problem
    if not isinstance(estimator, LocalExpectation):
        raise TypeError(
            f"the fit was made with {type(estimator).__name__}, which has no quadrature: fit with LocalExpectation()"
        )
    more = copy.copy(estimator)
    more.nodes = estimator.nodes + 2
    keys = jax.random.split(jax.random.key(0) if key is None else key, draws)
    fewer, better = (_draws(e, problem, keys) for e in (estimator, more))
    change = jax.tree.map(lambda a, b: np.abs(a - b).max(), fewer, better)
    size = np.sqrt(np.mean(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(better)]) ** 2))
    return {**change, "relative": max(jax.tree.leaves(change)) / max(size, 1e-300)}


def _draws(estimator: LocalExpectation, problem: Problem, keys: jax.Array) -> Any:
    one = gradient(estimator, problem.model, problem.guide, problem.params, problem.args, problem.kwargs)
    return jax.device_get(jax.jit(lambda keys: jax.lax.map(one, keys))(keys))
