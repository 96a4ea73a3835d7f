"""Models with discrete latents, beside the same models marginalized by hand, and data for both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import logsumexp
from numpyro.contrib.control_flow import scan


@dataclass(frozen=True)
class Pair:
    """A model with discrete latents, the same one summed by hand, and their arguments."""

    model: Callable[..., Any]
    by_hand: Callable[..., Any]
    args: tuple


def hmm() -> Pair:
    rng = np.random.default_rng(0)
    table = np.array([[0.9, 0.1], [0.2, 0.8]])
    z, y = 0, []
    for _ in range(120):
        z = rng.choice(2, p=table[z])
        y.append((-1.0, 1.5)[z] + 0.7 * rng.normal())

    def priors():
        stay = numpyro.sample("stay", dist.Beta(5.0, 2.0).expand([2]).to_event(1))
        low = numpyro.sample("low", dist.Normal(-1.0, 1.0))
        gap = numpyro.sample("gap", dist.LogNormal(0.5, 0.5))
        sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
        steps = jnp.stack([jnp.stack([stay[0], 1 - stay[0]]), jnp.stack([1 - stay[1], stay[1]])])
        return steps, jnp.stack([low, low + gap]), sigma

    def model(y):
        steps, mu, sigma = priors()

        def step(z, seen):
            z = numpyro.sample("z", dist.Categorical(steps[z]))
            numpyro.sample("y", dist.Normal(mu[z], sigma), obs=seen)
            return z, None

        scan(step, 0, y)

    def by_hand(y):
        steps, mu, sigma = priors()
        seen = dist.Normal(mu, sigma).log_prob(y[:, None])

        def step(alpha, now):
            return logsumexp(alpha[:, None] + jnp.log(steps), 0) + now, None

        alpha, _ = jax.lax.scan(step, jnp.log(steps)[0] + seen[0], seen[1:])
        numpyro.factor("y", logsumexp(alpha))

    return Pair(model, by_hand, (jnp.asarray(y),))


def change_point() -> Pair:
    rng = np.random.default_rng(1)
    n = 60
    y = jnp.asarray(rng.poisson(np.where(np.arange(n) < 25, 3.0, 1.2)))
    t = jnp.arange(n)

    def priors():
        return numpyro.sample("early", dist.Exponential(0.5)), numpyro.sample("late", dist.Exponential(0.5))

    def model(y):
        early, late = priors()
        tau = numpyro.sample("tau", dist.DiscreteUniform(0, n - 1))
        with numpyro.plate("years", n):
            numpyro.sample("y", dist.Poisson(jnp.where(t < tau, early, late)), obs=y)

    def by_hand(y):
        early, late = priors()
        before = dist.Poisson(early).log_prob(y)
        after = dist.Poisson(late).log_prob(y)
        gain = jnp.concatenate([jnp.zeros(1), jnp.cumsum(before - after)])[:n]
        numpyro.factor("y", logsumexp(after.sum() + gain) - jnp.log(n))

    return Pair(model, by_hand, (y,))


def occupancy() -> Pair:
    rng = np.random.default_rng(2)
    n, visits = 80, 4
    habitat = rng.normal(size=n)
    z = rng.random(n) < 1 / (1 + np.exp(-(0.3 + habitat)))
    y = jnp.asarray((rng.random((visits, n)) < 0.4) & z, int)

    def priors():
        a = numpyro.sample("a", dist.Normal(0.0, 1.5).expand([2]).to_event(1))
        return a, numpyro.sample("p", dist.Beta(2.0, 2.0))

    def model(habitat, y):
        a, p = priors()
        with numpyro.plate("sites", n, dim=-1):
            z = numpyro.sample("z", dist.Bernoulli(logits=a[0] + a[1] * habitat))
            with numpyro.plate("visits", visits, dim=-2):
                numpyro.sample("y", dist.Bernoulli(z * p), obs=y)

    def by_hand(habitat, y):
        a, p = priors()
        logits = a[0] + a[1] * habitat
        there = jax.nn.log_sigmoid(logits) + dist.Bernoulli(p).log_prob(y).sum(0)
        absent = jnp.where(y.any(0), -jnp.inf, jax.nn.log_sigmoid(-logits))
        numpyro.factor("y", jnp.logaddexp(there, absent).sum())

    return Pair(model, by_hand, (jnp.asarray(habitat), y))


def n_mixture() -> Pair:
    rng = np.random.default_rng(3)
    n, visits, far = 40, 4, 80
    y = rng.binomial(rng.poisson(6.0, n), 0.5, (visits, n))

    def priors():
        return numpyro.sample("rate", dist.Gamma(6.0, 1.0)), numpyro.sample("p", dist.Beta(4.0, 4.0))

    def model(y):
        rate, p = priors()
        with numpyro.plate("sites", n, dim=-1):
            z = numpyro.sample("z", dist.Poisson(rate))
            with numpyro.plate("visits", visits, dim=-2):
                numpyro.sample("y", dist.Binomial(z, p), obs=y)

    def by_hand(y):
        rate, p = priors()
        k = jnp.arange(far)[:, None, None]
        possible = k >= y
        seen = dist.Binomial(jnp.where(possible, k, y), p).log_prob(y)
        seen = jnp.where(possible.all(1), seen.sum(1), -jnp.inf)
        numpyro.factor("y", logsumexp(dist.Poisson(rate).log_prob(k[:, 0]) + seen, 0).sum())

    return Pair(model, by_hand, (jnp.asarray(y),))


PAIRS = {f.__name__: f for f in (hmm, change_point, occupancy, n_mixture)}
