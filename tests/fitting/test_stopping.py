"""stop="auto": it ends when it is done and not before; restarts; steps that are not finite."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer.autoguide import AutoDelta

import legrad
from legrad.fitting import iterates
from legrad.fitting.compiled_loop import State
from legrad.fitting.iterates import NUMBER, Blocks
from legrad.fitting.stopping import Phase, PhaseRecord, Stopping

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(50, 3)))
Y = jnp.asarray(X @ np.array([1.0, -0.5, 0.2]) + 0.5 * RNG.normal(size=50))


def regression(X, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    numpyro.sample("y", dist.Normal(X @ w, 0.5).to_event(1), obs=y)


PRECISION = np.asarray(X.T @ X / 0.25 + np.eye(3))
MEAN, SCALE = np.linalg.solve(PRECISION, X.T @ Y / 0.25), np.diag(PRECISION) ** -0.5


def fit(model=regression, guide=None, args=(X, Y), **settings):
    guide = legrad.MeanField(model) if guide is None else guide
    settings = {"stop": "auto", "optimizer": optax.adam(5e-2), **settings}  # without a rate it would climb
    return legrad.fit(model, guide, args=args, key=KEY, progress=False, **settings)


def error(result):
    """The furthest that a mean or scale is off, in posterior standard deviations."""
    means = np.abs(result.params["w_loc"] - MEAN) / SCALE
    scales = np.abs(np.exp(result.params["w_log_scale"]) / SCALE - 1)
    return max(means.max(), scales.max())


# --- blocks of iterates ------------------------------------------------------------------------------------------


def filled(path, length):
    blocks = Blocks.empty({"a": path[0]}, length)
    add = jax.jit(Blocks.add)
    for x in path:
        if int(blocks.seen) == NUMBER * int(blocks.length):
            blocks = iterates.merged(blocks)
        blocks = add(blocks, {"a": x})
    return blocks


@pytest.mark.parametrize("number", [NUMBER * 3, NUMBER * 6])
def test_blocks_are_the_moments_of_the_iterates(number):
    path = jnp.asarray(RNG.normal(size=(number, 4)).cumsum(0))
    blocks = filled(path, 3)
    everything = iterates.mask(range(NUMBER))
    np.testing.assert_allclose(iterates.average(blocks, everything)["a"], path.mean(0))
    parts = np.asarray(path).reshape(NUMBER, -1, 4)
    np.testing.assert_allclose(blocks.mean["a"], parts.mean(1))
    np.testing.assert_allclose(blocks.squares["a"], parts.var(1) * parts.shape[1], atol=1e-9)
    standard_error = parts.mean(1).std(0, ddof=1) / np.sqrt(NUMBER)
    np.testing.assert_allclose(iterates.monte_carlo_error(blocks, everything)["a"], standard_error)
    halves = np.split(np.asarray(path), 2)
    n = number / 2
    within = np.mean([h.var(0) for h in halves], axis=0)
    between = np.var([h.mean(0) for h in halves], axis=0, ddof=1)
    rhat = iterates.split_rhat(blocks, iterates.mask(range(8)), iterates.mask(range(8, 16)))["a"]
    np.testing.assert_allclose(rhat, np.sqrt((n - 1) / n + between / within).max())


def test_rhat_sees_a_drift_and_not_noise():
    noise = RNG.normal(size=(NUMBER * 50, 1))
    first, second = iterates.mask(range(8)), iterates.mask(range(8, 16))
    still = filled(jnp.asarray(noise), 50)
    drifting = filled(jnp.asarray(noise + np.linspace(0, 4, len(noise))[:, None]), 50)
    assert iterates.split_rhat(still, first, second)["a"] < 1.02
    assert iterates.split_rhat(drifting, first, second)["a"] > 1.3


# --- the decision, without a fit ---------------------------------------------------------------------------------


class Measured:
    """A comparison of guides that says what a test wants to hear."""

    def __init__(self, moved=0.0, gained=0.0, error=0.0):
        self.moved, self.gained, self.error = moved, gained, error

    def distance(self, before, after, key, loaded):
        return self.moved

    def gain(self, before, after, key, loaded):
        return self.gained, 0.0

    def spread(self, one, other, key, loaded):
        return 2.0 * self.error


@pytest.mark.parametrize(
    ("measured", "next_phase", "done"),
    [
        (Measured(), False, True),
        (Measured(moved=0.05), False, True),  # later phases would move by 0.05 / 3, less than the tolerance
        (Measured(moved=0.07), True, False),  # by 0.07 / 3: more
        (Measured(gained=1.0), True, False),
        (Measured(error=0.03), False, False),  # the phase goes on, for a better average
    ],
    ids=["still", "moved little", "moved", "gained", "inaccurate"],
)
def test_a_stationary_phase_ends_the_fit_only_if_later_ones_would_change_nothing(measured, next_phase, done):
    blocks = filled(jnp.asarray(np.random.default_rng(1).normal(size=(NUMBER // 2 * 50, 1))), 50)
    state = State(*[None] * len(State._fields))._replace(
        unconstrained={"a": jnp.zeros(1)}, rate=jnp.ones(()), blocks=blocks
    )
    rule = Stopping(legrad.AutoStop(tolerance=0.02), measured, KEY, {"a": jnp.zeros(1)})
    rule.record = PhaseRecord([Phase(1.0, 0, 400, error=0.0), Phase(0.25, 400)], 50, previous={"a": jnp.zeros(1)})
    rule.look(800, state, None)
    assert rule.record.phases[1].rhat < 1.1
    assert len(rule.record.phases) == (3 if next_phase else 2)
    assert rule.done == done


def test_what_the_rule_remembers_can_be_written_and_read():
    trees = {"previous": {"a": 1.0}, "average": {"a": 2.0}}
    record = PhaseRecord([Phase(1.0, 0, 64, averaged=8, gained=0.0), Phase(0.25, 64, gained=0.1)], 32, 5, **trees)
    assert PhaseRecord.from_json(json.loads(json.dumps(record.to_json())), trees) == record


# --- the end of a fit --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "estimator",
    [
        None,
        pytest.param(legrad.Reparameterized(), marks=pytest.mark.long),
        pytest.param(legrad.ScoreFunction(8, baseline="leave_one_out"), marks=pytest.mark.long),
    ],
    ids=str,
)
def test_it_stops_at_the_right_place(estimator):
    result = fit(estimator=estimator)
    assert result.converged
    assert error(result) < 0.1
    assert result.status.startswith(f"converged after {result.steps:,} steps")
    assert result.phases[-1].stop == result.steps
    assert len(result.elbo) == result.steps


@pytest.mark.long
def test_it_stops_on_noisy_minibatches():
    def subsampled(X, y):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        with numpyro.plate("N", 50, subsample_size=10) as i:
            numpyro.sample("y", dist.Normal(X[i] @ w, 0.5), obs=y[i])

    result = fit(subsampled)
    assert result.converged
    assert error(result) < 0.15


@pytest.mark.long
def test_tiny_steps_are_not_taken_for_convergence():
    """A drift so slow that nothing seems to move: the check that a bias in the stopping rule is seen."""
    with pytest.warns(legrad.FitWarning, match="not converged after 3,000 steps"):
        result = fit(optimizer=optax.adam(1e-5), steps=3000)
    assert error(result) > 1
    assert not result.converged
    careless = fit(optimizer=optax.adam(1e-5), steps=3000, stop=legrad.AutoStop(rhat=100.0, gain=0.99))
    assert careless.converged  # R-hat is what saw it, and the gain
    assert error(careless) > 1


def test_logits_that_go_to_infinity_do_not_keep_it():
    def sure(y):
        with numpyro.plate("N", len(y)):
            z = numpyro.sample("z", dist.Bernoulli(0.5))
            numpyro.sample("y", dist.Normal(20.0 * z, 1.0), obs=y)

    y = jnp.array([0.0, 20.0, 20.0])
    result = fit(sure, args=(y,))
    assert result.converged
    assert result.phases[-1].flat  # only parameters whose drift does not move the guide
    assert "R-hat" not in result.status
    np.testing.assert_array_equal(result.params["z_logits"] > 5, y > 10)


def test_fixed_steps_say_what_is_known():
    early = fit(stop=None, steps=40, optimizer=None)
    assert not early.converged
    assert "took the 40 steps that it was given; the ELBO still rises" in early.status
    with pytest.warns(legrad.FitWarning, match="not converged after 200 steps"):
        assert not fit(steps=200, optimizer=optax.adam(1e-3)).converged


@pytest.mark.parametrize("wrong", [{"tolerance": 0}, {"rhat": 1.0}, {"shrink": 1.0}, {"gain": 0.0}, {"block": 1}])
def test_settings_that_make_no_sense(wrong):
    with pytest.raises(ValueError, match=f"AutoStop\\({next(iter(wrong))}=.*makes no sense: the default is"):
        legrad.AutoStop(**wrong)
    with pytest.raises(ValueError, match="stop='soon': give 'auto', legrad.AutoStop"):
        fit(stop="soon")


def test_a_guide_of_points_is_judged_by_the_elbo():
    """No factor has a spread: what the ELBO gains must keep the fit going."""
    x = jnp.asarray(0.01 * RNG.normal(size=100))
    y = 20 + 50 * x + 0.1 * jnp.asarray(RNG.normal(size=100))

    def line(x, y):
        b = numpyro.sample("b", dist.Normal(0.0, 100.0).expand([2]).to_event(1))
        numpyro.sample("y", dist.Normal(b[0] + b[1] * x, 0.1).to_event(1), obs=y)

    result = fit(line, AutoDelta(line), args=(x, y))
    assert result.converged
    assert "the ELBO gained" in result.status
    design = np.stack([np.ones(100), x], 1)
    best = np.linalg.solve(design.T @ design / 0.01 + np.eye(2) / 1e4, design.T @ y / 0.01)
    np.testing.assert_allclose(result.params["b_auto_loc"], best, atol=0.1)


# --- restarts ----------------------------------------------------------------------------------------------------


def two_modes():
    mix = dist.Categorical(probs=jnp.array([0.4, 0.6]))
    numpyro.sample("x", dist.MixtureSameFamily(mix, dist.Normal(jnp.array([-2.0, 2.0]), 0.2)))


@pytest.mark.long
def test_restarts_find_the_other_mode_and_say_so():
    with pytest.warns(legrad.FitWarning, match="the posterior has several modes"):
        result = fit(two_modes, args=(), restarts=6)
    ends = np.array([r.params["x_loc"] for r in result.restarts])
    assert result.params["x_loc"] == pytest.approx(2.0, abs=0.1)
    assert (ends < 0).any()
    assert len(result.other_modes) == (ends < 0).sum()
    assert all(len(r.elbo) == r.steps for r in result.restarts)


@pytest.mark.long
def test_restarts_that_agree():
    alone, several = fit(), fit(restarts=3)
    assert several.other_modes == ()
    assert several.status.endswith("(the best of 3 starts)")
    starts = np.array([r.elbo[0] for r in several.restarts])
    assert len(np.unique(starts)) == 3
    np.testing.assert_allclose(several.restarts[0].elbo[:50], alone.elbo[:50], rtol=1e-6)
    assert all(error(r) < 0.1 for r in several.restarts)


# --- steps that are not finite -----------------------------------------------------------------------------------


def test_a_step_that_is_not_finite_is_named():
    def model():
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.factor("cliff", jnp.where(x > 3.0, jnp.nan, 5.0 * x))

    def guide():
        numpyro.sample("x", dist.Normal(numpyro.param("m", 0.0), 0.01))

    with pytest.warns(
        legrad.FitWarning,
        match=r"not finite: log p\(cliff\) is nan at other values of the latents. The parameters are",
    ):
        result = fit(model, guide, args=(), stop=None, steps=3000, optimizer=optax.sgd(0.01))
    assert not result.converged
    assert len(result.elbo) == result.steps
    assert np.isfinite(result.elbo).all()
    assert 2.5 < result.params["m"] < 3.05
    before = fit(model, guide, args=(), stop=None, steps=result.steps, optimizer=optax.sgd(0.01))
    assert before.params["m"] == result.params["m"]


def test_a_gradient_that_is_not_finite_is_named():
    def model():
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.factor("root", jnp.where(x < 2.0, x, jnp.sqrt(jnp.maximum(x - 4.0, 0.0))))  # inf · 0

    def guide():
        numpyro.sample("x", dist.Normal(numpyro.param("m", 0.0), 0.01))

    with pytest.warns(legrad.FitWarning, match=r"the gradient of log p\(root\) with respect to 'm' is not finite"):
        result = fit(
            model,
            guide,
            args=(),
            stop=None,
            steps=3000,
            optimizer=optax.sgd(0.01),
            estimator=legrad.Reparameterized(),
        )
    assert result.params["m"] == 0.0


@pytest.mark.long
def test_an_overflow_is_named():
    def guide(X, y):
        numpyro.sample("w", dist.Normal(numpyro.param("m", jnp.zeros(3)), 0.1).to_event(1))

    with pytest.warns(
        legrad.FitWarning, match="stopped at step 0, which is not finite: the parameters or the optimizer"
    ):
        result = fit(guide=guide, stop=None, steps=10, optimizer=optax.sgd(1e308))
    np.testing.assert_array_equal(result.params["m"], 0.0)


def test_an_optimizer_that_overflows_is_not_taken_for_convergence():
    """Adam stands still for ever once its second moment is infinite."""

    def guide():
        numpyro.sample("z", dist.Normal(numpyro.param("m", 400.0), 0.1))

    def model():
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        numpyro.factor("f", -jnp.exp(z))

    with pytest.warns(legrad.FitWarning, match="the parameters or the optimizer after the step overflow"):
        assert not fit(model, guide, args=()).converged


def test_one_start_that_fails_does_not_end_the_others():
    def model():
        x = numpyro.sample("x", dist.Normal(1.0, 1.0))
        numpyro.factor("cliff", jnp.where(x < -0.5, jnp.nan, 0.0))

    def guide():
        numpyro.sample("x", dist.Normal(numpyro.param("m", 1.0), 0.01))

    result = fit(model, guide, args=(), stop=None, steps=200, restarts=6, optimizer=optax.adam(0.1))
    failed = [r for r in result.restarts if "not finite" in r.status]
    assert 0 < len(failed) < 6
    assert result.steps == 200
    assert result.params["m"] == pytest.approx(1.0, abs=0.05)


# --- distances between guides ------------------------------------------------------------------------------------


def test_distances_are_those_of_closed_forms():
    from legrad.model.problem import Noise, Problem

    def guide():
        x = numpyro.sample("x", dist.Normal(numpyro.param("m", 0.0), jnp.exp(numpyro.param("s", 0.0))))
        numpyro.sample("z", dist.Bernoulli(logits=numpyro.param("l", 0.0) + 0.0 * x))

    def at(m, s, logit):
        return Problem(lambda: None, guide, {"m": m, "s": s, "l": logit})

    noise = Noise(*jax.random.split(KEY))
    for here, there in (((0.1, 0.2, 0.5), (0.0, 0.0, -0.5)), ((0.0, 0.0, 40.0), (0.0, 0.0, 4.0))):
        found = at(*here).divergence(at(*there), noise)
        normals = [dist.Normal(m, jnp.exp(s)) for m, s, _ in (here, there)]
        assert found["x"] == pytest.approx(float(dist.kl_divergence(*normals)), abs=1e-9)
        p, q = (jax.nn.sigmoid(logit) for *_, logit in (here, there))
        both = [a * jnp.log(a / b) for a, b in ((p, q), (1 - p, 1 - q)) if a > 0]
        assert found["z"] == pytest.approx(float(sum(both)), rel=1e-6)
