"""`calibrate`: a right guide gets no flag, a wrong one the right flag, discrete sites included; failures are told."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.contrib.control_flow import scan
from numpyro.infer.autoguide import AutoNormal
from scipy import stats

import legrad
from legrad.diagnostics.calibrate import calibrate
from legrad.diagnostics.calibration import Calibration
from legrad.diagnostics.simulation import Simulator

KEY = jax.random.key(0)
PRIOR = jnp.array([0.2, 0.5, 0.3])
NONE = np.array([], int)


def mixed(y, a):
    """Three separate problems, so that independent factors are the posterior."""
    with numpyro.plate("two", 2):
        m = numpyro.sample("m", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(m, 0.5), obs=y)
    z = numpyro.sample("z", dist.Bernoulli(0.3))
    numpyro.sample("a", dist.Bernoulli(jnp.where(z == 1, 0.8, 0.3)), obs=a)
    c = numpyro.sample("c", dist.Categorical(PRIOR))
    numpyro.sample("b", dist.Normal(c, 0.8), obs=1.0)


DATA = (jnp.zeros(2), jnp.array(1))


def posterior(y, a, b, shift=0.0, scale=1.0, odds=0.0, sharp=1.0):
    """The exact posterior of `mixed`, or one spoiled in four ways."""
    sd = numpyro.param("sd", jnp.sqrt(0.2))
    with numpyro.plate("two", 2):
        numpyro.sample("m", dist.Normal(0.8 * y + shift * sd * jnp.array([0.0, 1.0]), sd * jnp.array([scale, 1.0])))
    likelihood = jnp.where(a == 1, jnp.array([0.3, 0.8]), jnp.array([0.7, 0.2]))
    numpyro.sample("z", dist.Bernoulli(logits=jnp.log(0.3 * likelihood[1] / (0.7 * likelihood[0])) + odds))
    log_p = jnp.log(PRIOR) + dist.Normal(jnp.arange(3.0), 0.8).log_prob(b)
    numpyro.sample("c", dist.Categorical(logits=sharp * log_p))


def exact(**spoiled):
    return calibrate(
        mixed, partial(posterior, **spoiled), args=DATA, key=KEY, simulations=400, steps=0, parallel=400,
        guide_args=lambda data: (data["y"], data["a"], data["b"]),
    )  # fmt: skip


@pytest.mark.long
def test_the_posterior_gets_no_flag():
    found = exact()
    assert found.ok, found.flags
    assert {name: pit.shape for name, pit in found.pit.items()} == {"m": (400, 2), "z": (400,), "c": (400,)}
    for pit in found.pit.values():
        assert ((pit > 0) & (pit < 1)).all()
        np.testing.assert_allclose(pit.mean(0), 0.5, atol=4 / np.sqrt(12 * 400))
    assert "No flag" in str(found)


def test_a_wrong_guide_gets_the_right_flag():
    """One element half as wide, one half a standard deviation off; one discrete site off, one overconfident."""
    found = exact(shift=-0.5, scale=0.5, odds=1.5, sharp=3.0)
    assert found.faults("m") == ["biased to the left", "too narrow"]
    assert found.faults("z") == ["biased to the right"]
    assert found.faults("c") == ["too narrow"]
    tested = found.tests["m"]
    assert 0.35 < tested.bias[1] < 0.65
    assert 1.4 < tested.spread[0] < 2.1  # it is 2, but beyond 100 draws there is nothing to see
    assert tested.adjusted["spread"][0] < 1e-6 < 0.01 < tested.adjusted["spread"][1]
    assert not found.ok
    (narrow,) = [flag for flag in found.flags if "q(m) is too narrow" in flag]
    assert "in 1 of 2 elements, most in m[0]" in narrow
    assert narrow in found.to_markdown()


@pytest.mark.long
def test_fits_of_mean_field_are_calibrated():
    found = calibrate(
        mixed, legrad.MeanField, args=DATA, key=KEY, simulations=150, parallel=150, steps=80,
        optimizer=optax.adam(optax.exponential_decay(0.3, 25, 0.5)),
    )  # fmt: skip
    assert found.ok, found.flags
    assert found.simulations == 150


def location(x, y=None):
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(m * x, 0.5).to_event(1), obs=y)


def narrow(x, y=None):
    numpyro.sample("m", dist.Normal(numpyro.param("loc", 0.0), 0.5 / np.sqrt(2 / 0.25 + 1)))


settings = {
    "key": KEY, "simulations": 100, "parallel": 100, "estimator": legrad.Reparameterized(4), "steps": 100,
    "optimizer": optax.adam(optax.exponential_decay(0.2, 20, 0.5)),
}  # fmt: skip


@pytest.mark.long
def test_fits_of_a_guide_that_cannot_be_wide_enough():
    runs = []

    def model(*args):
        runs.append(1)
        location(*args)

    found = calibrate(model, narrow, args=(jnp.ones(2), None), observed=["y"], **settings | {"parallel": 30})
    assert found.faults("m") == ["too narrow"]
    assert 1.3 < found.tests["m"].spread < 2.5
    assert len(runs) < 10  # compiled once, not for each of the simulations or batches
    assert len(np.unique(found.pit["m"])) == 100  # the last batch is filled up, and what fills it is not counted


def test_a_class_of_guides_is_given_the_model():
    x, y = jnp.ones(2), jnp.array([0.3, 0.1])
    found = calibrate(location, partial(AutoNormal, init_scale=0.3), args=(x,), kwargs={"y": y}, **settings)
    assert found.ok, found.flags


def test_an_amortized_guide_gets_the_simulated_data():
    def guide(x, y):
        numpyro.sample("m", dist.Normal(numpyro.param("slope", 0.5) * jnp.sum(x * y), numpyro.param("sd", 1.0 / 3)))

    given = {"slope": 4 / 9}
    found = calibrate(location, guide, args=(jnp.ones(2), jnp.zeros(2)), **settings | {"steps": 0}, init_params=given)
    assert found.ok, found.flags


def test_a_guide_that_would_read_stale_data_raises():
    def model(y):
        m = numpyro.sample("m", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(m, 1.0), obs=y[0])

    def reads(y):
        numpyro.sample("m", dist.Normal(numpyro.param("a", 1.0) * y[0], 1.0))

    with pytest.raises(ValueError, match="pass guide_args=lambda data"):
        calibrate(model, reads, args=(jnp.zeros(1),), **settings)


def test_failures_are_told_and_not_dropped(capsys):
    def model(x, y):
        m = numpyro.sample("m", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(jnp.exp(jnp.where(m > 1, 1e3, 0.0) * m) * m * x, 1.0).to_event(1), obs=y)

    few = settings | {"args": (jnp.ones(2), jnp.ones(2)), "steps": 30, "optimizer": optax.sgd(1e30)}
    found = calibrate(model, narrow, progress=True, **few)
    assert "100/100" in capsys.readouterr().err
    bad = found.bad_simulations
    assert 5 < len(bad) < 30
    assert len(found.bad_fits) > 50
    assert not set(bad) & set(found.bad_fits)
    assert np.isnan(found.pit["m"][[*bad, *found.bad_fits]]).all()
    assert any(f"{len(bad)} of 100 simulations drew values that are not finite" in flag for flag in found.flags)
    assert any(f"{len(found.bad_fits)} of 100 fits ended with values" in flag for flag in found.flags)


def test_a_fit_that_still_moves_is_told():
    rise = np.random.default_rng(0).normal(0.5, 0.2, size=100)
    found = Calibration({"z": uniform(100)}, 100, 0.01, NONE, NONE, rise)
    assert len(found.flags) == 1
    assert "the ELBO still rose by 0.5" in found.flags[0]


def uniform(*shape, seed=0):
    return np.random.default_rng(seed).uniform(size=shape)


@pytest.mark.long
def test_false_alarms_are_as_rare_as_said():
    alarms = [
        not Calibration(
            {"a": uniform(60, seed=i), "b": uniform(60, 3, seed=1000 + i)}, 100, 0.1, NONE, NONE, np.zeros(60)
        ).ok
        for i in range(200)
    ]
    assert np.mean(alarms) < 0.1 + 3 * np.sqrt(0.1 * 0.9 / 200)


def test_p_values_are_those_of_scipy():
    tested = Calibration({"a": uniform(80, 2)}, 100, 0.01, NONE, NONE, np.zeros(80)).tests["a"]
    for i in range(2):
        pit = uniform(80, 2)[:, i]
        np.testing.assert_allclose(tested.p["uniform"][i], stats.kstest(pit, "uniform").pvalue)
        np.testing.assert_allclose(tested.p["symmetric"][i], stats.wilcoxon(pit - 0.5).pvalue)


def test_a_wrong_shape_is_seen():
    """A mixture of narrow and wide: right in centre and variance, wrong in shape."""
    x = np.random.default_rng(0).normal(size=3000) * np.where(uniform(3000) < 0.5, 0.2, np.sqrt(2 - 0.04))
    x = (x - x.mean()) / x.std()
    found = Calibration({"z": stats.norm.cdf(x)}, 100, 0.01, NONE, NONE, np.zeros(3000))
    assert found.faults("z") == ["of the wrong shape"]


def test_too_wide_and_too_high():
    x = np.random.default_rng(0).normal(size=200)
    pits = {"a": stats.norm.cdf(x / 2), "b": stats.norm.cdf(x - 0.5)}
    found = Calibration(pits, 100, 0.01, NONE, NONE, np.zeros(200))
    assert [found.faults(name) for name in pits] == [["too wide"], ["biased to the right"]]


def test_masked_latents_are_not_tested():
    def model(y):
        with numpyro.plate("N", 3), numpyro.handlers.mask(mask=jnp.array([True, False, True])):
            m = numpyro.sample("m", dist.Normal(0.0, 1.0))
            numpyro.sample("y", dist.Normal(m, 1.0), obs=y)

    counted = Simulator(model, (jnp.zeros(3),), {}, [], KEY).counted["m"]
    assert counted.tolist() == [True, False, True]
    found = Calibration({"m": np.where(counted, uniform(50, 3), np.nan)}, 100, 0.01, NONE, NONE, np.zeros(50))
    assert np.isnan(found.tests["m"].p["uniform"]).tolist() == [False, True, False]
    assert found.ok


def test_data_inside_scan():
    """Steps that read the data of the step before: simulated from None, and conditioned on as drawn."""

    def chain(y, length=4):
        def step(before, now):
            return numpyro.sample("y", dist.Normal(0.9 * before + m, 0.1), obs=now), None

        m = numpyro.sample("m", dist.Normal(0.0, 1.0))
        scan(step, jnp.zeros(()), y, length=length)

    simulator = Simulator(chain, (None,), {}, ["y"], KEY)
    latents, data = simulator.draw(KEY)
    before = jnp.concatenate([jnp.zeros(1), data["y"][:-1]])
    assert np.abs(data["y"] - 0.9 * before - latents["m"]).max() < 0.5
    with numpyro.handlers.trace() as trace, numpyro.handlers.seed(rng_seed=1):
        simulator.conditioned(data)
    np.testing.assert_array_equal(trace["y"]["value"], data["y"])
    assert trace["y"]["is_observed"]
    with pytest.raises(ValueError, match=r"'y' of the model has data inside scan.*observed=\['y'\]"):
        Simulator(chain, (jnp.zeros(4),), {}, [], KEY)


def bad_param(y):
    numpyro.sample("y", dist.Normal(numpyro.sample("m", dist.Normal(0.0, 1.0)), numpyro.param("s", 1.0)), obs=y)


def bad_factor(y):
    numpyro.factor("f", -(numpyro.sample("m", dist.Normal(0.0, 1.0)) ** 2))
    numpyro.sample("y", dist.Normal(0.0, 1.0), obs=y)


def bad_improper(y):
    m = numpyro.sample("m", dist.ImproperUniform(dist.constraints.real, (), ()))
    numpyro.sample("y", dist.Normal(m, 1.0), obs=y)


def bad_plate(y):
    with numpyro.plate("N", 4, subsample_size=2):
        numpyro.sample("y", dist.Normal(numpyro.sample("m", dist.Normal(0.0, 1.0)), 1.0), obs=y)


def bad_scale(y):
    with numpyro.handlers.scale(scale=2.0):
        numpyro.sample("y", dist.Normal(numpyro.sample("m", dist.Normal(0.0, 1.0)), 1.0), obs=y)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (bad_param, "'s' of the model is a parameter without a prior: give it one"),
        (bad_factor, "'f' of the model is a numpyro.factor"),
        (bad_improper, "'m' of the model has an improper prior"),
        (bad_plate, "'N' of the model is a plate that subsamples"),
        (bad_scale, "'m' of the model is scaled"),
    ],
)
def test_models_that_cannot_be_simulated_raise(model, message):
    with pytest.raises(ValueError, match=message):
        calibrate(model, AutoNormal, args=(0.5,), **settings)


def test_wrong_settings_raise():
    def other(x, y):
        numpyro.sample("q", dist.Normal(numpyro.param("loc", 0.0), 1.0))

    run = partial(calibrate, location, narrow)
    with pytest.raises(ValueError, match="observes nothing with these arguments"):
        run(args=(jnp.ones(2),), key=KEY)
    with pytest.raises(ValueError, match="observed names 'q', which is not a site of the model: it has m, y"):
        run(args=(jnp.ones(2),), key=KEY, observed=["q"])
    with pytest.raises(TypeError, match=r"pass a list of names, observed=\['y'\]"):
        run(args=(jnp.ones(2),), key=KEY, observed="y")
    with pytest.raises(ValueError, match="simulations=3: a test of uniformity needs at least 20"):
        run(args=(jnp.ones(2),), key=KEY, simulations=3)
    with pytest.raises(ValueError, match="steps=-1"):
        run(args=(jnp.ones(2),), key=KEY, steps=-1)
    with pytest.raises(TypeError, match="log_density cannot be simulated"):
        calibrate(legrad.log_density(lambda x: 0.0), narrow, key=KEY)
    with pytest.raises(ValueError, match="latent site 'm' of the model is missing from the guide"):
        calibrate(location, other, args=(jnp.ones(2), jnp.ones(2)), key=KEY)


def test_plot(tmp_path):
    pits = {"a": uniform(100), "b": uniform(100, 7), "c": uniform(100, 2) ** 3, "d": np.full((100, 2), np.nan)}
    found = Calibration(pits, 100, 0.01, NONE, NONE, np.zeros(100))
    figure = found.plot(tmp_path / "calibration.png")
    assert (tmp_path / "calibration.png").stat().st_size > 5000
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles[0] == "a"
    assert titles[1].startswith("b[")
    assert "biased to the right" in titles[2]
    assert titles[3] == "d: not tested"
    assert "| d | 2 | not tested |" in found.to_markdown()
