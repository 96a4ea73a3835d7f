"""The climb of an ELBO without noise: to the known optimum, from hard starts, with a plain word where it fails."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest

import legrad
from legrad.fitting import exact_climb
from legrad.model.parameters import Parameters
from legrad.natural.ascent import CONVERGED, NOWHERE, ROUNDING, SPENT, STUCK, Ascent
from legrad.natural.guide_map import GuideMap
from legrad.natural.metric import Metric

RNG = np.random.default_rng(0)


def normals(n, scale=1.0):
    def guide():
        loc, width = numpyro.param("loc", jnp.zeros(n)), numpyro.param("log_scale", jnp.full(n, jnp.log(scale)))
        numpyro.sample("x", dist.Normal(loc, jnp.exp(width)).to_event(1))

    return guide


def bernoullis(n, start=0.1):
    def guide():
        numpyro.sample("z", dist.Bernoulli(logits=numpyro.param("logits", jnp.full(n, start))).to_event(1))

    return guide


def climbed(guide, elbo, most=500, shared=(), nudge=None, **changes):
    parameters = Parameters(lambda: None, guide, (), {}, jax.random.key(0))
    start = parameters.unconstrain(parameters.initial) | changes
    metric = Metric(GuideMap(guide, (), {}), start, shared)
    ascent = Ascent(lambda u: -elbo(parameters.constrain(u)), metric, start, most=most)
    return jax.jit(lambda u: ascent.run(ascent.begin(u, nudge)))(start), ascent


def gaussian(precision, mean, offset=0.0):
    def elbo(q):
        away = q["loc"] - mean
        quadratic = away @ precision @ away + jnp.sum(jnp.diag(precision) * jnp.exp(2 * q["log_scale"]))
        return offset - 0.5 * quadratic + jnp.sum(q["log_scale"])

    return elbo


@pytest.mark.parametrize(("scale", "offset"), [(1.0, 0.0), (1e-4, 0.0), (1e4, -1e5)])
def test_a_correlated_gaussian_from_any_scale(scale, offset):
    """Steps are in the guide's own units: neither the scale of the start nor a large constant matters."""
    A = RNG.normal(size=(20, 20)) / 4
    precision, mean = jnp.asarray(A @ A.T + 0.05 * np.eye(20)), jnp.asarray(RNG.normal(size=20) * 5)
    found, ascent = climbed(normals(20, scale), gaussian(precision, mean, offset))
    q = ascent.unflatten(found.at)
    sd = np.diag(precision) ** -0.5
    assert int(found.end) in (CONVERGED, ROUNDING)
    assert int(found.evaluations) < 250
    np.testing.assert_allclose((q["loc"] - mean) / sd, 0.0, atol=0.02 if offset == 0.0 else 0.3)
    np.testing.assert_allclose(jnp.exp(q["log_scale"]) / sd, 1.0, rtol=0.01 if offset == 0.0 else 0.2)


@pytest.mark.parametrize("size", [25.0, 1e4])
def test_logits_that_start_saturated_on_the_wrong_side(size):
    """At 10⁴ neither a probability nor its gradient is left: only a look from elsewhere finds the way back."""
    target = jnp.asarray(RNG.normal(size=30) * 3)

    def elbo(q):
        p = jax.nn.sigmoid(q["logits"])
        entropy = jnp.sum(p * jax.nn.softplus(-q["logits"]) + (1 - p) * jax.nn.softplus(q["logits"]))
        return jnp.sum(p * target) + entropy

    found, ascent = climbed(bernoullis(30), elbo, logits=jnp.where(jnp.arange(30) % 2 == 0, -size, size))
    assert int(found.end) == CONVERGED
    np.testing.assert_allclose(ascent.unflatten(found.at)["logits"], target, atol=0.01)


