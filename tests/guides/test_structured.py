"""Structured: a guide whose continuous latents are jointly Gaussian, with every estimator, plates, subsampling."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.distributions import biject_to

import legrad
from legrad.guides.whitened import WhitenedCholesky, WhitenedVector


def plated(y, subsample_size=None):
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    s = numpyro.sample("s", dist.HalfNormal(1.0))
    w = numpyro.sample("w", dist.Dirichlet(jnp.ones(3)))
    with numpyro.plate("n", 6, subsample_size=subsample_size):
        b = numpyro.sample("b", dist.Normal(a, s))
        z = numpyro.sample("z", dist.Bernoulli(0.3))
        numpyro.sample("y", dist.Normal(b + z + w[0], 1.0), obs=y)


def pair():
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    numpyro.sample("b", dist.Normal(a, 0.1))


@pytest.mark.parametrize("size", [None, 3])
def test_samples_all_latents_of_a_model_with_plates(size):
    y = np.ones(size or 6)
    guide = legrad.Structured(plated)
    values = handlers.seed(guide, 0)(y, size)
    assert {name: value.shape for name, value in values.items()} == {
        "a": (), "s": (), "w": (3,), "b": (size or 6,), "z": (size or 6,),
    }  # fmt: skip
    whole = handlers.seed(guide.whole, 0)(y, size)
    assert whole["b"].shape == (6,)
    params = handlers.trace(handlers.seed(guide, 0)).get_trace(y, size)
    assert ("b_members_given" in params) == (size == 3)  # members of a subsampled plate, given the other latents


def density_of_guide(guide, args=()):
    """log q of the model's own latents at a draw, from the guide's sites."""
    trace = handlers.trace(handlers.seed(guide, 3)).get_trace(*args)
    total = sum(site["fn"].log_prob(site["value"]).sum() for site in trace.values() if site["type"] == "sample")
    return total, {name: site["value"] for name, site in trace.items() if site["type"] == "sample"}


def test_density_is_that_of_the_transformed_gaussian():
    def model():
        numpyro.sample("s", dist.LogNormal(0.0, 1.0))

    total, values = density_of_guide(legrad.Structured(model, init_scale=0.7))
    trace = handlers.trace(handlers.seed(legrad.Structured(model, init_scale=0.7), 3)).get_trace()
    loc = trace["latents_loc"]["value"][0]
    exact = dist.LogNormal(loc, 0.7).log_prob(values["s"])
    np.testing.assert_allclose(total, exact, rtol=1e-6)


def test_noncentered_density_is_that_of_the_site():
    """With a standard Normal for the base of b, q(b | a) is the model's own conditional."""
    guide = legrad.Structured(pair, noncentered=["b"], init_scale=1.0)
    total, values = density_of_guide(guide)
    trace = handlers.trace(handlers.seed(guide, 3)).get_trace()
    loc = trace["latents_noncentered_b_loc"]["value"]
    exact = dist.Normal(loc[0], 1.0).log_prob(values["a"]) + dist.Normal(values["a"] + 0.1 * loc[1], 0.1).log_prob(
        values["b"]
    )
    np.testing.assert_allclose(total, exact, rtol=1e-6)


def stick(n=(3, 5, 2)):
    """Breaks a stick twice: the bound of the second piece is what the first leaves."""
    a = numpyro.sample("a", dist.Uniform(0.0, 1.0))
    with numpyro.plate("two", 2):
        b = numpyro.sample("b", dist.Uniform(0.0, 1.0 - a))
    numpyro.factor("n", n[0] * jnp.log(a) + n[1] * jnp.log(b).sum() + n[2] * jnp.log1p(-a - b).sum())


def test_supports_that_depend_on_other_latents_have_the_right_density():
    guide = legrad.Structured(stick)
    space = guide.space()
    x = jnp.array([0.3, -1.0, 2.0])

    def values(x):
        placed = space.place(x, (), {})
        return jnp.concatenate([placed["a"][0][None], placed["b"][0]])

    z = values(x)
    assert (z[1:] < 1 - z[0]).all()
    stretch = sum(jnp.sum(s) for _, s in space.place(x, (), {}).values())
    np.testing.assert_allclose(stretch, jnp.linalg.slogdet(jax.jacobian(values)(x))[1], rtol=1e-5)
    a, b = np.asarray(z[0]), np.asarray(z[1:])
    exact = 3 * np.log(a) + np.sum(5 * np.log(b) + 2 * np.log1p(-a - b)) - 2 * np.log1p(-a) + stretch
    np.testing.assert_allclose(space.log_density(x, (), {}), exact, rtol=1e-5)
    assert (
        np.asarray(legrad.Structured(stick).space()._prior) < 10
    ).all()  # draws of the prior, through their bounds


