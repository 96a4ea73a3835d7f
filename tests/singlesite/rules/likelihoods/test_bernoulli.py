"""The product form of Bernoulli likelihoods against the plain one: any logits, any weights, any data, any layout."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import legrad
from legrad.distributions.densities import log_prob
from legrad.singlesite import rules
from legrad.singlesite.plan import Plan
from legrad.singlesite.rules import bernoulli
from legrad.trace.program import Program

H, D = 7, 100  # not a multiple of the number of factors


def problem(weight=0.5, bias=0.0, values="hard", seed=0, batch=3, dtype=jnp.float64, through=None):
    rng = np.random.default_rng(seed)
    W = jnp.asarray(weight * rng.normal(size=(H, D)), through or dtype).astype(dtype)
    b = jnp.asarray(bias * rng.choice([-1.0, 1.0], size=D), dtype)
    y = rng.random((batch, D))
    y = jnp.asarray(y if values == "soft" else y < 0.4, dtype)
    x = jnp.asarray(rng.integers(0, 2, (batch, H)), dtype)

    def f(x):
        return log_prob(dist.Bernoulli(logits=x @ W + b), y).sum(-1)

    return f, x, (1 - x)[None]


def differences(f, x, candidates, method):
    """Of f's sum, as brute force wants it: a scalar."""
    return legrad.single_site_differences(lambda x: f(x).sum(), x, candidates, method)


@pytest.fixture
def used(monkeypatch):
    """Which forms were traced."""
    found = []
    for name in ("_products", "_plain"):
        old = getattr(bernoulli._Total, name)

        def new(self, *args, old=old, name=name):
            found.append(name)
            return old(self, *args)

        monkeypatch.setattr(bernoulli._Total, name, new)
    return found


FAST = [(0.0, 0.0, "soft"), (0.5, 1000.0, "hard"), (20.0, 0.0, "hard"), (1e5, 1000.0, "soft")]
OTHERS = [c for c in itertools.product([0.0, 0.5, 20.0, 1e5], [0.0, 1000.0], ["hard", "soft"]) if c not in FAST]


@pytest.mark.parametrize(
    ("weight", "bias", "values"), FAST + [pytest.param(*case, marks=pytest.mark.long) for case in OTHERS]
)
def test_flips(weight, bias, values, used):
    f, x, candidates = problem(weight, bias, values)
    want, got = (differences(f, x, candidates, method) for method in ("brute", "auto"))
    np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-10 * max(1.0, weight, bias))
    assert "_products" in used


@pytest.mark.parametrize("weight", [0.5, 300.0])
def test_latents_of_two_other_values(weight):
    """-1 and 1 in the place of 0 and 1, and candidates that are the pivot, as where a guide is sure."""
    f, x, candidates = problem(weight)
    candidates = candidates.at[0, 1].set(x[1])

    def g(x):
        return f(2 * x - 1)

    want, got = (differences(g, x, candidates, method) for method in ("brute", "auto"))
    np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-8)
    assert not got[0, 1].any()
    assert got[0, 0].all()


@pytest.mark.parametrize("weight", [0.3, 40.0])
def test_any_candidates(weight, used):
    """Nodes of a quadrature: changes of any size."""
    f, x, _ = problem(weight)
    candidates = x + jnp.asarray(np.random.default_rng(1).normal(size=(5, *x.shape)))
    want, got = (differences(f, x, candidates, method) for method in ("brute", "auto"))
    np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-10)
    assert "_plain" in used


def test_columns_of_a_design_matrix(used):
    """Data along the first axis, one latent vector: regression."""
    rng = np.random.default_rng(2)
    X, y = jnp.asarray(rng.normal(size=(150, H))), jnp.asarray(rng.random(150) < 0.5)
    x = jnp.asarray(rng.normal(size=H))

    def f(x):
        return log_prob(dist.Bernoulli(logits=X @ x), y).sum()

    candidates = x + jnp.asarray(rng.normal(size=(4, H)))
    want, got = (legrad.single_site_differences(f, x, candidates, method) for method in ("brute", "auto"))
    np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-11)
    assert used


@pytest.mark.parametrize(("weight", "bias"), [(0.5, 0.0), (4.0, 10.0), (0.5, 1000.0), (100.0, 1000.0)])
def test_float32_is_as_good_as_the_plain_form(weight, bias, monkeypatch):
    f, x, candidates = problem(weight, bias, dtype=jnp.float32, seed=3)
    rounded = problem(weight, bias, seed=3, through=jnp.float32)
    truth = differences(*rounded, "brute")
    got = differences(f, x, candidates, "auto")
    monkeypatch.setitem(rules.RULES, "legrad_hard_bernoulli_logits", bernoulli.nonlinear)
    plain = differences(f, x, candidates, "auto")
    assert got.dtype == jnp.float32
    most = max(2 * float(jnp.abs(plain - truth).max()), 1e-6 * float(jnp.abs(truth).max()))
    assert float(jnp.abs(got - truth).max()) <= most


