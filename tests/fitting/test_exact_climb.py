"""Which fits climb an ELBO without noise, and what comes of it."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest

import legrad
from legrad.fitting.exact_climb import has_no_noise
from legrad.model.problem import Problem

RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(60, 5)))
Y = 2.0 * X[:, 0] - X[:, 3] + jnp.asarray(RNG.normal(size=60))


def slab(X, y):
    with numpyro.plate("features", X.shape[1]):
        included = numpyro.sample("included", dist.Bernoulli(0.2))
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", dist.Normal(X @ (included * slope), 1.0), obs=y)


@pytest.mark.long
def test_exact_terms_are_climbed_from_every_start():
    guide = legrad.MeanField(slab)
    result = legrad.fit(slab, guide, args=(X, Y), key=0, restarts=3, progress=False)
    assert result.converged
    assert result.deterministic
    assert "no noise" in result.method
    assert all(one.converged for one in result.restarts)
    assert result.elbo[-1] == max(one.elbo[-1] for one in result.restarts)
    settings = {"args": (X, Y), "key": 0, "progress": False}
    adam = legrad.fit(slab, guide, optimizer=optax.adam(0.05), steps=1500, **settings)
    assert result.elbo[-1] >= adam.elbo[-1] - 1e-3 * abs(adam.elbo[-1] - adam.elbo[0])
    np.testing.assert_array_equal(np.asarray(result.params["included_logits"]) > 0, [True, False, False, True, False])


def part(y):
    """A subsampled plate: which rows a step sees is random."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", len(y), subsample_size=10) as i:
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y[i])


def jump(y):
    """A function with a jump, of which no quadrature is exact."""
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(jnp.where(a > 0.3, 1.0, 0.0), 1.0).expand([len(y)]).to_event(1), obs=y)


@pytest.mark.filterwarnings("ignore::legrad.FitWarning")  # the quadrature of a jump is not accurate
@pytest.mark.parametrize(
    ("model", "args", "estimator", "expected"),
    [
        (slab, (X, Y), legrad.LocalExpectation(), True),
        (slab, (X, Y), legrad.LocalExpectation(exact_terms=False), False),
        (slab, (X, Y), legrad.ScoreFunction(), False),
        (part, (Y,), legrad.LocalExpectation(), False),
        (jump, (Y,), legrad.LocalExpectation(), False),
    ],
)
def test_which_objectives_have_no_noise(model, args, estimator, expected):
    guide = legrad.MeanField(model)
    params = legrad.fit(model, guide, args=args, key=0, steps=1, progress=False).params
    assert has_no_noise(Problem(model, guide, params, args), estimator) is expected
