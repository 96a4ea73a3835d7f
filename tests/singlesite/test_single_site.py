"""`single_site` against a Python loop: values, differences, memory, errors."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import legrad
from legrad.singlesite.plan import Plan

pytestmark = pytest.mark.usefixtures("strict_ranks")

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


@pytest.mark.parametrize("method", ["auto", "brute"])
@pytest.mark.parametrize("site", [legrad.single_site, legrad.single_site_differences])
def test_numpy_arrays_that_f_looks_up_in(method, site):
    table = np.array([1.0, 4.0, 9.0, 16.0])

    def f(x):
        return jnp.sum(x["table"][x["z"]] * jnp.asarray(table)[x["z"]])

    x, candidates = {"z": np.array([1, 3]), "table": table}, {"z": np.array([[0, 2]]), "table": np.zeros((1, 4))}
    expected = {"z": [[1.0 + 256.0, 16.0 + 81.0]], "table": [[272.0, 256.0, 272.0, 16.0]]}
    shift = 272.0 if site is legrad.single_site_differences else 0.0
    result = site(f, x, candidates, method=method)
    for name, values in expected.items():
        np.testing.assert_allclose(result[name], np.array(values) - shift, rtol=1e-12)
    with pytest.raises(TypeError, match=r"jnp\.asarray\(table\)"):
        site(lambda x: table[x["z"]].sum(), x, candidates, method=method)


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


def out_of_bounds(x):
    return jnp.take(x, jnp.array([0, 9, 2, -7, 2]), mode="fill", fill_value=0.3) * jnp.arange(1.0, 6)


def long_index(x):
    i = jnp.arange(3)
    for _ in range(400):
        i = (i + 1) % 5
    return x[i]


S = np.array([1.0, 0.0, 2.0, 0.0, 3.0])
CORNERS = {
    "a part that nothing touches": (lambda x: jnp.tanh(jnp.roll(x, 1)[1:]), X5 := np.linspace(-1, 1, 5)),
    "two of them": (lambda x: jnp.tanh(jnp.roll(x, 1)[1:] + x[1:]), X5),
    "an index out of bounds": (out_of_bounds, X5),
    "a long index computation": (long_index, X5),
    "infinity behind a mask": (lambda x: jnp.where(S > 0, x / S, 0.0), X5),
    "a pivot much larger than its candidates": (jnp.tanh, np.array([1e20, 1.0, 2.0, 3.0, 4.0])),
    "an infinite pivot": (lambda x: jax.nn.logsumexp(x + 1.0), np.array([-np.inf, 1.0, 2.0, 3.0, 4.0])),
    "integers that wrap": (lambda x: x.astype(float), np.array([-2147483000, 2, 7, 1, 0], np.int32)),
    "boolean terms": (lambda x: x > 0.1, X5),
    "a list made in passing": (lambda x: jnp.tanh(jnp.concatenate([jnp.cumsum(x), jnp.sin(x)])), X5),
}


@pytest.mark.parametrize("memory", [1 << 29, 200])
@pytest.mark.parametrize("name", CORNERS)
def test_corners(name, memory, monkeypatch):
    monkeypatch.setattr(Plan, "brute", False)
    f, x = CORNERS[name]
    c = jnp.asarray([[0.3, -0.4, 2.0, 0.01, 1.0]] if x.dtype == float else [[2147483000, 5, 1, 0, 2]], x.dtype)
    auto, brute = (legrad.single_site_differences(f, jnp.asarray(x), c, m, memory=memory) for m in ("auto", "brute"))
    np.testing.assert_allclose(auto, brute, rtol=1e-9, atol=1e-12)


def test_an_index_that_is_an_argument(monkeypatch):
    monkeypatch.setattr(Plan, "brute", False)

    @jax.jit
    def both(x, c, i):
        def f(x):
            return jnp.take(x, i, mode="fill", fill_value=0.3) * jnp.arange(1.0, 6)

        return [legrad.single_site_differences(f, x, c, method) for method in ("auto", "brute")]

    auto, brute = both(jnp.asarray(X5), jnp.ones((1, 5)), jnp.array([0, 9, 2, -7, 2]))
    np.testing.assert_allclose(auto, brute, rtol=1e-9, atol=1e-12)


def test_stop_gradient_stops(monkeypatch):
    monkeypatch.setattr(Plan, "brute", False)

    def total(t, method):
        f = lambda x: jnp.sum(jax.lax.stop_gradient(t * x) + t * x**2)
        return jnp.sum(legrad.single_site_differences(f, jnp.asarray(X5), jnp.ones((1, 5)), method))

    t = jnp.arange(5.0)
    np.testing.assert_allclose(jax.grad(total)(t, "auto"), jax.grad(total)(t, "brute"), rtol=1e-9)


def test_values_without_numbers(monkeypatch):
    """A term over no columns is a sum of nothing, whatever leads to it."""
    monkeypatch.setattr(Plan, "brute", False)
    W, none = jnp.arange(1.0, 16).reshape(5, 3), jnp.zeros((5, 0))

    def f(x):
        return jnp.sum(jnp.log(x @ W)) + jnp.sum(jnp.log(x @ none)) + jnp.sum(jnp.cumsum(x[:0] ** 2))

    x, candidates = jnp.ones(5), jnp.array([[0.5] * 5, [2.0] * 5])
    auto, brute = (legrad.single_site_differences(f, x, candidates, method) for method in ("auto", "brute"))
    np.testing.assert_allclose(auto, brute, rtol=1e-9, atol=1e-12)


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
