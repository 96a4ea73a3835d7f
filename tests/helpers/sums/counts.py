"""Generated models: counts without an upper end, each compared with a sum far into the tail.

The long sums end where what is left is below 1e-16 of the whole; windows must agree to 1e-8.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import logsumexp

from sums.case import Case
from sums.plates import Rng, normal

WINDOWS = 1e-8


def by_members(priors, member, far: int):
    """Write the density of independent counts: log p(x) + Σ_i log Σ_{k<far} exp member(x, k)_i."""

    def density(x):
        k = jnp.arange(far)
        return priors(x) + jnp.sum(logsumexp(member(x, k), -1))

    return density


def poisson_counts(rng: Rng) -> Case:
    n = int(rng.integers(2, 6))
    y = normal(rng, n) + 2.0

    def model(y):
        rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        with numpyro.plate("points", n):
            z = numpyro.sample("z", dist.Poisson(rate))
            numpyro.sample("y", dist.Normal(slope * z, 1.0), obs=y)

    def priors(x):
        return dist.Gamma(2.0, 1.0).log_prob(x["rate"]) + dist.Normal(0.0, 1.0).log_prob(x["slope"])

    def member(x, k):
        return dist.Poisson(x["rate"]).log_prob(k) + dist.Normal(x["slope"] * k, 1.0).log_prob(y[:, None])

    x = {"rate": jnp.asarray(rng.uniform(0.5, 6)), "slope": jnp.asarray(rng.uniform(0.3, 1))}
    return Case(model, (y,), x, by_members(priors, member, 100), tolerance=WINDOWS)


def negative_binomial_counts(rng: Rng) -> Case:
    n = int(rng.integers(2, 5))
    y = jnp.asarray(rng.poisson(3.0, n))

    def model(y):
        mean = numpyro.sample("mean", dist.Gamma(2.0, 1.0))
        with numpyro.plate("points", n):
            z = numpyro.sample("z", dist.NegativeBinomial2(mean, 3.0))
            numpyro.sample("y", dist.Poisson(0.5 + 0.8 * z), obs=y)

    def priors(x):
        return dist.Gamma(2.0, 1.0).log_prob(x["mean"])

    def member(x, k):
        return dist.NegativeBinomial2(x["mean"], 3.0).log_prob(k) + dist.Poisson(0.5 + 0.8 * k).log_prob(y[:, None])

    x = {"mean": jnp.asarray(rng.uniform(0.5, 4))}
    return Case(model, (y,), x, by_members(priors, member, 300), tolerance=WINDOWS)


def geometric_counts(rng: Rng) -> Case:
    n = int(rng.integers(2, 5))
    y = normal(rng, n)

    def model(y):
        p = numpyro.sample("p", dist.Beta(3.0, 3.0))
        with numpyro.plate("points", n):
            z = numpyro.sample("z", dist.Geometric(p))
            numpyro.sample("y", dist.Normal(0.5 * z, 1.0), obs=y)

    def priors(x):
        return dist.Beta(3.0, 3.0).log_prob(x["p"])

    def member(x, k):
        return dist.Geometric(x["p"]).log_prob(k) + dist.Normal(0.5 * k, 1.0).log_prob(y[:, None])

    x = {"p": jnp.asarray(rng.uniform(0.3, 0.8))}
    return Case(model, (y,), x, by_members(priors, member, 300), tolerance=WINDOWS)


def n_mixture(rng: Rng) -> Case:
    """Repeated counts of animals of which each is seen with probability p: support N ≥ max y depends on data."""
    n, visits = int(rng.integers(2, 6)), 3
    y = rng.binomial(rng.poisson(5.0, n), 0.5, (visits, n))

    def model(y):
        rate = numpyro.sample("rate", dist.Gamma(4.0, 1.0))
        p = numpyro.sample("p", dist.Beta(2.0, 2.0))
        with numpyro.plate("sites", n, dim=-1):
            z = numpyro.sample("z", dist.Poisson(rate))
            with numpyro.plate("visits", visits, dim=-2):
                numpyro.sample("y", dist.Binomial(z, p), obs=y)

    def priors(x):
        return dist.Gamma(4.0, 1.0).log_prob(x["rate"]) + dist.Beta(2.0, 2.0).log_prob(x["p"])

    def density(x):
        total = priors(x)
        for i in range(n):
            k = jnp.arange(int(y[:, i].max()), 120)
            seen = dist.Binomial(k[:, None], x["p"]).log_prob(jnp.asarray(y[:, i]))
            total += logsumexp(dist.Poisson(x["rate"]).log_prob(k) + seen.sum(-1))
        return total

    x = {"rate": jnp.asarray(rng.uniform(2, 8)), "p": jnp.asarray(rng.uniform(0.2, 0.8))}
    return Case(model, (jnp.asarray(y),), x, density, tolerance=WINDOWS)


def counts_under_a_global(rng: Rng) -> Case:
    """A global latent that chooses the rate of all counts."""
    n = int(rng.integers(2, 5))
    y = normal(rng, n) + 2.0
    weights = jnp.array([0.3, 0.7])

    def model(y):
        rates = numpyro.sample("rates", dist.Gamma(2.0, 1.0).expand([2]).to_event(1))
        m = numpyro.sample("m", dist.Categorical(weights))
        with numpyro.plate("points", n):
            z = numpyro.sample("z", dist.Poisson(rates[m]))
            numpyro.sample("y", dist.Normal(z, 1.5), obs=y)

    def density(x):
        k = jnp.arange(100)
        each = dist.Poisson(x["rates"][:, None, None]).log_prob(k) + dist.Normal(k, 1.5).log_prob(y[:, None])
        inner = logsumexp(each, -1).sum(-1) + jnp.log(weights)
        return dist.Gamma(2.0, 1.0).log_prob(x["rates"]).sum() + logsumexp(inner)

    return Case(model, (y,), {"rates": jnp.asarray(rng.uniform(0.5, 5, 2))}, density, tolerance=WINDOWS)


def zero_inflated(rng: Rng) -> Case:
    """A Bernoulli that switches counted data off."""
    n = int(rng.integers(3, 8))
    y = jnp.asarray(rng.poisson(2.0, n) * rng.integers(0, 2, n))

    def model(y):
        psi = numpyro.sample("psi", dist.Beta(2.0, 2.0))
        rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
        with numpyro.plate("points", n):
            z = numpyro.sample("z", dist.Bernoulli(psi))
            numpyro.sample("y", dist.Poisson(jnp.where(z == 1, rate, 1e-3)), obs=y)

    x = {"psi": jnp.asarray(rng.uniform(0.2, 0.8)), "rate": jnp.asarray(rng.uniform(0.5, 4))}
    return Case(model, (y,), x)


FAMILIES: dict[str, Callable[[Rng], Case]] = {
    f.__name__: f
    for f in (
        poisson_counts,
        negative_binomial_counts,
        geometric_counts,
        n_mixture,
        counts_under_a_global,
        zero_inflated,
    )
}
