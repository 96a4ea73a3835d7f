"""`legrad.natural_gradient` as an optimizer: of exact and stochastic gradients, minibatches, and mixed guides."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.distributions import constraints

import legrad

RNG = np.random.default_rng(0)
Y = jnp.asarray(RNG.normal(size=40) + 3.0)


def conjugate(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def test_one_full_step_solves_a_conjugate_model():
    """With an exact gradient, a step of one from the right scale goes to the posterior's mean at once."""
    guide = legrad.MeanField(conjugate, init_scale=float((40 + 0.01) ** -0.5))
    optimizer = legrad.natural_gradient(guide, 1.0, args=(Y,), radius=None)
    result = legrad.fit(conjugate, guide, args=(Y,), key=0, optimizer=optimizer, steps=1, progress=False)
    assert result.params["mu_loc"] == pytest.approx(float(Y.sum() / 40.01), abs=1e-6)


@pytest.mark.long
def test_minibatches_of_a_plate():
    """A subsampled plate: the Fisher information is that of all members, the gradient that of the batch."""
    logits = jnp.asarray(RNG.normal(size=60) * 3)

    def model():
        with numpyro.plate("items", 60, subsample_size=20) as i:
            z = numpyro.sample("z", dist.Bernoulli(0.5))
            numpyro.factor("data", logits[i] * z)

    guide = legrad.MeanField(model)
    optimizer = legrad.natural_gradient(guide, optax.exponential_decay(0.3, 1, 0.98))
    result = legrad.fit(model, guide, key=0, optimizer=optimizer, steps=300, progress=False)
    np.testing.assert_allclose(result.params["z_logits"], logits, atol=0.05)

    def by_hand():
        l = numpyro.param("l", jnp.zeros(60))
        with numpyro.plate("items", 60, subsample_size=20) as i:
            numpyro.sample("z", dist.Bernoulli(logits=l[i]))

    optimizer = legrad.natural_gradient(by_hand, optax.exponential_decay(0.3, 1, 0.98))
    result = legrad.fit(model, by_hand, key=0, optimizer=optimizer, steps=300, progress=False)
    np.testing.assert_allclose(result.params["l"], logits, atol=0.05)


def test_numpyro_svi_and_restarts():
    guide = legrad.MeanField(conjugate)
    optimizer = legrad.natural_gradient(guide, 0.5, args=(Y,))
    svi = numpyro.infer.SVI(conjugate, guide, numpyro.optim.optax_to_numpyro(optimizer), legrad.LocalExpectation())
    found = svi.run(jax.random.key(0), 40, Y, progress_bar=False)
    assert found.params["mu_loc"] == pytest.approx(float(Y.sum() / 40.01), abs=0.01)
    result = legrad.fit(conjugate, guide, args=(Y,), key=0, optimizer=optimizer, steps=40, restarts=2, progress=False)
    assert result.params["mu_loc"] == pytest.approx(float(Y.sum() / 40.01), abs=0.01)


def mixed(y):
    scale = numpyro.param("scale", 2.0, constraint=constraints.positive)
    mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(mu, scale), obs=y)


def student(y):
    numpyro.sample("mu", dist.StudentT(5.0, numpyro.param("m", 1.0), 0.1))


def test_what_belongs_to_no_factor_is_left_to_others_and_named():
    guide = legrad.MeanField(mixed)
    params = {"mu_loc": jnp.zeros(()), "mu_log_scale": jnp.zeros(()), "scale": jnp.zeros(())}
    ones = jax.tree.map(jnp.ones_like, params)
    optimizer = legrad.natural_gradient(guide, 0.1, args=(Y,), others=optax.sgd(0.01))
    step, _ = optimizer.update(ones, optimizer.init(params), params)
    assert step["scale"] == pytest.approx(-0.01)
    assert step["mu_loc"] == pytest.approx(-0.1)
    assert step["mu_log_scale"] == pytest.approx(-0.05)
    plain = legrad.natural_gradient(guide, args=(Y,))
    step, _ = plain.update(ones, plain.init(params), params)
    assert step["scale"] == pytest.approx(1.0)
    assert step["mu_log_scale"] == pytest.approx(0.5)
    with pytest.warns(legrad.FitWarning, match="'m' has no natural gradient, as the Fisher information of 'mu'"):
        legrad.natural_gradient(student, 0.1, args=(Y,)).init({"m": jnp.zeros(())})


def test_a_guide_with_dependent_sites():
    """A site that depends on another has no natural gradient; its parent keeps one."""

    def guide():
        a = numpyro.sample("a", dist.Normal(numpyro.param("a_loc", 0.5), 0.2))
        numpyro.sample("b", dist.Normal(numpyro.param("slope", 1.0) * a, 1.0))

    params = {"a_loc": jnp.asarray(0.5), "slope": jnp.asarray(1.0)}
    with pytest.warns(legrad.FitWarning, match="'slope' has no natural gradient, as 'b' is not a factor of its own"):
        optimizer = legrad.natural_gradient(guide)
        step, _ = optimizer.update(jax.tree.map(jnp.ones_like, params), optimizer.init(params), params)
    assert step["a_loc"] == pytest.approx(0.04)
    assert step["slope"] == 1.0


def test_radius():
    """A step that would move a factor far is shortened to the radius, in standard deviations of the factor."""
    guide = legrad.MeanField(conjugate, init_scale=0.5)
    params = {"mu_loc": jnp.zeros(()), "mu_log_scale": jnp.log(0.5)}
    gradient = {"mu_loc": jnp.asarray(1e6), "mu_log_scale": jnp.asarray(0.0)}
    optimizer = legrad.natural_gradient(guide, 0.1, args=(Y,), radius=2.0)
    step, _ = optimizer.update(gradient, optimizer.init(params), params)
    assert step["mu_loc"] == pytest.approx(-1.0)


def test_errors():
    guide = legrad.MeanField(conjugate)
    with pytest.raises(ValueError, match="radius"):
        legrad.natural_gradient(guide, args=(Y,), radius=0.0)
    with pytest.raises(ValueError, match="learning_rate"):
        legrad.natural_gradient(guide, -1.0, args=(Y,))
    with pytest.raises(ValueError, match="others"):
        legrad.natural_gradient(guide, args=(Y,), others=optax.sgd(0.1))
    with pytest.raises(ValueError, match="lack 'mu_loc'"):
        legrad.natural_gradient(guide, args=(Y,)).init({"other": jnp.zeros(())})
