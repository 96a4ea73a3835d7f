"""The fast path was taken: for each structure, what `explain` says; and what it says where there is none."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from single_site_models import MODELS

import legrad
from legrad.singlesite.plan import Plan

rng = np.random.default_rng(0)
N, P = 400, 30
X, W = jnp.asarray(rng.normal(size=(N, P))), jnp.asarray(rng.normal(size=(P, 60)))
w, z = jnp.asarray(rng.normal(size=P)), jnp.asarray(rng.integers(0, 4, 200))
A = jnp.asarray(rng.normal(size=(P, P)))
L = jnp.linalg.cholesky(A @ A.T + jnp.eye(P))
J, mu = jnp.asarray(rng.normal(size=(4, 4))), jnp.asarray(rng.normal(size=4))
grid = jnp.asarray(rng.integers(0, 2, (20, 20)) * 2.0 - 1)
bits = jnp.asarray(rng.integers(0, 2, (50, P)))
causes = rng.integers(0, P, (200, 3))
few = np.where(rng.uniform(size=(N, P)) < 0.1, rng.normal(size=(N, P)), 0.0)

# name: f, x, the structures that some primitives must keep, and how many times cheaper than brute force it must be.
STRUCTURES = {
    "logistic": (lambda w: jnp.sum(jax.nn.softplus(X @ w)), w, {"dot_general": "lazy", "exp": "dense"}, 5),
    "stack, unstack, tile": (
        lambda w: sum(jnp.sum(jnp.tanh(p)) for p in jnp.unstack(jnp.stack([jnp.sin(w), jnp.tile(w, 2)[P:]]))),
        w,
        {"tanh": "sparse", "concatenate": "sparse"},
        4,
    ),
    "quadratic form": (lambda w: w @ A @ w, w, {"dot_general": ("lazy", "sparse")}, 10),
    "triangular solve": (
        lambda w: jnp.sum(jax.scipy.linalg.solve_triangular(L, w, lower=True) ** 2),
        w,
        {"triangular_solve": "lazy", "integer_pow": "lazy", "square": "lazy"},
        1,
    ),
    "chain": (lambda z: jnp.sum(J[z[:-1], z[1:]]), z, {"slice": "sparse", "gather": "sparse"}, 50),
    "grid": (lambda s: jnp.sum(s * jnp.roll(s, 1, 0) + s * jnp.roll(s, 1, 1)), grid, {"mul": "sparse"}, 50),
    "mixture": (lambda z: jnp.sum((mu[z] - 1.0) ** 2), z, {"gather": "sparse", "integer_pow": "sparse"}, 100),
    "batch": (lambda x: jnp.sum(jax.nn.softplus(x @ W)), bits, {"dot_general": "sparse", "exp": "sparse"}, 20),
    "noisy-or": (
        lambda w: jnp.sum(jnp.log1p(jnp.exp(-jnp.sum(w[causes] ** 2, 1)))),
        w,
        {"gather": "sparse", "reduce_sum": "sparse", "exp": "sparse"},
        5,
    ),
    "zeros of a matrix": (lambda w: jnp.sum(jnp.tanh(few @ w)), w, {"dot_general": "sparse", "tanh": "sparse"}, 5),
    "cumulative sum": (lambda w: jnp.sum(jnp.cumsum(w) * jnp.arange(P)), w, {"cumsum": "lazy", "mul": "lazy"}, 1),
    "all and any": (
        lambda w: jnp.where(jnp.all(jnp.isfinite(w)), jnp.sum(w), -jnp.inf) * jnp.any(w > 1),
        w,
        {"is_finite": "sparse", "reduce_and": "scalar", "reduce_or": "scalar"},
        5,
    ),
    "nested": (
        lambda z: jnp.sum(jax.jit(jax.checkpoint(lambda z: jax.nn.relu(mu[z])))(z)),
        z,
        {"gather": "sparse", "max": "sparse"},
        100,
    ),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_structure_is_kept(name):
    f, x, wanted, cheaper = STRUCTURES[name]
    found = legrad.explain(f, x)
    kept = {row.primitive: row.structure for row in reversed(found.rows)}
    assert kept.keys() & wanted.keys(), kept
    for primitive in wanted.keys() & kept.keys():
        assert kept[primitive] in np.atleast_1d(wanted[primitive]), f"{primitive}: {kept[primitive]}\n{found}"
    (cost,) = found.costs
    assert cost.method == "auto"
    assert cost.brute >= cheaper * cost.work, str(found)
    assert not found.fallbacks


def test_a_check_of_all_elements_is_not_repeated_for_each(monkeypatch):
    """Every distribution of vectors checks its support: that must not cost the square of their length."""
    monkeypatch.setattr(Plan, "brute", False)
    f = lambda w: jnp.where(jnp.all(jnp.isfinite(w)), jnp.sum(w), -jnp.inf)
    made = jax.make_jaxpr(lambda w, c: legrad.single_site_differences(f, w, c))(w, jnp.ones((2, P)))
    sizes = [v.aval.size for eqn in made.jaxpr.eqns for v in eqn.outvars]
    assert max(sizes) <= 4 * P, made


@pytest.mark.parametrize("name", MODELS)
def test_benchmark_models_equal_brute_force(name, monkeypatch):
    monkeypatch.setattr(Plan, "brute", False)
    f, x, candidates = MODELS[name](small=True)
    both = jax.jit(lambda x, c: [legrad.single_site_differences(f, x, c, method) for method in ("auto", "brute")])(
        x, candidates
    )
    for a, b in zip(*map(jax.tree.leaves, both), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9 * max(1.0, float(np.max(np.abs(b)))))


def test_an_unknown_primitive_falls_back_and_is_listed():
    def f(w):
        return jnp.sum(jnp.linalg.eigvalsh(jnp.outer(w, w) + A @ A.T) ** 2)

    x, candidates = w[:3], jnp.ones((2, 3))
    small = lambda w: f(jnp.zeros(P).at[:3].set(w))
    found = legrad.explain(small, x, candidates)
    assert "eigh" in {row.primitive for row in found.fallbacks}, str(found)
    assert "no rule" in str(found)
    assert "test_explain.py" in str(found)
    auto, brute = (legrad.single_site(small, x, candidates, method) for method in ("auto", "brute"))
    np.testing.assert_allclose(auto, brute, rtol=1e-9)


def test_brute_force_is_chosen_where_nothing_is_saved():
    found = legrad.explain(lambda w: jnp.sum(jnp.sort(jnp.sort(w))), w)
    assert [cost.method for cost in found.costs] == ["brute"]
    assert "nothing to save" in str(found)


def test_a_latent_that_f_ignores():
    found = legrad.explain(lambda x: jnp.sum(x["a"]), {"a": w, "b": z})
    assert "b: 200 elements × 2 candidates: f ignores it" in str(found)


def test_an_abstract_index_is_named():
    """Inside a user's own jit the links cannot be seen: the safe path, and `explain` says so."""
    said = []

    @jax.jit
    def run(index):
        said.append(str(legrad.explain(lambda w: jnp.sum(jnp.exp(w[index])), w)))
        return 0

    run(causes)
    assert "abstract inside jit" in said[0]


