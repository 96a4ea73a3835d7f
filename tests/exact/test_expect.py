"""Expectations of terms against sums and dense rules over all joint values; and the traps, each with its program."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

from legrad.distributions.densities import log_prob
from legrad.distributions.elements import scalar
from legrad.exact.expect import expectations
from legrad.exact.laws import law

rng = np.random.default_rng(0)
X, Z, y = rng.normal(size=(4, 2)), rng.normal(size=(4, 2)), rng.normal(size=4)
A = jnp.asarray(np.log(rng.dirichlet(np.ones(3), 3)))
P = np.array([[2.0, 0.7], [0.7, 1.5]])
FACTORS = {
    "c": dist.Categorical(logits=jnp.asarray(rng.normal(size=(2, 3)))).to_event(1),
    "w": dist.Normal(jnp.array([0.4, -0.7]), jnp.array([0.5, 1.2])).to_event(1),
    "z": dist.Bernoulli(logits=jnp.asarray(rng.normal(size=3))).to_event(1),
}
TYPES = {"c": jnp.result_type(int), "w": jnp.result_type(float), "z": jnp.result_type(int)}


def laws():
    return {n: law(scalar(d), jnp.dtype(TYPES[n])) for n, d in FACTORS.items()}


def found(f):
    return expectations(lambda x: {"term": f(x)}, laws())["term"]


def dense(f):
    """Sum over all joint values, with 40 nodes for each Normal element."""
    points, weights = np.polynomial.hermite_e.hermegauss(40)
    grids = [(range(3), np.asarray(laws()["c"].weights)[:, e]) for e in range(2)]
    loc, scale = np.asarray(FACTORS["w"].base_dist.loc), np.asarray(FACTORS["w"].base_dist.scale)
    grids += [(loc[e] + scale[e] * points, weights / weights.sum()) for e in range(2)]
    grids += [(range(2), np.asarray(laws()["z"].weights)[:, e]) for e in range(3)]
    values = np.array(list(itertools.product(*(g[0] for g in grids))))
    mass = np.prod(list(itertools.product(*(g[1] for g in grids))), axis=1)
    cuts = {"c": slice(0, 2), "w": slice(2, 4), "z": slice(4, 7)}
    every = {n: jnp.asarray(values[:, cut]).astype(TYPES[n]) for n, cut in cuts.items()}
    return jnp.tensordot(mass, jax.vmap(f)(every), 1)


EXACT = {
    "pairs": lambda x: x["z"][1:] * x["z"][:-1],
    "rolled": lambda x: x["z"] * jnp.roll(x["z"], 1),
    "linear predictor": lambda x: dist.Normal(X @ x["w"], 0.7).log_prob(y),
    "spike and slab": lambda x: (y - X @ (x["z"][:2] * x["w"])) ** 2,
    "mixture": lambda x: dist.Normal(x["w"][x["c"] % 2], 1.3).log_prob(y[:2]),
    "transition": lambda x: A[x["c"][:-1], x["c"][1:]],
    "quadratic form": lambda x: (x["w"] - 2.0) @ P @ (x["w"] - 2.0),
    "unknown noise": lambda x: (y - X[:, :1] @ x["w"][:1]) ** 2 * jnp.exp(-2 * x["w"][1]),
    "logistic": lambda x: log_prob(dist.Bernoulli(logits=X @ x["w"]), jnp.array([0, 1, 1, 0])),
    "counts": lambda x: log_prob(dist.Poisson(jnp.exp(X @ x["w"])), jnp.array([0, 3, 1, 0])),
    "small support": lambda x: jnp.log(-jnp.expm1(-0.01 - X[:, :1] ** 2 * x["z"])),
    "equal neighbours": lambda x: jnp.where(x["z"][1:] == x["z"][:-1], x["w"], -1.0),
    "masked": lambda x: jnp.where(jnp.array([True, False]), x["w"] ** 2, jnp.nan),
}
SHARED = {  # one element on two routes
    "square": lambda x: x["z"] * x["z"],
    "rolled by the length": lambda x: x["z"] * jnp.roll(x["z"], 3),
    "complement": lambda x: (1 - x["z"]) * x["z"],
    "twice in a sum": lambda x: (x["w"] + x["w"]) ** 2,
    "two matrices": lambda x: (y - X @ x["w"] - Z @ x["w"]) ** 2,
    "product of projections": lambda x: (X @ x["w"]) * (Z @ x["w"]),
    "listed twice": lambda x: jnp.log(1.1 + jnp.sum(x["z"][np.array([[0, 1, 1], [2, 0, 1]])], axis=1)),
    "its own exponential": lambda x: x["w"] * jnp.exp(x["w"]),
    "gate twice": lambda x: x["z"][:2] * (x["z"][:2] * x["w"]),
    "a number beside a vector": lambda x: jnp.sum(x["w"][:1] * jnp.ones(4)) ** 2,
}
FEW = ["spike and slab", "mixture", "quadratic form", "two matrices", "listed twice"]


def check(f):
    term, expected = found(f), dense(f)
    assert term.is_exact, term
    np.testing.assert_allclose(term.mean, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", FEW)
def test_expectations_are_those_of_a_dense_sum(name):
    check((EXACT | SHARED)[name])


@pytest.mark.long
@pytest.mark.parametrize("name", [n for n in EXACT | SHARED if n not in FEW])
def test_all_expectations_are_those_of_a_dense_sum(name):
    check((EXACT | SHARED)[name])


REFUSED = {
    "a jump": lambda x: (x["w"] > 0) * 1.0,
    "two kinks": lambda x: jnp.clip(x["w"], -1.0, 1.0),
    "a rounding": lambda x: x["w"].astype(int) * 1.0,
    "outside its domain": lambda x: jnp.log(x["w"]),
    "two dependent projections": lambda x: jnp.exp(X @ x["w"]) * jnp.sin(Z @ x["w"]),
    "an index by a continuous latent": lambda x: jnp.asarray(y)[x["w"].astype(int)],
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_proved_is_refused(name):
    term = found(REFUSED[name])
    assert not term.is_exact
    assert term.how


def test_an_index_that_is_not_known_while_tracing():
    """All elements that it may name count: few are summed together, many are refused."""

    def mean(index):
        return found(lambda x: jnp.log(1.1 + jnp.sum(x["z"][index]))).mean

    index = jnp.array([1, 1])
    np.testing.assert_allclose(jax.jit(mean)(index), mean(index), rtol=1e-12)

    def of_many(index):
        z = law(scalar(dist.Bernoulli(0.3 * jnp.ones(40)).to_event(1)), jnp.dtype(jnp.result_type(int)))
        term = expectations(lambda x: {"t": jnp.log(1.1 + jnp.sum(x["z"][index]))}, {"z": z})["t"]
        assert not term.is_exact
        return 0.0

    jax.jit(of_many)(index)


def test_a_candidate_of_weight_zero_adds_nothing():
    table = jnp.array([[-1.0, -jnp.inf], [0.2, 0.4]])

    def value(logits):
        z = law(scalar(dist.Bernoulli(logits=logits).to_event(1)), jnp.dtype(jnp.result_type(int)))
        return jnp.sum(expectations(lambda x: {"t": table[x["z"][:-1], x["z"][1:]]}, {"z": z})["t"].mean)

    value, gradient = jax.value_and_grad(value)(jnp.array([0.3, -1000.0, -1000.0]))
    p = jax.nn.sigmoid(0.3)
    np.testing.assert_allclose(value, (1 - p) * -1.0 + p * 0.2 - 1.0, rtol=1e-12)
    np.testing.assert_allclose(gradient, [1.2 * p * (1 - p), 0.0, 0.0], rtol=1e-12)


def test_gradients_are_those_of_the_mean_and_variance():
    def value(loc, scale):
        w = law(scalar(dist.Normal(loc, scale)), jnp.dtype(jnp.result_type(float)))
        return expectations(lambda x: {"t": jnp.exp(0.5 * x["w"]) + x["w"] ** 2}, {"w": w})["t"].mean

    loc, scale = 0.3, 1.7
    mean = np.exp(0.5 * loc + scale**2 / 8)
    found = jax.grad(value, (0, 1))(loc, scale)
    np.testing.assert_allclose(found, [0.5 * mean + 2 * loc, scale / 4 * mean + 2 * scale], rtol=1e-12)
