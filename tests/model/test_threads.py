"""Fits in several threads at once end as the same fits one after another."""

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import Trace_ELBO

import legrad
from legrad.singlesite.report import is_listening, listening
from small_fit import numbers, same

Y = jnp.asarray(np.random.default_rng(0).normal(size=8))


def spikes(y):
    with numpyro.plate("N", len(y)):
        z = numpyro.sample("z", dist.Bernoulli(0.3))
        numpyro.sample("y", dist.Normal(2.0 * z, 1.0), obs=y)


def mean(y):
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(m, 1.0).expand([len(y)]).to_event(1), obs=y)


def labels(y):
    with numpyro.plate("N", len(y)):
        k = numpyro.sample("k", dist.Categorical(jnp.array([0.2, 0.5, 0.3])))
        numpyro.sample("y", dist.Normal(jnp.array([-1.0, 0.0, 1.0])[k], 0.5), obs=y)


def fit(model, seed, estimator=None, **settings):
    result = legrad.fit(
        model, legrad.MeanField(model), args=(Y,), key=jax.random.key(seed), estimator=estimator, steps=60,
        progress=False, **settings,
    )  # fmt: skip
    draws = result.sample(jax.random.key(1), 5)
    return [*numbers(result), *map(np.asarray, draws.values()), np.asarray(result.elbo_estimate(KEY, 50).elbo)]


KEY = jax.random.key(7)
FITS = [
    (spikes, 0, None),
    (mean, 1, Trace_ELBO()),
    (labels, 2, None),
    (mean, 3, legrad.Reparameterized()),
]


@pytest.fixture(scope="module")
def sequential():
    return [fit(*settings) for settings in FITS]


@pytest.mark.parametrize("threads", [2, pytest.param(4, marks=pytest.mark.long)])
def test_fits_in_threads_are_those_in_sequence(sequential, threads):
    with ThreadPoolExecutor(threads) as pool:
        together = list(pool.map(lambda settings: fit(*settings), FITS[:threads]))
    for a, b in zip(together, sequential, strict=False):
        assert same(a, b)


def test_an_explanation_listens_to_its_own_thread():
    with listening(), ThreadPoolExecutor(1) as pool:
        assert is_listening()
        assert not pool.submit(is_listening).result()
