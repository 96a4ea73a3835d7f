"""Does the climb of an exact ELBO ever end below Adam without saying so? 15 small problems, 8 starts each.

    short = (Adam's best ELBO − the climb's) / (Adam's best − the ELBO at the start),    start by start

Adam has the exact gradient, the same starts, and the better of two rates. A climb that is short by more than a
thousandth is counted, unless its result says that it has not converged or that starts ended at several modes.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.distributions import constraints

import legrad

sys.path.insert(0, str(Path(__file__).parents[1] / "peers"))

STARTS, SHORT = 8, 1e-3
RATES = (0.02, 0.1)
Case = tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]


def peers() -> Iterator[tuple[str, Case]]:
    """The problems of the peers table whose ELBO has no noise, in their small size."""
    import continuous
    import discrete

    for make in (continuous.gaussian_100, continuous.logistic, discrete.spike_and_slab, discrete.ising,
                 discrete.mixture, discrete.factorial_hmm, discrete.noisy_or):  # fmt: skip
        peer = make(True)
        yield peer.name, (peer.model, peer.guide, peer.args)


def scales() -> Case:
    """Columns in units from a thousandth to a thousand."""
    rng = np.random.default_rng(0)
    X = jnp.asarray(rng.normal(size=(80, 5)) * np.array([1e-3, 1e-2, 1, 1e2, 1e3]), float)

    def model(X: jax.Array, y: jax.Array) -> None:
        b = numpyro.sample("b", dist.Normal(0, 10.0).expand([5]).to_event(1))
        numpyro.sample("y", dist.Normal(X @ b, 1.0), obs=y)

    return model, legrad.MeanField(model), (X, X @ jnp.array([100, 3, 1, 0.01, 0.001]) + rng.normal(size=80))


def noise() -> Case:
    """A noise scale beside a mean."""
    y = jnp.asarray(np.random.default_rng(1).normal(3, 0.5, 60), float)

    def model(y: jax.Array) -> None:
        mu, s = numpyro.sample("mu", dist.Normal(0, 10.0)), numpyro.sample("s", dist.HalfNormal(5.0))
        with numpyro.plate("d", len(y)):
            numpyro.sample("y", dist.Normal(mu, s), obs=y)

    return model, legrad.MeanField(model), (y,)


def counts() -> Case:
    """Poisson regression."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(80, 3))
    y = rng.poisson(np.exp(X @ np.array([1.0, -1.0, 0.5])))

    def model(X: jax.Array, y: jax.Array) -> None:
        b = numpyro.sample("b", dist.Normal(0, 1.0).expand([3]).to_event(1))
        numpyro.sample("y", dist.Poisson(jnp.exp(X @ b)), obs=y)

    return model, legrad.MeanField(model), (jnp.asarray(X, float), jnp.asarray(y))


def spins() -> Case:
    """Spins with couplings of either sign, all pairs: many modes."""
    J = jnp.asarray(np.triu(np.random.default_rng(3).normal(size=(12, 12)) / 2, 1), float)

    def model() -> None:
        with numpyro.plate("i", 12):
            z = numpyro.sample("z", dist.Bernoulli(0.5))
        s = 2.0 * z - 1.0
        numpyro.factor("energy", s @ J @ s)

    return model, legrad.MeanField(model), ()


def three() -> Case:
    """A mixture of three."""
    rng = np.random.default_rng(4)
    y = jnp.asarray(np.concatenate([rng.normal(m, 1.0, 30) for m in (-4, 0, 4)]), float)

    def model(y: jax.Array) -> None:
        with numpyro.plate("k", 3):
            mu = numpyro.sample("mu", dist.Normal(0, 10.0))
        with numpyro.plate("d", len(y)):
            z = numpyro.sample("z", dist.Categorical(jnp.full(3, 1 / 3)))
            numpyro.sample("y", dist.Normal(mu[z], 1.0), obs=y)

    return model, legrad.MeanField(model), (y,)


