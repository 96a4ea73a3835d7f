"""What is read from model and guide: terms as NumPyro counts them, parents, and legal input of every kind."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer import Trace_ELBO

import legrad
from legrad.estimators.costs import descendants, fixed_parents
from legrad.model.problem import Noise, Problem

KEY = jax.random.key(0)
D3 = jnp.array([1.0, 2.0, 3.0])


def latent():
    return numpyro.sample("m", dist.Normal(0.0, 1.0))


def factor_in_a_plate():
    m = latent()
    with numpyro.plate("N", 5):
        numpyro.factor("f", -(m**2))


def one_datum_for_a_plate():
    m = latent()
    with numpyro.plate("N", 5):
        numpyro.sample("y", dist.Normal(m, 1.0), obs=1.0)


def a_row_of_data_for_two_plates():
    m = latent()
    with numpyro.plate("rows", 4, dim=-2), numpyro.plate("cols", 3, dim=-1):
        numpyro.sample("y", dist.Normal(m, 1.0), obs=D3)


def one_vector_for_a_plate():
    m = latent()
    with numpyro.plate("N", 6):
        numpyro.sample("y", dist.MultivariateNormal(m * jnp.ones(2), jnp.eye(2)), obs=jnp.ones(2))


def factor_in_a_subsample():
    m = latent()
    with numpyro.plate("N", 10, subsample_size=5):
        numpyro.factor("f", m)


def scale_by_member_with_events():
    m = latent()
    with handlers.scale(scale=D3), numpyro.plate("N", 3):
        numpyro.sample("y", dist.Normal(m * jnp.ones(3), 1.0).to_event(1), obs=jnp.arange(9.0).reshape(3, 3))


def scale_by_member_with_other_events():
    m = latent()
    with handlers.scale(scale=D3), numpyro.plate("N", 3):
        numpyro.sample("y", dist.Normal(m * jnp.ones(2), 1.0).to_event(1), obs=jnp.ones((3, 2)))


def masks_inside_and_outside():
    m = latent()
    inner = dist.Normal(m * jnp.ones((2, 3)), 1.0).mask(jnp.array([True, False, True])).to_event(1)
    numpyro.sample("y", inner.mask(jnp.array([True, False])), obs=jnp.ones((2, 3)))


def sample_shape_of_data():
    m = latent()
    numpyro.sample("y", dist.Normal(m, 1.0), sample_shape=(3,), obs=D3)


MODELS = [
    factor_in_a_plate,
    one_datum_for_a_plate,
    a_row_of_data_for_two_plates,
    one_vector_for_a_plate,
    factor_in_a_subsample,
    scale_by_member_with_events,
    scale_by_member_with_other_events,
    masks_inside_and_outside,
    sample_shape_of_data,
]


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.__name__)
def test_terms_are_counted_as_numpyro_counts_them(model):
    """With a Delta guide nothing is random: loss and gradient must be NumPyro's."""

    def guide():
        numpyro.sample("m", dist.Delta(numpyro.param("loc", 0.0)))

    params = {"loc": jnp.array(0.7)}
    ours = jax.value_and_grad(lambda p: legrad.Reparameterized().loss(KEY, p, model, guide))(params)
    theirs = jax.value_and_grad(lambda p: Trace_ELBO().loss(KEY, p, model, guide))(params)
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-9)
    np.testing.assert_allclose(ours[1]["loc"], theirs[1]["loc"], rtol=1e-9)


def test_log_q_is_scaled_and_masked_in_f_and_bare_as_a_factor():
    def guide():
        with handlers.scale(scale=5.0), numpyro.plate("N", 3):
            numpyro.sample("m", dist.Normal(0.0, 2.0).mask(jnp.array([True, False, True])))

    problem, noise = Problem(legrad.log_density(lambda x: x["m"]), guide, {}), Noise(KEY, KEY)
    pivot = problem.draw(noise)
    here = problem.evaluate_draw(pivot, {}, noise)
    bare = dist.Normal(0.0, 2.0).log_prob(pivot["m"].value)
    np.testing.assert_allclose(here.minus_log_q["m"], -5.0 * bare * jnp.array([1.0, 0.0, 1.0]), rtol=1e-12)
    np.testing.assert_allclose(here.factors["m"].log_prob(), bare, rtol=1e-12)


