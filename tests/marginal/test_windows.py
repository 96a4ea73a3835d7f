"""Counts without an upper end: where the window is, and that what it leaves out is noticed."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import log_density
from scipy import stats
from scipy.special import logsumexp

import legrad


def counted(y):
    rate = numpyro.sample("rate", dist.Exponential(0.001))
    n = numpyro.sample("n", dist.Poisson(rate))
    numpyro.sample("y", dist.Normal(n, 100.0), obs=y)


def truth(y, rate):
    k = np.arange(20_000)
    each = stats.poisson.logpmf(k, rate) + stats.norm.logpdf(y, k, 100.0)
    return logsumexp(each) + stats.expon.logpdf(rate, scale=1000.0)


def value(marginal, y, rate):
    found = jax.jit(lambda r: log_density(marginal, (y,), {}, {"rate": r})[0])(jnp.asarray(rate))
    jax.effects_barrier()
    return float(found)


@pytest.mark.parametrize(("y", "rate", "window"), [(3.0, 4.0, 128), (40.0, 80.0, 256), (1000.0, 1000.0, 1024)])
def test_a_window_that_is_wide_enough_is_exact(y, rate, window):
    """From zero, moved, and far from zero."""
    np.testing.assert_allclose(value(legrad.marginalize(counted, window=window), y, rate), truth(y, rate), atol=1e-9)


def test_a_window_that_is_too_narrow_warns_once_with_the_remedy():
    marginal = legrad.marginalize(counted, window=64)
    with pytest.warns(UserWarning, match="'n'.*window=256"):
        found = value(marginal, 1000.0, 1000.0)
    assert abs(found - truth(1000.0, 1000.0)) > 1e-3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        value(marginal, 1000.0, 1000.0)


def test_the_window_follows_factors_with_other_latents():
    """A count whose prior is seen together with another latent: its own terms alone would put the window at zero."""

    def model():
        scale = numpyro.sample("scale", dist.Exponential(1.0))
        high = numpyro.sample("high", dist.Bernoulli(0.5))
        numpyro.sample("n", dist.Poisson(scale * jnp.where(high, 420.0, 400.0)))

    marginal = legrad.marginalize(model, window=1024)
    found = jax.jit(lambda x: log_density(marginal, (), {}, {"scale": x})[0])(1.0)
    np.testing.assert_allclose(found, -1.0, atol=1e-9)  # the sum over both is 1: what is left is the prior of scale


def test_windows_under_vmap():
    """Chains that run side by side: one may need a window far from zero."""
    marginal = legrad.marginalize(counted, window=1024)
    rates = jnp.array([4.0, 1000.0])
    found = jax.vmap(lambda r: log_density(marginal, (50.0,), {}, {"rate": r})[0])(rates)
    np.testing.assert_allclose(found, [truth(50.0, float(r)) for r in rates], atol=1e-9)
