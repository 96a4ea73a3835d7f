"""Programs where a change cancels a large value: masks, small rates, constants from 1e-30 to 1e30.

Each is `program(x, c)` with latents x and a constant c; in float32 and float64 the same numbers.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.nn import log_softmax, logsumexp, softmax, softplus

RNG = np.random.default_rng(0)
N, D = 30, 6
LL = RNG.normal(size=(N, D)) - 3.0
W = np.abs(RNG.normal(size=(D, N))) * (RNG.random((D, N)) < 0.4)
V = RNG.normal(size=(D, N))
COUNTS = RNG.poisson(1.0, N)
BITS = RNG.integers(0, 2, N)
CLASSES = RNG.integers(0, D, N)
Y = RNG.normal(size=N)
GROUP = RNG.integers(0, D, N)

SWITCHES = {}  # of latents that are 0 or 1
REALS = {}  # of real latents


def switches(fn):
    SWITCHES[fn.__name__] = fn
    return fn


def reals(fn):
    REALS[fn.__name__] = fn
    return fn


def mask(on, c):
    return jnp.where(on == 1, 0.0, -c).astype(c.dtype)


@switches
def mixture(on, c):
    return logsumexp(mask(on, c) + LL.astype(c.dtype), axis=1)


@switches
def mixture_transposed(on, c):
    return logsumexp(mask(on, c)[:, None] + LL.T.astype(c.dtype), axis=0)


@switches
def largest(on, c):
    return jnp.max(mask(on, c) + LL.astype(c.dtype), axis=1)


@switches
def in_a_table(on, c):
    return logsumexp(jnp.stack([-c, 0.0 * c])[on] + LL.astype(c.dtype), axis=1)


@switches
def normalized(on, c):
    return log_softmax(mask(on, c) + LL.astype(c.dtype), axis=1)[jnp.arange(N), 0]


@switches
def normalized_by_member(on, c):
    """The mask swallows all of a row, so that the row less its maximum is exactly 0."""
    return log_softmax(mask(on, c)[:, None] + LL.T.astype(c.dtype), axis=1)[:, 0]


@switches
def soft_weights(on, c):
    return softmax(mask(on, c) + LL.astype(c.dtype), axis=1) @ V[:, 0].astype(c.dtype)


@switches
def soft_weights_of_a_vector(on, c):
    weights = softmax(mask(on, c) + LL[0].astype(c.dtype))
    return jnp.log(weights @ jnp.exp(V).astype(c.dtype))


@switches
def categorical(on, c):
    return dist.Categorical(logits=mask(on, c) + LL.astype(c.dtype)).log_prob(jnp.asarray(CLASSES))


@switches
def categorical_prior(on, c):
    return dist.Categorical(logits=mask(on, c)).log_prob(jnp.asarray(0)) + on.sum()


@switches
def bernoulli_masked(on, c):
    return dist.Bernoulli(logits=mask(on, c)[:, None] + LL.T.astype(c.dtype)).log_prob(BITS[:D, None])


@switches
def softplus_of_masked(on, c):
    return softplus(mask(on, c) + LL.astype(c.dtype))


@switches
def relu_of_masked(on, c):
    return jax.nn.relu(mask(on, c) + 5 + LL.astype(c.dtype))


@switches
def exp_of_masked(on, c):
    return jnp.exp(mask(on, c)[None, :] + LL.astype(c.dtype)).sum(axis=1)


@switches
def log_of_exp_of_masked(on, c):
    return jnp.log(jnp.exp(mask(on, c)[None, :] + LL.astype(c.dtype)).sum(axis=1) + 1e-3)


@switches
def pairs(on, c):
    both = (on[:, None] * on[None, :]) == 1
    return logsumexp(jnp.where(both, 0.0, -c).astype(c.dtype) + V[:, :D].astype(c.dtype), axis=1)


@switches
def gathered(on, c):
    return logsumexp((mask(on, c)[GROUP][:, None] + LL.astype(c.dtype)).reshape(-1, 2), axis=1)


@switches
def summed_then_exp(on, c):
    return jnp.exp(-jnp.sum(jnp.where(on == 1, c, 0.0).astype(c.dtype)[None, :] * W[:, :D].astype(c.dtype), axis=1))


@switches
def forward_algorithm(on, c):
    A = log_softmax(V[:, :D].astype(c.dtype), axis=1)
    state = mask(on, c) + LL[0].astype(c.dtype)
    for row in LL[1:4].astype(c.dtype):
        state = logsumexp(state[:, None] + A, axis=0) + row
    return logsumexp(state)


@switches
def steep_power(on, c):
    """Where only the small part of the scale is left, the result has eighty times its relative error."""
    scale = on.astype(c.dtype) @ W.astype(c.dtype) + 0.6 / c
    return dist.Weibull(scale, jnp.asarray(80.0, c.dtype)).log_prob(0.8 / c)


@switches
def rate(z, c):
    return dist.Poisson(z.astype(c.dtype) @ W.astype(c.dtype) + 1 / c).log_prob(COUNTS)


@switches
def rate_by_hand(z, c):
    r = z.astype(c.dtype) @ W.astype(c.dtype) + 1 / c
    return COUNTS * jnp.log(r) - r


@switches
def signed_rate(z, c):
    r = jnp.square(z.astype(c.dtype) @ V.astype(c.dtype)) + 1 / c
    return COUNTS * jnp.log(r) - r


@switches
def noisy_or(z, c):
    s = z.astype(c.dtype) @ W.astype(c.dtype) + 1 / c
    return jnp.where(BITS == 1, jnp.log(-jnp.expm1(-s)), -s)


@switches
def noisy_or_product(z, c):
    fail = jnp.prod(jnp.where(z[:, None] == 1, jnp.exp(-W), 1.0).astype(c.dtype), axis=0) * (1 - 1 / c)
    return jnp.where(BITS == 1, jnp.log1p(-fail), jnp.log(fail))


@switches
def noisy_or_log1p(z, c):
    s = z.astype(c.dtype) @ W.astype(c.dtype) + 1 / c
    return jnp.where(BITS == 1, jnp.log1p(-jnp.exp(-s)), -s)


@switches
def scale(z, c):
    return dist.Normal(0.0, jnp.where(z == 1, 1.0, 1 / c).astype(c.dtype)).log_prob(V[:, 0].astype(c.dtype) / c)


@switches
def scale_of_sums(z, c):
    sd = z.astype(c.dtype) @ W.astype(c.dtype) + 1 / c
    return dist.Normal(0.0, sd).log_prob(Y.astype(c.dtype) / c)


@switches
def precision(z, c):
    sd = jnp.sqrt(z.astype(c.dtype) @ W.astype(c.dtype) + 1 / c)
    return dist.Normal(0.0, sd).log_prob(jnp.zeros(N, c.dtype))


@switches
def ratio(z, c):
    total = z.astype(c.dtype) @ W.astype(c.dtype)
    return (total + 1 / c) / (total + 2 / c)


@switches
def shares(z, c):
    w = z.astype(c.dtype)[:, None] * W.astype(c.dtype) + 1 / c
    return jnp.log(w / w.sum(axis=0)).sum()


@switches
def threshold_of_sum(z, c):
    total = z.astype(c.dtype) @ (W * 0.1).astype(c.dtype)
    return jnp.where(total > 0, 1.0, -3.0) * Y.astype(c.dtype)


@switches
def counted(z, c):
    return jnp.log(jnp.sum(z.astype(c.dtype)) * 0.3 + 1 / c)


@switches
def gated_product(z, c):
    return z.astype(c.dtype) * jnp.where(z == 1, Y[:D], c).astype(c.dtype) * 2.0


@switches
def gated_square(z, c):
    big = jnp.where(z == 1, Y[:D], c).astype(c.dtype)[:, None] * W.astype(c.dtype)
    return z.astype(c.dtype)[:, None] * big


@switches
def large_offset(z, c):
    total = z.astype(c.dtype) @ V.astype(c.dtype)
    return jnp.tanh(total + jnp.where(z[0] == 1, 0.0, c).astype(c.dtype))


@switches
def beta_of_counts(z, c):
    a = z.astype(c.dtype) @ W.astype(c.dtype) + 1 / c
    return dist.Beta(a + 1e-3, 1.0).log_prob(jnp.asarray(0.3, c.dtype))


@switches
def gamma_rate(z, c):
    return dist.Gamma(2.0, z.astype(c.dtype) @ W.astype(c.dtype) + 1 / c).log_prob(jnp.asarray(0.7, c.dtype))


@switches
def categorical_probs(z, c):
    p = z.astype(c.dtype)[None, :] * np.exp(LL).astype(c.dtype) + 1 / c
    return dist.Categorical(probs=p / p.sum(axis=1, keepdims=True)).log_prob(jnp.asarray(CLASSES))


@switches
def cumulative(z, c):
    return jnp.log(jnp.cumsum(z.astype(c.dtype) * W[:, 0].astype(c.dtype)) + 1 / c)


@switches
def cumulative_mask(on, c):
    return jnp.exp(jnp.cumsum(mask(on, c)))


@switches
def segments(z, c):
    total = jax.ops.segment_sum(z.astype(c.dtype) * W[:, 0].astype(c.dtype), jnp.asarray(GROUP[:D] % 2), 2)
    return jnp.log(total + 1 / c)


@switches
def clipped(z, c):
    return jnp.log(jnp.clip(z.astype(c.dtype) @ W.astype(c.dtype), 1 / c, 1.0))


@switches
def two_layers(z, c):
    hidden = jnp.tanh(z.astype(c.dtype) @ V[:, :5].astype(c.dtype) + mask(z, c)[:5])
    return dist.Bernoulli(logits=hidden @ V[:5].astype(c.dtype)).log_prob(BITS)


@switches
def distance(z, c):
    return -jnp.sqrt(jnp.sum(jnp.square(z.astype(c.dtype) @ W.astype(c.dtype))) + 1 / c)


@switches
def student(z, c):
    r = Y.astype(c.dtype) - c * (z.astype(c.dtype) @ V.astype(c.dtype))
    return -jnp.log1p(jnp.square(r))


@switches
def linear_to_the_end(z, c):
    return -0.5 * jnp.square(Y.astype(c.dtype) - z.astype(c.dtype) @ V.astype(c.dtype)) / c


@switches
def huge_then_small(z, c):
    return jnp.log1p(jnp.abs(z.astype(c.dtype) @ V.astype(c.dtype)) * c) / 3


@switches
def grid(z, c):
    q = z.reshape(2, 3).astype(c.dtype)
    return jnp.log(q[:, 1:] + q[:, :-1] + 1 / c).sum() + jnp.exp(-c * (q[1:] - q[:-1]) ** 2).sum()


@switches
def attention(on, c):
    scores = V[:, :D].astype(c.dtype) + mask(on, c)
    return softmax(scores, axis=1) @ (on.astype(c.dtype) * Y[:D].astype(c.dtype))


@switches
def forbidden_pairs(on, c):
    table = jnp.where(jnp.eye(2, dtype=bool), -c, V[:2, :2].astype(c.dtype))
    return logsumexp(jnp.stack([table[on[:-1], on[1:]], Y[: D - 1].astype(c.dtype)]), axis=0)


@switches
def loop(on, c):
    return jax.lax.scan(lambda a, row: (jnp.logaddexp(a, row), None), -c, mask(on, c) + Y[:D].astype(c.dtype))[0]


@switches
def largest_of_segments(on, c):
    best = jax.ops.segment_max(mask(on, c) + Y[:D].astype(c.dtype), jnp.asarray(GROUP[:D] % 3), 3)
    return jnp.maximum(best, -10.0)


@switches
def two_best(on, c):
    return jnp.sort(mask(on, c) + Y[:D].astype(c.dtype))[-2:]


@switches
def position_of_the_best(z, c):
    scores = (z.astype(c.dtype) @ V.astype(c.dtype)).reshape(5, D) + mask(z, jnp.minimum(c, 1e30))
    return jnp.asarray(Y[:D], c.dtype)[jnp.argmax(scores, axis=1)]


@switches
def mixture_of_normals(on, c):
    weights = dist.Categorical(logits=mask(on, c) + LL[0].astype(c.dtype))
    normals = dist.Normal(V[:, 0].astype(c.dtype), 1.0)
    return dist.MixtureSameFamily(weights, normals).log_prob(Y.astype(c.dtype))


@switches
def gamma_poisson(z, c):
    return dist.GammaPoisson(z.astype(c.dtype) @ W.astype(c.dtype) + 1 / c, 1.0).log_prob(COUNTS)


@switches
def wrapped_product(z, c):
    large = (z[:, None] * COUNTS.astype(np.int32)[None]) * np.int32(999_999_999)
    return large.astype(c.dtype) * 1e-9


@switches
def wrapped_sum(z, c):
    large = (z * np.int32(123_456_789)) @ np.arange(D * N, dtype=np.int32).reshape(D, N)
    return jnp.sin(large.astype(c.dtype) * 1e-9)


@switches
def wrapped_total(z, c):
    return jnp.sum(z[:, None] * np.arange(N, dtype=np.int32)[None] * np.int32(99_999_999), axis=0)


@switches
def widened(z, c):
    """A rate in float32 that is then used in float64, as NumPyro's GammaPoisson does."""
    return jnp.log((z.astype(c.dtype) @ W.astype(c.dtype) + 1 / c).astype(float))


@reals
def different_scales(x, c):
    return jnp.sum(jnp.square(x * c ** jnp.linspace(0, 0.25, D, dtype=c.dtype)))


@reals
def sum_of_squares(x, c):
    return jnp.square(x)


@reals
def log_rate(x, c):
    return dist.Poisson(jnp.exp(x @ V.astype(c.dtype))).log_prob(COUNTS)


@reals
def positive_rate(x, c):
    return dist.Poisson(jnp.square(x) @ W.astype(c.dtype) + 1 / c).log_prob(COUNTS)


@reals
def logistic(x, c):
    return dist.Bernoulli(logits=3 * (x @ V.astype(c.dtype))).log_prob(BITS)


@reals
def masked_logistic(x, c):
    return softplus(x[None, :] + jnp.where(V[:D, :D] > 0, 0.0, -c).astype(c.dtype))


@reals
def hinge(x, c):
    return logsumexp(jnp.where(x[:, None] > 0.2, LL.T, -c).astype(c.dtype), axis=0)


@reals
def ratios(x, c):
    return jnp.log(jnp.abs(x) / (jnp.sum(jnp.abs(x)) + 1 / c) + 1 / c)
