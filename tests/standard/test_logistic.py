"""Logistic regression against integrals on a grid, scikit-learn's optimum, many draws, and `legrad.fit`."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats
from scipy.special import logsumexp
from sklearn.linear_model import LogisticRegression

import legrad
from legrad.fitting.fixed_draws import Gaussian, moment_matched
from legrad.standard.logistic import best_gaussian, fit_logistic
from legrad.standard.softmax_density import SoftmaxDensity


def data(n=60, p=3, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p))
    X = (X - X.mean(0)) / X.std(0)
    eta = X @ rng.normal(size=(p, classes))
    return X, np.argmax(eta + rng.gumbel(size=eta.shape), axis=1)


@pytest.mark.long
@pytest.mark.parametrize("classes", [2, 3])
def test_the_elbo_and_its_gradients_are_those_of_many_draws(classes):
    X, y = data(classes=classes)
    density = SoftmaxDensity(X, y, classes, 0.7)
    rng = np.random.default_rng(1)
    tril = 0.2 * np.tril(rng.normal(size=(density.size, density.size))) / np.sqrt(density.size) + 0.2 * np.eye(
        density.size
    )
    q = Gaussian(0.5 * rng.normal(size=density.size), tril)
    draws = moment_matched(4096, density.size, 0)

    def log_density(x):
        w = x.reshape(-1, 4)
        eta = w[:, 0] + X @ w[:, 1:].T
        eta = jnp.column_stack([jnp.zeros(len(X)), eta]) if classes == 2 else eta
        prior = dist.Normal(0.0, 10.0).log_prob(w[:, 0]).sum() + dist.Normal(0.0, 0.7).log_prob(w[:, 1:]).sum()
        return dist.Categorical(logits=eta).log_prob(y).sum() + prior

    points = jnp.asarray(q.at(draws))
    np.testing.assert_allclose(density.many(points[:5]), jax.vmap(log_density)(points[:5]), rtol=1e-10)
    elbo, gradient, precision = density.expected(q)
    np.testing.assert_allclose(elbo, jax.vmap(log_density)(points).mean() + q.entropy, rtol=1e-3)
    np.testing.assert_allclose(gradient, jax.jit(jax.vmap(jax.grad(log_density)))(points).mean(0), atol=0.05)
    hessian = jax.jit(jax.vmap(jax.hessian(log_density)))(points[:1024]).mean(0)
    np.testing.assert_allclose(precision, -hessian, atol=0.3)


@pytest.mark.parametrize("classes", [2, 3])
def test_many_rows_give_the_optimum_of_scikit_learn(classes):
    X, y = data(n=4000, classes=classes)
    size = 4 if classes == 2 else 12
    _, q = best_gaussian(SoftmaxDensity(X, y, classes, 0.7), Gaussian(np.zeros(size), 0.1 * np.eye(size)))
    theirs = LogisticRegression(C=0.49, tol=1e-8, max_iter=1000).fit(X, y)
    np.testing.assert_allclose(q.loc.reshape(-1, 4)[:, 1:], theirs.coef_, atol=0.02)


def test_the_posterior_is_that_of_an_integral():
    X, y = data(n=25, p=1, classes=2, seed=3)
    a, b = np.meshgrid(np.linspace(-6, 6, 500), np.linspace(-8, 8, 500), indexing="ij")
    eta = a[..., None] + b[..., None] * X[:, 0]
    log_p = (y * eta - np.logaddexp(0, eta)).sum(-1) + stats.norm(0, 10).logpdf(a) + stats.norm(0, 2).logpdf(b)
    weights = np.exp(log_p - logsumexp(log_p))
    mean = (weights * b).sum()
    sd = np.sqrt((weights * b**2).sum() - mean**2)
    found = fit_logistic(X, y, 2, scale=2.0, draws=20_000, rng=np.random.default_rng(0))
    np.testing.assert_allclose(found.draws.mean(), mean, atol=0.06 * sd)
    np.testing.assert_allclose(found.draws.std(), sd, rtol=0.05)
    evidence = logsumexp(log_p) + np.log(12 / 499 * 16 / 499)
    assert evidence - 0.2 < found.log_evidence < evidence
    assert found.khat < 0.7


@pytest.mark.long
def test_the_posterior_is_that_of_a_fit_to_the_model_as_a_program():
    X, y = data(n=80, classes=2)

    def model(X, y):
        a = numpyro.sample("a", dist.Normal(0.0, 10.0))
        b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Bernoulli(logits=a + X @ b), obs=y)

    theirs = legrad.fit(model, args=(X, y), key=0, progress=False).sample(1, 4000, corrected=True)["b"]
    found = fit_logistic(X, y, 2, scale=1.0, draws=4000, rng=np.random.default_rng(0)).draws[:, 0]
    sd = np.asarray(theirs.std(0))
    np.testing.assert_allclose(found.mean(0), theirs.mean(0), atol=0.1 * sd.max())
    np.testing.assert_allclose(found.std(0), sd, rtol=0.07)


def test_a_scale_that_is_not_given_follows_the_data():
    X, y = data(n=200, p=5, classes=2)
    noise = np.random.default_rng(0).integers(0, 2, 200)
    strong = fit_logistic(X, y, 2, scale=None, draws=100, rng=np.random.default_rng(0)).scale
    weak = fit_logistic(X, noise, 2, scale=None, draws=100, rng=np.random.default_rng(0)).scale
    assert weak < 0.5 < strong
