"""Generated models: chains in arrays, in Python loops and in NumPyro's scan; batches of them; coupled chains."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.contrib.control_flow import scan

from sums.case import Case
from sums.plates import Rng, normal, simplex, sizes


def parts(rng: Rng, k: int) -> dict[str, jax.Array]:
    """Draw a transition table and means."""
    return {"steps": simplex(rng, k, k), "mu": normal(rng, k)}


def priors(k: int) -> tuple[jax.Array, jax.Array]:
    """State the priors of a transition table and of means."""
    steps = numpyro.sample("steps", dist.Dirichlet(jnp.full((k, k), 1.5)).to_event(1))
    return steps, numpyro.sample("mu", dist.Normal(0.0, 2.0).expand([k]).to_event(1))


def array_chain(rng: Rng) -> Case:
    n, k = sizes(rng, (3, 7))

    def model(y):
        steps, mu = priors(k)
        with numpyro.plate("time", n):
            z = numpyro.sample("z", dist.Categorical(jnp.full(k, 1 / k)))
            numpyro.sample("y", dist.Normal(mu[z], 1.0), obs=y)
        numpyro.factor("chain", jnp.log(steps)[z[:-1], z[1:]].sum())

    return Case(model, (normal(rng, n),), parts(rng, k))


def array_chain_seen_in_pairs(rng: Rng) -> Case:
    """Data that see a state and the one before it."""
    n, k = sizes(rng, (3, 7))

    def model(y):
        steps, mu = priors(k)
        z = numpyro.sample("z", dist.Categorical(jnp.full(k, 1 / k)).expand([n]).to_event(1))
        numpyro.factor("chain", jnp.log(steps)[z[:-1], z[1:]])
        numpyro.sample("y", dist.Normal(mu[z[1:]] + 0.5 * mu[z[:-1]], 1.0).to_event(1), obs=y[1:])

    return Case(model, (normal(rng, n),), parts(rng, k))


def spins(rng: Rng) -> Case:
    """Neighbours coupled by a product."""
    n = int(rng.integers(4, 10))

    def model(y):
        coupling = numpyro.sample("coupling", dist.Normal(0.0, 1.0))
        z = numpyro.sample("z", dist.Bernoulli(0.5).expand([n]).to_event(1))
        s = 2.0 * z - 1.0
        numpyro.factor("pairs", coupling * jnp.sum(s[1:] * s[:-1]))
        numpyro.sample("y", dist.Normal(s, 1.0).to_event(1), obs=y)

    return Case(model, (normal(rng, n),), {"coupling": normal(rng)})


def array_batch(rng: Rng) -> Case:
    batch, n, k = 2, int(rng.integers(3, 5)), int(rng.integers(2, 4))

    def model(y):
        steps, mu = priors(k)
        with numpyro.plate("chains", batch, dim=-2), numpyro.plate("time", n, dim=-1):
            z = numpyro.sample("z", dist.Categorical(jnp.full(k, 1 / k)))
            numpyro.sample("y", dist.Normal(mu[z], 1.0), obs=y)
        numpyro.factor("chain", jnp.log(steps)[z[:, :-1], z[:, 1:]].sum())

    return Case(model, (normal(rng, batch, n),), parts(rng, k))


def array_chain_of_covariates(rng: Rng) -> Case:
    """Transitions whose logits depend on data."""
    n = int(rng.integers(4, 9))

    def model(u, y):
        a = numpyro.sample("a", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        z = numpyro.sample("z", dist.Bernoulli(0.5).expand([n]).to_event(1))
        numpyro.factor("chain", dist.Bernoulli(logits=a[z[:-1]] + b * u[1:]).log_prob(z[1:]))
        numpyro.sample("y", dist.Normal(1.5 * z, 1.0).to_event(1), obs=y)

    return Case(model, (normal(rng, n), normal(rng, n)), {"a": normal(rng, 2), "b": normal(rng)})


def loop_chain(rng: Rng) -> Case:
    n, k = sizes(rng, (3, 6))

    def model(y):
        steps, mu = priors(k)
        z = numpyro.sample("z0", dist.Categorical(jnp.full(k, 1 / k)))
        numpyro.sample("y0", dist.Normal(mu[z], 1.0), obs=y[0])
        for t in range(1, n):
            z = numpyro.sample(f"z{t}", dist.Categorical(steps[z]))
            numpyro.sample(f"y{t}", dist.Normal(mu[z], 1.0), obs=y[t])

    return Case(model, (normal(rng, n),), parts(rng, k))


def loop_batch(rng: Rng) -> Case:
    n, k, batch = int(rng.integers(2, 4)), 2, int(rng.integers(2, 4))

    def model(y):
        steps, mu = priors(k)
        with numpyro.plate("chains", batch):
            z = jnp.zeros(batch, int)
            for t in range(n):
                z = numpyro.sample(f"z{t}", dist.Categorical(steps[z]))
                numpyro.sample(f"y{t}", dist.Normal(mu[z], 1.0), obs=y[t])

    return Case(model, (normal(rng, n, batch),), parts(rng, k))


def scan_chain(rng: Rng) -> Case:
    """A chain that starts at a known state, or at a state that is a latent of its own."""
    n, k, drawn = *sizes(rng, (3, 6)), bool(rng.integers(2))

    def model(y):
        steps, mu = priors(k)
        first = numpyro.sample("first", dist.Categorical(jnp.full(k, 1 / k))) if drawn else 0

        def step(z, seen):
            z = numpyro.sample("z", dist.Categorical(steps[z]))
            numpyro.sample("y", dist.Normal(mu[z], 1.0), obs=seen)
            return z, None

        scan(step, first, y)

    return Case(model, (normal(rng, n),), parts(rng, k))


def scan_batch(rng: Rng) -> Case:
    batch, n, k = 2, int(rng.integers(3, 5)), int(rng.integers(2, 4))

    def model(y):
        steps, mu = priors(k)

        def step(z, seen):
            with numpyro.plate("chains", batch):
                z = numpyro.sample("z", dist.Categorical(steps[z]))
                numpyro.sample("y", dist.Normal(mu[z], 1.0), obs=seen)
            return z, None

        scan(step, jnp.zeros(batch, int), y)

    return Case(model, (normal(rng, n, batch),), parts(rng, k))


def scan_autoregressive(rng: Rng) -> Case:
    """A switching autoregression: data also see the data before them."""
    n, k = sizes(rng, (3, 6))

    def model(y):
        steps, mu = priors(k)

        def step(carry, seen):
            z, before = carry
            z = numpyro.sample("z", dist.Categorical(steps[z]))
            numpyro.sample("y", dist.Normal(mu[z] + 0.5 * before, 1.0), obs=seen)
            return (z, seen), None

        scan(step, (0, 0.0), y)

    return Case(model, (normal(rng, n),), parts(rng, k))


def factorial_arrays(rng: Rng) -> Case:
    """Two chains that meet in the data."""
    n = int(rng.integers(3, 6))

    def model(y):
        a = numpyro.sample("a", dist.Dirichlet(jnp.full((2, 2), 1.5)).to_event(1))
        b = numpyro.sample("b", dist.Dirichlet(jnp.full((2, 2), 1.5)).to_event(1))
        with numpyro.plate("time", n):
            z = numpyro.sample("z", dist.Bernoulli(0.5))
            w = numpyro.sample("w", dist.Bernoulli(0.3))
            numpyro.sample("y", dist.Normal(1.0 * z - 2.0 * w + 0.5 * z * w, 1.0), obs=y)
        numpyro.factor("first", jnp.log(a)[z[:-1], z[1:]].sum())
        numpyro.factor("second", jnp.log(b)[w[:-1], w[1:]].sum())

    return Case(model, (normal(rng, n),), {"a": simplex(rng, 2, 2), "b": simplex(rng, 2, 2)})


def factorial_scan(rng: Rng) -> Case:
    n = int(rng.integers(3, 5))

    def model(y):
        a = numpyro.sample("a", dist.Dirichlet(jnp.full((2, 2), 1.5)).to_event(1))
        b = numpyro.sample("b", dist.Dirichlet(jnp.full((3, 3), 1.5)).to_event(1))

        def step(carry, seen):
            z = numpyro.sample("z", dist.Categorical(a[carry[0]]))
            w = numpyro.sample("w", dist.Categorical(b[carry[1]]))
            numpyro.sample("y", dist.Normal(1.0 * z - 0.7 * w, 1.0), obs=seen)
            return (z, w), None

        scan(step, (0, 0), y)

    return Case(model, (normal(rng, n),), {"a": simplex(rng, 2, 2), "b": simplex(rng, 3, 3)})


def coupled_scan(rng: Rng) -> Case:
    """Two chains of which the second follows the first."""
    n = int(rng.integers(3, 6))

    def model(y):
        a = numpyro.sample("a", dist.Beta(1.5, 1.5).expand([2]).to_event(1))
        b = numpyro.sample("b", dist.Beta(1.5, 1.5).expand([2, 2]).to_event(2))

        def step(carry, seen):
            z = numpyro.sample("z", dist.Bernoulli(a[carry[0]]))
            w = numpyro.sample("w", dist.Bernoulli(b[z, carry[1]]))
            numpyro.sample("y", dist.Normal(2.0 * w, 1.0), obs=seen)
            return (z, w), None

        scan(step, (0, 0), y)

    x = {"a": jnp.asarray(rng.uniform(0.1, 0.9, 2)), "b": jnp.asarray(rng.uniform(0.1, 0.9, (2, 2)))}
    return Case(model, (normal(rng, n),), x)


def chain_with_missing_data(rng: Rng) -> Case:
    n, k = sizes(rng, (3, 6))

    def model(y, seen):
        steps, mu = priors(k)

        def step(z, now):
            z = numpyro.sample("z", dist.Categorical(steps[z]))
            with handlers.mask(mask=now[1]):
                numpyro.sample("y", dist.Normal(mu[z], 1.0), obs=now[0])
            return z, None

        scan(step, 0, (y, seen))

    return Case(model, (normal(rng, n), jnp.asarray(rng.random(n) < 0.5)), parts(rng, k))


def chain_under_a_regime(rng: Rng) -> Case:
    """A global latent that chooses the transition table."""
    n = int(rng.integers(3, 6))

    def model(y):
        tables = numpyro.sample("tables", dist.Dirichlet(jnp.full((3, 2, 2), 1.5)).to_event(2))
        regime = numpyro.sample("regime", dist.Categorical(jnp.array([0.2, 0.3, 0.5])))
        z = numpyro.sample("z", dist.Categorical(jnp.full(2, 0.5)).expand([n]).to_event(1))
        numpyro.factor("chain", jnp.log(tables)[regime, z[:-1], z[1:]].sum())
        numpyro.sample("y", dist.Normal(2.0 * z, 1.0).to_event(1), obs=y)

    return Case(model, (normal(rng, n),), {"tables": simplex(rng, 3, 2, 2)})


def left_to_right(rng: Rng) -> Case:
    """A chain with transitions of probability zero."""
    n, k = int(rng.integers(3, 6)), 3

    def model(y):
        stay = numpyro.sample("stay", dist.Beta(2.0, 2.0).expand([k - 1]).to_event(1))
        mu = numpyro.sample("mu", dist.Normal(0.0, 2.0).expand([k]).to_event(1))
        logits = jnp.full((k, k), -jnp.inf).at[k - 1, k - 1].set(0.0)
        for i in range(k - 1):
            logits = logits.at[i, i].set(jnp.log(stay[i])).at[i, i + 1].set(jnp.log1p(-stay[i]))

        def step(z, seen):
            z = numpyro.sample("z", dist.Categorical(logits=logits[z]))
            numpyro.sample("y", dist.Normal(mu[z], 1.0), obs=seen)
            return z, None

        scan(step, 0, y)

    return Case(model, (normal(rng, n),), {"stay": jnp.asarray(rng.uniform(0.1, 0.9, k - 1)), "mu": normal(rng, k)})


def switching_walk(rng: Rng) -> Case:
    """A scan that carries a continuous latent beside the discrete one that moves it."""
    n = int(rng.integers(3, 7))

    def model(y):
        steps, mu = priors(2)

        def step(carry, seen):
            z, x = carry
            z = numpyro.sample("z", dist.Categorical(steps[z]))
            x = numpyro.sample("x", dist.Normal(x + mu[z], 1.0))
            numpyro.sample("y", dist.Normal(x, 1.0), obs=seen)
            return (z, x), None

        scan(step, (1, 0.0), y)

    return Case(model, (normal(rng, n),), parts(rng, 2) | {"x": normal(rng, n)})


def agreements(rng: Rng) -> Case:
    """Neighbours that agree, counted as integers; links that are impossible, or as good as."""
    n = int(rng.integers(4, 7))
    table = jnp.array([[0.5, -1e9, 0.2], [-jnp.inf, 0.3, 0.7], [0.1, -1e9, 1.0]])

    def model(y):
        coupling = numpyro.sample("coupling", dist.Normal(0.0, 1.0))
        z = numpyro.sample("z", dist.Categorical(logits=jnp.array([0.0, -1e9, 1.0])).expand([n]).to_event(1))
        numpyro.factor("agree", coupling * (z[:-1] == z[1:]).sum())
        numpyro.factor("links", table[z[:-1], z[1:]].sum())
        numpyro.sample("y", dist.Normal(coupling * z, 1.0).to_event(1), obs=y)

    return Case(model, (normal(rng, n),), {"coupling": normal(rng)})


FAMILIES: dict[str, Callable[[Rng], Case]] = {
    f.__name__: f
    for f in (
        array_chain,
        array_chain_seen_in_pairs,
        spins,
        array_batch,
        array_chain_of_covariates,
        loop_chain,
        loop_batch,
        scan_chain,
        scan_batch,
        scan_autoregressive,
        factorial_arrays,
        factorial_scan,
        coupled_scan,
        chain_with_missing_data,
        chain_under_a_regime,
        left_to_right,
        switching_walk,
        agreements,
    )
}
