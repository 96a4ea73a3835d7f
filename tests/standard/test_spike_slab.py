"""Spike-and-slab posteriors against enumeration, integrals on grids, and LocalExpectation's gradients."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree
from numpyro.distributions import constraints
from scipy import stats
from scipy.special import logsumexp

import legrad
from legrad.standard import spike_slab
from legrad.standard.paired_ascent import Hyper, ascend, compressed
from legrad.standard.spike_slab import fit_spike_slab
from legrad.standard.subset_evidence import GaussianEvidence, LaplaceEvidence


def standardized(x):
    return (x - x.mean(0)) / x.std(0)


def data(n=40, p=3, seed=3, noise=0.7, copies=0.0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p))
    X[:, 1:] += copies * X[:, :1]
    X = standardized(X)
    slopes = np.zeros(p)
    slopes[[0, -1]] = 1.0, 0.25
    return X, standardized(X @ slopes + noise * rng.normal(size=n))


def all_subsets(p):
    return np.array(list(itertools.product([False, True], repeat=p)))


def test_the_evidence_of_a_gaussian_is_that_of_its_covariance():
    X, y = data()
    slabs, noises = np.array([0.3, 1.0]), np.array([0.5, 0.9])
    subsets = all_subsets(3)
    found = GaussianEvidence(*compressed(X, y), len(y), slabs, noises).of(subsets)
    center = np.eye(len(y)) - 1 / len(y)
    basis = np.linalg.svd(center)[0][:, :-1]  # the intercept has a flat prior: what is left after centring
    for subset, one in zip(subsets, found, strict=True):
        for (i, slab), (j, noise) in itertools.product(enumerate(slabs), enumerate(noises)):
            cov = basis.T @ (noise**2 * np.eye(len(y)) + slab**2 * X[:, subset] @ X[:, subset].T) @ basis
            exact = stats.multivariate_normal(cov=cov).logpdf(basis.T @ y)
            np.testing.assert_allclose(one.log_evidence[i, j], exact, rtol=1e-9)
            if subset.any():
                A = X[:, subset]
                ridge = np.linalg.solve(A.T @ A / noise**2 + np.eye(subset.sum()) / slab**2, A.T @ y / noise**2)
                np.testing.assert_allclose(one.mean(i, j)[1], ridge, rtol=1e-8)


@pytest.mark.parametrize("family", ["bernoulli", "poisson"])
def test_the_evidence_of_other_targets_is_an_integral(family):
    X, y = data(n=60, p=2)
    rng = np.random.default_rng(0)
    y = (y > 0).astype(float) if family == "bernoulli" else rng.poisson(np.exp(0.5 * y)).astype(float)
    found = LaplaceEvidence(X, y, family, np.array([0.8])).of(np.array([[False, False], [True, False]]))
    a, b = np.meshgrid(np.linspace(-4, 4, 400), np.linspace(-4, 4, 401), indexing="ij")
    eta = a[..., None] + b[..., None] * X[:, 0]
    log_y = stats.bernoulli if family == "bernoulli" else stats.poisson
    log_p = log_y.logpmf(y, 1 / (1 + np.exp(-eta)) if family == "bernoulli" else np.exp(eta)).sum(-1)
    log_p += stats.norm(0, 5).logpdf(a) + stats.norm(0, 0.8).logpdf(b)
    with_slope = logsumexp(log_p) + np.log(8 / 399 * 8 / 400)
    of_none = log_p[:, 200] - stats.norm(0, 0.8).logpdf(0.0)  # b = 0
    without = logsumexp(of_none) + np.log(8 / 399)
    # The likelihood of counts leaves nothing out; a factor that all subsets share is 1/√(2π) for each coefficient.
    ratio = found[1].log_evidence[0, 0] - found[0].log_evidence[0, 0]
    np.testing.assert_allclose(ratio, with_slope - without, atol=0.03)


@pytest.mark.parametrize("rate", [0.2, None])
def test_inclusion_is_that_of_a_sum_over_subsets_and_an_integral_over_the_noise(rate):
    X, y = data()
    grid = np.linspace(0.05, 3.0, 300)
    subsets, log_p = all_subsets(3), []
    for subset in subsets:
        cov = 100.0 + X[:, subset] @ X[:, subset].T
        values = [stats.multivariate_normal(cov=s**2 * np.eye(len(y)) + cov).logpdf(y) - s**2 / 2 for s in grid]
        k = subset.sum()
        prior = k * np.log(0.2) + (3 - k) * np.log(0.8) if rate else -np.log([1, 3, 3, 1][k])
        log_p.append(logsumexp(values) + prior)
    weights = np.exp(log_p - logsumexp(log_p))
    found = fit_spike_slab(X, y, "gaussian", rate=rate, slab=1.0, rng=np.random.default_rng(0))
    np.testing.assert_allclose(found.inclusion, weights @ subsets, atol=2e-3)
    np.testing.assert_allclose(found.sizes.sum(), 1.0)
    np.testing.assert_allclose(found.draws.mean(0), found.slopes, atol=0.02)
    np.testing.assert_allclose((found.draws != 0).mean(0), found.inclusion, atol=0.05)
    assert found.trusted


@pytest.mark.parametrize("family", ["gaussian", "bernoulli"])
def test_weighed_subsets_agree_with_all_subsets(family, monkeypatch):
    X, y = data(n=80, p=9, copies=0.7)
    y = y if family == "gaussian" else (y > 0).astype(float)
    exact = fit_spike_slab(X, y, family, rate=0.2, slab=0.5, rng=np.random.default_rng(0))
    assert "enumerated" in exact.status
    monkeypatch.setattr(spike_slab, "_ENUMERATED", 3)
    found = fit_spike_slab(X, y, family, rate=0.2, slab=0.5, rng=np.random.default_rng(0))
    assert found.khat < 0.7, found.status
    np.testing.assert_allclose(found.inclusion, exact.inclusion, atol=0.03)
    np.testing.assert_allclose(found.slopes, exact.slopes, atol=0.02)


def test_a_column_and_its_copy_share_what_is_theirs():
    X, y = data(n=60, p=12, noise=0.3)
    X[:, 1] = X[:, 0]
    found = fit_spike_slab(X, y, "gaussian", rate=0.1, slab=1.0, rng=np.random.default_rng(1))
    np.testing.assert_allclose(found.inclusion[0], found.inclusion[1], atol=0.1)
    assert found.inclusion[0] + found.inclusion[1] > 1


def test_counts_find_their_column():
    X, _ = data(n=80, p=4)
    counts = np.random.default_rng(0).poisson(np.exp(0.3 + 0.8 * X[:, 2])).astype(float)
    found = fit_spike_slab(X, counts, "poisson", rate=0.2, slab=1.0, rng=np.random.default_rng(0))
    assert found.inclusion[2] > 0.99
    assert found.inclusion[[0, 1, 3]].max() < 0.5
    np.testing.assert_allclose(found.slopes[2], 0.8, atol=0.2)


@pytest.mark.long
def test_the_guide_is_where_the_gradient_of_local_expectations_vanishes():
    """The fixed point of the coordinate ascent is an optimum of the ELBO of model and guide as NumPyro programs."""
    X, y = data(n=30, p=3, copies=0.5)
    noise, slab, rate = 0.8, 1.0, 0.3
    hyper = Hyper(noise, slab, rate, False, False, False)
    paired = ascend(X, y, len(y), hyper, np.full(3, 0.1), np.zeros(3), np.arange(3))

    def model():
        with numpyro.plate("columns", 3):
            z = numpyro.sample("z", dist.Bernoulli(rate))
            b = numpyro.sample("b", dist.Normal(0.0, slab))
        numpyro.sample("y", dist.Normal(X @ (z * b), noise), obs=y)

    def guide():
        alpha = numpyro.param("alpha", jnp.full(3, 0.5))
        mu = numpyro.param("mu", jnp.zeros(3))
        sd = numpyro.param("sd", jnp.ones(3), constraint=constraints.positive)
        with numpyro.plate("columns", 3):
            z = numpyro.sample("z", dist.Bernoulli(alpha))
            numpyro.sample("b", dist.Normal(z * mu, jnp.where(z > 0, sd, slab)))

    estimator = legrad.LocalExpectation()

    def gradients(params):
        loss = lambda key: jax.grad(lambda p: estimator.loss(key, p, model, guide))(params)
        found = jax.vmap(lambda key: ravel_pytree(loss(key))[0])(jax.random.split(jax.random.key(0), 2000))
        return np.asarray(found.mean(0)), np.asarray(found.std(0)) / np.sqrt(2000)

    params = {"alpha": jnp.asarray(paired.alpha), "mu": jnp.asarray(paired.mu), "sd": jnp.asarray(paired.sd)}
    mean, error = gradients(params)
    assert (np.abs(mean) < 5 * error + 1e-3 * len(y)).all(), (mean, error)
    mean, error = gradients(params | {"mu": params["mu"] + 0.2})
    assert (np.abs(mean) > 5 * error + 1e-3 * len(y)).any()
