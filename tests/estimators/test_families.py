"""Every family that docs/distributions.md lists, as a guide with all of its parameters learned.

Against Σ or ∫ q(x) g(x) by a fine rule over NumPyro's density, differentiated: for an expectation and for an ELBO.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.distributions import transforms as tr

import legrad

KEY = jax.random.key(3)
LOC_SCALE = {"loc": 0.3, "scale": 0.8}


class Row(NamedTuple):
    """A family: how it is made of its learned parameters, and a rule (points, log-weights) for its reference.

    Where the ends of the support move the rule is None, and quantiles are the reference.
    """

    make: Any
    params: dict
    rule: Any


def whole(size):
    return lambda p: (jnp.arange(size), jnp.zeros(size))


def line(p):
    """x = sinh(t): ends as far out as any of the tails here."""
    t = jnp.linspace(-12.0, 12.0, 6001)
    return jnp.sinh(t), jnp.log(jnp.cosh(t) * (t[1] - t[0]))


def above(low):
    def rule(p):
        t = jnp.linspace(-34.0, 30.0, 6001)
        return jax.lax.stop_gradient(low(p)) + jnp.exp(t), t + jnp.log(t[1] - t[0])

    return rule


positive = above(lambda p: 0.0)


def between(low, high):
    def rule(p):
        t = jnp.linspace(-30.0, 30.0, 6001)
        log_slope = jax.nn.log_sigmoid(t) + jax.nn.log_sigmoid(-t)
        return low + (high - low) * jax.nn.sigmoid(t), log_slope + jnp.log((high - low) * (t[1] - t[0]))

    return rule


unit = between(0.0, 1.0)


def truncated(low=None, high=None):
    return lambda loc, scale: dist.TruncatedNormal(loc, scale, low=low, high=high)


FINITE = {
    "BernoulliProbs": Row(dist.BernoulliProbs, {"probs": 0.3}, whole(2)),
    "BernoulliLogits": Row(dist.BernoulliLogits, {"logits": -0.4}, whole(2)),
    "CategoricalProbs": Row(lambda w: dist.CategoricalProbs(jax.nn.softmax(w)), {"w": [0.4, 0.9, -0.1]}, whole(3)),
    "CategoricalLogits": Row(dist.CategoricalLogits, {"logits": [0.2, -0.5, 0.3]}, whole(3)),
    "BinomialProbs": Row(lambda probs: dist.BinomialProbs(probs, 5), {"probs": 0.3}, whole(6)),
    "BinomialLogits": Row(lambda logits: dist.BinomialLogits(logits, 5), {"logits": 0.3}, whole(6)),
    "BetaBinomial": Row(
        lambda a, b: dist.BetaBinomial(a, b, 6), {"a": 1.3, "b": 2.1}, whole(7)
    ),
    "OrderedLogistic": Row(
        lambda predictor, low: dist.OrderedLogistic(predictor, jnp.stack([low, low + 1.0])),
        {"predictor": 0.3, "low": -0.5},
        whole(3),
    ),
    "DiscreteUniform": Row(lambda: dist.DiscreteUniform(0, 3), {}, whole(4)),
}  # fmt: skip
COUNTS = {
    "Poisson": Row(dist.Poisson, {"rate": 3.0}, whole(400)),
    "GeometricProbs": Row(dist.GeometricProbs, {"probs": 0.4}, whole(400)),
    "GeometricLogits": Row(dist.GeometricLogits, {"logits": -0.3}, whole(400)),
    "GammaPoisson": Row(dist.GammaPoisson, {"concentration": 2.5, "rate": 0.8}, whole(400)),
    "NegativeBinomial2": Row(dist.NegativeBinomial2, {"mean": 3.0, "concentration": 2.5}, whole(400)),
    "NegativeBinomialProbs": Row(
        lambda count, probs: dist.NegativeBinomialProbs(count, probs), {"count": 2.5, "probs": 0.4}, whole(400)
    ),
    "NegativeBinomialLogits": Row(
        lambda count, logits: dist.NegativeBinomialLogits(count, logits), {"count": 2.5, "logits": -0.4}, whole(400)
    ),
}
REAL = {
    "Normal": Row(dist.Normal, LOC_SCALE, line),
    "Logistic": Row(dist.Logistic, LOC_SCALE, line),
    "Gumbel": Row(dist.Gumbel, LOC_SCALE, line),
    "SoftLaplace": Row(dist.SoftLaplace, LOC_SCALE, line),
    "StudentT": Row(dist.StudentT, {"df": 6.0} | LOC_SCALE, line),
}
POSITIVE = {
    "HalfNormal": Row(dist.HalfNormal, {"scale": 0.8}, positive),
    "Exponential": Row(dist.Exponential, {"rate": 1.5}, positive),
    "Gamma": Row(dist.Gamma, {"concentration": 1.7, "rate": 1.2}, positive),
    "Chi2": Row(dist.Chi2, {"df": 2.5}, positive),
    "InverseGamma": Row(dist.InverseGamma, {"concentration": 5.0, "rate": 3.0}, positive),
    "Weibull": Row(dist.Weibull, {"scale": 1.3, "concentration": 1.5}, positive),
    "Gompertz": Row(dist.Gompertz, {"concentration": 0.7, "rate": 1.1}, positive),
    "Dagum": Row(dist.Dagum, {"concentration": 1.2, "sharpness": 6.0, "scale": 1.1}, positive),
    "LogNormal": Row(dist.LogNormal, {"loc": -0.3, "scale": 0.5}, positive),
}
BOUNDED = {
    "Beta": Row(dist.Beta, {"concentration1": 1.5, "concentration0": 2.5}, unit),
    "BetaProportion": Row(dist.BetaProportion, {"mean": 0.4, "concentration": 4.0}, unit),
    "Kumaraswamy": Row(dist.Kumaraswamy, {"concentration1": 1.5, "concentration0": 2.5}, unit),
    "LeftTruncatedDistribution": Row(truncated(low=-0.5), {"loc": 0.6, "scale": 0.8}, above(lambda p: -0.5)),
    "RightTruncatedDistribution": Row(
        truncated(high=0.9), LOC_SCALE, lambda p: (lambda x, w: (0.9 - x, w))(*positive(p))
    ),
    "TwoSidedTruncatedDistribution": Row(truncated(-1.0, 1.5), LOC_SCALE, between(-1.0, 1.5)),
    "Uniform": Row(lambda: dist.Uniform(-1.0, 2.0), {}, between(-1.0, 2.0)),
    "sigmoid of a Normal": Row(
        lambda loc, scale: dist.TransformedDistribution(dist.Normal(loc, scale), tr.SigmoidTransform()),
        {"loc": 0.3, "scale": 0.6},
        unit,
    ),
}  # fmt: skip
ALIKE = (
    "BetaBinomial",
    "NegativeBinomial2",
    "NegativeBinomialProbs",
    "Chi2",
    "BetaProportion",
)  # as another: one test
LOCAL = {"finite": FINITE, "counts": COUNTS, "real": REAL, "positive": POSITIVE, "bounded": BOUNDED}


REPARAMETERIZED = {
    "Cauchy": Row(dist.Cauchy, LOC_SCALE, line),
    "HalfCauchy": Row(dist.HalfCauchy, {"scale": 0.8}, positive),
    "Levy": Row(dist.Levy, LOC_SCALE, above(lambda p: p["loc"])),
    "Laplace": Row(dist.Laplace, LOC_SCALE, line),
    "AsymmetricLaplace": Row(dist.AsymmetricLaplace, LOC_SCALE | {"asymmetry": 1.4}, line),
    "AsymmetricLaplaceQuantile": Row(dist.AsymmetricLaplaceQuantile, LOC_SCALE | {"quantile": 0.4}, line),
    "FoldedDistribution": Row(
        lambda loc, scale: dist.FoldedDistribution(dist.Normal(loc, scale)), LOC_SCALE, positive
    ),
    "RelaxedBernoulliLogits": Row(
        dist.RelaxedBernoulliLogits, {"temperature": 0.9, "logits": 0.4}, unit
    ),
    "Pareto": Row(dist.Pareto, {"scale": 0.7, "alpha": 2.5}, None),
    "Uniform": Row(dist.Uniform, {"low": -1.0, "high": 2.0}, None),
    "TruncatedNormal": Row(
        lambda loc, scale, low: dist.TruncatedNormal(loc, scale, low=low), LOC_SCALE | {"low": -0.5}, None
    ),
}  # fmt: skip


def start(rows, shape=()):
    """The parameters; for a shape, as many elements with the same."""

    def spread(v):
        return jnp.broadcast_to(jnp.asarray(v, float), shape + np.shape(v))

    return {"p": {name: {k: spread(v) for k, v in row.params.items()} for name, row in rows.items()}}


def guide_of(rows, shape=()):
    def guide():
        p = numpyro.param("p", start(rows, shape)["p"])
        for name, row in rows.items():
            numpyro.sample(name, row.make(**p[name]))

    return guide


def reference(row, p, f):
    """E[f] and the ELBO, E[f] plus the entropy, differentiable in p."""
    d = row.make(**p)
    if row.rule is None:
        x = d.icdf((jnp.arange(20000) + 0.5) / 20000)
        return jnp.stack([jnp.mean(f(x)), jnp.mean(f(x) - d.log_prob(x))])
    x, log_weights = row.rule(p)
    seen = jax.lax.stop_gradient(d.log_prob(x)) > -600.0
    x = jnp.where(seen, x, x[jnp.argmax(seen)])  # else an infinity far out makes the derivative NaN
    log_q = d.log_prob(x)
    mass = jnp.where(seen, jnp.exp(log_q + log_weights), 0.0)
    return jnp.stack([jnp.sum(mass * f(x)), jnp.sum(mass * (f(x) - log_q))])


def gradients(rows, f, shape=(), both=True, estimator=None):
    """The gradients of an expectation (if `both`) and of an ELBO, and their references."""
    guide, params = guide_of(rows, shape), start(rows, shape)
    estimator = estimator or legrad.LocalExpectation()

    def terms(latents):
        return jnp.concatenate([jnp.ravel(f(x)) for x in latents.values()])

    def expected(params):
        return legrad.expectation(terms, guide, params, key=KEY, estimator=estimator)

    def elbo(params):
        return -estimator.loss(KEY, params, legrad.log_density(terms), guide)

    @jax.jit
    def ours(params):
        return jax.grad(expected)(params)["p"] if both else None, jax.value_and_grad(elbo)(params)

    @jax.jit
    def exact(p):
        return {
            name: jax.jacrev(lambda p, row=row: reference(row, p, f))(p[name])
            for name, row in rows.items()
            if row.params
        }

    expectation, (value, of_elbo) = ours(params)
    assert np.isfinite(value)
    assert jax.tree.structure(of_elbo) == jax.tree.structure(params)
    truth = exact(start(rows)["p"])
    ours_and_exact = [
        (g, jax.tree.map(lambda t, i=i: t[i], truth)) for i, g in enumerate((expectation, of_elbo["p"]))
    ]
    return ours_and_exact if both else ours_and_exact[1:]


def quadratic(x):
    return -0.5 * (x - 0.7) ** 2


def bounded(x):
    return 1.0 / (1.0 + x**2)


@pytest.fixture
def cheap_draws(monkeypatch):
    """Every draw is 1, or 0.5: local gradients do not depend on it, and samplers take long to compile."""

    def sample(self, key, sample_shape=()):
        return jnp.full(self.shape(sample_shape), 1 if self.is_discrete else 0.5)

    for row in (row for rows in LOCAL.values() for row in rows.values()):
        family = type(row.make(**{k: jnp.asarray(v) for k, v in row.params.items()}))
        if not issubclass(family, dist.TransformedDistribution):
            monkeypatch.setattr(family, "sample", sample)


@pytest.mark.parametrize("name", [name for rows in LOCAL.values() for name in rows])
def test_gradients_of_local_families(name, cheap_draws):
    row = next(rows[name] for rows in LOCAL.values() if name in rows)
    tolerance = 1e-6 if name in FINITE else 1e-4 if name in COUNTS else 0.02
    for ours, exact in gradients({name: row}, quadratic, both=name not in ALIKE):
        assert name in exact or not row.params
        for parameter, truth in exact.get(name, {}).items():
            error = np.max(np.abs(ours[name][parameter] - truth)) / np.max(np.abs(truth))
            assert error <= tolerance, (parameter, error, truth)


@pytest.mark.long
def test_gradients_of_reparameterized_families():
    n, noisy = 4000, legrad.LocalExpectation(sites={"Levy": "score"})  # NumPyro has no reparameterization of it
    for ours, exact in gradients(REPARAMETERIZED, bounded, (n,), estimator=noisy):
        for name in exact:
            for parameter, truth in exact[name].items():
                draws = np.asarray(ours[name][parameter])
                error = draws.std() / n**0.5
                assert np.isfinite(draws).all(), (name, parameter)
                assert abs(draws.mean() - truth) <= 5 * error + 1e-3 * abs(truth), (name, parameter, error, truth)
                assert name == "Levy" or 5 * error < 0.2 * abs(truth) + 0.1, (name, parameter, error, truth)


@pytest.mark.long
def test_a_negative_binomial_is_fitted():
    """The alarm for mass outside the window holds an incomplete beta function, which has no such derivative."""
    name = "GammaPoisson"
    target = legrad.log_density(lambda latents: quadratic(latents[name]))
    rows = {name: COUNTS[name]}
    result = legrad.fit(target, guide_of(rows), key=KEY, steps=3, optimizer=optax.adam(1e-3), progress=False)
    assert result.params["p"][name] != start(rows)["p"][name]
    assert np.isfinite(result.elbo).all()


def test_every_family_of_the_page_is_here():
    page = (Path(__file__).parents[2] / "docs" / "distributions.md").read_text()
    counts = re.search(r"## Counts.*?\n\n(.*?)\.\n", page, re.DOTALL).group(1).split(", ")
    finite = re.search(r"## Finite.*?\n\n(.*?) and everything", page, re.DOTALL).group(1).split(", ")
    rows = {name.removesuffix(" (through its base)") for name in re.findall(r"^\| ([^|]*?) \|", page, re.MULTILINE)}
    here = {name for rows in LOCAL.values() for name in rows} | set(REPARAMETERIZED)
    assert rows - {"distribution"} | set(counts) <= here
    for name in finite:
        assert any(family.startswith(name) for family in FINITE), name
