"""What `legrad.support` says of every distribution, against SciPy: values, weights, and the 2% that admits."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import transforms as tr
from scipy import special, stats

from legrad import quadrature, support

jax.config.update("jax_enable_x64", True)

KEY = jax.random.key(0)


def recast(leaf):
    """A leaf of a distribution in the precision that JAX has now."""
    return (
        jnp.asarray(leaf, jnp.result_type({"f": float, "i": int}[leaf.dtype.kind]))
        if isinstance(leaf, jax.Array)
        else leaf
    )


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
        lambda concentration, sharpness, scale: stats.mielke(
            concentration * sharpness, sharpness, scale=scale
        ),
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
        *truncated(0.0, 3.0), [{"loc": m, "scale": s} for m in (-1.0, 0.3, 1.0, 2.0) for s in (0.5, 1.0, 2.0)]
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
    z = np.linspace(-9, 9, 4001)
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
    return np.where(
        z < 0, twin.ppf(special.ndtr(np.minimum(z, 0))), twin.isf(special.ndtr(-np.maximum(z, 0)))
    )


def errors(row, find=support.candidates):
    """Relative errors of the local expectation gradients of E[x], E[x²] and the entropy: settings × 3.

    The worst parameter's. The functions are taken less their means, as the estimator drops constants. A gradient
    near zero is measured against a twentieth of the function's range over the central 80% times the square root
    of the parameter's Fisher information: by Cauchy and Schwarz the product bounds a gradient.
    """

    @jax.jit
    def nodes(setting):
        element = support.scalar(row.make(**setting))
        values, weights, _ = find(element.base)
        _, tangent = zip(
            *(jax.jvp(partial(log_q, values, setting, name), *one(setting[name])) for name in setting)
        )
        _, formula = zip(*(jax.jvp(partial(entropy, setting, name), *one(setting[name])) for name in setting))
        x, minus_log_q = element.value(values), -element.log_prob(values)
        known = support.entropy(element.base) is not None  # only what the transforms add is left to the nodes
        log_det = element.log_abs_det(values)
        last = log_det - jnp.sum(weights * log_det, 0) if known else minus_log_q
        return weights, tangent, formula, (x, x**2, last), known

    def log_q(values, setting, name, p):
        return support.scalar(row.make(**(setting | {name: p}))).log_prob(values)

    def entropy(setting, name, p):
        found = support.entropy(support.scalar(row.make(**(setting | {name: p}))).base)
        return jnp.zeros_like(p) if found is None else found

    def one(p):
        return (p,), (jnp.ones_like(p),)

    names = list(row.settings[0])
    setting = {name: jnp.array([s[name] for s in row.settings]) for name in names}
    weights, scores, formulas, functions, known = jax.tree.map(np.asarray, nodes(setting))
    middle = [quantile(row.twin(**s), np.linspace(-1.28, 1.28, 99)) for s in row.settings]
    worst = np.zeros((len(row.settings), 3))
    for k, s in enumerate(row.settings):
        for name, score, formula in zip(names, scores, formulas, strict=True):
            truth, means = reference(row, s, name)
            means[2] *= 1 - known
            fisher = np.sum(weights[:, k] * score[:, k] ** 2)
            size = np.sqrt(fisher) * np.array([np.ptp(middle[k]), np.ptp(middle[k] ** 2), 1])
            centred = np.stack([g[:, k] - mean for g, mean in zip(functions, means, strict=True)])
            estimate = np.sum(weights[:, k] * score[:, k] * centred, 1) + np.array([0, 0, formula[k]])
            worst[k] = np.maximum(worst[k], np.abs(estimate - truth) / np.maximum(np.abs(truth), 0.05 * size))
    return worst


@pytest.mark.parametrize("name", CATALOGUE)
def test_gradients_are_within_two_percent(name):
    worst = errors(CATALOGUE[name]).max(1)
    assert worst.max() < 0.02, dict(zip(map(str, CATALOGUE[name].settings), worst, strict=True))


def test_every_rule_is_in_the_catalogue():
    elements = [support.scalar(row.make(**row.settings[0])).base for row in CATALOGUE.values()]
    assert {type(base) for base in elements} | {dist.Uniform} == set(support.QUADRATURE)


@pytest.mark.parametrize(
    "rule", [lambda k: quadrature.hermite(2), quadrature.legendre], ids=["two", "Legendre"]
)
def test_the_check_can_fail(rule, monkeypatch):
    row = CATALOGUE["Exponential"]
    assert errors(row).max() < 0.02
    changed = support.QUADRATURE[dist.Exponential]._replace(grid=rule)
    monkeypatch.setitem(support.QUADRATURE, dist.Exponential, changed)
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
    "Pareto": Row(
        dist.Pareto, lambda scale, alpha: stats.pareto(alpha, scale=scale), [{"scale": 1.0, "alpha": 5.0}]
    ),
}


@pytest.mark.parametrize("name", REFUSED_ROWS)
def test_refused_distributions_fail_the_check(name):
    row = REFUSED_ROWS[name]
    z, weights = quadrature.hermite(9)
    values = quantile(row.twin(**row.settings[0]), z)[:, None]

    def nine_nodes(base):
        return support.Candidates(jnp.asarray(values), jnp.asarray(weights)[:, None], "quadrature")

    base = support.scalar(row.make(**row.settings[0])).base
    assert support.candidates(base) is None
    assert support.refusal(base) == support.REFUSED[type(base)]
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
        score = jax.jacfwd(lambda s: make(0.0, s).log_prob(jnp.asarray(x)))(0.1)
        return np.sum(w * (x**2 / (1 + x**2) - mean) * score)

    assert abs(gradient(x, weights) / gradient(x_fine, mass) - 1) > 0.02
    assert not support.is_admitted(make(0.0, 1.0))


# ---------------------------------------------------------------------------------------------------------
# Quantiles: as accurate as the incomplete gamma and beta functions allow


@pytest.mark.parametrize(("x64", "tolerance"), [(False, 5e-5), (True, 1e-10)])
@pytest.mark.parametrize("name", CATALOGUE)
def test_nodes_are_quantiles(name, x64, tolerance):
    row = CATALOGUE[name]
    z = quadrature.hermite(9)[0]
    expected = np.stack([quantile(row.twin(**s), z) for s in row.settings], 1)
    with jax.enable_x64(x64):

        @jax.jit
        def nodes(setting):
            element = support.scalar(row.make(**setting))
            return element.value(support.candidates(element.base, nodes=9).values)

        x = nodes({name: jnp.array([s[name] for s in row.settings]) for name in row.settings[0]})
        assert x.dtype == jnp.result_type(float)
    scale = np.maximum(np.abs(expected), 0.1 * np.ptp(expected[3:6], 0))
    np.testing.assert_array_less(np.abs(np.asarray(x) - expected) / scale, tolerance)


@pytest.mark.parametrize("x64", [False, True])
def test_extreme_concentrations(x64):
    z = quadrature.hermite(9)[0]
    with jax.enable_x64(x64):
        a = jnp.array([0.05, 1e3, 1e5, 1e6])
        x = np.log(support.candidates(dist.Gamma(a, 1.0), nodes=9).values)
        expected = np.log(np.stack([quantile(stats.gamma(v), z) for v in np.asarray(a, float)], 1))
        spread = np.ptp(expected, 0)
        assert np.isfinite(x).all()
        seen = expected > -80  # below, a float32 is zero
        assert np.max(np.where(seen, np.abs(x - expected), 0) / spread) < 2e-3
        x = support.candidates(dist.Beta(a, a), nodes=9).values
        assert ((x > 0) & (x < 1)).all()
        t = support.candidates(dist.StudentT(jnp.array([1e3, 1e8])), nodes=9).values
        np.testing.assert_allclose(t, np.stack([quantile(stats.t(v), z) for v in (1e3, 1e8)], 1), rtol=1e-5)


# ---------------------------------------------------------------------------------------------------------
# Finite supports


FINITE = {
    "BernoulliProbs": dist.Bernoulli(probs=jnp.array([0.2, 0.0, 1.0])),
    "BernoulliLogits": dist.Bernoulli(logits=jnp.array([0.3, 40.0, -40.0, 1000.0, -1000.0])),
    "CategoricalProbs": dist.Categorical(probs=jnp.array([[0.2, 0.8, 0.0], [0.1, 0.1, 0.8]])),
    "CategoricalLogits": dist.Categorical(
        logits=jnp.array([[0.0, 1.0, -jnp.inf], [1000.0, 0.0, 0.0]]), validate_args=False
    ),
    "DiscreteUniform": dist.DiscreteUniform(-1, np.array([2, 4])),
    "BinomialProbs": dist.Binomial(np.array([3, 5, 0, 4]), jnp.array([0.3, 0.0, 0.5, 1.0])),
    "BinomialLogits": dist.Binomial(np.array([3, 5]), logits=jnp.array([0.3, 1000.0])),
    "BetaBinomial": dist.BetaBinomial(2.0, jnp.array([3.0, 0.5]), 4),
    "OrderedLogistic": dist.OrderedLogistic(jnp.array([0.1, 5.0]), jnp.array([-1.0, 1.0])),
    "ZeroInflated": dist.ZeroInflatedDistribution(dist.Binomial(3, jnp.array([0.2, 0.5])), gate=0.2),
}


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("name", FINITE)
def test_finite_supports_are_exact(name, x64):
    with jax.enable_x64(x64):
        base = jax.tree.map(recast, FINITE[name])
        values, weights, kind = support.candidates(base)
        sample = base.sample(KEY)
        assert kind == "finite"
        assert support.is_finite(base)
        assert values.shape == weights.shape == values.shape[:1] + base.batch_shape
        assert values.dtype == sample.dtype
        np.testing.assert_allclose(weights.sum(0), 1, rtol=1e-5)
        np.testing.assert_array_equal(base.support(values), True)
        log_q = np.where(weights > 0, base.log_prob(values), 0)
        keep = weights > 1e-30
        np.testing.assert_allclose(np.exp(log_q)[keep], weights[keep], rtol=1e-5)
        np.testing.assert_allclose(support.entropy(base), -np.sum(weights * log_q, 0), rtol=1e-5, atol=1e-6)


def test_zero_probabilities_have_weight_zero():
    zero = {name: np.asarray(support.candidates(base).weights == 0) for name, base in FINITE.items()}
    np.testing.assert_array_equal(zero["BernoulliProbs"], [[False, False, True], [False, True, False]])
    np.testing.assert_array_equal(zero["BernoulliLogits"][:, 3:], [[True, False], [False, True]])
    np.testing.assert_array_equal(zero["CategoricalProbs"][:, 0], [False, False, True])
    np.testing.assert_array_equal(zero["CategoricalLogits"], [[False, False], [False, True], [True, True]])
    np.testing.assert_array_equal(zero["BinomialProbs"].sum(0), [2, 5, 5, 5])
    geometric = support.candidates(dist.Geometric(probs=jnp.array(1.0)), window=3).weights
    np.testing.assert_array_equal(geometric, [1, 0, 0])


@pytest.mark.parametrize(
    ("make", "parameter"),
    [
        (lambda p: dist.Bernoulli(probs=p), [0.0, 1.0, 0.3]),
        (lambda p: dist.Bernoulli(logits=p), [-1000.0, 40.0, 0.3]),
        (lambda p: dist.Categorical(probs=p), [0.0, 0.4, 0.6]),
        (lambda p: dist.Categorical(logits=p, validate_args=False), [-np.inf, 1000.0, 0.3]),
        (lambda p: dist.Binomial(np.array([2, 3, 4]), p), [0.0, 1.0, 0.3]),
        (lambda p: dist.Binomial(np.array([2, 3, 4]), logits=p), [-1000.0, 1000.0, 0.3]),
    ],
)
def test_entropy_has_finite_gradients(make, parameter):
    parameter = jnp.array(parameter)
    value, gradient = jax.value_and_grad(lambda p: support.entropy(make(p)).sum())(parameter)
    assert jnp.isfinite(value)
    assert jnp.isfinite(gradient).all()
    expected = jax.grad(lambda p: dist.Bernoulli(logits=p).entropy())(0.3)
    np.testing.assert_allclose(jax.grad(lambda p: support.entropy(dist.Bernoulli(logits=p)))(0.3), expected)


def test_finite_gradients_are_exact():
    """Σ w g ∇log q is the gradient of the expectation, g = x²."""

    def surrogate(p):
        base = dist.Binomial(np.array([3, 5]), jax.nn.sigmoid(p))
        values, weights, _ = support.candidates(base)
        return jnp.sum(weights * values**2 * support.scalar(base).log_prob(values))

    def exact(p):
        base = dist.Binomial(np.array([3, 5]), jax.nn.sigmoid(p))
        return jnp.sum(base.variance + base.mean**2)

    p = jnp.array([0.3, -1.0])
    np.testing.assert_allclose(jax.jit(jax.grad(surrogate))(p), jax.grad(exact)(p), rtol=1e-10)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda n: dist.Binomial(n, 0.3), "`total_count` as a Python int"),
        (lambda n: dist.BetaBinomial(1.0, 1.0, n), "BetaBinomial has a traced `total_count`"),
        (lambda n: dist.DiscreteUniform(0, n), "DiscreteUniform has a traced `high`"),
        (
            lambda n: dist.ZeroInflatedDistribution(dist.Binomial(n, 0.3), gate=0.1),
            "Python or NumPy constants",
        ),
    ],
)
def test_traced_sizes_raise(make, message):
    with pytest.raises(ValueError, match=message):
        jax.jit(lambda n: support.candidates(make(n)).values)(3)


# ---------------------------------------------------------------------------------------------------------
# Counts


COUNTS = {
    "Poisson": (
        dist.Poisson(jnp.array([0.1, 5.0, 100.0, 1000.0])),
        [stats.poisson(m) for m in (0.1, 5, 100, 1000)],
    ),
    "GeometricProbs": (dist.Geometric(jnp.array([0.9, 0.05])), [stats.geom(p, loc=-1) for p in (0.9, 0.05)]),
    "GeometricLogits": (
        dist.Geometric(logits=jnp.array([1.0, -3.0])),
        [stats.geom(special.expit(p), loc=-1) for p in (1.0, -3.0)],
    ),
    "GammaPoisson": (
        dist.GammaPoisson(jnp.array([3.0, 50.0]), 0.5),
        [stats.nbinom(a, 1 / 3) for a in (3.0, 50.0)],
    ),
    "NegativeBinomialProbs": (
        dist.NegativeBinomial(5.0, probs=jnp.array([0.3, 0.9])),
        [stats.nbinom(5, 0.7), stats.nbinom(5, 0.1)],
    ),
    "NegativeBinomialLogits": (
        dist.NegativeBinomial(5.0, logits=jnp.array([0.0, 2.0])),
        [stats.nbinom(5, special.expit(-v)) for v in (0.0, 2.0)],
    ),
    "NegativeBinomial2": (
        dist.NegativeBinomial2(jnp.array([10.0, 40.0]), 40.0),
        [stats.nbinom(40, 40 / (40 + m)) for m in (10.0, 40.0)],
    ),
}


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("window", [16, 64])
@pytest.mark.parametrize("name", COUNTS)
def test_windows(name, window, x64):
    base, twins = COUNTS[name]
    assert {type(base) for base, _ in COUNTS.values()} == set(support.COUNTS)
    with jax.enable_x64(x64):
        base = jax.tree.map(recast, base)
        values, weights, kind = support.candidates(base, window=window)
        assert kind == "window"
        assert values.shape == weights.shape == (window, *base.batch_shape)
        assert values.dtype == base.sample(KEY).dtype
        assert not support.is_finite(base)
        values = np.asarray(values, int)
        assert (np.diff(values, axis=0) == 1).all()
        assert (values >= 0).all()
        expected = np.stack([twin.pmf(v) for twin, v in zip(twins, values.T, strict=True)], 1)
        np.testing.assert_allclose(weights, expected, rtol=1e-5 if x64 else 3e-3, atol=1e-12)
        outside = [t.cdf(v[0] - 1) + t.sf(v[-1]) for t, v in zip(twins, values.T, strict=True)]
        np.testing.assert_allclose(
            support.escaped_mass(base, window), outside, rtol=1e-6 if x64 else 2e-3, atol=1e-12
        )


def test_a_window_never_overflows():
    values, weights, _ = support.candidates(dist.NegativeBinomial(5.0, logits=jnp.array(100.0)))
    assert (values >= 0).all()
    assert jnp.isfinite(weights).all()


# ---------------------------------------------------------------------------------------------------------
# Sites as scalar elements


LOC = jnp.arange(3.0)
WRAPPED = {
    "plain": dist.Normal(LOC, 1.0),
    "event": dist.Normal(LOC, 1.0).to_event(1),
    "expanded": dist.Normal(0.0, 1.0).expand([2, 3]),
    "interstitial": dist.Normal(jnp.ones((2, 1, 3)), 1.0).expand([4, 2, 5, 3]),
    "expanded event": dist.ExpandedDistribution(dist.Normal(LOC, 1.0).to_event(1), (4, 2)),
    "event of expanded": dist.Normal(LOC, 1.0).expand([4, 3]).to_event(2),
    "masked event": dist.Normal(LOC, 1.0).to_event(1).mask(jnp.array([True, False])),
    "event of masked": dist.Normal(LOC, 1.0).mask(LOC > 0).to_event(1),
    "all": dist.ExpandedDistribution(dist.Normal(LOC, 1.0).mask(False).to_event(1), (2,))
    .mask(True)
    .to_event(1),
    "lognormal": dist.LogNormal(LOC, 1.0).expand([2, 3]).to_event(1),
    "transformed event": dist.TransformedDistribution(dist.Normal(LOC, 1.0).to_event(1), tr.ExpTransform()),
    "composed": dist.TransformedDistribution(
        dist.Normal(LOC, 1.0).to_event(1),
        tr.IndependentTransform(
            tr.ComposeTransform([tr.AffineTransform(1.0, 2.0), tr.SigmoidTransform()]), 1
        ),
    ),
    "widened": dist.TransformedDistribution(dist.Normal(0.0, 1.0), tr.AffineTransform(np.zeros(3), 2.0)),
    "inverse gamma": dist.InverseGamma(4.0 + LOC, 1.0).expand([2, 3]).to_event(1),
    "bernoulli": dist.Bernoulli(logits=LOC).expand([2, 3]).to_event(2),
    "categorical": dist.Categorical(logits=jnp.ones((3, 4))).expand([2, 3]).to_event(1),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_wrappers(name):
    fn = WRAPPED[name]
    element = support.scalar(fn)
    shape = fn.shape()
    assert element.base.event_shape == ()
    assert element.base.batch_shape == shape
    coordinate = element.base.sample(KEY, (7,))
    assert coordinate.shape == (7, *shape)
    value = element.value(coordinate)
    assert element.log_prob(coordinate).shape == element.log_abs_det(coordinate).shape == (7, *shape)
    assert element.log_prob(coordinate[0]).shape == shape
    if "masked" not in name and name != "all":
        summed = element.log_prob(coordinate).reshape(7, *fn.batch_shape, -1).sum(-1)
        np.testing.assert_allclose(summed, fn.log_prob(value).reshape(summed.shape), rtol=1e-8)
    found = support.candidates(element.base)
    assert found.values.shape == found.weights.shape == (found.values.shape[0], *shape)
    assert support.entropy(element.base).shape == shape


def test_masks_are_stripped():
    element = support.scalar(WRAPPED["all"])
    np.testing.assert_allclose(element.log_prob(jnp.zeros((2, 3)))[1], dist.Normal(LOC, 1.0).log_prob(0.0))


@pytest.mark.parametrize(
    "fn",
    [
        dist.MultivariateNormal(jnp.zeros(2), jnp.eye(2)),
        dist.Dirichlet(jnp.ones(3)).expand([2]),
        dist.Multinomial(3, jnp.ones(2) / 2),
        dist.TransformedDistribution(dist.Normal(LOC, 1.0).to_event(1), tr.OrderedTransform()),
        dist.TransformedDistribution(dist.Dirichlet(jnp.ones(3)), tr.AffineTransform(0.0, 2.0)),
    ],
)
def test_not_scalar(fn):
    assert support.scalar(fn) is None


def test_transforms_with_parameters_keep_the_value_as_coordinate():
    def surrogate(p):
        fn = dist.TransformedDistribution(
            dist.Normal(0.0, 1.0).expand([2]).to_event(1), tr.AffineTransform(p[0], p[1])
        )
        element = support.scalar(fn)
        assert element.transforms == ()
        assert element.base.batch_shape == (2,)
        values, weights, _ = support.candidates(element.base)
        return jnp.sum(weights * values**2 * element.log_prob(values))

    loc, scale = 0.7, 1.3
    np.testing.assert_allclose(
        jax.jit(jax.grad(surrogate))(jnp.array([loc, scale])), [4 * loc, 4 * scale], rtol=1e-10
    )


def test_parameters_that_move_the_support_are_refused():
    found = []

    @jax.jit
    def program(p):
        for fn in (
            dist.Uniform(0.0, p),
            dist.TruncatedNormal(0.0, 1.0, low=p),
            dist.TransformedDistribution(dist.Gamma(2.0, 1.0), tr.AffineTransform(p, 1.0)),
            dist.LogUniform(p, 2.0),
        ):
            base = support.scalar(fn).base
            found.append((support.is_admitted(base), support.candidates(base), support.refusal(base)))
        found.append((not support.is_admitted(dist.TruncatedNormal(p, 1.0, low=0.0)), None, "moves"))
        return p

    program(1.0)
    for admitted, answer, reason in found:
        assert not admitted
        assert answer is None
        assert "moves" in reason


def test_constant_uniform():
    values, weights, kind = support.candidates(dist.Uniform(np.array([0.0, -1.0]), 3.0))
    assert kind == "quadrature"
    np.testing.assert_allclose(jnp.sum(weights * values**2, 0), [3.0, 7 / 3])


@pytest.mark.parametrize(
    "fn",
    [
        dist.FoldedDistribution(dist.Normal(0.0, 1.0)),
        dist.RelaxedBernoulliLogits(1.0, 0.0),
        dist.Delta(0.0),
        dist.VonMises(0.0, 1.0),
        dist.TruncatedDistribution(dist.Cauchy(0.0, 1.0), low=0.0),
        dist.TransformedDistribution(dist.Poisson(3.0), tr.AffineTransform(0.0, 2.0)),
        dist.ZeroInflatedPoisson(0.5, 3.0),
    ],
)
def test_not_admitted(fn):
    base = support.scalar(fn).base
    assert not support.is_admitted(base)
    assert support.candidates(base) is None
    assert support.refusal(base)


def test_saturated_nodes_have_a_density():
    """A sigmoid at 40 is one, and its inverse infinite: the density is taken at the base node."""
    with jax.enable_x64(False):

        def log_q(p):
            fn = dist.TransformedDistribution(dist.Normal(p, 10.0), tr.SigmoidTransform())
            element = support.scalar(fn)
            return element.log_prob(support.candidates(element.base).values)

        assert jnp.isfinite(log_q(40.0)).all()
        assert jnp.isfinite(jax.jacfwd(log_q)(40.0)).all()


# ---------------------------------------------------------------------------------------------------------
# Under JAX's transformations


@pytest.mark.parametrize("make", [lambda p: dist.Gamma(p, 2.0), lambda p: dist.Beta(p, 2.0), dist.Poisson])
def test_jit_vmap_grad(make):
    parameter = jnp.array([0.8, 3.0])

    def surrogate(p):
        base = support.scalar(make(p)).base
        values, weights, _ = support.candidates(base)
        return jnp.sum(weights * values * base.log_prob(values))

    expected = jax.grad(lambda p: make(p).mean.sum())(parameter)
    np.testing.assert_allclose(jax.jit(jax.grad(surrogate))(parameter), expected, rtol=0.02)
    np.testing.assert_allclose(jax.vmap(jax.grad(surrogate))(parameter), expected, rtol=0.02)
    found = jax.jacrev(lambda p: support.candidates(make(p)).weights * support.candidates(make(p)).values)(
        parameter
    )
    np.testing.assert_array_equal(found, 0)
