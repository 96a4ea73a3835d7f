"""Log-densities whose form in NumPyro has a wrong derivative somewhere, in a form that has not.

NumPyro 0.22 writes log σ(x) as −log1p(exp(−|x|)) + min(x, 0), whose derivative at x = 0 comes out as 1 or 0 in place
of ½: at zero logits, where many guides and nets start, every gradient through it is wrong. softplus is right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.nn import softplus
from jax.scipy.special import gammaln
from numpyro.distributions import BernoulliLogits, BinomialLogits, Distribution, ExpandedDistribution


def _bernoulli_logits(d: Any, value: Array) -> Array:
    if jnp.issubdtype(jnp.result_type(value), jnp.floating):  # "soft" data between 0 and 1 is allowed
        return _times(value, -softplus(-d.logits)) + _times(1 - value, -softplus(d.logits))
    return -softplus(jnp.where(value == 1, -d.logits, d.logits))


def _binomial_logits(d: Any, value: Array) -> Array:
    n = d.total_count
    ways = gammaln(n + 1.0) - gammaln(value + 1.0) - gammaln(n - value + 1.0)
    return ways + _times(value, -softplus(-d.logits)) + _times(n - value, -softplus(d.logits))


def _times(number: Array, log_probability: Array) -> Array:
    """0 · (−∞) = 0."""
    return jnp.where(number == 0, 0.0, number * log_probability)


FORMS: dict[type, Callable[[Any, Array], Array]] = {
    BernoulliLogits: _bernoulli_logits,
    BinomialLogits: _binomial_logits,
}


def log_prob(fn: Distribution, value: Array) -> Array:
    """`fn.log_prob(value)`, through a better form where there is one."""
    shape = fn.batch_shape
    while isinstance(fn, ExpandedDistribution):
        fn = fn.base_dist
    form = FORMS.get(type(fn))
    if form is None:
        return fn.log_prob(value)
    return jnp.broadcast_to(form(fn, value), jnp.broadcast_shapes(jnp.shape(value), shape))
