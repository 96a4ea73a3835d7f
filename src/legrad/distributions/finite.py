"""Finite supports: all values of every element, and their probabilities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array
from jax.scipy.special import xlog1py

from legrad.distributions.densities import CATEGORICAL, categories, log_prob


def enumerate_values(d: Any) -> tuple[Any, Any]:
    """Return the values of a finite support along a new leading axis, and which of them each element really has.

    The values of a categorical are constants, so that `log_prob` knows that it is asked for all of them. Elements
    with fewer values repeat their last value, so that no density is evaluated outside its support.
    """
    if isinstance(d, CATEGORICAL):
        return categories(d), np.ones(categories(d).shape, bool)
    if hasattr(d, "total_count"):
        low, size = 0, _static(d, "total_count")
    elif isinstance(d, dist.DiscreteUniform):
        low, size = d.low, _static(d, "high") - _static(d, "low")
    else:
        try:
            values = jnp.asarray(d.enumerate_support(expand=False))
        except (NotImplementedError, TypeError) as error:  # jax's errors on traced shapes are TypeErrors
            raise ValueError(
                f"the support of {type(d).__name__} cannot be enumerated ({error}): make the parameters that "
                "decide its size Python or NumPy constants, the same for every element"
            ) from error
        return values, jnp.ones(values.shape, bool)
    k = np.arange(np.max(size, initial=0) + 1).reshape((-1,) + (1,) * len(d.batch_shape))
    return low + jnp.minimum(k, size), jnp.asarray(k <= size)


def _static(d: Any, name: str) -> np.ndarray:
    value = getattr(d, name)
    if isinstance(value, jax.core.Tracer):
        raise ValueError(
            f"{type(d).__name__} has a traced `{name}`, so the size of its support is not known when the "
            f"program is compiled: give `{name}` to the model as a constant (a Python int, or a NumPy array that it "
            "closes over), not as an array among its arguments"
        )
    return np.asarray(value).astype(int)


def _bernoulli_pmf(d: Any, value: Array) -> Array:
    return jnp.where(value == 1, d.probs, 1 - d.probs)


def _binomial_pmf(d: Any, value: Array) -> Array:
    certain = jnp.where(d.probs <= 0, value == 0, value == d.total_count)
    return jnp.where((d.probs > 0) & (d.probs < 1), jnp.exp(d.log_prob(value)), certain)


# Where NumPyro's log-density clamps its probabilities away from zero and one, or is wrong there.
PMF: dict[type, Callable[[Any, Array], Array]] = {
    dist.BernoulliProbs: _bernoulli_pmf,
    dist.BinomialProbs: _binomial_pmf,
    dist.GeometricProbs: lambda d, value: d.probs * jnp.exp(xlog1py(value, -d.probs)),
}


def probability(d: Any, value: Array) -> Array:
    """Return the probability of a value, right also where it is zero or one."""
    return PMF.get(type(d), lambda d, value: jnp.exp(log_prob(d, value)))(d, value)