@pytest.mark.long
def test_a_fit_with_a_support_that_depends_on_other_latents():
    result = legrad.fit(stick, key=0)
    draws = result.sample(1, 4000, corrected=True)
    # Given a, b / (1 - a) is Beta(6, 3), and a is Beta(4, 15) by powers of 1 - a: 5 + 2 for each of two b.
    share = np.asarray(draws["b"]) / (1 - np.asarray(draws["a"])[:, None])
    np.testing.assert_allclose(np.mean(draws["a"]), 4 / 19, atol=0.006)
    np.testing.assert_allclose(np.std(draws["a"]), np.sqrt(4 * 15 / 19**2 / 20), rtol=0.07)
    np.testing.assert_allclose(share.mean(0), 6 / 9, atol=0.01)


def test_a_support_that_depends_on_a_discrete_latent_is_named():
    def model():
        z = numpyro.sample("z", dist.Bernoulli(0.5))
        numpyro.sample("b", dist.Uniform(0.0, 1.0 + z))

    with pytest.raises(ValueError, match="'b'.*depends on discrete latents"):
        handlers.seed(legrad.Structured(model), 0)()


@pytest.mark.long
@pytest.mark.parametrize("estimator", [legrad.LocalExpectation(), legrad.LocalExpectation(continuous="reparam")])
def test_the_stochastic_loop_fits_mixed_latents(estimator):
    guide = legrad.Structured(plated)
    result = legrad.fit(
        plated, guide, args=(np.ones(6),), key=jax.random.key(0), steps=400, estimator=estimator, progress=False
    )
    assert result.elbo[-100:].mean() > result.elbo[:20].mean()
    draws = result.sample(jax.random.key(1), 50)
    assert draws["b"].shape == (50, 6)
    assert np.isfinite(result.elbo_estimate(jax.random.key(2), 200).elbo)


@pytest.mark.long
def test_subsampled_plates_use_the_loop():
    result = legrad.fit(plated, args=(np.ones(3), 3), key=jax.random.key(0), steps=100, progress=False)
    assert not result.how
    assert result.params["b_members_loc"].shape == (6, 1)
    assert result.sample(jax.random.key(1), 5)["b"].shape == (5, 6)


def test_whitened_parameters_are_the_plain_ones_in_other_coordinates():
    rng = np.random.default_rng(0)
    center, tril = rng.normal(size=3), np.tril(rng.normal(size=(3, 3)), -1) + np.diag([1.0, 20.0, 0.1])
    vector, matrix = biject_to(WhitenedVector(center, tril)), biject_to(WhitenedCholesky(tril))
    np.testing.assert_allclose(vector(jnp.zeros(3)), center)
    np.testing.assert_allclose(matrix(jnp.zeros(6)), tril)
    u = jnp.asarray(rng.normal(size=6))
    np.testing.assert_allclose(matrix.inv(matrix(u)), u, atol=1e-10)
    steps = jax.jacobian(lambda u: matrix(u)[np.tril_indices(3)])(u)
    np.testing.assert_allclose(matrix.log_abs_det_jacobian(u, matrix(u)), np.linalg.slogdet(steps)[1], rtol=1e-10)


def test_a_fit_in_whitened_coordinates_has_plain_parameters():
    guide = legrad.Structured(pair)
    tril = np.linalg.cholesky([[1.0, 1.0], [1.0, 1.01]])
    guide.whiten(np.zeros(2), tril)
    result = legrad.fit(pair, guide, key=jax.random.key(0), steps=20, progress=False)
    got = result.params["latents_scale_tril"]
    np.testing.assert_allclose(got @ got.T, tril @ tril.T, rtol=0.6)


def test_names_what_it_cannot_take():
    with pytest.raises(ValueError, match=r"noncentered names \['c'\]"):
        handlers.seed(legrad.Structured(pair, noncentered=["c"]), 0)()
    with pytest.raises(ValueError, match="needs a NumPyro model"):
        legrad.Structured(legrad.log_density(lambda z: z["a"]))

    def taken():
        numpyro.sample("latents", dist.Normal(0.0, 1.0))

    with pytest.raises(ValueError, match="pass prefix='q_'"):
        handlers.seed(legrad.Structured(taken), 0)()
