"""The rows of the trust table with discrete latents."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.infer.autoguide import AutoMultivariateNormal
from row import TrustProblem
from scipy.linalg import hadamard

import legrad

# A site that others depend on has a noisier gradient; several pivots are each other's baselines.
PIVOTS = legrad.LocalExpectation(num_pivots=10)


def _one_after_another(name: str, n: int):
    """A guide of n binary sites, the logit of each being linear in those before it."""

    def guide(*_):
        bias = numpyro.param("bias", jnp.zeros(n))
        weight = numpyro.param("weight", jnp.zeros((n, n)))
        before = []
        for i in range(n):
            logit = bias[i] + sum(weight[i, j] * before[j] for j in range(i))
            before.append(numpyro.sample(f"{name}_{i}", dist.Bernoulli(logits=logit)))

    return guide


def _names(name: str, n: int) -> dict[str, int]:
    return {f"{name}_{i}": 0 for i in range(n)}


def belief_net() -> TrustProblem:
    rng = np.random.default_rng(10)
    W, b = rng.normal(size=(8, 12)), rng.normal(size=12)
    y = rng.random(12) < 1 / (1 + np.exp(-(rng.integers(0, 2, 8) @ W + b)))

    def model(y, W, b):
        h = jnp.stack([numpyro.sample(f"h_{i}", dist.Bernoulli(0.4)) for i in range(8)])
        with numpyro.plate("visible", 12):
            numpyro.sample("y", dist.Bernoulli(logits=h @ W + b), obs=y)

    args = tuple(jnp.asarray(a, float) for a in (y, W, b))
    note = "the units explain each other away, which a guide of one after another follows"
    guide, latents = _one_after_another("h", 8), _names("h", 8)
    return TrustProblem("belief_net", model, guide, args, latents, "right", note, PIVOTS)


def _network():
    rng = np.random.default_rng(19)
    weight = rng.exponential(size=(8, 12)) * (rng.random((8, 12)) < 0.3)
    cause = rng.random(8) < 0.4
    y = rng.random(12) < 1 - np.exp(-0.1 - cause @ weight)

    def model(y, weight):
        z = jnp.stack([numpyro.sample(f"z_{i}", dist.Bernoulli(0.3)) for i in range(8)])
        with numpyro.plate("findings", 12):
            numpyro.sample("y", dist.Bernoulli(-jnp.expm1(-0.1 - z @ weight)), obs=y)

    return model, (jnp.asarray(y, float), jnp.asarray(weight, float))


def noisy_or() -> TrustProblem:
    model, args = _network()
    note = "two causes of one finding explain each other away, which a guide of one after another follows"
    guide, latents = _one_after_another("z", 8), _names("z", 8)
    return TrustProblem("noisy_or", model, guide, args, latents, "right", note, PIVOTS)


def noisy_or_mean_field() -> TrustProblem:
    model, args = _network()
    note = "factors cannot explain away: the probabilities are off"
    return TrustProblem("noisy_or_mean_field", model, legrad.MeanField(model), args, _names("z", 8), "flagged", note)


def hmm() -> TrustProblem:
    T, K, rng = 6, 3, np.random.default_rng(15)
    step, level = 0.55 * np.eye(K) + 0.15, np.array([-0.8, 0.0, 0.8])
    state = [0]
    while len(state) < T:
        state.append(rng.choice(K, p=step[state[-1]]))
    y = level[state] + rng.normal(size=T)

    def model(y, step, level):
        z = numpyro.sample("z_0", dist.Categorical(jnp.full(K, 1 / K)))
        numpyro.sample("y_0", dist.Normal(level[z], 1.0), obs=y[0])
        for t in range(1, T):
            z = numpyro.sample(f"z_{t}", dist.Categorical(step[z]))
            numpyro.sample(f"y_{t}", dist.Normal(level[z], 1.0), obs=y[t])

    def guide(*_):
        logits = numpyro.param("logits", jnp.zeros((T, K, K)))
        z = numpyro.sample("z_0", dist.Categorical(logits=logits[0, 0]))
        for t in range(1, T):
            z = numpyro.sample(f"z_{t}", dist.Categorical(logits=logits[t, z]))

    args = tuple(jnp.asarray(a, float) for a in (y, step, level))
    latents = {f"z_{t}": K for t in range(T)}
    note = "the states given the data are a Markov chain, and so is the guide"
    return TrustProblem("hmm", model, guide, args, latents, "right", note, PIVOTS)


def mixture() -> TrustProblem:
    n, rng = 25, np.random.default_rng(21)
    y = np.where(rng.random(n) < 0.4, 1.2, -1.2) + 1.5 * rng.normal(size=n)

    def model(y):
        weight = numpyro.sample("weight", dist.Beta(4.0, 4.0))
        mu = numpyro.sample("mu", dist.Normal(jnp.array([-1.2, 1.2]), 0.5).to_event(1))
        with numpyro.plate("data", n):
            z = numpyro.sample("z", dist.Bernoulli(weight))
            numpyro.sample("y", dist.Normal(mu[z], 1.5), obs=y)

    continuous = AutoMultivariateNormal(handlers.block(handlers.seed(model, 0), hide=["z", "y"]))

    def guide(y):
        now = continuous(y)
        x = jnp.concatenate([now["mu"], jax.scipy.special.logit(now["weight"])[None]])
        bias, slope = numpyro.param("bias", jnp.zeros(n)), numpyro.param("slope", jnp.zeros((n, 3)))
        with numpyro.plate("data", n):
            numpyro.sample("z", dist.Bernoulli(logits=bias + slope @ x))

    note = "the prior says which component is which; each assignment follows means and weight linearly"
    latents = {"weight": 0, "mu": 0, "z": 0}
    return TrustProblem("mixture", model, guide, (jnp.asarray(y, float),), latents, "right", note)


def spike_and_slab() -> TrustProblem:
    n, p, rng = 64, 8, np.random.default_rng(14)
    X = hadamard(n)[:, 1 : p + 1]  # the two levels of each factor of an experiment
    y = X @ np.array([0.4, -0.3, 0.3, 0, 0, 0, 0, 0]) + rng.normal(size=n)

    def model(X, y):
        with numpyro.plate("features", p):
            gamma = numpyro.sample("gamma", dist.Bernoulli(0.5))
            beta = numpyro.sample("beta", dist.Normal(0.0, 0.5))
        with numpyro.plate("data", n):
            numpyro.sample("y", dist.Normal(X @ (gamma * beta), 1.0), obs=y)

    def guide(X, y):
        logits = numpyro.param("logits", jnp.zeros(p))
        loc = numpyro.param("loc", jnp.zeros((2, p)))
        scale = numpyro.param("scale", jnp.full((2, p), 0.3), constraint=constraints.positive)
        with numpyro.plate("features", p):
            gamma = numpyro.sample("gamma", dist.Bernoulli(logits=logits))
            here = gamma, jnp.arange(p)
            numpyro.sample("beta", dist.Normal(loc[here], scale[here]))

    args = jnp.asarray(X, float), jnp.asarray(y, float)
    note = "the factors of a designed experiment do not confound, and a slope has its spike and its slab"
    return TrustProblem("spike_and_slab", model, guide, args, {"gamma": 0, "beta": 0}, "right", note)
