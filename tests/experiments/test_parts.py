"""The parts that the experiments are made of."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest

import legrad
from checking import draw_until, flat
from legrad.experiments import draw, measure, record
from legrad.experiments.ldgrad import LdGrad
from legrad.fitting.compiled_loop import CompiledLoop

pytestmark = pytest.mark.long

Y = jnp.array([[1, 0, 1], [0, 1, 1], [1, 1, 0], [0, 0, 1]])


def model(Y, batch=None):
    W = numpyro.param("W", jnp.array([[0.5, -1.0, 0.3], [1.0, 0.2, -0.6]]))
    with numpyro.plate("images", len(Y), subsample_size=batch):
        y = numpyro.subsample(Y, event_dim=1)
        x = numpyro.sample("x", dist.Bernoulli(logits=jnp.zeros(2)).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=x @ W).to_event(1), obs=y)


def guide(Y, batch=None):
    V = numpyro.param("V", jnp.array([[0.4, -0.3], [0.7, 0.1], [-0.2, 0.5]]))
    with numpyro.plate("images", len(Y), subsample_size=batch):
        y = numpyro.subsample(Y, event_dim=1)
        numpyro.sample("x", dist.Bernoulli(logits=y @ V).to_event(1))


PARAMS = {
    "W": jnp.array([[0.5, -1.0, 0.3], [1.0, 0.2, -0.6]]),
    "V": jnp.array([[0.4, -0.3], [0.7, 0.1], [-0.2, 0.5]]),
}


def gradient(estimator, *args):
    return lambda key: jax.grad(lambda p: estimator.loss(key, p, model, guide, Y, *args))(PARAMS)


# --- LdGrad -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entropy", "over", "batch"), [("inside", None, None), ("apart", "images", None), ("inside", "images", 2)]
)
def test_ldgrad_is_unbiased(entropy, over, batch):
    exact = flat(gradient(legrad.Exact())(jax.random.key(0)))
    estimate = draw_until(gradient(LdGrad(4, entropy, over), batch), exact, wanted=0.1, batch=1 << 14, most=40)
    assert estimate.agrees(exact)
    bias, component = estimate.detectable(exact)
    assert bias <= 0.1
    biased = exact.copy()
    biased[component] *= 1 + bias
    assert not estimate.agrees(biased)


def test_ldgrad_multiplies_the_whole_of_f():
    """With one sample the gradient is f(x) ∇ log q(x), whatever the terms of f touch."""

    def f_and_score(x):
        def log_q(V):
            return dist.Bernoulli(logits=Y @ V).log_prob(x).sum()

        log_p = dist.Bernoulli(logits=jnp.zeros(2)).log_prob(x).sum()
        log_p += dist.Bernoulli(logits=x @ PARAMS["W"]).log_prob(Y).sum()
        return (log_p - log_q(PARAMS["V"])) * jax.grad(log_q)(PARAMS["V"])

    patterns = np.array(np.meshgrid(*[[0, 1]] * 8)).reshape(8, -1).T.reshape(-1, 4, 2)
    possible = np.asarray(jax.vmap(f_and_score)(jnp.asarray(patterns)))
    one = jax.jit(gradient(LdGrad(1)))
    for seed in range(5):
        found = -np.asarray(one(jax.random.key(seed))["V"])
        assert np.abs(possible - found).max(axis=(1, 2)).min() < 1e-10


def test_ldgrad_refuses_what_would_be_biased():
    def chain():
        a = numpyro.sample("a", dist.Bernoulli(0.5))
        numpyro.sample("b", dist.Bernoulli(0.2 + 0.5 * a))

    with pytest.raises(ValueError, match="the sites a, b"):
        LdGrad(1, "apart").loss(jax.random.key(0), {}, chain, chain)


def test_ldgrad_refuses_other_words():
    with pytest.raises(ValueError, match="entropy='both'"):
        LdGrad(1, "both")


# --- the record ---------------------------------------------------------------------------------------------


def test_the_record_is_what_the_steps_saw():
    run = record.trajectory(
        model, guide, (Y,), legrad.LocalExpectation(), optax.sgd(0.1), steps=6, seed=0, pick=lambda g: g["V"][0, 1],
        keep=(0, 2, 5, 9), label="x",
    )  # fmt: skip
    plain = legrad.fit(
        model, guide, args=(Y,), key=jax.random.key(0), optimizer=optax.sgd(0.1), steps=6, progress=False
    )
    np.testing.assert_allclose(run["elbo"], plain.elbo)
    np.testing.assert_allclose(run["final V"], plain.params["V"])
    np.testing.assert_allclose(run["kept V"][0], PARAMS["V"])
    # Between the last step that was kept and the end lies one step along the recorded gradient.
    np.testing.assert_allclose(run["kept V"][2][0, 1] - 0.1 * run["gradient"][5], run["final V"][0, 1])
    assert run["kept steps"].tolist() == [0, 2, 5]  # the ninth was not reached
    assert [set(point) for point in measure.points(run)] == [{"V", "W"}] * 3
    assert run["seconds"].shape == (6,)
    assert (np.diff(run["seconds"]) >= 0).all()


def test_a_record_need_not_keep_parameters():
    run = record.trajectory(
        model, guide, (Y,), legrad.DisARM(), optax.sgd(0.1), steps=2, seed=0, pick=lambda g: g["V"][0, 1], keep=(),
        label="x",
    )  # fmt: skip
    assert run["gradient"].shape == (2,)
    assert run["kept V"].shape == (0, 3, 2)


def test_window_variance():
    x = np.random.default_rng(0).normal(size=30)
    found = record.window_variance(x)
    assert found.shape == (21,)
    np.testing.assert_allclose(found[4], x[4:14].var(ddof=1))


def test_seconds_leave_compiling_out():
    clock = np.array([[0, 0], [1, 50.0], [3, 52.0], [11, 60.0]])
    np.testing.assert_allclose(record.seconds_of_steps(clock), np.arange(1, 12))


def test_a_fit_stops_when_its_time_is_over():
    result = legrad.fit(model, guide, args=(Y,), key=jax.random.key(0), steps=10**7, seconds=0.2, progress=False)
    assert 1 <= result.steps < 10**7
    assert len(result.elbo) == result.steps == result.clock[-1, 0]
    assert np.isfinite(result.elbo).all()
    for wrong in (-1, "3"):
        with pytest.raises(ValueError, match=f"seconds={wrong!r}"):
            legrad.fit(model, guide, args=(Y,), key=jax.random.key(0), seconds=wrong)


def test_a_step_longer_than_the_time_is_made_once_more(monkeypatch):
    """The first step compiles; after one more the time is over."""
    took, clock = iter([5.0, 3.0, 3.0]), [0.0]
    advance = CompiledLoop.advance

    def timed(self, state, ends, loaded):
        clock[0] += next(took)
        return advance(self, state, ends, loaded)

    monkeypatch.setattr(CompiledLoop, "advance", timed)
    monkeypatch.setattr("legrad.fitting.host_loop.clock", lambda: clock[0])
    result = legrad.fit(
        line, start, args=(2,), key=jax.random.key(0), estimator=legrad.Reparameterized(), steps=9, seconds=1.0,
        progress=False,
    )  # fmt: skip
    assert result.clock.tolist() == [[0, 0], [1, 5], [2, 8]]


# --- variances ----------------------------------------------------------------------------------------------


def line(n):
    numpyro.sample("x", dist.Normal(jnp.zeros(n), 1.0).to_event(1))


def start(n):
    mu = numpyro.param("mu", jnp.ones(n))
    numpyro.sample("x", dist.Normal(mu, 0.5).to_event(1))


def test_measured_variances_are_the_true_ones():
    """f = −x²/2 + const: the reparameterized gradient of mu is −x, of variance 0.25; a mean of 4 has a quarter."""
    bench = measure.Bench(line, start, (3,))
    plans = {
        "one": measure.MeasurePlan(legrad.Reparameterized(), 4000),
        "four": measure.MeasurePlan(legrad.Reparameterized(), 4000, 4),
        "local": measure.MeasurePlan(legrad.LocalExpectation(), 10),
    }
    found = bench.variances(plans, [{"mu": np.ones(3)}, {"mu": np.zeros(3)}], "x")
    np.testing.assert_allclose(found["variance one mu"], 0.25, rtol=0.15)
    np.testing.assert_allclose(found["variance four mu"], found["variance one mu"] / 4)
    np.testing.assert_allclose(found["variance local mu"], 0.0, atol=1e-20)
    np.testing.assert_allclose(found["mean local mu"], [[-1.0] * 3, [0.0] * 3], atol=1e-10)
    seconds = bench.seconds({"one": (legrad.Reparameterized(), 3)}, {"mu": np.ones(3)}, "x")
    assert seconds["one"] > 0


def test_paired_variances_see_which_is_larger():
    """x_1 and x_2 share a term: LeGrad takes the noise of each one's own part away, so its variance is smaller."""

    def pair():
        x = numpyro.sample("x", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
        numpyro.factor("link", -0.5 * (x[0] - x[1]) ** 2)

    def around():
        mu = numpyro.param("mu", jnp.ones(2))
        numpyro.sample("x", dist.Normal(mu, 0.5).to_event(1))

    bench = measure.Bench(pair, around, ())
    both = {"LeGrad": legrad.LocalExpectation(exact_terms=False), "ReGrad": legrad.Reparameterized()}
    at = [{"mu": np.ones(2)}]
    found = bench.paired(both, at, 200, "x")
    # −2 x_i + x_j against its mean over x_i: 4 + 1 and 1 times 0.25
    np.testing.assert_allclose(found["variance ReGrad mu"], 1.25, rtol=0.3)
    np.testing.assert_allclose(found["variance LeGrad mu"], 0.25, rtol=0.3)
    assert found["excess mu"].max() < -5
    turned = bench.paired(dict(reversed(both.items())), at, 200, "x")
    np.testing.assert_allclose(turned["excess mu"], -found["excess mu"])


def test_smooth_and_first_at():
    run = {"elbo": np.arange(10.0), "seconds": np.arange(1.0, 11.0)}
    np.testing.assert_allclose(draw.smooth(run["elbo"], 2), [0, 0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5])
    assert draw.first_at(run, 4.0, width=1) == 5.0
    assert draw.first_at(run, 40.0, width=1) == np.inf
