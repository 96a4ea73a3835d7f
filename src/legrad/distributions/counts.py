"""Counts without an upper bound: a window that follows the parameters, and the mass outside the window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array
from jax.scipy.special import betainc, gammainc, gammaincc
from numpyro.distributions import Distribution

from legrad.distributions.elements import stopped
from legrad.distributions.quadrature import floats
from legrad.distributions.unwrap import unexpanded


def _poisson(d: Any, k: Array) -> tuple[Array, Array]:
    return gammaincc(k, d.rate), gammainc(k, d.rate)


def _negative_binomial(d: Any, k: Array) -> tuple[Array, Array]:
    a, rate, k = jnp.broadcast_arrays(*floats(d.concentration, d.rate, k))
    return betainc(a, k, 1 / (1 + 1 / rate)), betainc(k, a, 1 / (1 + rate))


def _geometric(d: Any, k: Array) -> tuple[Array, Array]:
    log_fail = -jax.nn.softplus(d.logits) if isinstance(d, dist.GeometricLogits) else jnp.log1p(-d.probs)
    return -jnp.expm1(k * log_fail), jnp.exp(k * log_fail)


# The masses below k and from k on, for k ≥ 1: each computed directly, as one minus the other has no digits left.
COUNTS: dict[type, Callable[[Any, Array], tuple[Array, Array]]] = {
    dist.Poisson: _poisson,
    dist.GeometricProbs: _geometric,
    dist.GeometricLogits: _geometric,
    dist.GammaPoisson: _negative_binomial,
    dist.NegativeBinomialProbs: _negative_binomial,
    dist.NegativeBinomialLogits: _negative_binomial,
    dist.NegativeBinomial2: _negative_binomial,
}


def window_start(base: Any, window: int) -> Array:
    """Return the start of a window centred on the mean; a geometric is highest at zero whatever its mean."""
    falling = isinstance(base, dist.GeometricProbs | dist.GeometricLogits)
    start = jnp.zeros(base.batch_shape) if falling else jnp.floor(base.mean) - window // 2
    return jnp.clip(start, 0, 2**30)


def escaped_mass(base: Distribution, window: int = 64) -> Array:
    """Return the probability that a count falls outside its window, by element; constant under differentiation."""
    base, shape = stopped(unexpanded(base)), base.batch_shape
    start = window_start(base, window)
    below, _ = COUNTS[type(base)](base, jnp.maximum(start, 1))
    _, above = COUNTS[type(base)](base, start + window)
    return jnp.broadcast_to(jnp.where(start > 0, below, 0) + above, shape)
