"""What a result answers: all diagnostics through one fit, and that what is known against it is said."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import legrad
from legrad.fitting.conclusion import _fell

KEY = jax.random.key(0)
Y = jnp.array([0.2, 1.9, -0.5, 2.5])


def model(y):
    with numpyro.plate("N", len(y)):
        z = numpyro.sample("z", dist.Bernoulli(0.3))
        numpyro.sample("y", dist.Normal(2.0 * z, 1.0), obs=y)


@pytest.fixture(scope="module")
def result():
    return legrad.fit(model, legrad.MeanField(model), args=(Y,), key=KEY, stop="auto", progress=False)


def test_a_good_fit_has_nothing_against_it(result):
    """The posterior factorizes: the guide is exact."""
    assert result.converged
    assert result.khat(KEY, 1000) < 0.5
    report = result.diagnose(KEY, 4000)
    assert report.ok, report.flags
    both = dist.Normal(jnp.array([0.0, 2.0]), 1.0).log_prob(Y[:, None]) + jnp.log(jnp.array([0.7, 0.3]))
    evidence = float(jax.nn.logsumexp(both, axis=-1).sum())
    estimate = result.elbo_estimate(KEY, 500)
    assert estimate.elbo == pytest.approx(evidence, abs=0.01)
    assert estimate.bound == pytest.approx(evidence, abs=0.01)


def test_the_export(result):
    tree = result.to_arviz(KEY, 50, coords={"N": list("abcd")})
    assert tree.posterior["z"].dims[-1] == "N"
    assert list(tree.posterior["N"].values) == list("abcd")
    assert tree.log_likelihood["y"].shape[-1] == 4


def test_other_data(result):
    far = result.with_args(Y + 10.0)
    assert far.elbo_estimate(KEY, 100).elbo < result.elbo_estimate(KEY, 100).elbo - 100
    assert not far.diagnose(KEY, 1000).ok


def test_what_is_known_against_it_is_said():
    def two_modes():
        mix = dist.Categorical(probs=jnp.array([0.4, 0.6]))
        numpyro.sample("x", dist.MixtureSameFamily(mix, dist.Normal(jnp.array([-2.0, 2.0]), 0.2)))

    with pytest.warns(legrad.FitWarning, match="several modes"):
        found = legrad.fit(
            two_modes, legrad.MeanField(two_modes), key=KEY, stop="auto", restarts=6, steps=3000, progress=False
        )
    assert found.converged
    report = found.diagnose(KEY, 2000)
    assert not report.ok
    assert any("starts ended at another guide" in flag for flag in report.flags)
    assert report.khat < 0.7  # it cannot see the other mode
    short = legrad.fit(model, legrad.MeanField(model), args=(Y,), key=KEY, steps=5, progress=False)
    assert any("has not converged" in flag for flag in short.diagnose(KEY, 500).flags)


def test_an_elbo_that_fell_is_seen():
    rng = np.random.default_rng(0)
    rising = -100 - 50 * np.exp(-np.arange(2000) / 100)
    noise = rng.normal(size=2000)
    assert _fell(rising + noise) == ""
    assert _fell(rising) == ""
    fallen = rising + noise - 2.0 * (np.arange(2000) > 1200)
    assert "was -99" in _fell(fallen) or "was -100" in _fell(fallen)
    assert "-102" in _fell(fallen)
