"""What a step of LocalExpectation costs: no quadrature that is too costly, and programs that grow linearly."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import legrad

RNG = np.random.default_rng(0)
W = jnp.asarray(RNG.normal(size=(60, 200)) / 8)
V = jnp.asarray(RNG.normal(size=(200, 300)) / 14)


def deep():
    """A net of two layers: after the first, a change is dense."""
    x = numpyro.sample("x", dist.Normal(jnp.zeros(60), 1.0).to_event(1))
    numpyro.sample("y", dist.Normal(jnp.tanh(x @ W) @ V, 1.0).to_event(1), obs=jnp.zeros(300))


def flat():
    """One layer: a quadrature costs little."""
    x = numpyro.sample("x", dist.Normal(jnp.zeros(60), 1.0).to_event(1))
    numpyro.sample("y", dist.Normal(x @ W, 1.0).to_event(1), obs=jnp.zeros(200))


def how(model, **settings):
    return legrad.explain(model, legrad.MeanField(model), estimator=legrad.LocalExpectation(**settings)).methods["x"]


def test_a_costly_quadrature_is_not_the_default():
    assert how(deep).startswith("reparameterized: a quadrature would cost about")
    assert how(deep, sites={"x": "local"}) == "quadrature"
    assert how(deep, continuous="reparam") == "reparameterized"
    assert how(flat, exact_terms=False) == "quadrature"
    assert how(flat) == "exact"


def topics(words):
    """Topics of documents: of the table that the words are looked up in, XLA computes what is read."""
    phi = numpyro.sample("phi", dist.Dirichlet(jnp.full((5, 100), 0.1)).to_event(1))
    with numpyro.plate("documents", 200, dim=-2):
        theta = numpyro.sample("theta", dist.Dirichlet(jnp.full(5, 0.3)))
        with numpyro.plate("words", 40, dim=-1):
            z = numpyro.sample("z", dist.Categorical(theta))
            numpyro.sample("w", dist.Categorical(phi[z]), obs=words)


@pytest.mark.long
def test_topics_are_reparameterized():
    words = jnp.asarray(RNG.integers(0, 100, (200, 40)))
    found = legrad.explain(topics, legrad.MeanField(topics), args=(words,)).methods
    for site in ("phi_base", "theta_base"):
        assert found[site].startswith("reparameterized: a quadrature would cost about")
    assert found["z"] == "summed"


def test_the_estimate_is_that_of_the_reparameterization():
    guide = legrad.MeanField(deep)
    params = legrad.fit(deep, guide, key=jax.random.key(0), steps=1, progress=False).params

    def gradient(**settings):
        loss = legrad.LocalExpectation(**settings).loss
        return jax.jit(jax.grad(lambda p: loss(jax.random.key(1), p, deep, guide)))(params)

    found, wanted = gradient(), gradient(continuous="reparam")
    jax.tree.map(np.testing.assert_array_equal, found, wanted)
    with pytest.raises(AssertionError):
        jax.tree.map(np.testing.assert_array_equal, found, gradient(sites={"x": "local"}))


def test_the_result_says_so():
    result = legrad.fit(deep, legrad.MeanField(deep), key=jax.random.key(0), steps=1, progress=False)
    assert result.method.startswith("LocalExpectation; x is reparameterized: a quadrature would cost about")
    assert result.estimator_name == "LocalExpectation"
    assert legrad.fit(flat, legrad.MeanField(flat), key=jax.random.key(0), steps=1, progress=False).method == (
        "LocalExpectation"
    )


def chain(y):
    z = 0
    for t in range(len(y)):
        z = numpyro.sample(f"z{t}", dist.Bernoulli(jnp.where(z == 1, 0.8, 0.3)))
        numpyro.sample(f"y{t}", dist.Normal(2.0 * z, 1.0), obs=y[t])


@pytest.mark.long
def test_programs_grow_linearly_with_their_statements():
    """Twice as many statements take twice as many lines, and not four times."""

    def lines(length):
        y, guide, loss = jnp.zeros(length), legrad.MeanField(chain), legrad.LocalExpectation().loss
        params = numpyro.infer.SVI(chain, guide, numpyro.optim.Adam(0.1), legrad.LocalExpectation())
        params = params.get_params(params.init(jax.random.key(0), y))
        step = jax.jit(jax.value_and_grad(lambda p, k: loss(k, p, chain, guide, y)))
        return len(step.lower(params, jax.random.key(0)).as_text().splitlines())

    assert lines(12) - lines(8) <= 1.1 * (lines(8) - lines(4))


def test_elements_of_very_different_magnitude():
    """An element of size 1e-3 beside one of 1e3, in float32: what the other adds to f is not subtracted again."""
    rates = jnp.asarray([1e-3, 1e3, 1.0], np.float32)

    def guide():
        rate = numpyro.param("rate", rates)
        numpyro.sample("x", dist.Gamma(jnp.ones(3, np.float32), rate).to_event(1))

    with jax.enable_x64(False):
        for f in (lambda x: jnp.sum(x["x"] ** 2), lambda x: x["x"] ** 2):
            one = jax.grad(lambda p, f=f: legrad.expectation(f, guide, p, key=jax.random.key(1)))
            np.testing.assert_allclose(one({"rate": rates})["rate"], -4.0 / np.asarray(rates, float) ** 3, rtol=2e-3)