@pytest.mark.long
def test_scales_of_the_guide_follow_the_batch_axes():
    """An array of scales beside a to_event site: against the sum written out."""

    def guide():
        l = numpyro.param("l", jnp.zeros((2, 2)))
        with handlers.scale(scale=jnp.array([1.0, 3.0])), numpyro.plate("N", 2):
            numpyro.sample("z", dist.Bernoulli(logits=l).to_event(1))

    def model():
        with handlers.scale(scale=jnp.array([1.0, 3.0])), numpyro.plate("N", 2):
            numpyro.sample("z", dist.Bernoulli(0.3 * jnp.ones((2, 2))).to_event(1))

    def elbo(l):
        q, p = jax.nn.sigmoid(l), 0.3
        kl = q * jnp.log(q / p) + (1 - q) * jnp.log((1 - q) / (1 - p))
        return -jnp.sum(jnp.array([[1.0], [3.0]]) * kl)

    l = jnp.array([[0.3, -0.5], [1.0, 0.2]])
    for estimator in (legrad.Exact(), legrad.LocalExpectation()):
        ours = jax.grad(lambda p, e=estimator: -e.loss(KEY, p, model, guide))({"l": l})["l"]
        np.testing.assert_allclose(ours, jax.grad(elbo)(l), rtol=1e-9)


def test_parents():
    def guide():
        a = numpyro.sample("a", dist.Bernoulli(0.5))
        x = numpyro.sample("x", dist.Normal(a, 1.0))
        b = numpyro.sample("b", dist.Bernoulli(logits=x))
        numpyro.sample("c", dist.Bernoulli(0.3))
        numpyro.sample("d", dist.Bernoulli(logits=1.0 * b))

    problem = Problem(guide, guide, {})
    noise = Noise(*jax.random.split(KEY))
    parents = problem.parents(problem.draw(noise), noise)
    assert parents == {"a": set(), "x": {"a"}, "b": {"x"}, "c": set(), "d": {"b"}}
    fixed = ["a", "b", "c", "d"]
    assert fixed_parents(fixed, parents) == {"a": set(), "b": {"a"}, "c": set(), "d": {"b"}}
    assert descendants(fixed_parents(fixed, parents)) == {"a": {"b", "d"}, "b": {"d"}, "c": set(), "d": set()}


def test_cycles_of_a_scan_end():
    parents = {"z": frozenset({"s"}), "s": frozenset({"z"}), "x": frozenset({"s"})}
    assert descendants(parents)["z"] == {"z", "s", "x"}
    assert fixed_parents(["x"], parents) == {"x": frozenset()}


@pytest.mark.parametrize(
    "estimator", [legrad.LocalExpectation(), legrad.ScoreFunction(), legrad.DisARM(), legrad.Exact()]
)
def test_an_empty_site_and_a_sample_shape(estimator):
    def model():
        numpyro.sample("none", dist.Bernoulli(jnp.zeros(0)).to_event(1))
        numpyro.sample("z", dist.Bernoulli(0.4), sample_shape=(3,))

    def guide():
        numpyro.sample("none", dist.Bernoulli(logits=jnp.zeros(0)).to_event(1))
        numpyro.sample("z", dist.Bernoulli(logits=numpyro.param("l", 0.3)), sample_shape=(3,))

    assert np.isfinite(estimator.loss(KEY, {"l": jnp.array(0.3)}, model, guide))


def test_arguments_of_every_kind():
    """Sizes and strings stay what they are; only arrays are data."""

    def model(y, n, link, scale=1.0, weights=None):
        assert link == "identity"
        with numpyro.plate("N", n):
            z = numpyro.sample("z", dist.Bernoulli(0.4))
            numpyro.sample("y", dist.Normal(z * weights, scale), obs=y)

    arguments = {"args": (np.array([0.2, 1.0, 0.4]), 3, "identity"), "kwargs": {"weights": jnp.ones(3)}}
    result = legrad.fit(
        model, legrad.MeanField(model), key=jax.random.PRNGKey(0), steps=3, progress=False, **arguments
    )
    assert np.isfinite(result.elbo).all()


def test_a_boolean_function_has_an_expectation():
    def guide():
        numpyro.sample("z", dist.Bernoulli(logits=numpyro.param("l", jnp.zeros(2))).to_event(1))

    value = legrad.expectation(
        lambda x: x["z"].sum() > 1, guide, {"l": jnp.zeros(2)}, key=KEY, estimator=legrad.Exact()
    )
    np.testing.assert_allclose(value, 0.25)
