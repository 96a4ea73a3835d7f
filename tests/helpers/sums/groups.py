"""Generated models: small groups whose elements see each other, trees, and finite supports of other kinds."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from sums.case import Case
from sums.plates import Rng, normal, simplex


def noisy_or(rng: Rng) -> Case:
    """Three causes of each of several findings."""
    groups = int(rng.integers(1, 4))

    def model(y):
        weight = numpyro.sample("weight", dist.LogNormal(0.0, 1.0).expand([3]).to_event(1))
        with numpyro.plate("groups", groups, dim=-2), numpyro.plate("causes", 3, dim=-1):
            z = numpyro.sample("z", dist.Bernoulli(0.3))
        numpyro.sample("y", dist.Bernoulli(1.0 - 0.9 * jnp.exp(-(z * weight).sum(-1))).to_event(1), obs=y)

    return Case(model, (jnp.asarray(rng.integers(0, 2, groups)),), {"weight": jnp.exp(normal(rng, 3))})


def sum_of_three(rng: Rng) -> Case:
    k, members = int(rng.integers(2, 4)), 3

    def model(y):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([members]).to_event(1))
        z = numpyro.sample("z", dist.Categorical(jnp.full(k, 1 / k)).expand([members]).to_event(1))
        numpyro.sample("y", dist.Normal(jnp.dot(w, z), 0.5), obs=y)

    return Case(model, (normal(rng),), {"w": normal(rng, members)})


def separate_sites(rng: Rng) -> Case:
    """A collider: two causes of one effect, which has data."""

    def model(y):
        p = numpyro.sample("p", dist.Beta(2.0, 2.0).expand([2, 3]).to_event(2))
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        a = numpyro.sample("a", dist.Bernoulli(0.3))
        b = numpyro.sample("b", dist.Categorical(jnp.array([0.2, 0.5, 0.3])))
        c = numpyro.sample("c", dist.Bernoulli(p[a, b]))
        numpyro.sample("y", dist.Normal(mu[c], 1.0).expand([3]).to_event(1), obs=y)

    return Case(model, (normal(rng, 3),), {"p": jnp.asarray(rng.uniform(0.1, 0.9, (2, 3))), "mu": normal(rng, 2)})


def diamond(rng: Rng) -> Case:
    def model(y):
        p = numpyro.sample("p", dist.Beta(2.0, 2.0).expand([4]).to_event(1))
        a = numpyro.sample("a", dist.Bernoulli(0.4))
        b = numpyro.sample("b", dist.Bernoulli(p[a]))
        c = numpyro.sample("c", dist.Bernoulli(p[2 + a]))
        numpyro.sample("y", dist.Normal(b - 2.0 * c + 1.5 * b * c, 1.0), obs=y)

    return Case(model, (normal(rng),), {"p": jnp.asarray(rng.uniform(0.1, 0.9, 4))})


def ring(rng: Rng) -> Case:
    """Neighbours around a ring: no chain, but few enough for their joint support."""
    n = int(rng.integers(4, 8))

    def model(y):
        coupling = numpyro.sample("coupling", dist.Normal(0.0, 1.0))
        z = numpyro.sample("z", dist.Bernoulli(0.5).expand([n]).to_event(1))
        numpyro.factor("pairs", coupling * jnp.sum(z * jnp.roll(z, 1)))
        numpyro.sample("y", dist.Normal(z, 1.0).to_event(1), obs=y)

    return Case(model, (normal(rng, n),), {"coupling": normal(rng)})


def tree(rng: Rng) -> Case:
    """A state for each node, which depends on its parent's."""
    n, k = int(rng.integers(4, 8)), int(rng.integers(2, 4))
    parents = [0, *(int(rng.integers(0, i)) for i in range(1, n))]

    def model(y):
        steps = numpyro.sample("steps", dist.Dirichlet(jnp.full((k, k), 1.5)).to_event(1))
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0).expand([k]).to_event(1))
        z = [numpyro.sample("z0", dist.Categorical(jnp.full(k, 1 / k)))]
        for i in range(1, n):
            z.append(numpyro.sample(f"z{i}", dist.Categorical(steps[z[parents[i]]])))
        for i in range(n):
            numpyro.sample(f"y{i}", dist.Normal(mu[z[i]], 1.0), obs=y[i])

    return Case(model, (normal(rng, n),), {"steps": simplex(rng, k, k), "mu": normal(rng, k)})


