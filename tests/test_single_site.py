"""`single_site` against a Python loop: values, differences, memory, errors."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import legrad
from legrad.singlesite.plan import Plan

X = {
    "a": jnp.array([1.0, -2.0, 0.5]),
    "b": jnp.array([[1, 0], [2, 1]]),
    "c": jnp.array(0.3),
    "unused": jnp.ones(2),
}
CANDIDATES = {
    "a": jnp.array([[0.0, 1.0, 2.0], [-1.0, 0.0, 3.0]]),
    "b": jnp.arange(12).reshape(3, 2, 2),
    "c": jnp.array([0.1, 0.2, 0.5, 0.9]),
    "unused": jnp.zeros((1, 2)),
}


def f(x):
    return jnp.sum(x["a"] ** 2) * x["c"] + jnp.sum(jnp.sin(x["b"])) * x["a"][0]


def by_loop(f, x, candidates):
    result = {name: np.zeros(c.shape) for name, c in candidates.items()}
    for name, c in candidates.items():
        for k in range(len(c)):
            for e in itertools.product(*map(range, x[name].shape)):
                changed = np.array(x[name])
                changed[e] = c[(k, *e)]
                result[name][(k, *e)] = f({**x, name: jnp.asarray(changed)})
    return result


@pytest.mark.parametrize("method", ["auto", "brute"])
@pytest.mark.parametrize("memory", [1, 1000, 1 << 28])
def test_values(method, memory):
    result = legrad.single_site(f, X, CANDIDATES, method=method, memory=memory)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), result, by_loop(f, X, CANDIDATES))


@pytest.mark.parametrize("method", ["auto", "brute"])
def test_differences(method):
    result = legrad.single_site_differences(f, X, CANDIDATES, method=method)
    expected = {name: v - float(f(X)) for name, v in by_loop(f, X, CANDIDATES).items()}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), result, expected)
    assert np.all(result["unused"] == 0)


def test_pytrees_of_scalars_and_one_array():
    x, candidates = jnp.array([1.0, 2.0]), jnp.zeros((1, 2))
    result = legrad.single_site(lambda x: {"sum": x.sum(), "prod": x.prod()}, x, candidates)
    assert np.array_equal(result["sum"], [[2.0, 1.0]])
    assert np.array_equal(result["prod"], [[0.0, 0.0]])


def test_differences_of_many_terms_keep_float32():
    """A sum of 10^5 terms in float32: differences term by term keep what subtracting two sums loses."""
    big = jnp.asarray(np.random.default_rng(0).normal(size=100_000) * 1e3, jnp.float32)
    x, candidates = jnp.zeros(3, jnp.float32), jnp.full((1, 3), 1e-3, jnp.float32)

    def terms(x):
        return big.at[:3].set(x)

    differences = legrad.single_site_differences(terms, x, candidates)
    values = legrad.single_site(terms, x, candidates)
    np.testing.assert_allclose(differences, 1e-3, rtol=1e-6)
    lost = values - jnp.sum(terms(x))
    assert not np.allclose(lost, 1e-3, rtol=1e-2), "the test would not notice the loss"


@pytest.mark.parametrize("method", ["auto", "brute"])
def test_blocks_bound_the_memory(method, monkeypatch):
    """The compiled program of 10^4 evaluations of a wide f holds a few of them at a time."""
    monkeypatch.setattr(Plan, "brute", False)
    x, W = jnp.zeros(100), jnp.ones((100, 1000))

    def run(x, memory):
        def f(x):
            return jnp.sum(jnp.sort(x @ W))  # a sort is held in full

        return legrad.single_site_differences(f, x, jnp.ones((100, 100)), method, memory=memory)

    def bytes_of(memory):
        compiled = jax.jit(lambda x: run(x, memory)).lower(x).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert bytes_of(1 << 20) < 3 << 20
    assert bytes_of(1 << 30) > 10 * bytes_of(1 << 20)


def test_a_pivot_that_f_forbids():
    """f(x) = -inf says nothing about the neighbours of x."""
    x, candidates = jnp.array([0.0, 1.0]), jnp.array([[2.0, 3.0]])
    result = legrad.single_site(lambda x: jnp.sum(jnp.log(x)), x, candidates)
    np.testing.assert_allclose(result, [[np.log(2.0), -np.inf]])


def test_a_forbidden_candidate():
    x, candidates = jnp.array([2.0, 1.0]), jnp.array([[0.0, 3.0]])
    result = legrad.single_site_differences(lambda x: jnp.sum(jnp.log(jnp.stack([x, x + 1]))), x, candidates)
    np.testing.assert_allclose(result, [[-np.inf, np.log(3.0) + np.log(2.0)]])


@pytest.mark.parametrize(
    ("x", "candidates", "settings", "message"),
    [
        (jnp.zeros(2), jnp.zeros((1, 3)), {}, r"expected \('K', 2\)"),
        ({"a": jnp.zeros(2)}, {"b": jnp.zeros((1, 2))}, {}, "they must be the same"),
        (jnp.zeros(2), jnp.zeros((1, 2)), {"method": "fast"}, "choose one of auto, brute"),
        (jnp.zeros(2, int), jnp.zeros((1, 2)), {}, "give both the same type"),
    ],
)
def test_bad_input(x, candidates, settings, message):
    with pytest.raises(ValueError, match=message):
        legrad.single_site(lambda x: 0.0, x, candidates, **settings)