def weights() -> Case:
    """Weights of a mixture as a parameter of the model."""
    rng = np.random.default_rng(5)
    y = jnp.asarray(np.concatenate([rng.normal(-6, 1, 40), rng.normal(2, 1, 10)]), float)

    def model(y: jax.Array) -> None:
        w = numpyro.param("w", jnp.full(4, 0.25), constraint=constraints.simplex)
        with numpyro.plate("d", len(y)):
            z = numpyro.sample("z", dist.Categorical(w))
            numpyro.sample("y", dist.Normal(jnp.array([-6.0, -2.0, 2.0, 6.0])[z], 1.0), obs=y)

    return model, legrad.MeanField(model), (y,)


def shared() -> Case:
    """A scale that model and guide have both."""
    y = jnp.asarray(2 * np.random.default_rng(6).normal(size=40), float)

    def model(y: jax.Array) -> None:
        s = numpyro.param("s", 2.0, constraint=constraints.positive)
        with numpyro.plate("d", len(y)):
            numpyro.sample("y", dist.Normal(numpyro.sample("x", dist.Normal(0.0, s)), 1.0), obs=y)

    def guide(y: jax.Array) -> None:
        s, w = (numpyro.param(n, v, constraint=constraints.positive) for n, v in (("s", 2.0), ("w", 0.5)))
        with numpyro.plate("d", len(y)):
            numpyro.sample("x", dist.Normal(numpyro.param("k", 0.1) * y, w * s))

    return model, guide, (y,)


def encoder() -> Case:
    """Binary latents with an encoder."""
    rng = np.random.default_rng(7)
    X = rng.normal(size=(100, 3))
    z = rng.random(100) < 1 / (1 + np.exp(-X @ np.array([1.0, -2.0, 0.5])))

    def model(X: jax.Array, y: jax.Array) -> None:
        w = numpyro.param("w", jnp.zeros(3))
        with numpyro.plate("d", len(y)):
            z = numpyro.sample("z", dist.Bernoulli(logits=X @ w))
            numpyro.sample("y", dist.Normal(3.0 * z, 1.0), obs=y)

    def guide(X: jax.Array, y: jax.Array) -> None:
        a, c, b = numpyro.param("a", jnp.zeros(3)), numpyro.param("c", 0.0), numpyro.param("b", 0.0)
        with numpyro.plate("d", len(y)):
            numpyro.sample("z", dist.Bernoulli(logits=X @ a + c * y + b))

    return model, guide, (jnp.asarray(X, float), jnp.asarray(3.0 * z + rng.normal(size=100), float))


OWN = (scales, noise, counts, spins, three, weights, shared, encoder)


def cases() -> dict[str, Callable[[], Case]]:
    """All problems by name."""
    found = {name: (lambda case=case: case) for name, case in peers()}
    return found | {make.__name__: make for make in OWN}


def short(case: Case, steps: int) -> tuple[np.ndarray, int, Any]:
    """Return how much each start of the climb is short of Adam, how many are without saying so, and the fit."""
    model, guide, args = case
    given = {"args": args, "key": 0, "restarts": STARTS, "progress": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = legrad.fit(model, guide, **given)
        adams = [legrad.fit(model, guide, optimizer=optax.adam(r), steps=steps, **given) for r in RATES]
    ends = np.array([one.elbo[-1] for one in fit.restarts])
    tops = np.max([[np.nanmax(one.elbo) for one in adam.restarts] for adam in adams], axis=0)
    begins = np.array([one.elbo[0] for one in adams[0].restarts])
    gaps = (tops - ends) / (tops - begins)
    silent = [i for i, one in enumerate(fit.restarts) if gaps[i] > SHORT and one.converged and not fit.other_modes]
    return gaps, len(silent), fit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--steps", type=int, default=3000, help="of Adam")
    options = parser.parse_args()
    print("| problem | worst start: short by | best start: short by | starts short | of these silent | gradients |")
    print("|---|---|---|---|---|---|")
    for name, make in cases().items():
        if options.only and name not in options.only:
            continue
        gaps, silent, fit = short(make(), options.steps)
        most = max(one.steps for one in fit.restarts)
        worst, best = gaps.max(), gaps[int(np.argmax([one.elbo[-1] for one in fit.restarts]))]
        print(f"| {name} | {worst:.2g} | {best:.2g} | {int((gaps > SHORT).sum())} | {silent} | {most} |", flush=True)


if __name__ == "__main__":
    main()
