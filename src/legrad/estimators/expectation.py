"""Estimates of E_q[f] for any f, by any estimator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax

from legrad.estimators.base import Estimator
from legrad.estimators.local_expectation import LocalExpectation
from legrad.model.keys import Key, as_key
from legrad.model.log_density import log_density
from legrad.model.problem import Problem


def expectation(
    f: Callable[[dict[str, Any]], Any],
    guide: Callable[..., Any],
    params: Mapping[str, Any],
    *,
    key: Key,
    estimator: Estimator | None = None,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> jax.Array:
    """Estimate E_q[f] differentiably: `jax.grad` of the estimate with respect to `params` is the gradient estimate.

    Args:
        f: `f(latents: dict) -> scalar`; it may also return an array of additive terms.
        guide: a NumPyro guide, which names the latents.
        params: the guide's parameters, constrained.
        key: the random key.
        estimator: one of legrad's estimators; `LocalExpectation()` if None.
        args: the guide's arguments.
        kwargs: the guide's keyword arguments.

    Example:
        >>> legrad.expectation(lambda x: x["z"].sum(), guide, params, key=jax.random.key(0))
    """
    problem = Problem(log_density(f), guide, params, args, kwargs or {}, entropy=False)
    return (estimator or LocalExpectation()).estimate(problem, as_key(key))
