"""Generated models: scales and subsamples around latents. The sum is inside a member, the scale outside.

For members m of a plate with scale s the density is s · Σ_m log Σ_k p(z_m = k, y_m): no sum of the scaled joint gives
that, so each of these models brings its density, written by hand.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import logsumexp
from numpyro import handlers

from sums.case import Case
from sums.plates import Rng, normal, simplex, sizes


def points(weights: jax.Array, mu: jax.Array, y: jax.Array) -> jax.Array:
    """Return log Σ_k weights_k N(y; mu_k, 1) for each datum."""
    return logsumexp(jnp.log(weights) + dist.Normal(mu, 1.0).log_prob(y[..., None]), -1)


def mixture_priors(x: dict) -> jax.Array:
    k = len(x["mu"])
    return dist.Dirichlet(jnp.full(k, 1.5)).log_prob(x["weights"]) + dist.Normal(0.0, 3.0).log_prob(x["mu"]).sum()


def mixture_parameters(k: int) -> tuple[jax.Array, jax.Array]:
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.full(k, 1.5)))
    return weights, numpyro.sample("mu", dist.Normal(0.0, 3.0).expand([k]).to_event(1))


def draw(rng: Rng, k: int) -> dict:
    return {"weights": simplex(rng, k), "mu": normal(rng, k)}


def scaled_members(rng: Rng) -> Case:
    n, k, s = *sizes(rng, (3, 9)), float(rng.uniform(0.3, 4))
    y = normal(rng, n)

    def model(y):
        weights, mu = mixture_parameters(k)
        with handlers.scale(scale=s), numpyro.plate("points", n):
            z = numpyro.sample("z", dist.Categorical(weights))
            numpyro.sample("y", dist.Normal(mu[z], 1.0), obs=y)

    def density(x):
        return mixture_priors(x) + s * points(x["weights"], x["mu"], y).sum()

    return Case(model, (y,), draw(rng, k), density)


def subsample(rng: Rng) -> Case:
    n, k = int(rng.integers(6, 12)), int(rng.integers(2, 4))
    m = int(rng.integers(2, n))
    y, rows = normal(rng, n), jnp.asarray(rng.choice(n, m, replace=False))

    def model(y):
        weights, mu = mixture_parameters(k)
        with numpyro.plate("points", n, subsample_size=m) as index:
            z = numpyro.sample("z", dist.Categorical(weights))
            numpyro.sample("y", dist.Normal(mu[z], 1.0), obs=y[index])

    def density(x):
        return mixture_priors(x) + n / m * points(x["weights"], x["mu"], y[rows]).sum()

    return Case(model, (y,), draw(rng, k), density, fixed={"points": rows})


def scaled_and_masked(rng: Rng) -> Case:
    """Members of which some are masked with their latents: a mask takes a term away, the sum over z stays."""
    n, k, s = *sizes(rng, (4, 9)), float(rng.uniform(0.3, 4))
    y, seen = normal(rng, n), jnp.asarray(rng.random(n) < 0.6)

    def model(y, seen):
        weights, mu = mixture_parameters(k)
        with handlers.scale(scale=s), numpyro.plate("points", n):
            z = numpyro.sample("z", dist.Categorical(weights))
            with handlers.mask(mask=seen):
                numpyro.sample("y", dist.Normal(mu[z], 1.0), obs=y)

    def density(x):
        unseen = jnp.log(x["weights"].sum())  # zero, but its derivative off the simplex is not
        return mixture_priors(x) + s * jnp.where(seen, points(x["weights"], x["mu"], y), unseen).sum()

    return Case(model, (y, seen), draw(rng, k), density)


def global_above_subsample(rng: Rng) -> Case:
    """A latent outside the plate sees scaled members, each of them summed first."""
    n, k = int(rng.integers(6, 12)), 2
    m = int(rng.integers(2, n))
    y, rows = normal(rng, n), jnp.asarray(rng.choice(n, m, replace=False))
    above = jnp.array([0.25, 0.75])

    def model(y):
        weights, mu = mixture_parameters(k)
        c = numpyro.sample("c", dist.Categorical(above))
        with numpyro.plate("points", n, subsample_size=m) as index:
            z = numpyro.sample("z", dist.Categorical(weights))
            numpyro.sample("y", dist.Normal(mu[z] + 0.5 * c, 1.0), obs=y[index])

    def density(x):
        inner = [n / m * points(x["weights"], x["mu"] + 0.5 * c, y[rows]).sum() for c in range(2)]
        return mixture_priors(x) + logsumexp(jnp.log(above) + jnp.stack(inner))

    return Case(model, (y,), draw(rng, k), density, fixed={"points": rows})


def global_above_subsampled_data(rng: Rng) -> Case:
    """A latent outside a subsampled plate of data: the enumeration of the scaled joint is right."""
    n, k = int(rng.integers(6, 12)), int(rng.integers(2, 5))
    m = int(rng.integers(2, n))

    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 3.0).expand([k]).to_event(1))
        c = numpyro.sample("c", dist.Categorical(jnp.full(k, 1 / k)))
        with numpyro.plate("points", n, subsample_size=m) as index:
            numpyro.sample("y", dist.Normal(mu[c], 1.0), obs=y[index])

    rows = jnp.asarray(rng.choice(n, m, replace=False))
    return Case(model, (normal(rng, n),), {"mu": normal(rng, k)}, fixed={"points": rows})


def subsampled_groups(rng: Rng) -> Case:
    """Groups with a latent each are subsampled, and in them members with latents of their own."""
    groups, n, few, m = 5, 6, 2, int(rng.integers(2, 5))
    y = normal(rng, groups, n)
    table = simplex(rng, 2, 2)
    chosen = jnp.asarray(rng.choice(groups, few, replace=False))
    rows = jnp.asarray(rng.choice(n, m, replace=False))

    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
        with numpyro.plate("groups", groups, subsample_size=few, dim=-2) as g:
            c = numpyro.sample("c", dist.Bernoulli(0.4))
            with numpyro.plate("members", n, subsample_size=m, dim=-1) as i:
                z = numpyro.sample("z", dist.Categorical(table[c]))
                numpyro.sample("y", dist.Normal(mu[z], 1.0), obs=y[g][:, i])

    def density(x):
        seen = y[chosen][:, rows]
        inner = jnp.stack([n / m * points(table[c], x["mu"], seen).sum(-1) for c in range(2)], -1)
        group = logsumexp(jnp.log(jnp.array([0.6, 0.4])) + inner, -1)
        return dist.Normal(0.0, 3.0).log_prob(x["mu"]).sum() + groups / few * group.sum()

    return Case(model, (y,), {"mu": normal(rng, 2)}, density, fixed={"groups": chosen, "members": rows})


def subsampled_chains(rng: Rng) -> Case:
    """Chains as members of a subsampled plate: the scale is outside of each chain's sum."""
    chains, length, k, few = 5, int(rng.integers(3, 6)), int(rng.integers(2, 4)), int(rng.integers(1, 4))
    y, rows = normal(rng, length, chains), jnp.asarray(rng.choice(chains, few, replace=False))

    def model(y):
        steps = numpyro.sample("steps", dist.Dirichlet(jnp.full((k, k), 1.5)).to_event(1))
        mu = numpyro.sample("mu", dist.Normal(0.0, 3.0).expand([k]).to_event(1))
        with numpyro.plate("chains", chains, subsample_size=few) as index:
            z = jnp.zeros(few, int)
            for t in range(length):
                z = numpyro.sample(f"z{t}", dist.Categorical(steps[z]))
                numpyro.sample(f"y{t}", dist.Normal(mu[z], 1.0), obs=y[t, index])

    def density(x):
        prior = dist.Dirichlet(jnp.full((k, k), 1.5)).log_prob(x["steps"]).sum()
        prior += dist.Normal(0.0, 3.0).log_prob(x["mu"]).sum()
        alpha = jnp.broadcast_to(jnp.where(jnp.arange(k) == 0, 1.0, 0.0), (few, k))
        for t in range(length):
            alpha = (alpha @ x["steps"]) * jnp.exp(dist.Normal(x["mu"], 1.0).log_prob(y[t, rows][:, None]))
        return prior + chains / few * jnp.log(alpha.sum(-1)).sum()

    return Case(model, (y,), {"steps": simplex(rng, k, k), "mu": normal(rng, k)}, density, fixed={"chains": rows})


