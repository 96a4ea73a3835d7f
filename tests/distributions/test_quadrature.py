"""The 2% that admits a continuous distribution, measured for all of them against SciPy, and its nodes."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import transforms as tr
from scipy import special, stats

from legrad.distributions import elements, quadrature, support

jax.config.update("jax_enable_x64", True)


# ---------------------------------------------------------------------------------------------------------
# The catalogue: a continuous distribution, its SciPy twin, and the parameters at which it is measured,
# the ends of the range that its rule claims among them.


class Row(NamedTuple):
    make: object
    twin: object
    settings: list


class Kumaraswamy:
    """SciPy has none."""

    def __init__(self, a, b):
        self.a, self.b = a, b

    def isf(self, s):
        return (-np.expm1(np.log(s) / self.b)) ** (1 / self.a)

    def ppf(self, u):
        return (-np.expm1(np.log1p(-u) / self.b)) ** (1 / self.a)

    def moment(self, n):
        return self.b * special.beta(1 + n / self.a, self.b)

    def logpdf(self, x):
        return np.log(self.a * self.b) + (self.a - 1) * np.log(x) + (self.b - 1) * np.log1p(-(x**self.a))


class SigmoidNormal:
    def __init__(self, loc, scale):
        self.loc, self.scale = loc, scale

    def ppf(self, u):
        return special.expit(self.loc + self.scale * special.ndtri(u))

    def isf(self, s):
        return special.expit(self.loc - self.scale * special.ndtri(s))

    def moment(self, n):
        z = np.linspace(-9, 9, 20001)
        w = np.exp(-0.5 * z**2)
        return np.sum(w * special.expit(self.loc + self.scale * z) ** n) / w.sum()

    def logpdf(self, x):
        return stats.norm(self.loc, self.scale).logpdf(special.logit(x)) - np.log(x) - np.log1p(-x)


def truncated(low=None, high=None):
    a, b = -np.inf if low is None else low, np.inf if high is None else high
    return (
        lambda loc, scale: dist.TruncatedNormal(loc, scale, low=low, high=high),
        lambda loc, scale: stats.truncnorm((a - loc) / scale, (b - loc) / scale, loc, scale),
    )


LOC_SCALE = [{"loc": 0.7, "scale": 1.3}, {"loc": -5.0, "scale": 0.2}]


def grid(**kwargs):
    (name, values), *rest = kwargs.items()
    return [{name: v} | tail for v in values for tail in (grid(**dict(rest)) if rest else [{}])]


CATALOGUE = {
    "Normal": Row(dist.Normal, stats.norm, LOC_SCALE),
    "Logistic": Row(dist.Logistic, stats.logistic, LOC_SCALE),
    "Gumbel": Row(dist.Gumbel, stats.gumbel_r, LOC_SCALE),
    "SoftLaplace": Row(dist.SoftLaplace, stats.hypsecant, LOC_SCALE),
    "StudentT": Row(
        dist.StudentT,
        lambda df, loc, scale: stats.t(df, loc, scale),
        grid(df=[3.5, 5.0, 10.0, 50.0], loc=[0.7], scale=[1.3]),
    ),
    "HalfNormal": Row(dist.HalfNormal, lambda scale: stats.halfnorm(scale=scale), grid(scale=[0.1, 1.3])),
    "Exponential": Row(dist.Exponential, lambda rate: stats.expon(scale=1 / rate), grid(rate=[0.1, 1.5])),
    "Gamma": Row(
        dist.Gamma,
        lambda concentration, rate: stats.gamma(concentration, scale=1 / rate),
        grid(concentration=[0.3, 0.5, 1.0, 3.0, 30.0], rate=[2.0]),
    ),
    "Chi2": Row(dist.Chi2, lambda df: stats.chi2(df), grid(df=[0.6, 1.0, 4.0, 20.0])),
    "InverseGamma": Row(
        dist.InverseGamma,
        lambda concentration, rate: stats.invgamma(concentration, scale=rate),
        grid(concentration=[4.0, 6.0, 30.0], rate=[2.0]),
    ),
    "Weibull": Row(
        dist.Weibull,
        lambda scale, concentration: stats.weibull_min(concentration, scale=scale),
        grid(scale=[1.3], concentration=[0.7, 1.0, 1.5, 3.0, 10.0]),
    ),
    "Gompertz": Row(
        dist.Gompertz,
        lambda concentration, rate: stats.gompertz(concentration, scale=1 / rate),
        grid(concentration=[0.1, 0.5, 3.0], rate=[1.5]),
    ),
    "Dagum": Row(
        dist.Dagum,
        lambda concentration, sharpness, scale: stats.mielke(concentration * sharpness, sharpness, scale=scale),
        grid(concentration=[0.7, 1.5], sharpness=[4.0, 6.0, 20.0], scale=[1.2]),
    ),
    "Beta": Row(
        dist.Beta,
        lambda concentration1, concentration0: stats.beta(concentration1, concentration0),
        grid(concentration1=[0.7, 1.0, 3.0, 40.0], concentration0=[0.7, 2.0, 30.0]),
    ),
    "BetaProportion": Row(
        dist.BetaProportion,
        lambda mean, concentration: stats.beta(mean * concentration, (1 - mean) * concentration),
        grid(mean=[0.3], concentration=[2.4, 10.0]),
    ),
    "Kumaraswamy": Row(
        dist.Kumaraswamy,
        lambda concentration1, concentration0: Kumaraswamy(concentration1, concentration0),
        grid(concentration1=[0.7, 1.0, 3.0, 10.0], concentration0=[0.7, 2.0, 10.0]),
    ),
    "TruncatedNormal low": Row(
        *truncated(low=0.0), grid(loc=[-5.0, -1.0, 0.2, 1.0, 2.0, 3.0, 4.0, 6.0], scale=[1.0])
    ),
    "TruncatedNormal high": Row(*truncated(high=0.0), grid(loc=[1.0, -0.2, -3.0], scale=[1.3])),
    "TruncatedNormal both": Row(
        *truncated(0.0, 3.0), [{"loc": m, "scale": s} for m in (-1.0, 1.0, 2.0) for s in (0.5, 2.0)]
    ),
    "LogNormal": Row(
        dist.LogNormal,
        lambda loc, scale: stats.lognorm(scale, scale=np.exp(loc)),
        grid(loc=[0.3], scale=[0.1, 0.5, 0.7]),
    ),
    "sigmoid of a Normal": Row(
        lambda loc, scale: dist.TransformedDistribution(dist.Normal(loc, scale), tr.SigmoidTransform()),
        SigmoidNormal,
        grid(loc=[0.5], scale=[0.1, 0.5, 0.8]),
    ),
}


def reference(row, setting, name):
    """Derivatives of E[x], E[x²] and the entropy along one parameter: differences of SciPy's moments."""
    z = np.linspace(-8, 8, 1601)
    weights = np.exp(-0.5 * z**2) / np.exp(-0.5 * z**2).sum()

    def moments(value):
        twin = row.twin(**(setting | {name: value}))
        if hasattr(twin, "mean"):
            first, second = twin.mean(), twin.var() + twin.mean() ** 2
        else:
            first, second = twin.moment(1), twin.moment(2)
        with np.errstate(all="ignore"):
            log_q = twin.logpdf(quantile(twin, z))
        return np.array([first, second, -np.sum(np.where(np.isfinite(log_q), weights * log_q, 0))])

    h = 1e-4 * max(abs(setting[name]), 0.1)
    return (moments(setting[name] + h) - moments(setting[name] - h)) / (2 * h), moments(setting[name])


