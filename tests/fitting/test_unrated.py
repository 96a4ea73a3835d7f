"""Fits that are given no learning rate: which steps they take, and that they stop by themselves."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import legrad

RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(60, 5)))
Y = 2.0 * X[:, 0] - X[:, 3] + jnp.asarray(RNG.normal(size=60))


def slab(X, y):
    with numpyro.plate("features", X.shape[1]):
        included = numpyro.sample("included", dist.Bernoulli(0.2))
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", dist.Normal(X @ (included * slope), 1.0), obs=y)


@pytest.mark.long
def test_noise_is_taken_by_natural_steps_that_stop_at_the_optimum():
    guide = legrad.MeanField(slab)
    best = legrad.fit(slab, guide, args=(X, Y), key=0, progress=False)
    found = legrad.fit(
        slab, guide, args=(X, Y), key=0, estimator=legrad.LocalExpectation(exact_terms=False), progress=False
    )
    assert found.converged
    assert found.status.startswith("converged after")
    assert "natural steps" in found.method
    assert len(found.phases) > 1
    exact = legrad.LocalExpectation()
    at = [-float(exact.loss(jax.random.key(0), r.params, slab, guide, X, Y)) for r in (best, found)]
    assert at[0] == pytest.approx(best.elbo[-1], rel=1e-5)
    assert at[0] - 0.02 < at[1] <= at[0] + 1e-3


def test_without_noise_stop_auto_climbs_too():
    result = legrad.fit(slab, legrad.MeanField(slab), args=(X, Y), key=0, stop="auto", progress=False)
    assert "L-BFGS" in result.method
    assert result.converged
    assert result.steps < 200


def part(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", len(y), subsample_size=20) as i:
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y[i])


def coded(y):
    """Latents with an inference network."""
    W = numpyro.param("W", jnp.ones((8, 20)) / 20)
    with numpyro.plate("rows", len(y)):
        h = numpyro.sample("h", dist.Bernoulli(0.3).expand([8]).to_event(1))
        numpyro.sample("y", dist.Normal(h @ W, 1.0).to_event(1), obs=y)


def encoder(y):
    V, b = numpyro.param("V", jnp.zeros((20, 8))), numpyro.param("b", jnp.zeros(8))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("h", dist.Bernoulli(logits=y @ V + b).to_event(1))


def test_minibatches_and_networks_take_adam():
    subsampled = legrad.fit(part, legrad.MeanField(part), args=(Y,), key=0, progress=False)
    assert "Adam, as a step sees a part of the data" in subsampled.method
    assert subsampled.converged
    assert subsampled.params["mu_loc"] == pytest.approx(float(Y.sum() / 61), abs=0.1)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::legrad.FitWarning")  # a fifth of a second
def test_an_inference_network_is_not_climbed():
    y = jnp.asarray(RNG.normal(size=(30, 20)))
    result = legrad.fit(coded, encoder, args=(y,), key=0, seconds=0.2, progress=False)
    assert "Adam, as a network infers the latents" in result.method
    assert result.deterministic
