"""Log-densities that replace forms in NumPyro that are slow, or whose derivative is wrong somewhere.

NumPyro 0.22 writes log σ(x) as −log1p(exp(−|x|)) + min(x, 0), whose derivative at x = 0 comes out as 1 or 0 instead
of ½: at zero logits, where many guides and nets start, every gradient through that form is wrong. The forms here are
right at zero and at infinite logits, and short enough for XLA to keep them inside one loop over all one-element
changes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import gammaln, logsumexp
from numpyro.distributions import (
    BernoulliLogits,
    BinomialLogits,
    CategoricalLogits,
    CategoricalProbs,
    Distribution,
    Poisson,
)

from legrad.distributions.offset_categorical import OffsetCategorical
from legrad.distributions.unwrap import unexpanded
from legrad.trace.concrete import read
from legrad.trace.operations import operation


@jax.custom_jvp
def softplus(x: Array) -> Array:
    """Return log(1 + exp(x)) without the NaN test that makes `jax.nn.softplus` several times slower in a long sum."""
    return jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x)))


@softplus.defjvp
def _softplus_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,), (dx,) = primals, tangents
    return softplus(x), jax.nn.sigmoid(x) * dx


@jax.custom_jvp
def _bernoulli(logits: Array, value: Array) -> Array:
    """Return value · logits − softplus(logits), for data 0, 1 or between.

    Written as −½ (s·x + |x|) − log1p(exp(−|x|)), s = 1 − 2 value: for 0 and 1 the sum s·x + |x| is exactly 0 or 2|x|,
    however large x is, without a case distinction. The largest number replaces an infinite logit: the result is 0 for
    the datum that is certain, and infinite for the one that is impossible.
    """
    largest = float(jnp.finfo(logits.dtype).max)
    x = jnp.minimum(jnp.maximum(logits, -largest), largest)
    size = jnp.abs(x)
    return -(0.5 * ((1 - 2 * value) * x + size) + jnp.log1p(jnp.exp(-size)))


@_bernoulli.defjvp
def _bernoulli_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    (logits, value), (dlogits, dvalue) = primals, tangents
    along_value = jnp.where(jnp.isfinite(logits), logits, 0.0) * dvalue  # linear in dvalue, and 0 · ∞ = 0
    return _bernoulli(logits, value), (value - jax.nn.sigmoid(logits)) * dlogits + along_value


@jax.custom_jvp
def bernoulli_entropy(logits: Array) -> Array:
    """Return the entropy of a Bernoulli, with one exponential: log1p(e) + |x| e/(1 + e), e = exp(−|x|)."""
    size = jnp.minimum(jnp.abs(logits), float(jnp.finfo(logits.dtype).max))  # ∞ · 0 = 0
    e = jnp.exp(-size)
    return jnp.log1p(e) + size * e / (1 + e)


@bernoulli_entropy.defjvp
def _bernoulli_entropy_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,), (dx,) = primals, tangents
    p = jax.nn.sigmoid(x)
    return bernoulli_entropy(x), -jnp.where(jnp.isfinite(x), x, 0.0) * p * (1 - p) * dx


@jax.custom_jvp
def _softplus_of_size(x: Array, size: Array) -> Array:
    """Return softplus(x), given |x|."""
    return jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-size))


@_softplus_of_size.defjvp
def _softplus_of_size_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    (x, size), (dx, _) = primals, tangents
    return _softplus_of_size(x, size), _sigmoid_of_size(x, size) * dx


@jax.custom_jvp
def _sigmoid_of_size(x: Array, size: Array) -> Array:
    """Return σ(x), given |x|."""
    e = jnp.exp(-size)
    far = e / (1 + e)
    return jnp.where(x > 0, 1 - far, far)


@_sigmoid_of_size.defjvp
def _sigmoid_of_size_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    (x, size), (dx, _) = primals, tangents
    return _sigmoid_of_size(x, size), _sigmoid_of_size(x, size) * _sigmoid_of_size(-x, size) * dx


@operation
def hard_bernoulli_logits(logits: Array, value: Array) -> Array:
    """Return log p of data that are 0 or 1.

    The logarithm is that of a function of |logits|, the same for either datum: under `vmap`, draws that share their
    logits share the logarithm.
    """
    return -_softplus_of_size((1 - 2 * value) * logits, jnp.abs(logits))


@operation
def bernoulli_logits(logits: Array, value: Array) -> Array:
    """Return log p of data 0, 1 or between."""
    return _bernoulli(logits, value)


def _bernoulli_logits(d: Any, value: Array) -> Array:
    dtype = jnp.result_type(d.logits, float)
    hard = not jnp.issubdtype(jnp.result_type(value), jnp.floating) or _is_hard(value)
    logits, value = jnp.broadcast_arrays(d.logits, value)
    form = hard_bernoulli_logits if hard else bernoulli_logits
    return form(logits.astype(dtype), value.astype(dtype))


def _is_hard(value: Any) -> bool:
    """Whether all data are known to be 0 or 1, for which the form is even shorter."""
    numbers = read(value)
    return numbers is not None and bool(np.all((numbers == 0) | (numbers == 1)))


def _binomial_logits(d: Any, value: Array) -> Array:
    n = d.total_count
    ways = gammaln(n + 1.0) - gammaln(value + 1.0) - gammaln(n - value + 1.0)
    return ways + _times(value, -softplus(-d.logits)) + _times(n - value, -softplus(d.logits))


def _times(number: Array, log_probability: Array) -> Array:
    """Multiply with 0 · (−∞) = 0."""
    return jnp.where(number == 0, 0.0, number * log_probability)


@operation
def poisson(rate: Array, value: Array) -> Array:
    """Return log p of counts. A rate of zero has no logarithm, and none is taken where the count is zero, too."""
    return value * jnp.log(jnp.where(value == 0, 1.0, rate)) - gammaln(value + 1) - rate


@operation
def poisson_log(log_rate: Array, value: Array) -> Array:
    """Return log p of counts given the log of the rate, in which every term but the rate itself is linear."""
    return jnp.where(value == 0, 0.0, value * log_rate) - gammaln(value + 1) - jnp.exp(log_rate)


def _poisson(d: Any, value: Array) -> Array:
    dtype = jnp.promote_types(jnp.result_type(d.rate), jnp.result_type(float))  # counts are large numbers

    def log_p(value: Array) -> Array:
        rate, value = jnp.broadcast_arrays(d.rate, value)
        return poisson(rate.astype(dtype), value.astype(dtype))

    return _checked(d, value, log_p)


def _checked(d: Any, value: Array, log_p: Callable[[Array], Array]) -> Array:
    """Return log p of data, −∞ for data that NumPyro would refuse; 0 replaces such data, whose log p may be NaN."""
    if not d._validate_args:
        return log_p(value)
    inside = d._validate_sample(value)  # it warns where it can see the data
    return jnp.where(inside, log_p(jnp.where(inside, value, 0)), -jnp.inf)


CATEGORICAL = (CategoricalLogits, CategoricalProbs, OffsetCategorical)


class Categories(np.ndarray):
    """All values of a categorical on a leading axis: constants, so that their log p needs no look-up."""


def categories(d: Any) -> Categories:
    """Return the values of a categorical; the batch axes have length 1."""
    size = jnp.shape(d.probs if isinstance(d, CategoricalProbs) else d.logits)[-1]
    values = np.arange(size).reshape(-1, *(1,) * len(d.batch_shape)) + getattr(d, "low", 0)
    return values.view(Categories)


@partial(operation, fits=lambda logits, value, out: logits[:-1] == value == out)
def categorical_logits(logits: Array, value: Array) -> Array:
    """Return log p of data, with classes on the last axis of the logits."""
    log_p = logits - logsumexp(logits, axis=-1, keepdims=True)
    return jnp.take_along_axis(log_p, value[..., None], axis=-1)[..., 0]


def _categorical(d: Any, value: Any) -> Array:
    if isinstance(value, Categories):
        return _of_all(d, value.ndim)
    if not isinstance(d, CategoricalLogits) or not jnp.issubdtype(jnp.result_type(value), jnp.integer):
        return d.log_prob(value)
    logits = jnp.asarray(d.logits, jnp.result_type(d.logits, float))

    def log_p(value: Array) -> Array:
        shape = jnp.broadcast_shapes(jnp.shape(value), d.batch_shape)
        return categorical_logits(
            jnp.broadcast_to(logits, (*shape, logits.shape[-1])), jnp.broadcast_to(value, shape)
        )

    return _checked(d, value, log_p)


def _of_all(d: Any, rank: int) -> Array:
    """Return log p of every category on a leading axis, with `rank` axes in all."""
    log_p = jnp.asarray(d.logits)
    if not isinstance(d, CategoricalProbs):
        log_p = log_p - logsumexp(log_p, axis=-1, keepdims=True)
    log_p = jnp.moveaxis(log_p, -1, 0)
    return log_p.reshape(len(log_p), *(1,) * (rank - log_p.ndim), *log_p.shape[1:])


FORMS: dict[type, Callable[[Any, Array], Array]] = {
    BernoulliLogits: _bernoulli_logits,
    BinomialLogits: _binomial_logits,
    Poisson: _poisson,
    **dict.fromkeys(CATEGORICAL, _categorical),
}


def log_prob(fn: Distribution, value: Array) -> Array:
    """Return `fn.log_prob(value)`, through a better form if there is one."""
    shape, fn = fn.batch_shape, unexpanded(fn)
    form = FORMS.get(type(fn))
    if form is None:
        try:
            return fn.log_prob(value)
        except jax.errors.TracerArrayConversionError:  # NumPyro compares NumPy data as NumPy, with traced bounds
            return fn.log_prob(jnp.asarray(value))
    return jnp.broadcast_to(form(fn, value), jnp.broadcast_shapes(jnp.shape(value), shape))
