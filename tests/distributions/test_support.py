"""What `legrad.distributions` says of finite supports, counts and the elements of a site, against SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import transforms as tr
from scipy import special, stats

from legrad.distributions import counts, elements, support

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
        assert support.is_finite(base)

        @jax.jit
        def everything():
            values, weights, kind = support.candidates(base)
            assert kind == "finite"
            return values, weights, base.log_prob(values), base.support(values), support.entropy(base)

        values, weights, log_q, inside, entropy = everything()
        assert values.shape == weights.shape == values.shape[:1] + base.batch_shape
        assert values.dtype == jax.eval_shape(base.sample, KEY).dtype
    weights, log_q = np.asarray(weights), np.where(weights > 0, log_q, 0)
    assert inside.all()
    np.testing.assert_allclose(weights.sum(0), 1, rtol=1e-5)
    np.testing.assert_allclose(np.exp(log_q)[weights > 1e-30], weights[weights > 1e-30], rtol=1e-5)
    np.testing.assert_allclose(entropy, -np.sum(weights * log_q, 0), rtol=1e-5, atol=1e-6)


def test_zero_probabilities_have_weight_zero():
    geometric = dist.Geometric(probs=jnp.array(1.0))
    bases = FINITE | {"Geometric": geometric}
    found = jax.jit(lambda: {name: support.candidates(base, window=3).weights for name, base in bases.items()})()
    zero = {name: np.asarray(weights == 0) for name, weights in found.items()}
    np.testing.assert_array_equal(zero["BernoulliProbs"], [[False, False, True], [False, True, False]])
    np.testing.assert_array_equal(zero["BernoulliLogits"][:, 3:], [[True, False], [False, True]])
    np.testing.assert_array_equal(zero["CategoricalProbs"][:, 0], [False, False, True])
    np.testing.assert_array_equal(zero["CategoricalLogits"], [[False, False], [False, True], [True, True]])
    np.testing.assert_array_equal(zero["BinomialProbs"].sum(0), [2, 5, 5, 5])
    np.testing.assert_array_equal(found["Geometric"], [1, 0, 0])


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
    value, gradient = jax.jit(jax.value_and_grad(lambda p: support.entropy(make(p)).sum()))(parameter)
    assert jnp.isfinite(value)
    assert jnp.isfinite(gradient).all()


def test_entropy_gradient():
    ours = jax.jit(jax.grad(lambda p: support.entropy(dist.Bernoulli(logits=p))))(0.3)
    np.testing.assert_allclose(ours, jax.grad(lambda p: dist.Bernoulli(logits=p).entropy())(0.3))


def test_finite_gradients_are_exact():
    """Σ w g ∇log q is the gradient of the expectation, g = x²."""

    def surrogate(p):
        base = dist.Binomial(np.array([3, 5]), jax.nn.sigmoid(p))
        values, weights, _ = support.candidates(base)
        return jnp.sum(weights * values**2 * elements.scalar(base).log_prob(values))

    def exact(p):
        base = dist.Binomial(np.array([3, 5]), jax.nn.sigmoid(p))
        return jnp.sum(base.variance + base.mean**2)

    p = jnp.array([0.3, -1.0])
    np.testing.assert_allclose(jax.jit(jax.grad(surrogate))(p), jax.grad(exact)(p), rtol=1e-10)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda n: dist.Binomial(n, 0.3), "give `total_count` to the model as a constant"),
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


@pytest.mark.parametrize(("window", "x64"), [(16, False), (64, True)])
@pytest.mark.parametrize("name", COUNTS)
def test_windows(name, window, x64):
    base, twins = COUNTS[name]
    with jax.enable_x64(x64):

        @jax.jit
        def everything(base):
            assert support.candidates(base, window=window).kind == "window"
            return *support.candidates(base, window=window)[:2], counts.escaped_mass(base, window)

        base = jax.tree.map(recast, base)
        values, weights, escaped = everything(base)
        assert values.shape == weights.shape == (window, *base.batch_shape)
        assert values.dtype == jax.eval_shape(base.sample, KEY).dtype
    values = np.asarray(values, int)
    assert (np.diff(values, axis=0) == 1).all()
    assert (values >= 0).all()
    expected = np.stack([twin.pmf(v) for twin, v in zip(twins, values.T, strict=True)], 1)
    np.testing.assert_allclose(weights, expected, rtol=1e-5 if x64 else 3e-3, atol=1e-12)
    outside = [t.cdf(v[0] - 1) + t.sf(v[-1]) for t, v in zip(twins, values.T, strict=True)]
    np.testing.assert_allclose(escaped, outside, rtol=1e-5 if x64 else 2e-3, atol=1e-12)


def test_every_count_is_tested():
    assert {type(base) for base, _ in COUNTS.values()} == set(counts.COUNTS)


def test_a_window_never_overflows():
    find = jax.jit(lambda p: support.candidates(dist.NegativeBinomial(5.0, logits=p))[:2])
    values, weights = find(100.0)
    assert (values >= 0).all()
    assert np.isfinite(weights).all()


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
    "all": dist.ExpandedDistribution(dist.Normal(LOC, 1.0).mask(False).to_event(1), (2,)).mask(True).to_event(1),
    "lognormal": dist.LogNormal(LOC, 1.0).expand([2, 3]).to_event(1),
    "transformed event": dist.TransformedDistribution(dist.Normal(LOC, 1.0).to_event(1), tr.ExpTransform()),
    "composed": dist.TransformedDistribution(
        dist.Normal(LOC, 1.0).to_event(1),
        tr.IndependentTransform(tr.ComposeTransform([tr.AffineTransform(1.0, 2.0), tr.SigmoidTransform()]), 1),
    ),
    "widened": dist.TransformedDistribution(dist.Normal(0.0, 1.0), tr.AffineTransform(np.zeros(3), 2.0)),
    "inverse gamma": dist.InverseGamma(4.0 + LOC, 1.0).expand([2, 3]).to_event(1),
    "bernoulli": dist.Bernoulli(logits=LOC).expand([2, 3]).to_event(2),
    "categorical": dist.Categorical(logits=jnp.ones((3, 4))).expand([2, 3]).to_event(1),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_wrappers(name):
    fn = WRAPPED[name]
    shape = fn.shape()
    element = elements.scalar(fn)
    assert element.base.event_shape == ()
    assert element.base.batch_shape == shape

    @jax.jit
    def everything():
        coordinate = element.base.sample(KEY, (7,))
        assert coordinate.shape == (7, *shape)
        log_q = element.log_prob(coordinate)
        assert log_q.shape == element.log_abs_det(coordinate).shape == (7, *shape)
        assert element.log_prob(coordinate[0]).shape == shape
        found = support.candidates(element.base)
        assert found.values.shape == found.weights.shape == (found.values.shape[0], *shape)
        assert support.entropy(element.base).shape == shape
        return log_q, fn.log_prob(element.value(coordinate))

    ours, whole = everything()
    if "masked" not in name and name != "all":
        np.testing.assert_allclose(ours.reshape(*whole.shape, -1).sum(-1), whole, rtol=1e-8)


def test_masks_are_stripped():
    element = elements.scalar(WRAPPED["all"])
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
    assert elements.scalar(fn) is None


def test_transforms_with_parameters_keep_the_value_as_coordinate():
    def surrogate(p):
        fn = dist.TransformedDistribution(
            dist.Normal(0.0, 1.0).expand([2]).to_event(1), tr.AffineTransform(p[0], p[1])
        )
        element = elements.scalar(fn)
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
            base = elements.scalar(fn).base
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
    base = elements.scalar(fn).base
    assert not support.is_admitted(base)
    assert support.candidates(base) is None
    assert support.refusal(base)


def test_saturated_nodes_have_a_density():
    """A sigmoid at 40 is one, and its inverse infinite: the density is taken at the base node."""
    with jax.enable_x64(False):

        def log_q(p):
            fn = dist.TransformedDistribution(dist.Normal(p, 10.0), tr.SigmoidTransform())
            element = elements.scalar(fn)
            return element.log_prob(support.candidates(element.base).values)

        assert np.isfinite(jax.jit(log_q)(40.0)).all()
        assert np.isfinite(jax.jit(jax.jacfwd(log_q))(40.0)).all()


# ---------------------------------------------------------------------------------------------------------
# Under JAX's transformations


def test_jit_vmap_grad():
    makes = (lambda p: dist.Gamma(p, 2.0), dist.Poisson)
    parameter = jnp.array([0.8, 3.0])

    def surrogate(p):
        total = 0.0
        for make in makes:
            base = elements.scalar(make(p)).base
            values, weights, _ = support.candidates(base)
            total += jnp.sum(weights * values * base.log_prob(values))
        return total

    def nodes(p):
        return [support.candidates(make(p)).values * support.candidates(make(p)).weights for make in makes]

    expected = jax.grad(lambda p: sum(make(p).mean.sum() for make in makes))(parameter)
    np.testing.assert_allclose(jax.jit(jax.grad(surrogate))(parameter), expected, rtol=0.02)
    np.testing.assert_allclose(jax.jit(jax.vmap(jax.grad(surrogate)))(parameter), expected, rtol=0.02)
    assert not any(jnp.any(constant) for constant in jax.jit(jax.jacfwd(nodes))(parameter))
