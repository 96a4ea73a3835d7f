"""Bad input: the message names the site and says what to do."""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import log_density

import legrad

Y = jnp.array([0.3, -1.0, 1.4])
X = {"mu": jnp.array([-1.0, 1.0])}


def mixture(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("points", len(y)):
        z = numpyro.sample("assignment", dist.Categorical(jnp.array([0.4, 0.6])))
        numpyro.sample("y", dist.Normal(mu[z], 1.0), obs=y)


def coupled(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    z = numpyro.sample("switches", dist.Bernoulli(0.5).expand([16]).to_event(1))
    numpyro.sample("y", dist.Normal(mu[0] + jnp.sin(z.sum() * mu[1]) * jnp.prod(1.0 + 0.1 * z), 1.0), obs=y[0])


def evaluate(model, sites=None, **settings):
    """Everything that can find a mistake: making the marginal, and running it."""
    marginal = legrad.marginalize(model, sites, **settings)
    return log_density(marginal, (Y,), {}, X)[0]


def test_an_unknown_site_is_named_beside_those_there_are():
    with pytest.raises(ValueError, match="assignmnet") as caught:
        evaluate(mixture, ["assignmnet"])
    assert "'assignment'" in str(caught.value)


def test_a_continuous_site_cannot_be_summed():
    with pytest.raises(ValueError, match="'mu'") as caught:
        evaluate(mixture, ["mu"])
    assert "continuous" in str(caught.value) or "discrete" in str(caught.value)


def test_observed_data_cannot_be_summed():
    with pytest.raises(ValueError, match="'y'"):
        evaluate(mixture, ["y"])


def test_a_sum_larger_than_the_limit_names_its_size_and_the_limit():
    """2^16 configurations; a site that was named must not be left over in silence."""
    with pytest.raises(ValueError, match="'switches'") as caught:
        evaluate(coupled, ["switches"])
    said = str(caught.value)
    assert "limit" in said
    assert "4096" in said or "4,096" in said
    assert "65536" in said or "65,536" in said


def test_a_limit_that_is_too_small_names_the_remedy():
    with pytest.raises(ValueError, match="limit="):
        evaluate(coupled, ["switches"], limit=2)


@pytest.mark.parametrize("limit", [0, -3, 2.5])
def test_a_limit_is_a_positive_integer(limit):
    with pytest.raises((ValueError, TypeError), match="limit"):
        evaluate(mixture, limit=limit)


def test_sites_that_change_between_runs_are_named():
    """A model with state: from its second run on, the discrete site has another name."""
    runs = []

    def fickle(y):
        runs.append(None)
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        with numpyro.plate("points", len(y)):
            z = numpyro.sample(f"z_{len(runs)}", dist.Categorical(jnp.array([0.4, 0.6])))
            numpyro.sample("y", dist.Normal(mu[z], 1.0), obs=y)

    with pytest.raises((ValueError, RuntimeError), match="z_1|z_2") as caught:
        marginal = legrad.marginalize(fickle)
        for _ in range(3):
            log_density(marginal, (Y,), {}, X)
    assert "run" in str(caught.value) or "change" in str(caught.value)


def test_recover_names_a_site_that_the_draws_lack():
    marginal = legrad.marginalize(mixture)
    with pytest.raises((ValueError, KeyError), match="'mu'"):
        marginal.recover(jax.random.key(0), {"nu": jnp.zeros((4, 2))}, Y)


def test_a_model_must_be_callable():
    with pytest.raises(TypeError, match="model"):
        legrad.marginalize(3)
