"""The marginal of generated models against joint enumeration, or against densities by hand: value and gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer.util import log_density

import legrad
from sums.generated import FEW, NAMES, case
from sums.oracle import close, discrete_latents


def check(name):
    row = case(name)
    marginal = legrad.marginalize(row.model)
    latents = discrete_latents(row.model, row.args, {}, row.x | row.fixed)
    assert set(marginal.summed(*row.args)) == set(latents), "a latent that can be summed was left over"
    assert close(row.of(marginal), row.expected(), row.tolerance)


@pytest.mark.parametrize("name", FEW)
def test_the_sum_is_exact(name):
    check(name)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in NAMES if name not in FEW])
def test_the_sum_is_exact_on_all_generated_models(name):
    check(name)


@pytest.mark.parametrize("name", ["mixture-1", "array_chain-1"])
def test_the_check_notices_a_small_mistake(name):
    """A density that is off by 1e-8 fails the check."""
    row = case(name)

    def wrong(*args):
        legrad.marginalize(row.model)(*args)
        numpyro.factor("mistake", 1e-8)

    assert not close(row.of(wrong), row.expected(), row.tolerance)


@pytest.mark.parametrize("name", ["scan_chain-1", "occupancy-1"])
def test_arguments_may_be_traced(name):
    """SVI compiles its step with the data as arguments."""
    row = case(name)
    marginal = legrad.marginalize(row.model)

    def value(x, args):
        return log_density(marginal, args, {}, x | row.fixed)[0]

    assert close(jax.jit(jax.value_and_grad(value))(row.x, row.args), row.expected(), row.tolerance)


@pytest.mark.parametrize("name", ["two_in_a_member-0", "global_above_members-0", "factorial_arrays-0"])
def test_sites_that_are_not_named_stay_latent(name):
    row = case(name)
    latents = discrete_latents(row.model, row.args, {}, row.x)
    kept, *named = sorted(latents)
    marginal = legrad.marginalize(row.model, sites=named)
    assert set(marginal.summed(*row.args)) == set(named)
    left = {kept: latents[kept]["value"]}
    expected = row.enumeration(**left).value_and_gradient(row.x)
    assert close(row.of(marginal, **left), expected, row.tolerance)


def test_the_marginal_is_a_model_without_the_sites():
    """Its trace holds the continuous latents, no discrete one, and what plates there are."""
    row = case("mixture-0")
    marginal = legrad.marginalize(row.model)
    trace = handlers.trace(handlers.seed(marginal, jax.random.key(0))).get_trace(*row.args)
    latents = [n for n, s in trace.items() if s["type"] == "sample" and not s["is_observed"]]
    assert sorted(latents) == sorted(row.x)


@pytest.mark.long
def test_a_subsample_is_drawn_by_the_marginal():
    """Under a seed the plate draws its members, and the sum is over those."""
    row = case("subsample-0")
    marginal = legrad.marginalize(row.model)
    seen = set()
    for seed in range(4):
        seeded = handlers.seed(marginal, jax.random.key(seed))
        trace = handlers.trace(handlers.substitute(seeded, data=row.x)).get_trace(*row.args)
        rows = np.asarray(trace["points"]["value"])
        seen.add(tuple(rows))
        value = log_density(handlers.seed(marginal, jax.random.key(seed)), row.args, {}, row.x)[0]
        expected = log_density(marginal, row.args, {}, row.x | {"points": jnp.asarray(rows)})[0]
        np.testing.assert_allclose(value, expected, rtol=1e-12)
    assert len(seen) > 1


def test_a_model_without_discrete_latents_is_itself():
    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    marginal = legrad.marginalize(model)
    assert tuple(marginal.summed(0.3)) == ()
    expected = log_density(model, (0.3,), {}, {"mu": 0.7})[0]
    np.testing.assert_allclose(log_density(marginal, (0.3,), {}, {"mu": 0.7})[0], expected, rtol=1e-14)