def tree_in_an_array(rng: Rng) -> Case:
    """The same in one statement, with an array of parents."""
    n, k = int(rng.integers(4, 7)), int(rng.integers(2, 4))
    parents = np.array([int(rng.integers(0, i)) for i in range(1, n)])

    def model(y):
        steps = numpyro.sample("steps", dist.Dirichlet(jnp.full((k, k), 1.5)).to_event(1))
        with numpyro.plate("nodes", n):
            z = numpyro.sample("z", dist.Categorical(jnp.full(k, 1 / k)))
            numpyro.sample("y", dist.Normal(2.0 * z, 1.0), obs=y)
        numpyro.factor("branches", jnp.log(steps)[z[parents], z[1:]].sum())

    return Case(model, (normal(rng, n),), {"steps": simplex(rng, k, k)})


def pairs_by_index(rng: Rng) -> Case:
    """Members that meet in pairs which data name: a Bernoulli for each, and a win or a loss."""
    pairs = int(rng.integers(2, 4))
    order = rng.permutation(2 * pairs)

    def model(y):
        skill = numpyro.sample("skill", dist.Normal(0.0, 2.0))
        with numpyro.plate("players", 2 * pairs):
            z = numpyro.sample("z", dist.Bernoulli(0.4))
        with numpyro.plate("games", pairs):
            numpyro.sample("y", dist.Bernoulli(logits=skill * (z[order[:pairs]] - z[order[pairs:]])), obs=y)

    return Case(model, (jnp.asarray(rng.integers(0, 2, pairs)),), {"skill": normal(rng)})


def change_point(rng: Rng) -> Case:
    n = int(rng.integers(5, 30))

    def model(y):
        early = numpyro.sample("early", dist.Exponential(0.5))
        late = numpyro.sample("late", dist.Exponential(0.5))
        tau = numpyro.sample("tau", dist.DiscreteUniform(0, n - 1))
        with numpyro.plate("years", n):
            numpyro.sample("y", dist.Poisson(jnp.where(jnp.arange(n) < tau, early, late)), obs=y)

    x = {"early": jnp.asarray(rng.uniform(1, 4)), "late": jnp.asarray(rng.uniform(1, 4))}
    return Case(model, (jnp.asarray(rng.poisson(2.0, n)),), x)


def two_change_points(rng: Rng) -> Case:
    n = int(rng.integers(5, 15))

    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 2.0).expand([3]).to_event(1))
        first = numpyro.sample("first", dist.DiscreteUniform(0, n - 1))
        second = numpyro.sample("second", dist.DiscreteUniform(0, n - 1))
        t = jnp.arange(n)
        where = (t >= first).astype(int) + (t >= second).astype(int)
        with numpyro.plate("time", n):
            numpyro.sample("y", dist.Normal(mu[where], 1.0), obs=y)

    return Case(model, (normal(rng, n),), {"mu": normal(rng, 3)})


def shifted_uniform(rng: Rng) -> Case:
    """Support that does not begin at zero."""
    n, low = int(rng.integers(2, 5)), int(rng.integers(-2, 4))

    def model(y):
        scale = numpyro.sample("scale", dist.HalfNormal(2.0))
        with numpyro.plate("points", n):
            z = numpyro.sample("z", dist.DiscreteUniform(low, low + 4))
            numpyro.sample("y", dist.Normal(z, scale), obs=y)

    return Case(model, (low + 2 * normal(rng, n),), {"scale": jnp.asarray(rng.uniform(0.5, 2))})


def binomial(rng: Rng) -> Case:
    n, total = int(rng.integers(2, 5)), int(rng.integers(3, 6))

    def model(y):
        p = numpyro.sample("p", dist.Beta(2.0, 2.0))
        rate = numpyro.sample("rate", dist.HalfNormal(2.0))
        with numpyro.plate("points", n):
            z = numpyro.sample("z", dist.Binomial(total, p))
            numpyro.sample("y", dist.Poisson(0.1 + rate * z), obs=y)

    x = {"p": jnp.asarray(rng.uniform(0.2, 0.8)), "rate": jnp.asarray(rng.uniform(0.5, 2))}
    return Case(model, (jnp.asarray(rng.poisson(2.0, n)),), x)


