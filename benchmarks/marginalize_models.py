"""What `make bench-marginalize` measures: models with discrete latents, each also summed by hand and by funsor.

A problem gives the model as its author would write it, the best forms by hand that we know (the fastest of them is
the one to compare with), and the model that NumPyro's enumeration runs: the same one, unless funsor cannot run it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import gammaln, logsumexp
from numpyro.contrib.control_flow import scan

Model = Callable[..., Any]


@dataclass(frozen=True)
class Problem:
    """A model, its arguments, its sums by hand by name, and the model for funsor with its number of plates."""

    model: Model
    args: tuple
    by_hand: dict[str, Model]
    funsor: Model | None
    plates: int


def mixture(n: int, k: int = 8) -> Problem:
    """Which of k components each of n points comes from."""
    rng = np.random.default_rng(0)
    y = jnp.asarray(3.0 * rng.integers(0, k, n) + rng.normal(size=n), jnp.float32)

    def priors() -> tuple[jax.Array, jax.Array, jax.Array]:
        weights = numpyro.sample("weights", dist.Dirichlet(jnp.full(k, 2.0)))
        mu = numpyro.sample("mu", dist.Normal(10.0, 10.0).expand([k]).to_event(1))
        return weights, mu, numpyro.sample("sigma", dist.LogNormal(0.0, 0.5).expand([k]).to_event(1))

    def model(y: jax.Array) -> None:
        weights, mu, sigma = priors()
        with numpyro.plate("points", n):
            z = numpyro.sample("z", dist.Categorical(weights))
            numpyro.sample("y", dist.Normal(mu[z], sigma[z]), obs=y)

    def last(y: jax.Array) -> None:
        weights, mu, sigma = priors()
        each = dist.Normal(mu, sigma).log_prob(y[:, None]) + jnp.log(weights)
        numpyro.factor("y", logsumexp(each, -1).sum())

    def first(y: jax.Array) -> None:
        weights, mu, sigma = priors()
        each = dist.Normal(mu[:, None], sigma[:, None]).log_prob(y) + jnp.log(weights)[:, None]
        numpyro.factor("y", logsumexp(each, 0).sum())

    return Problem(model, (y,), {"components last": last, "components first": first}, model, 1)


def hmm(length: int, chains: int, k: int = 16) -> Problem:
    """Hidden Markov chains of k states with normal data; one chain has no plate."""
    rng = np.random.default_rng(1)
    y = jnp.asarray(rng.normal(size=(length, chains)) + rng.integers(0, k, (length, chains)), jnp.float32)
    y = y[:, 0] if chains == 1 else y

    def priors() -> tuple[jax.Array, jax.Array]:
        steps = numpyro.sample("steps", dist.Dirichlet(jnp.full((k, k), 1.0) + 4.0 * jnp.eye(k)).to_event(1))
        return steps, numpyro.sample("mu", dist.Normal(jnp.arange(k) * 1.0, 2.0).to_event(1))

    def model(y: jax.Array) -> None:
        steps, mu = priors()

        def step(z: jax.Array, seen: jax.Array) -> tuple[jax.Array, None]:
            if chains == 1:
                z = numpyro.sample("z", dist.Categorical(steps[z]))
                numpyro.sample("y", dist.Normal(mu[z], 1.0), obs=seen)
            else:
                with numpyro.plate("chains", chains):
                    z = numpyro.sample("z", dist.Categorical(steps[z]))
                    numpyro.sample("y", dist.Normal(mu[z], 1.0), obs=seen)
            return z, None

        scan(step, jnp.zeros(y.shape[1:], int), y)

    def emissions(mu: jax.Array, y: jax.Array) -> jax.Array:
        return dist.Normal(mu, 1.0).log_prob(y[..., None])

    def logarithms(y: jax.Array) -> None:
        steps, mu = priors()
        seen, table = emissions(mu, y), jnp.log(steps)

        def step(alpha: jax.Array, now: jax.Array) -> tuple[jax.Array, None]:
            return logsumexp(alpha[..., :, None] + table, -2) + now, None

        alpha, _ = jax.lax.scan(step, table[0] + seen[0], seen[1:])
        numpyro.factor("y", logsumexp(alpha, -1).sum())

    def scaled(y: jax.Array) -> None:
        """Probabilities, divided by their sum at each step."""
        steps, mu = priors()
        seen = emissions(mu, y)
        top = jax.lax.stop_gradient(seen.max(-1, keepdims=True))
        likelihood = jnp.exp(seen - top)

        def step(alpha: jax.Array, now: jax.Array) -> tuple[jax.Array, jax.Array]:
            alpha = (alpha @ steps) * now
            total = alpha.sum(-1, keepdims=True)
            return alpha / total, total

        start = jnp.broadcast_to(jnp.eye(k)[0], seen.shape[1:])
        _, totals = jax.lax.scan(step, start, likelihood)
        numpyro.factor("y", jnp.log(totals).sum() + top.sum())

    def associative(y: jax.Array) -> None:
        """Products of matrices in a tree, each divided by its largest entry."""
        steps, mu = priors()
        seen = emissions(mu, y)
        top = jax.lax.stop_gradient(seen.max(-1, keepdims=True))
        matrices = steps * jnp.exp(seen - top)[..., None, :]
        logs = top.sum()
        scale = jnp.zeros(matrices.shape[:-2])
        while len(matrices) > 1:
            odd = len(matrices) % 2
            rest, rest_scale = matrices[len(matrices) - odd :], scale[len(scale) - odd :]
            matrices = matrices[: len(matrices) - odd : 2] @ matrices[1 : len(matrices) : 2]
            scale = scale[: len(scale) - odd : 2] + scale[1 : len(scale) : 2]
            largest = jax.lax.stop_gradient(matrices.max((-2, -1)))
            matrices = jnp.concatenate([matrices / largest[..., None, None], rest])
            scale = jnp.concatenate([scale + jnp.log(largest), rest_scale])
        numpyro.factor("y", (jnp.log(matrices[0][..., 0, :].sum(-1)) + scale[0]).sum() + logs)

    forms = {"log forward": logarithms, "scaled forward": scaled, "associative": associative}
    return Problem(model, (y,), forms, model, 1)


def occupancy(n: int = 10_000, visits: int = 5) -> Problem:
    """Sites that may be occupied, several visits to each."""
    rng = np.random.default_rng(2)
    habitat = rng.normal(size=n).astype(np.float32)
    there = rng.random(n) < 1 / (1 + np.exp(-(0.3 + habitat)))
    y = jnp.asarray((rng.random((visits, n)) < 0.4) & there, jnp.int32)
    habitat = jnp.asarray(habitat)

    def priors() -> tuple[jax.Array, jax.Array]:
        a = numpyro.sample("a", dist.Normal(0.0, 1.5).expand([2]).to_event(1))
        return a, numpyro.sample("p", dist.Beta(2.0, 2.0))

    def model(habitat: jax.Array, y: jax.Array) -> None:
        a, p = priors()
        with numpyro.plate("sites", n, dim=-1):
            z = numpyro.sample("z", dist.Bernoulli(logits=a[0] + a[1] * habitat))
            with numpyro.plate("visits", visits, dim=-2):
                numpyro.sample("y", dist.Bernoulli(z * p), obs=y)

    def by_hand(habitat: jax.Array, y: jax.Array) -> None:
        a, p = priors()
        logits, found = a[0] + a[1] * habitat, y.sum(0)
        occupied = jax.nn.log_sigmoid(logits) + found * jnp.log(p) + (visits - found) * jnp.log1p(-p)
        empty = jax.nn.log_sigmoid(-logits)
        numpyro.factor("y", jnp.where(found > 0, occupied, jnp.logaddexp(occupied, empty)).sum())

    return Problem(model, (habitat, y), {"counts of visits": by_hand}, model, 2)


def change_point(n: int = 1_000) -> Problem:
    """The year from which a rate is another one."""
    rng = np.random.default_rng(3)
    y = jnp.asarray(rng.poisson(np.where(np.arange(n) < 0.4 * n, 3.0, 2.5)), jnp.int32)
    t = jnp.arange(n)

    def priors() -> tuple[jax.Array, jax.Array]:
        return numpyro.sample("early", dist.Exponential(0.5)), numpyro.sample("late", dist.Exponential(0.5))

    def model(y: jax.Array) -> None:
        early, late = priors()
        tau = numpyro.sample("tau", dist.DiscreteUniform(0, n - 1))
        with numpyro.plate("years", n):
            numpyro.sample("y", dist.Poisson(jnp.where(t < tau, early, late)), obs=y)

    def running_sums(y: jax.Array) -> None:
        early, late = priors()
        before, after = dist.Poisson(early).log_prob(y), dist.Poisson(late).log_prob(y)
        gain = jnp.concatenate([jnp.zeros(1), jnp.cumsum(before - after)])[:n]
        numpyro.factor("y", logsumexp(gain) + after.sum() - jnp.log(n))

    def square(y: jax.Array) -> None:
        """Every year under every change point: what one writes first."""
        early, late = priors()
        rates = jnp.where(t < t[:, None], early, late)
        numpyro.factor("y", logsumexp(dist.Poisson(rates).log_prob(y).sum(-1)) - jnp.log(n))

    return Problem(model, (y,), {"running sums": running_sums, "square": square}, model, 1)


def n_mixture(n: int = 2_000, visits: int = 5, far: int = 64) -> Problem:
    """Counts of animals of which each is seen with some probability; by hand and for funsor cut at `far`."""
    rng = np.random.default_rng(4)
    y = jnp.asarray(rng.binomial(rng.poisson(8.0, n), 0.5, (visits, n)), jnp.int32)

    def priors() -> tuple[jax.Array, jax.Array]:
        return numpyro.sample("rate", dist.Gamma(8.0, 1.0)), numpyro.sample("p", dist.Beta(4.0, 4.0))

    def model(y: jax.Array) -> None:
        rate, p = priors()
        with numpyro.plate("sites", n, dim=-1):
            z = numpyro.sample("z", dist.Poisson(rate))
            with numpyro.plate("visits", visits, dim=-2):
                numpyro.sample("y", dist.Binomial(z, p), obs=y)

    def for_funsor(y: jax.Array) -> None:
        rate, p = priors()
        counts = jnp.arange(far)
        with numpyro.plate("sites", n, dim=-1):
            logits = dist.Poisson(rate).log_prob(counts)
            z = numpyro.sample("z", dist.Categorical(logits=logits))
            numpyro.factor("mass", jnp.broadcast_to(logsumexp(logits), (n,)))
            with numpyro.plate("visits", visits, dim=-2):
                numpyro.sample("y", dist.Binomial(z, p), obs=y)

    choose = np.full((far, n), -np.inf, np.float32)  # Σ_j log C(k, y_ij), known before p is
    table = np.asarray(y)
    for k in range(far):
        fits = (table <= k).all(0)
        low = np.where(fits, table, 0)
        each = gammaln(k + 1.0) - gammaln(low + 1.0) - gammaln(k - low + 1.0)
        choose[k] = np.where(fits, np.asarray(each).sum(0), -np.inf)

    def by_hand(y: jax.Array) -> None:
        rate, p = priors()
        k, seen = jnp.arange(far)[:, None], y.sum(0)
        prior = k * jnp.log(rate) - rate - gammaln(k + 1.0)
        terms = prior + choose + seen * jnp.log(p) + (visits * k - seen) * jnp.log1p(-p)
        numpyro.factor("y", logsumexp(terms, 0).sum())

    return Problem(model, (y,), {"sufficient counts": by_hand}, for_funsor, 2)


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "mixture, 10^4 points": lambda: mixture(10_000),
    "mixture, 10^6 points": lambda: mixture(1_000_000),
    "HMM, 1,000 steps, 16 states": lambda: hmm(1_000, 1),
    "HMM, 100 chains of 200, 16 states": lambda: hmm(200, 100),
    "occupancy, 10^4 sites": occupancy,
    "change point, 1,000 years": change_point,
    "N-mixture, 2,000 sites": n_mixture,
}
