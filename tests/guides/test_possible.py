"""Counts that the data bound: factors without the values that are ruled out, and messages that name the bound."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers

import legrad
from legrad.guides.mean_field import MeanField

Y = np.array([[3, 5], [0, 1], [7, 6]])


def n_mixture(y=Y, rate=6.0):
    p = numpyro.sample("p", dist.Beta(4.0, 4.0))
    with numpyro.plate("sites", len(y), dim=-2):
        N = numpyro.sample("N", dist.Poisson(rate))
        with numpyro.plate("visits", y.shape[1], dim=-1):
            numpyro.sample("y", dist.Binomial(N, p), obs=y)


def below(y=4):  # the data bound the count from above
    N = numpyro.sample("N", dist.Binomial(9, 0.5))
    numpyro.sample("y", dist.Poisson(1.0).mask(jnp.asarray(True)), obs=y)
    numpyro.factor("bound", jnp.where(y + N <= 9, 0.0, -jnp.inf))


def factor(model, name="N", **options):
    guide = MeanField(model, **options)
    return guide, handlers.trace(handlers.seed(guide, 0)).get_trace()[name]["fn"]


def test_elements_start_inside_what_the_data_allow():
    guide, fn = factor(n_mixture)
    low, high = guide.window("N")
    allowed = np.arange(low, high) >= Y.max(1)[:, None]
    probs = np.asarray(jnp.broadcast_to(fn.probs, (3, 1, high - low)))[:, 0]
    np.testing.assert_array_equal(probs > 0, allowed)
    np.testing.assert_allclose(probs, allowed / allowed.sum(1, keepdims=True), rtol=1e-5)
    assert np.isfinite(fn.log_prob(jnp.zeros((3, 1), int))).all()  # a logarithm that no weight of zero can spoil


def test_bounds_from_above():
    _, fn = factor(below)
    np.testing.assert_array_equal(np.asarray(fn.probs) > 0, np.arange(10) <= 5)


def test_nothing_is_ruled_out_where_all_values_have_a_density():
    def model():
        numpyro.sample("y", dist.Normal(numpyro.sample("N", dist.Poisson(3.0)) * 1.0, 1.0), obs=2.0)

    guide, _ = factor(model)
    assert guide._factors["N"].possible is None


def test_a_bound_beyond_the_window_is_named():
    with pytest.raises(ValueError, match=r"'N' \(Poisson\).*only from 60 on, .*window=\{'N': \(0, 120\)\}"):
        factor(lambda: n_mixture(np.array([[60, 2], [0, 1]]), 3.0))


@pytest.mark.long
def test_gradients_agree_with_enumeration():
    """LeGrad's gradient over all draws of a model with bounded counts is the exact one."""
    model = lambda: handlers.condition(n_mixture, data={"p": 0.4})(Y[:2, :1], 2.0)
    guide = MeanField(model, window={"N": (0, 9)})
    handlers.seed(guide, 0)()
    params = {"N_logits": 0.3 * jnp.asarray(np.random.default_rng(0).normal(size=(2, 1, 9)))}

    def gradient(estimator, key):
        return jax.grad(lambda p: estimator.loss(key, p, model, guide))(params)["N_logits"]

    exact = gradient(legrad.Exact(), jax.random.key(0))
    assert np.isfinite(exact).all()
    keys = jax.random.split(jax.random.key(1), 20)
    found = np.stack([gradient(legrad.LocalExpectation(), key) for key in keys])
    np.testing.assert_allclose(found.mean(0), exact, atol=1e-4)
    assert (np.asarray(exact)[0, 0, :3] == 0).all()


@pytest.mark.long
def test_a_fit_of_an_n_mixture_starts_and_ends_inside():
    result = legrad.fit(n_mixture, MeanField(n_mixture), key=0, steps=300, progress=False)
    assert np.isfinite(result.elbo).all()
    assert (np.asarray(result.sample(jax.random.key(1), 200)["N"])[..., 0] >= Y.max(1)).all()


@pytest.mark.long
def test_a_structured_guide_keeps_counts_inside_too():
    result = legrad.fit(n_mixture, key=0, marginalize=False, steps=300, progress=False)
    assert np.isfinite(result.elbo).all()
    assert (np.asarray(result.sample(jax.random.key(1), 200)["N"])[..., 0] >= Y.max(1)).all()
