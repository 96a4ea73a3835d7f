"""Rows of the catalogue with continuous and mixed guides: exact by closed forms or a dense rule."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import digamma, gammaln
from numpyro.distributions import constraints

from catalogue_row import BINARY, CONTINUOUS, DISCRETE, ROWS, Row, row

rng = np.random.default_rng(0)


# --- continuous and mixed --------------------------------------------------------------------------------------

_nodes, _weights = np.polynomial.hermite_e.hermegauss(60)
_weights = _weights / _weights.sum()


def normal_mean(f, loc, scale):
    """E[f(x)] under Normal(loc, scale), by 60 nodes."""
    return jnp.sum(jnp.asarray(_weights) * jax.vmap(f)(loc + scale * jnp.asarray(_nodes)))


def _discrete_parent_exact(params):
    total = 0.0
    for z in (0, 1):
        log_q = dist.Bernoulli(logits=params["l"]).log_prob(z)
        loc, scale = params["mu"][z], params["sd"]

        def f(x, z=z, log_q=log_q, loc=loc, scale=scale):
            log_p = jnp.log(0.5) + dist.Normal(2.0 * z, 1.0).log_prob(x) + dist.Normal(x, 0.5).log_prob(1.2)
            return log_p - log_q - dist.Normal(loc, scale).log_prob(x)

        total += jnp.exp(log_q) * normal_mean(f, loc, scale)
    return -total


@row(exact=_discrete_parent_exact, estimators=DISCRETE)
def discrete_parent_continuous_child():
    def model():
        z = numpyro.sample("z", dist.Bernoulli(0.5))
        x = numpyro.sample("x", dist.Normal(2.0 * z, 1.0))
        numpyro.sample("y", dist.Normal(x, 0.5), obs=1.2)

    def guide():
        z = numpyro.sample("z", dist.Bernoulli(logits=numpyro.param("l", 0.0)))
        mu = numpyro.param("mu", jnp.zeros(2))
        sd = numpyro.param("sd", 1.0, constraint=constraints.positive)
        numpyro.sample("x", dist.Normal(mu[z], sd))

    return model, guide, {"l": 0.4, "mu": [0.3, 1.4], "sd": 0.7}


# the same with the child reparameterized: it is then in nobody's blanket
ROWS.append(
    Row(
        **{
            **vars(ROWS[-1]),
            "name": "discrete_parent_reparameterized_child",
            "local": {"continuous": "reparam"},
            "estimators": ("local", "disarm"),
        }
    )
)


def _continuous_parent_exact(params):
    def f(x):
        q = dist.Bernoulli(logits=params["b"] + params["w"] * x)
        log_p_x = dist.Normal(0.0, 1.0).log_prob(x) - dist.Normal(params["loc"], params["sd"]).log_prob(x)
        terms = [
            dist.Bernoulli(logits=x).log_prob(z) + dist.Normal(x + z, 1.0).log_prob(1.5) - q.log_prob(z)
            for z in (0, 1)
        ]
        return log_p_x + sum(jnp.exp(q.log_prob(z)) * t for z, t in enumerate(terms))

    return -normal_mean(f, params["loc"], params["sd"])


@row(exact=_continuous_parent_exact, estimators=BINARY)
def continuous_parent_discrete_child():
    def model():
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        z = numpyro.sample("z", dist.Bernoulli(logits=x))
        numpyro.sample("y", dist.Normal(x + z, 1.0), obs=1.5)

    def guide():
        loc = numpyro.param("loc", 0.0)
        sd = numpyro.param("sd", 1.0, constraint=constraints.positive)
        x = numpyro.sample("x", dist.Normal(loc, sd))
        b, w = numpyro.param("b", 0.0), numpyro.param("w", 0.0)
        numpyro.sample("z", dist.Bernoulli(logits=b + w * x))

    return model, guide, {"loc": 0.5, "sd": 0.6, "b": 0.2, "w": 0.9}


_A = np.array([[2.0, 0.8, 0.0], [0.8, 1.5, -0.5], [0.0, -0.5, 1.0]])


def _gaussian_exact(params):
    A, loc, sd = jnp.asarray(_A), params["loc"], params["sd"]
    mean = -0.5 * (loc - 1.0) @ A @ (loc - 1.0) - 0.5 * jnp.sum(jnp.diag(A) * sd**2)
    return -(mean + jnp.sum(jnp.log(sd)) + 1.5 * (1.0 + jnp.log(2 * jnp.pi)))


@row(exact=_gaussian_exact, estimators=CONTINUOUS)
def normal_guide():
    def model():
        x = numpyro.sample("x", dist.ImproperUniform(constraints.real, (), (3,)))
        numpyro.factor("target", -0.5 * (x - 1.0) @ jnp.asarray(_A) @ (x - 1.0))

    def guide():
        loc = numpyro.param("loc", jnp.zeros(3))
        sd = numpyro.param("sd", jnp.ones(3), constraint=constraints.positive)
        numpyro.sample("x", dist.Normal(loc, sd).to_event(1))

    return model, guide, {"loc": [0.3, -0.4, 0.8], "sd": [0.5, 0.9, 0.7]}


def _lognormal_exact(params):
    mu, sd = params["mu"], params["sd"]
    mean = jnp.exp(mu + 0.5 * sd**2)
    # p: x_i ~ Exponential(1), y ~ Exponential(rate x1 + x2) at 0.8; q: LogNormal
    nodes, w = jnp.asarray(_nodes), jnp.asarray(_weights)
    x1, x2 = jnp.exp(mu[0] + sd[0] * nodes), jnp.exp(mu[1] + sd[1] * nodes)
    rate = x1[:, None] + x2
    likelihood = jnp.sum(w[:, None] * w * (jnp.log(rate) - 0.8 * rate))
    entropy = jnp.sum(mu + 0.5 * jnp.log(2 * jnp.pi * jnp.e * sd**2))
    return -(-jnp.sum(mean) + likelihood + entropy)


@row(exact=_lognormal_exact, estimators=CONTINUOUS, local={"nodes": 9})
def lognormal_guide():
    def model():
        x = numpyro.sample("x", dist.Exponential(jnp.ones(2)).to_event(1))
        numpyro.sample("y", dist.Exponential(x.sum()), obs=0.8)

    def guide():
        mu = numpyro.param("mu", jnp.zeros(2))
        sd = numpyro.param("sd", jnp.ones(2), constraint=constraints.positive)
        numpyro.sample("x", dist.LogNormal(mu, sd).to_event(1))

    return model, guide, {"mu": [0.1, -0.3], "sd": [0.4, 0.5]}


def _gamma_exact(params):
    a, b = params["a"], params["b"]
    mean, mean_log = a / b, digamma(a) - jnp.log(b)
    log_p = 1.0 * mean_log - mean + 3.0 * mean_log - mean - gammaln(4.0)  # Gamma(2, 1) prior, Poisson(x) at 3
    entropy = a - jnp.log(b) + gammaln(a) + (1 - a) * digamma(a)
    return -jnp.sum(log_p + entropy)


@row(exact=_gamma_exact, estimators=CONTINUOUS, local={"nodes": 9})
def gamma_guide():
    def model():
        with numpyro.plate("N", 2):
            x = numpyro.sample("x", dist.Gamma(2.0, 1.0))
            numpyro.sample("y", dist.Poisson(x), obs=jnp.array([3, 3]))

    def guide():
        a = numpyro.param("a", jnp.ones(2), constraint=constraints.positive)
        b = numpyro.param("b", jnp.ones(2), constraint=constraints.positive)
        with numpyro.plate("N", 2):
            numpyro.sample("x", dist.Gamma(a, b))

    return model, guide, {"a": [2.0, 8.0], "b": [2.0, 1.0]}


def _beta_exact(params):
    a, b = params["a"], params["b"]
    log_x, log_1x = digamma(a) - digamma(a + b), digamma(b) - digamma(a + b)
    log_p = jnp.log(6.0) + log_x + log_1x + 3.0 * log_x + 1.0 * log_1x + jnp.log(4.0)  # Beta(2,2), Binomial 3 of 4
    betaln = gammaln(a) + gammaln(b) - gammaln(a + b)
    entropy = betaln - (a - 1) * log_x - (b - 1) * log_1x
    return -(log_p + entropy)


@row(exact=_beta_exact, estimators=CONTINUOUS, local={"nodes": 9})
def beta_guide():
    def model():
        p = numpyro.sample("p", dist.Beta(2.0, 2.0))
        numpyro.sample("y", dist.Binomial(4, p), obs=3)

    def guide():
        a = numpyro.param("a", 1.0, constraint=constraints.positive)
        b = numpyro.param("b", 1.0, constraint=constraints.positive)
        numpyro.sample("p", dist.Beta(a, b))

    return model, guide, {"a": 2.0, "b": 4.0}
