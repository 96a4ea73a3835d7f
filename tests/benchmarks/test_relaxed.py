"""REBAR and RELAX of the benchmarks against the exact gradient, and what they refuse."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from peers import relaxed, sbn_data

import legrad
from catalogue import Row, named
from checking import draw_until, flat, gradient_of
from legrad.experiments import sbn

pytestmark = pytest.mark.long

KEY = jax.random.key(0)
WANTED = 0.05  # the relative bias that a check must be able to catch
NAMES = (
    "independent_bernoullis",
    "amortized_guide",
    "learned_model_parameters",
    "subsampled_plate",
    "continuous_parent_discrete_child",
)


@cache
def random_relax(name):
    """A control variate that was not trained: the estimator must be unbiased with any."""
    row = named(name)
    control = relaxed.start(KEY, row.params, row.model, row.guide, *row.args, hidden=4)
    leaves, tree = jax.tree.flatten(control)
    noise = [0.3 * jax.random.normal(jax.random.fold_in(KEY, i), jnp.shape(a)) for i, a in enumerate(leaves)]
    return relaxed.Relax(jax.tree.unflatten(tree, [a + e for a, e in zip(leaves, noise, strict=True)]))


ESTIMATORS = {
    "rebar": lambda name: relaxed.Rebar(),
    "rebar, other settings": lambda name: relaxed.Rebar(temperature=0.2, eta=0.6, num_samples=2),
    "relax": random_relax,
}
PAIRS = [(row, "rebar") for row in NAMES] + [(row, "relax") for row in NAMES] + [(NAMES[0], "rebar, other settings")]


@pytest.mark.parametrize(("row", "estimator"), PAIRS)
def test_gradient_is_exact_in_the_mean(row, estimator):
    estimator, row = ESTIMATORS[estimator](row), named(row)
    exact = flat(jax.jit(jax.grad(row.loss))(row.params))
    estimate = draw_until(gradient_of(estimator, row), exact, WANTED)
    assert estimate.agrees(exact), (estimate.mean, exact, estimate.error)
    assert estimate.detectable(exact)[0] <= WANTED


def variance(estimator, row, draws=4000):
    gradients = jax.jit(jax.vmap(gradient_of(estimator, row)))(jax.random.split(jax.random.key(3), draws))
    return np.mean([np.var(leaf, axis=0).mean() for leaf in jax.tree.leaves(gradients)])


def test_training_lowers_the_variance():
    row = named("amortized_guide")
    problem = (KEY, row.params, row.model, row.guide, *row.args)
    score, rebar = variance(relaxed.Rebar(eta=0.0), row), variance(relaxed.Rebar(), row)
    np.testing.assert_allclose(
        score, variance(legrad.ScoreFunction(), row), rtol=0.2
    )  # eta = 0 is the score function
    assert rebar < score
    assert variance(relaxed.tune(*problem), row) < 0.7 * rebar
    assert variance(relaxed.train(*problem), row) < 0.7 * rebar


def test_the_control_variate_takes_most_of_the_variance_of_a_belief_net():
    found = sbn_data.sbn(hidden=10, batch=4, pixels=60)
    params = {name: jnp.asarray(value, float) for name, value in found.params.items()}
    net = Row("net", sbn.model, sbn.guide, params, (jnp.asarray(found.images.astype(int)), (10,)))
    assert variance(relaxed.Rebar(), net, 1000) < 0.01 * variance(legrad.ScoreFunction(), net, 1000)


def test_the_value_is_the_negative_elbo():
    row = named("independent_bernoullis")
    exact = row.loss(row.params)
    values = jax.jit(jax.vmap(lambda k: relaxed.Rebar().loss(k, row.params, row.model, row.guide)))(
        jax.random.split(KEY, 20_000)
    )
    assert abs(np.mean(values) - exact) <= 5 * np.std(values) / np.sqrt(len(values))


# --- what is refused -------------------------------------------------------------------------------------------


def refused(name, match):
    row = named(name)
    with pytest.raises(ValueError, match=match):
        relaxed.Rebar().loss(KEY, row.params, row.model, row.guide, *row.args)


def test_discrete_sites_that_depend_on_each_other():
    refused("two_layers", "site 'h2' of the guide depends on h1")


def test_a_model_that_indexes_by_a_latent():
    refused("bernoulli_probs", "cannot be evaluated where 'a', 'b' lies between 0 and 1")


def test_other_discrete_sites():
    refused("categorical", "site 'a' of the guide is Categorical")


def test_a_bernoulli_inside_scan():
    refused("scanned_chain", "inside scan")


def test_a_temperature_of_zero():
    with pytest.raises(ValueError, match="must be positive"):
        relaxed.Rebar(temperature=0.0)


def test_a_guide_without_discrete_sites_is_reparameterized():
    def model():
        numpyro.sample("x", dist.Normal(0.0, 1.0))

    def guide():
        numpyro.sample("x", dist.Normal(numpyro.param("m", 0.5), 1.0))

    losses = [e.loss(KEY, {"m": 0.5}, model, guide) for e in (relaxed.Rebar(), legrad.Reparameterized())]
    np.testing.assert_allclose(*losses)