def test_parameters_in_no_factor_are_climbed_too():
    """A scale of the model, beside a factor whose best value depends on it."""

    def guide():
        loc, width = numpyro.param("loc", 0.0), numpyro.param("log_scale", 0.0)
        numpyro.sample("x", dist.Normal(loc, jnp.exp(width)))
        numpyro.param("noise", 3.0)

    y = jnp.asarray(RNG.normal(size=50) + 2.0)

    def elbo(q):
        spread = (y - q["loc"]) ** 2 + jnp.exp(2 * q["log_scale"])
        return jnp.sum(-0.5 * spread * jnp.exp(-2 * q["noise"]) - q["noise"]) + q["log_scale"]

    found, ascent = climbed(guide, elbo)
    q = ascent.unflatten(found.at)
    assert int(found.end) == CONVERGED
    assert q["loc"] == pytest.approx(float(y.mean()), abs=1e-3)
    assert jnp.exp(2 * q["noise"]) == pytest.approx(float(y.var()) * 50 / 49, rel=1e-2)


def test_a_parameter_that_model_and_guide_share_is_climbed_along_what_the_guide_does_not_see():
    """The guide's scale is w s: it stays the same where s grows and w shrinks, and the model does not."""

    def guide():
        s, w = numpyro.param("log_s", 1.0), numpyro.param("log_w", 0.0)
        numpyro.sample("x", dist.Normal(0.0, jnp.exp(s + w)).expand([5]).to_event(1))

    def elbo(q):  # x ~ N(0, s), y ~ N(x, 1): the best scale of x given y and s, and then the best s
        width = jnp.exp(2 * (q["log_s"] + q["log_w"]))
        return 5 * (-0.5 * (width + 4.0) * jnp.exp(-2 * q["log_s"]) - q["log_s"] - 0.5 * width) + 5 * (
            q["log_s"] + q["log_w"]
        )

    found, ascent = climbed(guide, elbo, shared=("log_s",))
    q = ascent.unflatten(found.at)
    assert int(found.end) == CONVERGED
    np.testing.assert_allclose(jax.grad(lambda q: elbo(q))(q)["log_s"], 0.0, atol=0.02)
    plain, _ = climbed(guide, elbo)  # as if the guide alone had both
    assert float(plain.loss) > float(found.loss) - 1e-6


def test_a_nudge_to_where_nothing_is_finite_is_shortened():
    def elbo(q):
        return jnp.where(q["loc"][0] > 1.0, jnp.nan, -jnp.sum(q["loc"] ** 2) - jnp.sum(q["log_scale"] ** 2))

    found, _ = climbed(normals(3), elbo, nudge={"loc": jnp.full(3, 5.0), "log_scale": jnp.zeros(3)})
    assert int(found.end) in (CONVERGED, ROUNDING)
    assert float(found.loss) == pytest.approx(0.0, abs=1e-4)


def test_a_nudge_of_a_saturated_logit_is_small():
    parameters = Parameters(lambda: None, bernoullis(4), (), {}, jax.random.key(0))
    far = {"logits": jnp.array([-30.0, 30.0, -300.0, 0.0])}
    step = Metric(GuideMap(bernoullis(4), (), {}), parameters.start).draw(far, jax.random.key(1), 0.05)["logits"]
    assert np.abs(step).max() <= 0.2
    assert np.abs(step).min() > 0.0 or np.abs(step[3]) > 0.0


@pytest.mark.long
def test_how_it_ends_is_said():
    precision, mean = jnp.eye(3) + 0.4, jnp.ones(3)
    assert int(climbed(normals(3), gaussian(precision, mean), most=3)[0].end) == SPENT
    assert int(climbed(normals(3), lambda q: jnp.nan * jnp.sum(q["loc"]))[0].end) == NOWHERE
    wrong = jax.custom_jvp(lambda loc: -jnp.sum(loc**2))
    wrong.defjvp(lambda x, dx: (-jnp.sum(x[0] ** 2), jnp.sum(2 * x[0] * dx[0])))  # a gradient of the wrong sign
    assert int(climbed(normals(3), lambda q: wrong(q["loc"] + 1.0) - jnp.sum(q["log_scale"] ** 2))[0].end) == STUCK


def coupled():
    with numpyro.plate("items", 6):
        z = numpyro.sample("z", dist.Bernoulli(0.3))
    numpyro.sample("y", dist.Normal(z.sum(), 0.5), obs=2.0)