def scaled_group(rng: Rng) -> Case:
    """Two latents of one member, under a scale."""
    n, s = int(rng.integers(2, 6)), float(rng.uniform(0.3, 4))
    y = normal(rng, n)

    def model(y):
        p = numpyro.sample("p", dist.Beta(2.0, 2.0))
        with handlers.scale(scale=s), numpyro.plate("points", n):
            a = numpyro.sample("a", dist.Bernoulli(p))
            b = numpyro.sample("b", dist.Bernoulli(0.2 + 0.5 * a))
            numpyro.sample("y", dist.Normal(a - 2.0 * b, 1.0), obs=y)

    def density(x):
        ways = [
            dist.Bernoulli(x["p"]).log_prob(a)
            + dist.Bernoulli(0.2 + 0.5 * a).log_prob(b)
            + dist.Normal(a - 2.0 * b, 1.0).log_prob(y)
            for a in (0, 1)
            for b in (0, 1)
        ]
        return dist.Beta(2.0, 2.0).log_prob(x["p"]) + s * logsumexp(jnp.stack(ways), 0).sum()

    return Case(model, (y,), {"p": jnp.asarray(rng.uniform(0.2, 0.8))}, density)


FAMILIES: dict[str, Callable[[Rng], Case]] = {
    f.__name__: f
    for f in (
        scaled_members,
        subsample,
        scaled_and_masked,
        global_above_subsample,
        global_above_subsampled_data,
        subsampled_groups,
        subsampled_chains,
        scaled_group,
    )
}