def beta_binomial(rng: Rng) -> Case:
    n, total = int(rng.integers(2, 5)), int(rng.integers(3, 6))

    def model(y):
        a = numpyro.sample("a", dist.HalfNormal(2.0))
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        with numpyro.plate("points", n):
            z = numpyro.sample("z", dist.BetaBinomial(a, 1.5, total))
            numpyro.sample("y", dist.Normal(slope * z, 1.0), obs=y)

    return Case(model, (normal(rng, n),), {"a": jnp.asarray(rng.uniform(0.5, 2)), "slope": normal(rng)})


def occupancy(rng: Rng) -> Case:
    """Sites that may be occupied, several visits to each: no detection where nothing is."""
    n, visits = int(rng.integers(3, 8)), 3

    def model(habitat, y):
        a = numpyro.sample("a", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        p = numpyro.sample("p", dist.Beta(2.0, 2.0))
        with numpyro.plate("sites", n, dim=-1):
            z = numpyro.sample("z", dist.Bernoulli(logits=a[0] + a[1] * habitat))
            with numpyro.plate("visits", visits, dim=-2):
                numpyro.sample("y", dist.Bernoulli(z * p), obs=y)

    y = rng.integers(0, 2, (visits, n)) * rng.integers(0, 2, n)
    return Case(
        model, (normal(rng, n), jnp.asarray(y)), {"a": normal(rng, 2), "p": jnp.asarray(rng.uniform(0.2, 0.8))}
    )


def classes_of_a_latent(rng: Rng) -> Case:
    """The logits of one discrete latent depend on another of the same member."""
    n = int(rng.integers(2, 4))

    def model(y):
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        with numpyro.plate("points", n):
            z = numpyro.sample("z", dist.Binomial(3, 0.4))
            logits = jnp.stack([slope * z, 1.0 - z, 0.2 * z], -1)
            w = numpyro.sample("w", dist.Categorical(logits=logits))
            numpyro.sample("y", dist.StudentT(3.0, z - slope * w, 1.0), obs=y)

    return Case(model, (normal(rng, n),), {"slope": normal(rng)})


def partly_permuted(rng: Rng) -> Case:
    """Numbers that see an element and its image, which for some is the element itself."""
    image = jnp.array([0, 2, 1, 3, 5, 4])

    def model(y):
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        z = numpyro.sample("z", dist.Categorical(jnp.array([0.2, 0.5, 0.3])).expand([6]).to_event(1))
        numpyro.sample("y", dist.Normal(jnp.sin(slope * z * z[image] + z), 1.0).to_event(1), obs=y)

    return Case(model, (normal(rng, 6),), {"slope": normal(rng)})


def interval(rng: Rng) -> Case:
    """A span of time, at an unknown place, with another rate, under which some data may be impossible."""
    n = int(rng.integers(5, 9))
    t, outside = jnp.arange(n), float(rng.integers(0, 2))

    def model(y):
        rate = numpyro.sample("rate", dist.Exponential(0.5))
        start = numpyro.sample("start", dist.DiscreteUniform(0, n - 1))
        inside = (t >= start) & (t < start + 3)
        with numpyro.plate("time", n):
            numpyro.sample("y", dist.Poisson(jnp.where(inside, rate, outside * 2.0)), obs=y)

    y = rng.integers(1, 4, n) * ((np.arange(n) >= 1) & (np.arange(n) < 4))
    return Case(model, (jnp.asarray(y),), {"rate": jnp.asarray(rng.uniform(0.5, 3))})


FAMILIES: dict[str, Callable[[Rng], Case]] = {
    f.__name__: f
    for f in (
        noisy_or,
        sum_of_three,
        separate_sites,
        diamond,
        ring,
        tree,
        tree_in_an_array,
        pairs_by_index,
        change_point,
        two_change_points,
        shifted_uniform,
        binomial,
        beta_binomial,
        occupancy,
        classes_of_a_latent,
        partly_permuted,
        interval,
    )
}
