"""The exact negative ELBOs of eight problems of `benchmarks/peers`, each written for its model and nothing else.

A loss takes the parameters of the problem's guide and its data. With m = loc, s = exp(log_scale), p = σ(logits) and
H for the guide's entropy, the ELBOs are

    Gaussian         H − ½ (m − 2)ᵀ P (m − 2) − ½ Σ_j P_jj s_j²
    logistic         H + E log p(w) + Σ_i (y_i a_i − E softplus(N(a_i, v_i))),           a = X m, v = X² s²
    spike and slab   H + E log p(γ, β) − ½ |y − X (p m)|² − ½ Σ_j |X_j|² Var(γ_j β_j)
    Ising            H + 0.3 Σ_pairs e_i e_j + Σ field · e,                              e = 2 p − 1
    mixture          H + E log p(μ) − ½ Σ_ik r_ik ((y_i − m_k)² + s_k²),                 r = softmax(logits)
    factorial HMM    H + E log p(x_t | x_{t−1}) − ½ Σ_t ((y_t − p_t·w)² + Σ_c w_c² p_tc (1 − p_tc)) / 0.7²
    noisy-or         H + E log p(z) + Σ_i Σ over the 32 joint states of the causes of finding i

`jax.grad` differentiates them. `BY_HAND` has them by the names of the problems; `PREPARED` what is kept beside data.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm

Params = dict[str, jax.Array]
LOG_2PI = math.log(2 * math.pi)
MODERATE = 2.0  # standard deviation up to which a Gauss-Hermite rule serves


def gaussian(params: Params, precision: jax.Array) -> jax.Array:
    """The negative ELBO of `gaussian_100` and `gaussian_1000`."""
    m, log_s = params["loc"], params["log_scale"]
    r = m - 2.0
    return 0.5 * (r @ (precision @ r) + jnp.diagonal(precision) @ jnp.exp(2 * log_s)) - _normal_entropy(log_s)


def logistic(params: Params, X: jax.Array, y: jax.Array, squares: jax.Array | None = None) -> jax.Array:
    """The negative ELBO of `logistic`; `squares` is X², where it is kept from step to step."""
    m, log_s = params["loc"], params["log_scale"]
    variance = jnp.exp(2 * log_s)
    a, v = X @ m, (X * X if squares is None else squares) @ variance
    fit = y.astype(a.dtype) @ a - jnp.sum(expected_softplus(a, v))
    return -fit - _normal_log_prior(m, variance) - _normal_entropy(log_s)


def spike_and_slab(params: Params, X: jax.Array, y: jax.Array) -> jax.Array:
    """The negative ELBO of `spike_and_slab`: the variances need the columns' lengths alone."""
    logits, m, log_s = params["logits"], params["loc"], params["log_scale"]
    p, variance = jax.nn.sigmoid(logits), jnp.exp(2 * log_s)
    mean = p * m
    spread = p * (m**2 + variance) - mean**2
    residual = y - X @ mean
    fit = -0.5 * (residual @ residual + jnp.sum(X * X, axis=0) @ spread + len(y) * LOG_2PI)
    prior = _bernoulli_log_prior(p, 0.1) + _normal_log_prior(m, variance)
    return -fit - prior - _bernoulli_entropy(logits) - _normal_entropy(log_s)


def ising(params: Params, field: jax.Array) -> jax.Array:
    """The negative ELBO of `ising`."""
    logits = params["logits"]
    e = 2 * jax.nn.sigmoid(logits) - 1
    pairs = jnp.sum(e[1:] * e[:-1]) + jnp.sum(e[:, 1:] * e[:, :-1])
    energy = 0.3 * pairs + jnp.sum(field * e)
    return -energy + e.size * math.log(2) - _bernoulli_entropy(logits)


def mixture(params: Params, y: jax.Array) -> jax.Array:
    """The negative ELBO of `mixture`: the squares are multiplied out, so that r meets y in a matrix product."""
    m, log_s, logits = params["loc"], params["log_scale"], params["logits"]
    n, K = logits.shape
    variance = jnp.exp(2 * log_s)
    log_r = jax.nn.log_softmax(logits)
    r = jnp.exp(log_r)
    loss = 0.5 * (jnp.sum(r * ((y[:, None] - m) ** 2 + variance)) + n * LOG_2PI)
    loss += jnp.sum(r * log_r) + n * math.log(K)
    prior = -0.5 * jnp.sum((m - 10.0) ** 2 + variance) / 100.0 - K * (math.log(10.0) + 0.5 * LOG_2PI)
    return loss - prior - _normal_entropy(log_s)


def factorial_hmm(params: Params, y: jax.Array, weight: jax.Array, stay: jax.Array) -> jax.Array:
    """The negative ELBO of `factorial_hmm`."""
    logits = params["logits"]
    p = jax.nn.sigmoid(logits)
    same = p[1:] * p[:-1] + (1 - p[1:]) * (1 - p[:-1])
    steps = jnp.sum(same * jnp.log(2 * stay) + (1 - same) * jnp.log(2 * (1 - stay)))
    squares = jnp.sum((y - p @ weight) ** 2) + jnp.sum((p * (1 - p)) @ weight**2)
    fit = -0.5 * squares / 0.49 - len(y) * (math.log(0.7) + 0.5 * LOG_2PI)
    return -fit - steps + p.size * math.log(2) - _bernoulli_entropy(logits)


