"""The problems of the peers table with discrete latents: regression, a grid, a mixture, chains, a noisy-or network.

Logits start near zero but not at it: the derivative of NumPyro 0.22's `Bernoulli(logits=0).log_prob` is wrong there.
Each takes another `size`, for tests that enumerate.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from row import Peer
from warm import warmed


def near_zero(*shape: int) -> jax.Array:
    """Logits to start from."""
    return jnp.asarray(0.1 * np.random.default_rng(0).normal(size=shape), float)


def spike_and_slab(small: bool = False, size: tuple[int, int, int] | None = None) -> Peer:
    """Sparse linear regression: which features matter, and how much."""
    n, p, true = size or ((30, 8, 2) if small else (1000, 500, 25))
    rng = np.random.default_rng(8)
    X, weight = rng.normal(size=(n, p)), np.zeros(p)
    weight[:true] = rng.normal(size=true)
    y = X @ weight + rng.normal(size=n)

    def model(X: jax.Array, y: jax.Array) -> None:
        with numpyro.plate("features", p):
            gamma = numpyro.sample("gamma", dist.Bernoulli(0.1))
            beta = numpyro.sample("beta", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", n):
            numpyro.sample("y", dist.Normal(X @ (gamma * beta), 1.0), obs=y)

    def guide(X: jax.Array, y: jax.Array) -> None:
        logits = numpyro.param("logits", near_zero(p))
        loc, log_scale = numpyro.param("loc", jnp.zeros(p)), numpyro.param("log_scale", jnp.full(p, -1.0))
        with numpyro.plate("features", p):
            numpyro.sample("gamma", dist.Bernoulli(logits=logits))
            numpyro.sample("beta", dist.Normal(loc, jnp.exp(log_scale)))

    args, rate = (jnp.asarray(X, float), jnp.asarray(y, float)), 0.05
    params = warmed(model, guide, args, 0 if small else 50, rate)
    latents = {"gamma": "Bernoulli", "beta": "Normal"}
    return Peer(
        "spike_and_slab",
        f"spike and slab, {n:,} × {p}",
        model,
        guide,
        args,
        params,
        latents,
        rate,
        200 if n > 99 else 50,
    )


def ising(small: bool = False, size: int | None = None) -> Peer:
    """A grid of spins that like to be equal, each in a field of its own."""
    n, rng = size or (5 if small else 50), np.random.default_rng(5)

    def model(field: jax.Array) -> None:
        with numpyro.plate("columns", n, dim=-1), numpyro.plate("rows", n, dim=-2):
            z = numpyro.sample("z", dist.Bernoulli(0.5))
        s = 2.0 * z - 1.0
        pairs = jnp.sum(s[1:] * s[:-1]) + jnp.sum(s[:, 1:] * s[:, :-1])
        numpyro.factor("energy", 0.3 * pairs + jnp.sum(field * s))

    def guide(field: jax.Array) -> None:
        logits = numpyro.param("logits", near_zero(n, n))
        with numpyro.plate("columns", n, dim=-1), numpyro.plate("rows", n, dim=-2):
            numpyro.sample("z", dist.Bernoulli(logits=logits))

    args, rate = (jnp.asarray(0.5 * rng.normal(size=(n, n)), float),), 0.05
    params = warmed(model, guide, args, 0 if small else 20, rate)
    return Peer("ising", f"Ising {n}×{n}", model, guide, args, params, {"z": "Bernoulli"}, rate, 200)


def mixture(small: bool = False, size: tuple[int, int] | None = None) -> Peer:
    """Which of 8 components each point comes from, and where the components are."""
    (n, K), rng = size or ((40 if small else 10_000), 8), np.random.default_rng(6)
    y = 3.0 * rng.integers(0, K, n) + rng.normal(size=n)

    def model(y: jax.Array) -> None:
        mu = numpyro.sample("mu", dist.Normal(jnp.full(K, 10.0), 10.0).to_event(1))
        with numpyro.plate("data", n):
            z = numpyro.sample("z", dist.Categorical(jnp.full(K, 1 / K)))
            numpyro.sample("y", dist.Normal(mu[z], 1.0), obs=y)

    def guide(y: jax.Array) -> None:
        loc = numpyro.param("loc", 3.0 * jnp.arange(K) + 1.0)
        log_scale = numpyro.param("log_scale", jnp.full(K, -1.0))
        logits = numpyro.param("logits", jnp.zeros((n, K)))
        numpyro.sample("mu", dist.Normal(loc, jnp.exp(log_scale)).to_event(1))
        with numpyro.plate("data", n):
            numpyro.sample("z", dist.Categorical(logits=logits))

    args, rate = (jnp.asarray(y, float),), 0.05
    params = warmed(model, guide, args, 0 if small else 30, rate)
    latents = {"mu": "Normal", "z": "Categorical"}
    return Peer("mixture", f"mixture of {K}, {n:,} points", model, guide, args, params, latents, rate, 100)


def factorial_hmm(small: bool = False, size: int | None = None) -> Peer:
    """Three binary chains whose weighted sum is observed with noise; transitions are a factor over all of time."""
    T, rng = size or (6 if small else 100), np.random.default_rng(15)
    stay, weight = np.array([0.95, 0.9, 0.8]), np.array([1.0, 2.0, 4.0])
    state, states = np.zeros(3, int), []
    for _ in range(T):
        state = np.where(rng.random(3) < stay, state, 1 - state)
        states.append(state)
    y = np.stack(states) @ weight + 0.7 * rng.normal(size=T)

    def model(y: jax.Array, weight: jax.Array, stay: jax.Array) -> None:
        with numpyro.plate("chains", 3, dim=-1), numpyro.plate("time", T, dim=-2):
            x = numpyro.sample("x", dist.Bernoulli(0.5))
        # the prior of each state is one half, so a transition's share of log p is measured from that
        change = jnp.where(x[1:] == x[:-1], jnp.log(2 * stay), jnp.log(2 * (1 - stay)))
        numpyro.factor("transitions", jnp.sum(change))
        with numpyro.plate("observed", T):
            numpyro.sample("y", dist.Normal(x @ weight, 0.7), obs=y)

    def guide(*_) -> None:
        logits = numpyro.param("logits", near_zero(T, 3))
        with numpyro.plate("chains", 3, dim=-1), numpyro.plate("time", T, dim=-2):
            numpyro.sample("x", dist.Bernoulli(logits=logits))

    def unrolled_model(y: jax.Array, weight: jax.Array, stay: jax.Array) -> None:
        on = jnp.full(3, 0.5)
        for t in range(T):
            with numpyro.plate("chains", 3):
                x = numpyro.sample(f"x_{t}", dist.Bernoulli(on))
            numpyro.sample(f"y_{t}", dist.Normal(x @ weight, 0.7), obs=y[t])
            on = jnp.where(x == 1, stay, 1 - stay)

    def unrolled_guide(*_) -> None:
        logits = numpyro.param("logits", near_zero(T, 3))
        for t in range(T):
            with numpyro.plate("chains", 3):
                numpyro.sample(f"x_{t}", dist.Bernoulli(logits=logits[t]))

    args, rate = tuple(jnp.asarray(a, float) for a in (y, weight, stay)), 0.05
    return Peer(
        "factorial_hmm",
        f"factorial HMM, 3 chains, {T} steps",
        model,
        guide,
        args,
        warmed(model, guide, args, 0 if small else 20, rate),
        {"x": "Bernoulli"},
        rate,
        200,
        unrolled=(unrolled_model, unrolled_guide),
    )


def noisy_or(small: bool = False) -> Peer:
    """A noisy-or network: each finding has five possible causes, given as an index array."""
    n, m, rng = (10, 30, np.random.default_rng(7)) if small else (1000, 5000, np.random.default_rng(7))
    causes = rng.integers(0, n, (m, 5))
    weight = rng.exponential(size=(m, 5))
    true = rng.random(n) < 0.1
    y = rng.random(m) < -np.expm1(-0.01 - np.sum(weight * true[causes], axis=1))

    def model(y: jax.Array, weight: jax.Array, causes: jax.Array) -> None:
        with numpyro.plate("causes", n):
            z = numpyro.sample("z", dist.Bernoulli(0.1))
        off = -0.01 - jnp.sum(weight * z[causes], axis=1)  # log of the probability that no cause shows
        with numpyro.plate("findings", m):
            numpyro.sample("y", dist.Bernoulli(logits=jnp.log(-jnp.expm1(off)) - off), obs=y)

    def guide(*_) -> None:
        logits = numpyro.param("logits", jnp.full(n, -1.0))
        with numpyro.plate("causes", n):
            numpyro.sample("z", dist.Bernoulli(logits=logits))

    args = jnp.asarray(y, int), jnp.asarray(weight, float), jnp.asarray(causes)
    rate, title = 0.05, f"noisy-or, {n:,} causes, {m:,} findings"
    params = warmed(model, guide, args, 0 if small else 20, rate)
    return Peer("noisy_or", title, model, guide, args, params, {"z": "Bernoulli"}, rate)
