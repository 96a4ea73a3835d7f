"""The log-densities that stand in for NumPyro's: the same values, and derivatives that are right everywhere."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import legrad
from legrad.distributions.densities import Categories, bernoulli_entropy, hard_bernoulli_logits, log_prob
from legrad.distributions.offset_categorical import OffsetCategorical

MAKE = {
    dist.BernoulliLogits: (lambda x: dist.Bernoulli(logits=x), [0, 1]),
    dist.BinomialLogits: (lambda x: dist.Binomial(4, logits=x), [0, 1, 2, 3, 4]),
}


@pytest.mark.parametrize("family", MAKE)
@pytest.mark.parametrize("x", [-1000.0, -40.0, -1.0, 0.0, 0.3, 40.0, 1000.0])
def test_values_and_derivatives(family, x):
    make, values = MAKE[family]
    for value in values:
        k = jnp.array(value)
        np.testing.assert_allclose(log_prob(make(x), k), make(x).log_prob(k), rtol=1e-12, atol=1e-12)
        ours = jax.grad(lambda x, k=k: log_prob(make(x), k))(x)
        n = values[-1]
        np.testing.assert_allclose(ours, value - n * jax.nn.sigmoid(x), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("value", [0, 1])
@pytest.mark.parametrize("x", [-np.inf, np.inf])
def test_infinite_logits(x, value):
    certain = (x > 0) == bool(value)
    assert log_prob(dist.BernoulliLogits(x, validate_args=False), jnp.array(value)) == (0.0 if certain else -np.inf)


def test_soft_data():
    d, y = dist.Bernoulli(logits=jnp.array([0.3, -2.0])), jnp.array([0.2, 0.9])
    np.testing.assert_allclose(log_prob(d, y), y * d.logits - jax.nn.softplus(d.logits), rtol=1e-12)


def test_expanded_shapes():
    d = dist.Bernoulli(logits=0.3).expand((2, 3))
    assert log_prob(d, jnp.array(1)).shape == (2, 3)


LOGITS = np.random.default_rng(0).normal(size=(3, 4))
LOGITS[1, 2] = -np.inf
CATEGORICALS = {
    "logits": lambda x: dist.Categorical(logits=x, validate_args=False),
    "probs": lambda x: dist.Categorical(probs=jax.nn.softmax(x)),
    "offset": lambda x: OffsetCategorical(jnp.maximum(x, -5.0), low=3),
    "expanded": lambda x: dist.Categorical(logits=x[0]).expand((3,)),
}


@pytest.mark.parametrize("name", CATEGORICALS)
def test_all_categories_at_once(name):
    """The same as one by one, gradients too, and without a look-up."""
    make, low = CATEGORICALS[name], 3 if name == "offset" else 0
    values = np.arange(low, low + 4).reshape(4, 1).view(Categories)
    weights = jnp.asarray(np.random.default_rng(1).normal(size=(4, 3)))

    def total(x, values):
        log_p = log_prob(make(x), values)
        return jnp.sum(jnp.where(jnp.isfinite(log_p), log_p * weights, 0.0)), log_p

    (_, ours), gradient = jax.value_and_grad(total, has_aux=True)(jnp.asarray(LOGITS), values)
    (_, theirs), wanted = jax.value_and_grad(total, has_aux=True)(jnp.asarray(LOGITS), jnp.asarray(values))
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    np.testing.assert_allclose(gradient, wanted, rtol=1e-12, atol=1e-15)
    assert np.all(np.isfinite(gradient))
    assert "gather" not in str(jax.make_jaxpr(lambda x: log_prob(make(x), values))(jnp.asarray(LOGITS)))


@pytest.mark.parametrize("shape", [(), (1,), (3,), (1, 3), (3, 1)])
@pytest.mark.parametrize("C", [1, 3])
@pytest.mark.parametrize("parameter", ["logits", "probs"])
def test_data_that_look_like_all_categories(shape, C, parameter):
    """NumPy data 0, 1, 2 are three data: nothing is guessed from what they are."""
    y = np.arange(np.prod(shape, dtype=int)).reshape(shape) % C
    p = jax.nn.softmax(jnp.asarray(np.random.default_rng(0).normal(size=(3, C))))
    d = dist.Categorical(**{parameter: p if parameter == "probs" else jnp.log(p)})
    np.testing.assert_allclose(log_prob(d, y), d.log_prob(y), rtol=1e-12)


@pytest.mark.filterwarnings("ignore:Out-of-support values")
@pytest.mark.parametrize(
    ("d", "y"),
    [
        (dist.Categorical(logits=jnp.zeros(3)), jnp.array([-1, 3, 1])),
        (dist.Poisson(2.0), jnp.array([-1.0, 1.5, 1.0])),
    ],
)
def test_impossible_data(d, y):
    """As NumPyro has it, with a derivative that is a number; and no rule makes them possible."""
    assert d._validate_args
    np.testing.assert_allclose(log_prob(d, y), d.log_prob(y), rtol=1e-12)
    assert np.array_equal(np.isfinite(log_prob(d, y)), [False, False, True])
    (gradient,) = jax.tree.leaves(jax.grad(lambda d: log_prob(d, y)[2])(d))
    assert np.all(np.isfinite(gradient))


def test_counts_are_not_rounded_to_half_precision():
    d, y = dist.Poisson(jnp.asarray(1000.0, jnp.bfloat16)), jnp.array([1001, 1100])
    np.testing.assert_allclose(log_prob(d, y), d.log_prob(y), rtol=1e-9)


def test_numpyro_is_still_wrong_at_zero():
    """When this fails, NumPyro has mended its form and ours can go."""
    assert jax.grad(lambda x: dist.Bernoulli(logits=x).log_prob(1))(0.0) != 0.5


@pytest.mark.parametrize("estimator", [legrad.LocalExpectation(), legrad.Exact(), legrad.DisARM()])
def test_a_guide_that_starts_at_zero_logits(estimator):
    def model():
        z = numpyro.sample("z", dist.Bernoulli(logits=jnp.zeros(())))
        numpyro.sample("y", dist.Normal(z, 1.0), obs=2.0)

    def guide():
        numpyro.sample("z", dist.Bernoulli(logits=numpyro.param("l", 0.0)))

    def elbo(l):
        p, f = jax.nn.sigmoid(l), lambda z: jnp.log(0.5) + dist.Normal(z, 1.0).log_prob(2.0)
        return p * (f(1) - jnp.log(p)) + (1 - p) * (f(0) - jnp.log1p(-p))

    draws = jax.vmap(lambda k: jax.grad(lambda p: -estimator.loss(k, p, model, guide))({"l": jnp.array(0.0)})["l"])(
        jax.random.split(jax.random.key(0), 2000)
    )
    error = np.std(draws) / np.sqrt(len(draws))
    assert abs(np.mean(draws) - jax.grad(elbo)(0.0)) <= 5 * error + 1e-9


def test_the_derivative_along_soft_data():
    """Backwards too, and with infinite logits, where it counts as zero."""
    logits, value = jnp.array([0.3, -2.0, jnp.inf, -jnp.inf]), jnp.array([0.2, 0.9, 1.0, 0.0])

    def total(value):
        return log_prob(dist.Bernoulli(logits=logits, validate_args=False), value).sum()

    np.testing.assert_allclose(jax.grad(total)(value), [0.3, -2.0, 0.0, 0.0])


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.float32, jnp.float64])
def test_traced_data_at_any_logits(dtype):
    """Inside jit it is not known whether data are 0 and 1: certain data have log-density 0, impossible ones -inf."""
    logits = jnp.array([jnp.inf, jnp.inf, -jnp.inf, -jnp.inf, 50.0, -50.0], dtype)
    value = jnp.array([1, 0, 1, 0, 1, 1], dtype)
    found = jax.jit(lambda x, v: log_prob(dist.Bernoulli(logits=x), v))(logits, value)
    assert found.dtype == dtype
    np.testing.assert_allclose(np.asarray(found, float), [0, -np.inf, -np.inf, 0, 0, -50], atol=1e-6)


def test_entropy_of_a_bernoulli():
    x = jnp.array([0.0, 0.3, -4.0, 60.0, -800.0, jnp.inf, -jnp.inf])
    p, q = jax.nn.sigmoid(x), jax.nn.sigmoid(-x)
    direct = -jax.scipy.special.xlogy(p, p) - jax.scipy.special.xlogy(q, q)
    np.testing.assert_allclose(bernoulli_entropy(x), direct, atol=1e-12)
    slope = jax.grad(lambda x: bernoulli_entropy(x).sum())(x)
    np.testing.assert_allclose(slope, -jnp.where(jnp.isfinite(x), x, 0) * p * q, atol=1e-12)
    numeric = (bernoulli_entropy(x[:4] + 1e-6) - bernoulli_entropy(x[:4] - 1e-6)) / 2e-6
    np.testing.assert_allclose(slope[:4], numeric, atol=1e-8)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_three_derivatives_at_data_of_0_or_1(value):
    """Also at zero, where |logits| has a corner, and at infinite logits."""
    x = jnp.array([0.0, 1e-3, -2.0, 40.0, -40.0, 800.0, np.inf, -np.inf])
    s, found = jax.nn.sigmoid(x), lambda x: hard_bernoulli_logits(x, jnp.asarray(value))
    for expected in (value - s, -s * (1 - s), -s * (1 - s) * (1 - 2 * s)):
        found = jax.grad(found)
        np.testing.assert_allclose(jax.vmap(found)(x), expected, rtol=1e-12, atol=1e-15)


def test_draws_that_share_logits_share_the_logarithm():
    jaxpr = jax.make_jaxpr(jax.vmap(hard_bernoulli_logits, in_axes=(None, 0)))(jnp.ones(3), jnp.ones((7, 3)))
    assert "f64[3] = log1p" in str(jaxpr)