@pytest.mark.long
def test_fit_climbs_an_exact_objective_without_a_learning_rate():
    guide = legrad.MeanField(coupled)
    settings = {"key": 0, "estimator": legrad.Exact(), "progress": False}
    result = legrad.fit(coupled, guide, restarts=2, **settings)
    assert result.converged
    assert result.status.startswith("converged after")
    assert "natural steps" in result.restarts[0].note
    assert result.gradients["objective"] == result.steps == len(result.elbo) < 100
    adam = legrad.fit(coupled, guide, optimizer=optax.adam(0.05), steps=1500, **settings)
    assert result.elbo[-1] >= adam.elbo[-1] - 1e-4
    few = legrad.fit(coupled, guide, steps=3, **settings)  # steps are stochastic steps, and as many as asked
    assert few.steps == 3
    assert not few.converged


def test_a_climb_that_runs_out_of_gradients_says_so(monkeypatch):
    monkeypatch.setattr(exact_climb, "MOST", 3)
    with pytest.warns(legrad.FitWarning, match="not converged after 3 gradients"):
        legrad.fit(coupled, legrad.MeanField(coupled), key=0, estimator=legrad.Exact(), progress=False)


def test_components_that_begin_alike_do_not_stay_alike():
    """Without noise nothing else would break the symmetry: two groups, and a guide that knows neither."""
    y = jnp.asarray([-2.0, -2.1, 2.0, 2.1])

    def model():
        with numpyro.plate("points", 4):
            z = numpyro.sample("z", dist.Bernoulli(0.5))
        same = z[:, None] == z[None]
        numpyro.factor("alike", jnp.sum(jnp.where(same, 0.3 * y[:, None] * y[None], 0.0)))

    def guide():
        with numpyro.plate("points", 4):
            numpyro.sample("z", dist.Bernoulli(logits=numpyro.param("l", jnp.zeros(4))))

    result = legrad.fit(model, guide, key=0, estimator=legrad.Exact(), progress=False)
    p = np.asarray(jax.nn.sigmoid(result.params["l"]))
    assert abs(p[0] - p[1]) < 0.05 < 0.9 < abs(p[0] - p[2])


def test_what_the_guide_does_not_see_keeps_its_gradient():
    """Along (1, −1) the scale exp(s + w) stays the same, but a model that has s, too, does not."""

    def guide():
        s, w = numpyro.param("s", 0.0), numpyro.param("w", 0.0)
        numpyro.sample("x", dist.Normal(0.0, jnp.exp(s + w)))

    start = {"s": jnp.zeros(()), "w": jnp.zeros(())}
    step = Metric(GuideMap(guide, (), {}), start).solve(start, {"s": jnp.ones(()), "w": -jnp.ones(())}).step
    assert step["s"] > 0.1
    assert step["w"] == pytest.approx(-step["s"])


def test_pairs_are_written_in_place():
    """No step of the climb copies the pairs: they are most of its memory, and one row of them is new."""
    parameters = Parameters(lambda: None, normals(300), (), {}, jax.random.key(0))
    start = parameters.unconstrain(parameters.initial)
    ascent = Ascent(lambda u: jnp.sum(u["loc"] ** 4), Metric(GuideMap(normals(300), (), {}), start), start)
    program = jax.jit(ascent.run).lower(ascent.begin(start)).compile().as_text()
    pairs = "[{},{}]".format(*ascent.begin(start).memory.steps.shape)
    copies = [line for line in program.splitlines() if " copy(" in line and pairs in line.split(" copy(")[0]]
    assert "dynamic-update-slice" in program
    assert all("copy(%climb_memory" in line for line in copies)  # the arguments, before the first step


def test_products_of_steps_are_those_of_their_fisher_coordinates(monkeypatch):
    """One step after another, as in large guides, or all together."""

    def guide():
        with numpyro.plate("i", 5):
            numpyro.sample("z", dist.Categorical(logits=numpyro.param("l", jnp.asarray(RNG.normal(size=(5, 3))))))

    parameters = Parameters(lambda: None, guide, (), {}, jax.random.key(0))
    start = parameters.unconstrain(parameters.initial)
    metric, steps = Metric(GuideMap(guide, (), {}), start), {"l": jnp.asarray(RNG.normal(size=(4, 5, 3)))}
    together = metric.coordinates(start, steps)
    monkeypatch.setattr("legrad.natural.metric._LARGE", 0)
    for found, expected in zip(metric.coordinates(start, steps), together, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)
