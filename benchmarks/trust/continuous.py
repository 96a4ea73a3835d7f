"""The rows of the trust table whose latents are all continuous."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer.autoguide import AutoMultivariateNormal
from row import TrustProblem

import legrad

# One draw of a full covariance leaves noise in the means, and such draws are cheap.
DRAWS = legrad.Reparameterized(num_samples=16)


def _collinear(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Features that share a common part: a correlation of one half between any two."""
    return (rng.normal(size=(n, d)) + rng.normal(size=(n, 1))) / np.sqrt(2.0)


def _linear():
    rng = np.random.default_rng(0)
    X = _collinear(rng, 40, 6)
    y = X @ rng.normal(size=6) + 0.5 * rng.normal(size=40)

    def model(X, y):
        w = numpyro.sample("w", dist.Normal(jnp.zeros(6), 1.0).to_event(1))
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Normal(X @ w, 0.5), obs=y)

    return model, (jnp.asarray(X, float), jnp.asarray(y, float))


def gaussian() -> TrustProblem:
    model, args = _linear()
    guide, note = AutoMultivariateNormal(model), "the posterior is Gaussian, and so is the guide"
    return TrustProblem("gaussian", model, guide, args, {"w": 0}, "right", note, DRAWS)


def gaussian_mean_field() -> TrustProblem:
    model, args = _linear()
    guide, note = legrad.MeanField(model), "factors hold no correlation: the standard deviations come out too small"
    return TrustProblem("gaussian_mean_field", model, guide, args, {"w": 0}, "flagged", note)


def logistic() -> TrustProblem:
    rng = np.random.default_rng(1)
    X = np.column_stack([np.ones(1000), _collinear(rng, 1000, 4)])
    y = rng.random(1000) < 1 / (1 + np.exp(-X @ np.array([-0.5, 1.0, -0.7, 0.4, 0.0])))

    def model(X, y):
        w = numpyro.sample("w", dist.Normal(jnp.zeros(5), 2.0).to_event(1))
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)

    args = jnp.asarray(X, float), jnp.asarray(y, float)
    note = "1,000 answers make the posterior nearly Gaussian"
    return TrustProblem("logistic", model, AutoMultivariateNormal(model), args, {"w": 0}, "right", note, DRAWS)


def poisson() -> TrustProblem:
    rng = np.random.default_rng(2)
    X = np.column_stack([np.ones(100), rng.normal(size=(100, 3))])
    y = rng.poisson(np.exp(X @ np.array([2.0, 0.5, -0.3, 0.2])))

    def model(X, y):
        w = numpyro.sample("w", dist.Normal(jnp.zeros(4), 1.0).to_event(1))
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Poisson(jnp.exp(X @ w)), obs=y)

    args = jnp.asarray(X, float), jnp.asarray(y)
    note = "the intercept goes with the slopes, which the guide's covariance holds"
    return TrustProblem("poisson", model, AutoMultivariateNormal(model), args, {"w": 0}, "right", note, DRAWS)


def eight_schools() -> TrustProblem:
    effect = jnp.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    error = jnp.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])

    def model(effect, error):
        mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
        tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
        with numpyro.plate("schools", 8):
            theta = numpyro.sample("theta", dist.Normal(mu, tau))
            numpyro.sample("effect", dist.Normal(theta, error), obs=effect)

    latents = {"mu": 0, "tau": 0, "theta": 0}
    note = "a funnel: the schools' spread depends on tau, and no factorized guide follows"
    return TrustProblem("eight_schools", model, legrad.MeanField(model), (effect, error), latents, "flagged", note)


def horseshoe() -> TrustProblem:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(40, 8))
    y = X @ np.array([1.5, -1.0, 0.4, 0, 0, 0, 0, 0]) + rng.normal(size=40)

    def model(X, y):
        tau = numpyro.sample("tau", dist.HalfCauchy(0.3))
        with numpyro.plate("features", 8):
            shrink = numpyro.sample("shrink", dist.HalfCauchy(1.0))
            beta = numpyro.sample("beta", dist.Normal(0.0, tau * shrink))
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Normal(X @ beta, 1.0), obs=y)

    args = jnp.asarray(X, float), jnp.asarray(y, float)
    note = "each coefficient is a funnel of its own; the scales have no variance, so beta alone is compared"
    return TrustProblem("horseshoe", model, legrad.MeanField(model), args, {"beta": 0}, "flagged", note)


def two_modes() -> TrustProblem:
    rng = np.random.default_rng(4)
    anchors = np.array([[-2.0, 0.0], [0.0, 0.0], [3.0, 0.0]])
    distance = np.linalg.norm(np.array([0.7, 1.5]) - anchors, axis=1) + 0.2 * rng.normal(size=3)

    def model(anchors, distance):
        place = numpyro.sample("place", dist.Normal(jnp.array([0.0, 0.3]), 1.0).to_event(1))
        with numpyro.plate("anchors", 3):
            there = jnp.linalg.norm(place - anchors, axis=-1)
            numpyro.sample("distance", dist.Normal(there, 0.2), obs=distance)

    args = jnp.asarray(anchors, float), jnp.asarray(distance, float)
    note = "distances to points on a line leave two mirrored places: a fit finds one, another start the other"
    restarts = tuple({"place": jnp.array(start, float)} for start in ([1.0, 1.0], [1.0, -1.0]))
    return TrustProblem(
        "two_modes", model, legrad.MeanField(model), args, {"place": 0}, "flagged", note, restarts=restarts
    )


def misspecified() -> TrustProblem:
    rng = np.random.default_rng(5)
    y = 1.0 + rng.standard_t(3.0, size=100)

    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
        sigma = numpyro.sample("sigma", dist.HalfNormal(5.0))
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Normal(mu, sigma), obs=y)

    note = "a Normal model of data with outliers: the model is wrong, its posterior is not hard"
    args, latents = (jnp.asarray(y, float),), {"mu": 0, "sigma": 0}
    return TrustProblem("misspecified", model, legrad.MeanField(model), args, latents, "right", note)


def heavy_tails() -> TrustProblem:
    y = jnp.array([-1.0, 0.5, 4.0])

    def model(y):
        mu = numpyro.sample("mu", dist.Cauchy(0.0, 5.0))
        with numpyro.plate("data", 3):
            numpyro.sample("y", dist.StudentT(1.0, mu, 0.5), obs=y)

    note = "three Cauchy observations that disagree: heavy tails, and a mode at each of them"
    return TrustProblem("heavy_tails", model, legrad.MeanField(model), (y,), {"mu": 0}, "flagged", note)
