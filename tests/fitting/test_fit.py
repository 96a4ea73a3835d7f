"""`fit` and `compare`: what they give back, that they are right, and that Python does not slow them down."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer import Trace_ELBO

import legrad

KEY = jax.random.key(0)


def model(y):
    with numpyro.plate("N", len(y)):
        z = numpyro.sample("z", dist.Bernoulli(0.3))
        numpyro.sample("y", dist.Normal(2.0 * z, 1.0), obs=y)


Y = jnp.array([0.2, 1.9, -0.5, 1.1])


def posterior(y):
    log_odds = jnp.log(0.3 / 0.7) + dist.Normal(2.0, 1.0).log_prob(y) - dist.Normal(0.0, 1.0).log_prob(y)
    return jax.nn.sigmoid(log_odds)


@pytest.mark.parametrize("estimator", [None, legrad.DisARM(4), legrad.Exact()])
def test_recovers_an_exact_posterior(estimator):
    result = legrad.fit(
        model, legrad.MeanField(model), args=(Y,), key=KEY, estimator=estimator,
        optimizer=optax.adam(optax.exponential_decay(0.1, 200, 0.5)), steps=1500, progress=False,
    )  # fmt: skip
    np.testing.assert_allclose(jax.nn.sigmoid(result.params["z_logits"]), posterior(Y), atol=0.01)
    assert result.elbo.shape == (1500,)
    assert result.steps == 1500
    assert result.seconds > 0
    draws = result.sample(jax.random.key(1), 4000)["z"]
    assert draws.shape == (4000, 4)
    np.testing.assert_allclose(draws.mean(0), posterior(Y), atol=0.04)


def test_the_same_key_gives_the_same_fit():
    a, b = (
        legrad.fit(model, legrad.MeanField(model), args=(Y,), key=KEY, steps=37, progress=False) for _ in range(2)
    )
    np.testing.assert_array_equal(a.elbo, b.elbo)
    np.testing.assert_array_equal(a.params["z_logits"], b.params["z_logits"])


def test_chunks_do_not_change_the_result(monkeypatch):
    def fit():
        return legrad.fit(model, legrad.MeanField(model), args=(Y,), key=KEY, steps=50, progress=False)

    whole = fit()
    monkeypatch.setattr("legrad.fitting.host_loop._CHUNK_SECONDS", 0.0)  # chunks of at most two steps
    np.testing.assert_array_equal(fit().elbo, whole.elbo)


@pytest.mark.long
def test_subsampling_reaches_every_member():
    y = jnp.asarray(np.random.default_rng(0).normal(size=12))

    def subsampled(y):
        with numpyro.plate("N", 12, subsample_size=3) as i:
            z = numpyro.sample("z", dist.Bernoulli(0.3))
            numpyro.sample("y", dist.Normal(2.0 * z, 1.0), obs=y[i])

    result = legrad.fit(
        subsampled, legrad.MeanField(subsampled), args=(y,), key=KEY, optimizer=optax.adam(0.05), steps=3000,
        progress=False,
    )  # fmt: skip
    np.testing.assert_allclose(jax.nn.sigmoid(result.params["z_logits"]), posterior(y), atol=0.03)
    assert result.sample(KEY, 10)["z"].shape == (10, 12)  # all members, not a subsample


def test_a_plain_log_density():
    target = legrad.log_density(lambda x: -0.5 * jnp.sum((x["x"] - jnp.array([1.0, -2.0])) ** 2 / 0.25))

    def guide():
        loc, log_scale = numpyro.param("loc", jnp.zeros(2)), numpyro.param("log_scale", jnp.zeros(2))
        numpyro.sample("x", dist.Normal(loc, jnp.exp(log_scale)).to_event(1))

    result = legrad.fit(target, guide, key=KEY, optimizer=optax.adam(0.05), steps=1000, progress=False)
    np.testing.assert_allclose(result.params["loc"], [1.0, -2.0], atol=0.02)
    np.testing.assert_allclose(np.exp(result.params["log_scale"]), 0.5, atol=0.02)
    both = {"LeGrad": legrad.LocalExpectation(), "ReGrad": legrad.Reparameterized()}
    table = legrad.compare(target, guide, result.params, both, key=KEY)
    assert table["LeGrad"].variance < 1e-12  # a factorized Gaussian target: nothing is left to chance
    assert table["ReGrad"].variance > 0.1
    assert table["LeGrad"].bias_z < 5
    assert "| LeGrad |" in table.to_markdown()


@pytest.mark.long
def test_compare_notices_a_biased_estimator():
    class Biased(legrad.LocalExpectation):
        def loss(self, *args):
            return 1.02 * super().loss(*args)

    guide = legrad.MeanField(model)
    names = {"right": legrad.Exact(), "biased": Biased()}
    table = legrad.compare(model, guide, {"z_logits": jnp.array([0.5, 1.0, -0.5, 0.1])}, names, key=KEY, args=(Y,))
    assert table["biased"].bias_z > 5
    fair = {"right": legrad.Exact(), "fair": legrad.LocalExpectation()}
    table = legrad.compare(model, guide, {"z_logits": jnp.array([0.5, 1.0, -0.5, 0.1])}, fair, key=KEY, args=(Y,))
    assert table["fair"].bias_z < 5


def test_progress_bar(capsys):
    legrad.fit(model, legrad.MeanField(model), args=(Y,), key=KEY, steps=20, progress=True)
    shown = capsys.readouterr().err
    assert "20/20" in shown
    assert "ELBO" in shown
    assert "step/s" in shown
    legrad.fit(model, legrad.MeanField(model), args=(Y,), key=KEY, steps=20)  # not a terminal: no bar
    assert capsys.readouterr().err == ""


def test_plot(tmp_path):
    result = legrad.fit(model, legrad.MeanField(model), args=(Y,), key=KEY, steps=200, progress=False)
    figure = result.plot(tmp_path / "fit.png")
    assert (tmp_path / "fit.png").stat().st_size > 5000
    axes = figure.axes[0]
    assert axes.get_ylabel() == "ELBO"
    assert len(axes.lines[0].get_xdata()) == 200


def test_numpyro_estimators_can_drive_the_fit():
    def continuous(y):
        m = numpyro.sample("m", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(m, 1.0).expand([len(y)]).to_event(1), obs=y)

    result = legrad.fit(
        continuous, legrad.MeanField(continuous), args=(Y,), key=KEY, estimator=Trace_ELBO(), steps=800,
        optimizer=optax.adam(0.02), progress=False,
    )  # fmt: skip
    assert abs(result.params["m_loc"] - Y.sum() / 5) < 0.1
