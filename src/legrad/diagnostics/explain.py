"""Explanations: which discrete latents are summed, and what a one-element change touches, line by line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from numpyro import handlers
from numpyro.infer.elbo import ELBO

from legrad._compiled import jit_once
from legrad.estimators import LocalExpectation
from legrad.estimators.quadrature_accuracy import NODES
from legrad.marginal.report import Sums, explain_sum
from legrad.model.log_density import LogDensity
from legrad.model.parameters import Parameters
from legrad.model.problem import Problem
from legrad.model.threads import one_at_a_time
from legrad.singlesite import MEMORY, single_site_differences
from legrad.singlesite.report import Explanation, listening


def explain(
    f: Callable[..., Any],
    x: Any = None,
    candidates: Any = None,
    *,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    params: Mapping[str, Any] | None = None,
    estimator: ELBO | None = None,
    memory: int = MEMORY,
) -> Explanation | Sums:
    """Explain what makes a model or a function fast or slow, from its program; only errors of sums are computed.

    - `explain(model, args=...)` says which discrete latents are summed out and at what cost; of each of the others,
      which two elements meet in which line.
    - `explain(model, guide, args=...)` says which primitives keep the structure of a one-element change in the
      estimator's gradient, and the cost relative to brute force; which terms of log p are exact, by which rule, and
      at which line the others stopped being so; and whether the whole objective is deterministic.
    - `explain(f, x)` says the same of a function of arrays.

    Args:
        f: a function of a pytree of arrays; or a NumPyro model.
        x: the arrays at which `f` is evaluated; or the guide of a model; None for a model without a guide.
        candidates: the candidates for a function, as for `single_site`; two for each element if None.
        args: positional arguments of model and guide.
        kwargs: keyword arguments of model and guide.
        params: parameters of model and guide; their initial values if None.
        estimator: the estimator that treats model and guide; `LocalExpectation()` if None.
        memory: the memory limit, as for `single_site`.

    Returns:
        A table, or sentences; print it.

    Example:
        >>> print(legrad.explain(model, args=(X, y)))
        >>> print(legrad.explain(model, guide, args=(X, y)))
        >>> print(legrad.explain(lambda w: jnp.sum(jax.nn.softplus(X @ w)), w))
    """
    if x is None:
        return explain_sum(f, args, dict(kwargs or {}))
    if callable(x):
        return _explain_guide(f, x, args, dict(kwargs or {}), params, estimator or LocalExpectation())
    return _explain_function(f, x, candidates, memory)


def _explain_function(f: Callable[..., Any], x: Any, candidates: Any, memory: int) -> Explanation:
    x = jax.tree.map(jnp.asarray, x)
    if candidates is None:
        candidates = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((2, *leaf.shape), leaf.dtype), x)
    with listening() as found:
        jax.eval_shape(lambda x, c: single_site_differences(f, x, c, memory=memory), x, candidates)
    return found


def _explain_guide(model: Any, guide: Any, args: Any, kwargs: Any, params: Any, estimator: ELBO) -> Explanation:
    if not isinstance(estimator, LocalExpectation):
        raise TypeError(
            f"{type(estimator).__name__} does not change elements one at a time: explain a legrad.LocalExpectation()"
        )
    key = jax.random.key(0)
    start = Parameters(model, guide, args, kwargs, key, params).initial
    with listening() as found:
        jax.eval_shape(lambda params, key: estimator.loss(key, params, model, guide, *args, **kwargs), start, key)
    if any(term.is_exact and NODES in term.how for term in found.terms.values()):
        at = partial(Problem, model, guide, args=args, kwargs=kwargs)
        with one_at_a_time:
            errors = jit_once(lambda params, key: estimator.term_errors(at(params), key))(start, key)
        found.terms.update({n: found.terms[n]._replace(error=float(e)) for n, e in errors.items()})
    found.subsampled = _subsampled(model, guide, args, kwargs)
    return found


@one_at_a_time
def _subsampled(model: Any, guide: Any, args: Any, kwargs: Any) -> list[str]:
    """List the plates of a model of which a step uses some members only."""
    plates: dict[str, tuple[int, int]] = {}

    def run(key: jax.Array) -> None:
        with handlers.trace() as trace, handlers.seed(rng_seed=key):
            guide(*args, **kwargs)
        values = {n: site["value"] for n, site in trace.items() if site["type"] in ("sample", "param", "plate")}
        with handlers.trace() as trace, handlers.seed(rng_seed=key), handlers.substitute(data=values):
            model(*args, **kwargs)
        plates.update({n: site["args"] for n, site in trace.items() if site["type"] == "plate"})

    if not isinstance(model, LogDensity):
        jax.eval_shape(run, jax.random.key(0))
    return [name for name, (size, used) in plates.items() if used is not None and used < size]