def quantile(twin, z):
    return np.where(z < 0, twin.ppf(special.ndtr(np.minimum(z, 0))), twin.isf(special.ndtr(-np.maximum(z, 0))))


def errors(row, find=support.candidates):
    """Relative errors of the local expectation gradients of E[x], E[x²] and the entropy: settings × 3.

    The worst parameter's. The functions are taken less their means, as the estimator drops constants. A
    gradient near zero is measured against a twentieth of the function's range over the central 80% times the
    square root of the parameter's Fisher information: by Cauchy and Schwarz the product bounds a gradient.
    """

    def at(setting, name, p):
        return elements.scalar(row.make(**(setting | {name: p})))

    def along(f, setting, name):
        """The derivative of f in one parameter, for every setting."""
        value = setting[name]
        return jax.jvp(lambda p: f(at(setting, name, p)), (value,), (jnp.ones_like(value),))[1]

    def nodes(setting):
        element = elements.scalar(row.make(**setting))
        values, weights, _ = find(element.base)
        x, log_det, minus_log_q = (
            element.value(values),
            element.log_abs_det(values),
            -element.log_prob(values),
        )
        scores = {name: along(lambda e: e.log_prob(values), setting, name) for name in setting}
        if support.entropy(element.base) is None:
            return (
                weights,
                scores,
                dict.fromkeys(setting, jnp.zeros(len(row.settings))),
                [x, x**2, minus_log_q],
            )
        formulas = {name: along(lambda e: support.entropy(e.base), setting, name) for name in setting}
        return (
            weights,
            scores,
            formulas,
            [x, x**2, log_det],
        )  # only what the transforms add is left to the nodes

    setting = {name: jnp.array([s[name] for s in row.settings]) for name in row.settings[0]}
    weights, scores, formulas, functions = jax.tree.map(np.asarray, jax.jit(nodes)(setting))
    np.testing.assert_allclose(weights.sum(0), 1, rtol=1e-12)
    worst = np.zeros((len(row.settings), 3))
    for k, s in enumerate(row.settings):
        w, g = weights[:, k], np.stack([f[:, k] for f in functions])
        middle = quantile(row.twin(**s), np.linspace(-1.28, 1.28, 99))
        for name in s:
            score = scores[name][:, k]
            truth, means = reference(row, s, name)
            means[2] = np.sum(w * g[2])
            estimate = np.sum(w * score * (g - means[:, None]), 1) + np.array([0, 0, formulas[name][k]])
            size = np.sqrt(np.sum(w * score**2)) * np.array([np.ptp(middle), np.ptp(middle**2), 1])
            worst[k] = np.maximum(worst[k], np.abs(estimate - truth) / np.maximum(np.abs(truth), 0.05 * size))
    return worst


