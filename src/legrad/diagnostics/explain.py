"""An explanation of why a model is fast or slow: what a one-element change touches, line by line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from numpyro.infer.elbo import ELBO

from legrad.estimators import LocalExpectation
from legrad.model.parameters import Parameters
from legrad.singlesite import MEMORY, single_site_differences
from legrad.singlesite.report import Explanation, listening


def explain(
    f: Callable[..., Any],
    x: Any,
    candidates: Any = None,
    *,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    params: Mapping[str, Any] | None = None,
    estimator: ELBO | None = None,
    memory: int = MEMORY,
) -> Explanation:
    """Explain which primitives keep the structure of a one-element change, and the cost relative to brute force.

    Nothing is computed: the program is only traced.

    Args:
        f: a function of a pytree of arrays; or a NumPyro model, with its guide as `x`.
        x: the arrays at which `f` is evaluated; or the guide.
        candidates: the candidates for a function, as for `single_site`; two for each element if None.
        args: positional arguments of model and guide.
        kwargs: keyword arguments of model and guide.
        params: parameters of model and guide; their initial values if None.
        estimator: the estimator that treats model and guide; `LocalExpectation()` if None.
        memory: the memory limit, as for `single_site`.

    Returns:
        A table; print it.

    Example:
        >>> print(legrad.explain(lambda w: jnp.sum(jax.nn.softplus(X @ w)), w))
        >>> print(legrad.explain(model, guide, args=(X, y)))
    """
    with listening() as found:
        if callable(x):
            _trace_model(f, x, args, dict(kwargs or {}), params, estimator or LocalExpectation())
        else:
            _trace_function(f, x, candidates, memory)
    return found


def _trace_function(f: Callable[..., Any], x: Any, candidates: Any, memory: int) -> None:
    x = jax.tree.map(jnp.asarray, x)
    if candidates is None:
        candidates = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((2, *leaf.shape), leaf.dtype), x)
    jax.eval_shape(lambda x, c: single_site_differences(f, x, c, memory=memory), x, candidates)


def _trace_model(model: Any, guide: Any, args: Any, kwargs: Any, params: Any, estimator: ELBO) -> None:
    if not isinstance(estimator, LocalExpectation):
        raise TypeError(
            f"{type(estimator).__name__} does not change elements one at a time: explain a legrad.LocalExpectation()"
        )
    key = jax.random.key(0)
    start = Parameters(model, guide, args, kwargs, key, params).initial
    jax.eval_shape(lambda params, key: estimator.loss(key, params, model, guide, *args, **kwargs), start, key)