def model(links, y, X=None):
    on = numpyro.sample("on", dist.Bernoulli(0.3).expand([P]).to_event(1))
    off = 0.05 + jnp.sum(on[links], axis=1)
    numpyro.sample("y", dist.Bernoulli(probs=1 - jnp.exp(-off)), obs=y)


SAMPLED = legrad.LocalExpectation(exact_terms=False)  # else the terms are exact, and nothing is changed


def test_fit_plans_from_the_data(monkeypatch):
    """`fit` compiles for the data that it is given, so index arrays among its arguments are seen."""
    from legrad.singlesite import report

    monkeypatch.setattr(Plan, "brute", False)
    links, y = jnp.asarray(causes), jnp.asarray(rng.integers(0, 2, 200))
    with report.listening() as found:
        settings = {"estimator": SAMPLED, "steps": 2, "progress": False}
        legrad.fit(model, legrad.MeanField(model), args=(links, y), key=jax.random.key(0), **settings)
    gathers = [row for row in found.of("gather") if row.latent == "on"]
    assert {row.structure for row in gathers} == {"sparse"}, str(found)


def test_explain_a_model():
    y = jnp.asarray(rng.integers(0, 2, 200))
    found = legrad.explain(model, legrad.MeanField(model), args=(causes, y), estimator=SAMPLED)
    assert {row.latent for row in found.rows} == {"on"}
    assert any(row.line.startswith("test_explain.py") for row in found.rows), str(found)


def test_explain_refuses_what_changes_no_elements():
    with pytest.raises(TypeError, match="explain a legrad.LocalExpectation"):
        legrad.explain(model, legrad.MeanField(model), args=(causes, None), estimator=legrad.ScoreFunction())


def test_float32_differences_of_many_terms():
    """A sum of 10^5 terms through a matrix, in float32, to the accuracy of one term."""
    X = jnp.asarray(rng.normal(size=(100_000, 2)))
    w, c = jnp.array([0.3, -0.2]), jnp.array([[0.301, -0.2], [0.3, -0.199]])

    def f(w, X):
        return 1e3 * X.shape[0] + jnp.sum(jax.nn.softplus(X @ w))

    exact = legrad.single_site_differences(lambda w: f(w, X), w, c, "auto")
    single = [a.astype(jnp.float32) for a in (w, c, X)]
    got = legrad.single_site_differences(lambda w: f(w, single[2]), *single[:2], "auto")
    lost = legrad.single_site_differences(lambda w: f(w, single[2]), *single[:2], "brute")
    moved = np.abs(exact) > 0
    np.testing.assert_allclose(got[moved], exact[moved], rtol=1e-3)
    assert not np.allclose(lost[moved], exact[moved], rtol=1e-3), "the test would not notice the loss"