@pytest.mark.parametrize("name", CATALOGUE)
def test_gradients_are_within_two_percent(name):
    worst = errors(CATALOGUE[name]).max(1)
    assert worst.max() < 0.02, dict(zip(map(str, CATALOGUE[name].settings), worst, strict=True))


def test_every_rule_is_in_the_catalogue():
    bases = [elements.scalar(row.make(**row.settings[0])).base for row in CATALOGUE.values()]
    assert {type(base) for base in bases} | {dist.Uniform} == set(quadrature.QUADRATURE)


@pytest.mark.parametrize("rule", [lambda k: quadrature.hermite(2), quadrature.legendre], ids=["two", "Legendre"])
def test_the_check_can_fail(rule, monkeypatch):
    row = CATALOGUE["Exponential"]
    assert errors(row).max() < 0.02
    changed = quadrature.QUADRATURE[dist.Exponential]._replace(grid=rule)
    monkeypatch.setitem(quadrature.QUADRATURE, dist.Exponential, changed)
    assert errors(row).min(0)[:2].max() > 0.1


class Asymmetric:
    """AsymmetricLaplaceQuantile, by way of the distribution that SciPy has."""

    def __new__(cls, loc, scale, quantile):
        k = np.sqrt(quantile / (1 - quantile))
        return stats.laplace_asymmetric(k, loc, scale * k / quantile)


REFUSED_ROWS = {
    "Laplace": Row(dist.Laplace, stats.laplace, LOC_SCALE[:1]),
    "AsymmetricLaplace": Row(
        dist.AsymmetricLaplace,
        lambda loc, scale, asymmetry: stats.laplace_asymmetric(asymmetry, loc, scale),
        [{"loc": 0.7, "scale": 1.3, "asymmetry": 2.0}],
    ),
    "AsymmetricLaplaceQuantile": Row(
        dist.AsymmetricLaplaceQuantile, Asymmetric, [{"loc": 0.7, "scale": 1.3, "quantile": 0.7}]
    ),
    "Pareto": Row(dist.Pareto, lambda scale, alpha: stats.pareto(alpha, scale=scale), [{"scale": 1.0, "alpha": 5.0}]),
}