def test_large_weights_do_not_cancel(monkeypatch):
    """Float32, weights of 1e5, data that are certain before and after: what is left is exact, not lost in the sum."""
    rng = np.random.default_rng(7)
    y = jnp.asarray(rng.random(D) < 0.5, jnp.float32)
    W = jnp.asarray(rng.uniform(1e5, 2e5, (H, D)), jnp.float32) * (2 * y - 1)
    x = jnp.ones((3, H), jnp.float32)

    def f(x):
        return log_prob(dist.Bernoulli(logits=x @ W), y).sum(-1)

    np.testing.assert_array_equal(differences(f, x, (1 - x)[None], "auto"), 0.0)


def test_at_infinite_logits():
    """What is certain stays so: an infinite bias is no reason for NaN."""
    f, x, candidates = problem(values="hard")
    sure = jnp.asarray([np.inf, -np.inf] * (D // 2))
    y = (sure > 0).astype(float)

    def g(x):
        return f(x) + log_prob(dist.Bernoulli(logits=(x @ jnp.ones((H, D))) + sure), y).sum(-1)

    want, got = (differences(h, x, candidates, "auto") for h in (f, g))
    np.testing.assert_allclose(got, want, atol=1e-9)


@pytest.mark.parametrize("use", ["max", "squares", "masked", "weighted"])
def test_where_more_than_the_sum_matters(use, used):
    """The mean must not stand for the numbers: the plain rule is used."""
    _, x, candidates = problem()
    weights = jnp.arange(D) / D
    rng = np.random.default_rng(4)
    W, y = jnp.asarray(rng.normal(size=(H, D))), jnp.asarray(rng.random((3, D)) < 0.5)

    def g(x):
        terms = log_prob(dist.Bernoulli(logits=x @ W), y)
        return {
            "max": lambda: terms.max(-1),
            "squares": lambda: (terms**2).sum(-1) + terms.sum(-1),
            "masked": lambda: jnp.where(weights > 0.5, terms, 0.0).sum(-1),
            "weighted": lambda: (weights * terms).sum(-1),
        }[use]()

    want, got = (differences(g, x, candidates, method) for method in ("brute", "auto"))
    np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-11)
    assert not used


def test_a_scale_keeps_the_sum():
    """One number times all terms, as a subsampled plate has it."""
    f, x, _ = problem()
    program = Program(lambda x: -3.0 * f(x), x)
    op = next(op for op in program.ops if op.name == "legrad_hard_bernoulli_logits")
    assert program.summed[op.outputs[0]] == {0, 1}


def test_a_gradient_passes_through():
    """Users may differentiate one-element changes with respect to what f closes over."""
    rng = np.random.default_rng(5)
    x, y = jnp.asarray(rng.integers(0, 2, H), float), jnp.asarray(rng.random(D) < 0.5)
    W = jnp.asarray(rng.normal(size=(H, D)))

    def total(W, method):
        def f(x):
            return log_prob(dist.Bernoulli(logits=x @ W), y).sum()

        return jnp.sum(jnp.sin(legrad.single_site_differences(f, x, (1 - x)[None], method)))

    want, got = (jax.grad(total)(W, method) for method in ("brute", "auto"))
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("far", [0.0, 300.0])
def test_a_batch_decides_together(far):
    """One member whose weights are out of range sends all to the plain form; the numbers are right either way."""
    rng = np.random.default_rng(6)
    x, y = jnp.asarray(rng.integers(0, 2, H), float), jnp.asarray(rng.random(40 * D) < 0.5)
    W = jnp.asarray(rng.normal(size=(2, H, 40 * D)) * np.array([1.0, 1.0 + far])[:, None, None])

    def one(W, x, method="auto"):
        return legrad.single_site_differences(
            lambda x: log_prob(dist.Bernoulli(logits=x @ W), y).sum(), x, (1 - x)[None], method
        )

    xs = jnp.stack([x, 1 - x])
    want = jnp.stack([jnp.stack([one(w, x, "brute") for x in xs]) for w in W])
    got = jax.jit(jax.vmap(jax.vmap(one, (None, 0)), (0, None)))(W, xs)
    np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-8)
    program = str(jax.make_jaxpr(jax.vmap(one, (None, 0)))(W[0], xs))
    assert "cond" in program


@pytest.mark.parametrize("values", ["hard", "soft", "integers"])
@pytest.mark.parametrize("scale", [1.0, pytest.param(1e4, marks=pytest.mark.long)])
@pytest.mark.parametrize("summed", [True, False])
def test_listed_places(values, scale, summed, monkeypatch):
    """A matrix that is mostly zeros: log p changes at the rows that a weight touches."""
    rng = np.random.default_rng(3)
    monkeypatch.setattr(Plan, "brute", False)
    X = np.where(rng.random((400, 12)) < 0.1, scale * rng.normal(size=(400, 12)), 0.0)
    y = rng.random(400) if values == "soft" else rng.random(400) < 0.5
    y = jnp.asarray(y, int if values == "integers" else float)
    w = jnp.asarray(rng.normal(size=12))
    candidates = w + jnp.asarray([-1.0, 0.0, 2.0])[:, None]

    def f(w):
        each = log_prob(dist.Bernoulli(logits=X @ w), y)
        return jnp.sum(each) if summed else jnp.sum(jnp.tanh(each))

    touched = {row.structure for row in legrad.explain(f, w).rows if "bernoulli" in row.primitive}
    assert touched == {"sparse"}
    got, want = (legrad.single_site_differences(f, w, candidates, method) for method in ("auto", "brute"))
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9 * scale)
