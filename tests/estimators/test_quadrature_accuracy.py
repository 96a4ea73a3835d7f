"""Quadrature outside of its promise is seen, by how much, and said; within it nothing is."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.distributions import constraints

import legrad
from legrad.fitting.quadrature_error import quadrature_concern

KEY = jax.random.key(0)


def factor(family, **start):
    """A guide of one site, all parameters learned; a scale or a rate is positive."""

    def guide():
        params = {
            k: numpyro.param(k, float(v), constraint=constraints.real if k == "loc" else constraints.positive)
            for k, v in start.items()
        }
        numpyro.sample("x", family(**params))

    return guide


SAMPLED = legrad.LocalExpectation(exact_terms=False)  # else most of these terms need no quadrature of the guide's


def fitted(f, guide, steps=1, rate=0.0, **settings):
    """A fit that stays where it starts."""
    target = legrad.log_density(lambda latents: f(latents["x"]))
    settings = {"estimator": SAMPLED} | settings
    return legrad.fit(target, guide, key=KEY, steps=steps, optimizer=optax.sgd(rate), progress=False, **settings)


def wide(loc):
    return dist.Normal(loc, 10.0)


@pytest.mark.parametrize(
    ("f", "guide", "off"),
    [
        (jax.nn.sigmoid, factor(wide, loc=0.0), 0.15),
        (jax.nn.sigmoid, factor(dist.Normal, loc=-3.0, scale=10.0), 0.35),
        (lambda x: jnp.exp(-x), factor(dist.Exponential, rate=0.1), 0.11),
        (lambda x: jnp.cos(4 * x), factor(dist.Normal, loc=0.5, scale=1.0), 1.0),
    ],
    ids=["sigmoid", "sigmoid, scale", "exp", "cos"],
)
def test_a_rule_that_is_off_is_measured_and_said(f, guide, off):
    with pytest.warns(legrad.FitWarning, match=r"gradient of .* changes by .*nodes=11.*continuous=\"reparam\""):
        result = fitted(f, guide)
    assert 0.7 * off < legrad.quadrature_error(result)["relative"] < 1.1 * off
    assert result.quadrature in result.status
    name = "rate" if "rate" in result.params else "scale" if off == 0.35 else "loc"
    assert f"'{name}'" in result.quadrature


GUMBEL = {"loc": 1.0, "scale": 2.0}


@pytest.mark.parametrize(
    ("f", "guide"),
    [
        (lambda x: -0.5 * (x - 1.0) ** 2, factor(dist.Normal, loc=1.0, scale=1.0)),
        (lambda x: -(x**4), factor(wide, loc=0.0)),
        (lambda x: 0.0 * x, factor(dist.Normal, loc=1.0, scale=1.0)),
        (lambda x: 1e6 + 0.0 * x, factor(dist.Exponential, rate=1.0)),
        (dist.Gumbel(**GUMBEL).log_prob, factor(dist.Gumbel, **GUMBEL)),
        (dist.Kumaraswamy(2.0, 2.5).log_prob, factor(dist.Kumaraswamy, concentration1=2.0, concentration0=2.5)),
    ],
    ids=["Normal", "quartic", "nothing", "constant", "Gumbel", "Kumaraswamy"],
)
def test_an_exact_rule_at_an_optimum_is_off_by_rounding(f, guide):
    with jax.enable_x64(False):
        result = fitted(f, guide)
        assert result.quadrature == ""
        assert legrad.quadrature_error(result)["relative"] < 1e-4


def test_more_nodes_are_better():
    with pytest.warns(legrad.FitWarning, match="quadrature"):
        few = legrad.quadrature_error(fitted(jax.nn.sigmoid, factor(wide, loc=0.5)))
    estimator = legrad.LocalExpectation(nodes=45, exact_terms=False)
    many = legrad.quadrature_error(fitted(jax.nn.sigmoid, factor(wide, loc=0.5), estimator=estimator))
    assert many["relative"] < 0.01 < 0.1 < few["relative"]
    assert many["loc"] < 0.1 * few["loc"]


def test_an_almost_exact_guide_is_not_judged_by_what_is_left():
    """log p and log q are large; their difference is small, and not integrated well."""
    start = {"concentration": 1.0, "rate": 2.0}

    def f(x):
        return dist.Gompertz(**start).log_prob(x) + 1e-3 * jnp.cos(40.0 * x)

    assert fitted(f, factor(dist.Gompertz, **start)).quadrature == ""


def test_nodes_where_f_is_not_finite_are_no_error_of_the_rule():
    def cliff(x):
        return jnp.where(x > 3.0, jnp.nan, 5.0 * x)

    for loc in (2.96, 2.97):  # 4 and 3 standard deviations away
        assert fitted(cliff, factor(lambda loc: dist.Normal(loc, 0.01), loc=loc)).quadrature == ""


Y = jnp.asarray(np.random.default_rng(0).normal(size=12) > 0, float)


def model(y):
    """A site without quadrature, one that is exact, and one whose scale is far too large for five nodes."""
    with numpyro.plate("N", len(y)):
        z = numpyro.sample("z", dist.Bernoulli(0.3))
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        b = numpyro.sample("b", dist.Normal(0.0, 10.0))
        numpyro.factor("b soft", 40.0 * jax.nn.sigmoid(b))
        numpyro.sample("y", dist.Normal(a + z, 1.0), obs=y)


def guide(y):
    b = numpyro.param("b_loc", jnp.zeros(len(y)))
    with numpyro.plate("N", len(y)):
        numpyro.sample("z", dist.Bernoulli(logits=numpyro.param("z_logits", jnp.zeros(len(y)))))
        numpyro.sample("a", dist.Normal(numpyro.param("a_loc", jnp.zeros(len(y))), 1.0))
        numpyro.sample("b", dist.Normal(b, 10.0))


@pytest.mark.long
def test_fit_and_diagnosis_name_the_parameter(tmp_path):
    settings = {"args": (Y,), "key": KEY, "steps": 2, "optimizer": optax.sgd(0.0), "progress": False}
    with pytest.warns(legrad.FitWarning, match="gradient of 'b_loc'"):
        result = legrad.fit(model, guide, estimator=SAMPLED, **settings)
    error = legrad.quadrature_error(result)
    assert error["b_loc"] > 0.1
    assert error["a_loc"] < 1e-9
    assert error["z_logits"] == 0.0
    assert any("gradient of 'b_loc' changes" in flag for flag in result.diagnose(KEY, 500).flags)
    result.save(tmp_path / "fit.legrad")
    loaded = legrad.load(tmp_path / "fit.legrad", model, guide, args=(Y,))
    assert loaded.quadrature == result.quadrature
    assert quadrature_concern(loaded, KEY) == result.quadrature  # what its diagnosis says
    other = legrad.fit(
        model, guide, estimator=legrad.LocalExpectation(sites={"b": "reparam"}, exact_terms=False), **settings
    )
    assert other.quadrature == ""


def test_a_check_that_fails_does_not_lose_the_result(monkeypatch):
    def fails(*args):
        raise RuntimeError("no such thing")

    monkeypatch.setattr("legrad.fitting.guide_comparison.sums_over_nodes", fails)
    with pytest.warns(legrad.FitWarning, match=r"could not be checked \(no such thing\)"):
        result = fitted(jax.nn.sigmoid, factor(wide, loc=0.5))
    assert result.steps == 1