def noisy_or(params: Params, y: jax.Array, weight: jax.Array, causes: jax.Array) -> jax.Array:
    """The negative ELBO of `noisy_or`: the table of log p(y_i | causes) has no parameters, and is computed once."""
    logits = params["logits"]
    p = jax.nn.sigmoid(logits)
    weight = _merged(weight, causes)
    states = jnp.asarray(list(itertools.product([0.0, 1.0], repeat=weight.shape[1])), weight.dtype)
    off = -0.01 - weight @ states.T
    table = jnp.where(y[:, None] == 1, jnp.log(-jnp.expm1(off)), off)
    for each in p[causes].T:  # the first cause is the slowest to change
        half = table.shape[1] // 2
        table = table[:, :half] + each[:, None] * (table[:, half:] - table[:, :half])
    return -jnp.sum(table) - _bernoulli_log_prior(p, 0.1) - _bernoulli_entropy(logits)


@jax.custom_jvp
def expected_softplus(mean: jax.Array, variance: jax.Array) -> jax.Array:
    """Return E softplus(z) for z ~ N(mean, variance), elementwise, to 2e-6 in float32 and 1e-10 in float64.

    Gauss-Hermite nodes follow the noise, and are too far apart for the bend of softplus where z varies by much. There

        E softplus(z) = E max(z, 0) + ∫ log1p(exp(−|z|)) N(z; mean, variance) dz,

    the first part in closed form, the second by Gauss-Legendre nodes on each side of zero.
    """
    sd = jnp.sqrt(variance)
    return jax.lax.cond(jnp.max(sd) <= MODERATE, _by_noise, _by_sides, mean, sd)


@expected_softplus.defjvp
def _expected_softplus_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    """Differentiate inside the branches: outside, what both need for it would be kept."""
    mean, variance = primals
    sd = jnp.sqrt(variance)

    def slopes(rule: Callable[..., jax.Array]) -> Callable[..., Any]:
        return lambda mean, sd: jax.vjp(rule, mean, sd)[1](jnp.ones_like(mean))

    by_mean, by_sd = jax.lax.cond(jnp.max(sd) <= MODERATE, slopes(_by_noise), slopes(_by_sides), mean, sd)
    return expected_softplus(mean, variance), by_mean * tangents[0] + 0.5 * by_sd / sd * tangents[1]


def _by_noise(mean: jax.Array, sd: jax.Array) -> jax.Array:
    nodes, weights = np.polynomial.hermite_e.hermegauss(20 if mean.dtype == jnp.float32 else 80)
    z = mean + sd * jnp.asarray(nodes, mean.dtype)[:, None]
    return jnp.asarray(weights / weights.sum(), mean.dtype) @ jax.nn.softplus(z)


def _by_sides(mean: jax.Array, sd: jax.Array) -> jax.Array:
    single = mean.dtype == jnp.float32
    nodes, weights = np.polynomial.legendre.leggauss(24 if single else 100)
    end = 18.0 if single else 32.0
    z = jnp.asarray(0.5 * end * (nodes + 1), mean.dtype)
    rest = jnp.log1p(jnp.exp(-z)) * jnp.asarray(0.5 * end * weights, mean.dtype)
    u, floor = mean / sd, jnp.maximum(sd, 0.1)[:, None]
    density = norm.pdf(z, mean[:, None], floor) + norm.pdf(-z, mean[:, None], floor)
    smooth = jnp.where(sd < MODERATE / 2, _by_noise(mean, sd) - _positive_part(mean, sd, u), density @ rest)
    return _positive_part(mean, sd, u) + smooth


def _positive_part(mean: jax.Array, sd: jax.Array, u: jax.Array) -> jax.Array:
    return mean * norm.cdf(u) + sd * norm.pdf(u)


def _merged(weight: jax.Array, causes: jax.Array) -> jax.Array:
    """Return the weights with those of a cause that a finding lists twice added up at its first place."""
    for a, b in itertools.combinations(range(weight.shape[1]), 2):
        twice = jnp.where(causes[:, a] == causes[:, b], weight[:, b], 0.0)
        weight = weight.at[:, a].add(twice).at[:, b].add(-twice)
    return weight


def _normal_entropy(log_scale: jax.Array) -> jax.Array:
    return jnp.sum(log_scale) + 0.5 * log_scale.size * (1 + LOG_2PI)


def _bernoulli_entropy(logits: jax.Array) -> jax.Array:
    return jnp.sum(jax.nn.softplus(logits) - logits * jax.nn.sigmoid(logits))


def _bernoulli_log_prior(p: jax.Array, prior: float) -> jax.Array:
    return jnp.sum(p) * math.log(prior) + jnp.sum(1 - p) * math.log1p(-prior)


def _normal_log_prior(mean: jax.Array, variance: jax.Array) -> jax.Array:
    return -0.5 * jnp.sum(mean**2 + variance) - 0.5 * mean.size * LOG_2PI


# What is computed from the data before the first step, and given to the loss after them.
PREPARED: dict[str, Callable[..., tuple[Any, ...]]] = {"logistic": lambda X, y: (X * X,)}
BY_HAND: dict[str, Callable[..., Any]] = {
    "gaussian_100": gaussian,
    "gaussian_1000": gaussian,
    "spike_and_slab": spike_and_slab,
    "ising": ising,
    "mixture": mixture,
    "factorial_hmm": factorial_hmm,
    "noisy_or": noisy_or,
    "logistic": logistic,
}