@pytest.mark.parametrize("name", REFUSED_ROWS)
def test_refused_distributions_fail_the_check(name):
    row = REFUSED_ROWS[name]
    z, weights = quadrature.hermite(9)
    values = quantile(row.twin(**row.settings[0]), z)[:, None]

    def nine_nodes(base):
        return support.Candidates(jnp.asarray(values), jnp.asarray(weights)[:, None], "quadrature")

    base = elements.scalar(row.make(**row.settings[0])).base
    assert support.candidates(base) is None
    assert support.refusal(base) == quadrature.REFUSED[type(base)]
    assert errors(row, nine_nodes).max() > 0.02


@pytest.mark.parametrize(("make", "twin"), [(dist.Cauchy, stats.cauchy), (dist.Levy, stats.levy)])
def test_distributions_without_moments_do_not_converge(make, twin):
    """The scale's gradient of x² / (1 + x²), which is bounded, is off by more than 2% with nine nodes."""
    z, weights = quadrature.hermite(9)
    fine = np.linspace(-9, 9, 20001)
    mass = np.exp(-0.5 * fine**2) / np.exp(-0.5 * fine**2).sum()
    x, x_fine = quantile(twin(0, 0.1), z), quantile(twin(0, 0.1), fine)
    mean = np.sum(mass * x_fine**2 / (1 + x_fine**2))

    def gradient(x, w):
        score = jax.jit(jax.jacfwd(lambda s: make(0.0, s).log_prob(jnp.asarray(x))))(0.1)
        return np.sum(w * (x**2 / (1 + x**2) - mean) * score)

    assert abs(gradient(x, weights) / gradient(x_fine, mass) - 1) > 0.02
    assert not support.is_admitted(make(0.0, 1.0))


# ---------------------------------------------------------------------------------------------------------
# Quantiles: as accurate as the incomplete gamma and beta functions allow


SOLVED = ("Gamma", "Beta", "StudentT", "TruncatedNormal low")  # by iteration or special functions


def nine(base):
    """Nine nodes, for a distribution that may take more than it is asked for."""
    rule = quadrature.QUADRATURE.get(type(base), quadrature.QUADRATURE[dist.Normal])
    return support.candidates(base, nodes=9 - (rule.nodes - quadrature.DEFAULT_NODES)).values


@pytest.mark.parametrize(("name", "x64"), [(name, False) for name in CATALOGUE] + [(name, True) for name in SOLVED])
def test_nodes_are_quantiles(name, x64):
    row = CATALOGUE[name]
    z = quadrature.hermite(9)[0]
    expected = np.stack([quantile(row.twin(**s), z) for s in row.settings], 1)
    with jax.enable_x64(x64):

        @jax.jit
        def nodes(setting):
            element = elements.scalar(row.make(**setting))
            return element.value(nine(element.base))

        x = nodes({name: jnp.array([s[name] for s in row.settings]) for name in row.settings[0]})
        assert x.dtype == jnp.result_type(float)
    scale = np.maximum(np.abs(expected), 0.1 * np.ptp(expected[3:6], 0))
    np.testing.assert_array_less(np.abs(np.asarray(x) - expected) / scale, 1e-10 if x64 else 1e-4)


def test_extreme_concentrations_in_float32():
    z = quadrature.hermite(9)[0]
    sizes = np.array([0.05, 1e3, 1e5, 1e6])
    with jax.enable_x64(False):

        @jax.jit
        def nodes(a):
            bases = (dist.Gamma(a, 1.0), dist.Beta(a, a), dist.StudentT(1e3 * a))
            return [nine(base) for base in bases]

        gamma, beta, student = map(np.asarray, nodes(jnp.array(sizes)))
    expected = np.log(np.stack([quantile(stats.gamma(a), z) for a in sizes], 1))
    seen = expected > -80  # below, a float32 is zero
    assert np.max(np.where(seen, np.abs(np.log(gamma) - expected), 0) / np.ptp(expected, 0)) < 2e-3
    assert ((beta > 0) & (beta < 1)).all()
    np.testing.assert_allclose(student, np.stack([quantile(stats.t(1e3 * a), z) for a in sizes], 1), rtol=1e-4)
