"""Categorical and Poisson likelihoods have rules of their own: against brute force, and where they do not hold."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import legrad
from legrad.distributions.densities import log_prob
from legrad.singlesite.plan import Plan
from legrad.trace import dependence as reach
from legrad.trace.dependence import own_boxes
from legrad.trace.program import Program

N, P = 30, 3
rng = np.random.default_rng(0)
X = jnp.asarray(rng.normal(size=(N, P)))
W3 = jnp.asarray(rng.normal(size=(4, 5, 3)))
METHODS = ("auto", "brute")
KEY = jax.random.key(0)


def classes(C, shape=(N,)):
    return jnp.asarray(rng.integers(0, C, shape))


def log_p(logits, y):
    return log_prob(dist.Categorical(logits=logits, validate_args=False), y)


def one_class(C, scale=1.0):
    """Softmax regression: a weight belongs to one class."""
    y = classes(C)
    return lambda w: log_p(scale * (X @ w), y), jnp.asarray(rng.normal(size=(P, C)))


def all_classes(C):
    y, W = classes(C), jnp.asarray(rng.normal(size=(P, C)))
    return lambda x: log_p((X * x) @ W, y), jnp.asarray(rng.normal(size=P))


def batch(x):
    return log_p(jnp.einsum("bh,hdc->bdc", x, W3), Y3)


def excluded(w):
    """The last class is impossible, and no datum is of it."""
    return log_p(jnp.concatenate([X @ w, jnp.full((N, 1), -jnp.inf)], axis=1), Y2)


def not_summed(w):
    each = log_p(X @ w, Y2)
    return jnp.sum(jnp.exp(each) * jnp.arange(N)) + each[0] ** 2


def masked(w):
    return jnp.where(Y2 == 0, log_p(X @ w, Y2), 0.0)


def two_parts(w):
    """A piece that touches one class and a piece that touches all."""
    return log_p(X @ w + jnp.sum(w), Y2)


def counts(rate, y=None):
    return log_prob(dist.Poisson(rate), COUNTS if y is None else y)


def no_exposure(w):
    """Rows with a rate of zero, and counts of zero."""
    return counts(jnp.exp(X @ w + jnp.where(COUNTS == 0, -jnp.inf, 0.0)))


def latent_counts(z):
    return counts(jnp.exp(0.3 * jnp.arange(4.0)), z)


COUNTS = jnp.asarray(rng.poisson(1.5, N))
COUNT_FUNCTIONS = {
    "log-linear": (lambda w: counts(jnp.exp(X @ w)), jnp.asarray(rng.normal(size=P))),
    "no exposure": (no_exposure, jnp.asarray(rng.normal(size=P))),
    "another link": (lambda w: counts(jax.nn.softplus(X @ w)), jnp.asarray(rng.normal(size=P))),
    "one row each": (lambda w: counts(jnp.exp(w)), jnp.asarray(rng.normal(size=N))),
    "not summed": (lambda w: jnp.sum(counts(jnp.exp(X @ w)) ** 2), jnp.asarray(rng.normal(size=P))),
    "latent counts": (latent_counts, jnp.asarray([0.0, 1.0, 5.0, 2.0])),
    "data in several shapes": (
        lambda w: counts(jnp.exp((X @ w)[:, None] + W3[0, 0]), COUNTS[:, None]),
        jnp.asarray(rng.normal(size=P)),
    ),
}
Y2, Y3 = classes(2), classes(3, (2, 5))
FUNCTIONS = {
    "one of many": one_class(6),
    "one of two": one_class(2),
    "the only one": one_class(1),
    "large logits": one_class(3, 1000.0),
    "all of a few": all_classes(4),
    "all of many": all_classes(40),
    "one of many more": one_class(40),
    "a batch": (batch, jnp.asarray(rng.integers(0, 2, (2, 4)) * 1.0)),
    "an excluded class": (excluded, jnp.asarray(rng.normal(size=(P, 2)))),
    "not summed": (not_summed, jnp.asarray(rng.normal(size=(P, 2)))),
    "masked": (masked, jnp.asarray(rng.normal(size=(P, 2)))),
    "two parts": (two_parts, jnp.asarray(rng.normal(size=(P, 2)))),
    "one class shifted": (lambda b: log_p(X[:, :2] + b, Y2), jnp.asarray(rng.normal(size=2))),
}


FAMILIES = {"categorical": FUNCTIONS, "poisson": COUNT_FUNCTIONS}


@pytest.mark.parametrize(("family", "name"), [(family, name) for family, rows in FAMILIES.items() for name in rows])
def test_equals_brute_force(family, name, monkeypatch):
    monkeypatch.setattr(Plan, "brute", False)
    f, x = FAMILIES[family][name]
    steps = [1.0, 0.0, 3.0] if name == "latent counts" else [-1.0, 0.0, 2.5]
    candidates = x + jnp.asarray(steps).reshape(3, *(1,) * x.ndim)
    assert f"legrad_{family}" in str(jax.make_jaxpr(f)(x))
    auto, brute = jax.jit(lambda x: [legrad.single_site_differences(f, x, candidates, m) for m in METHODS])(x)
    np.testing.assert_allclose(auto, brute, rtol=1e-9, atol=1e-9 * max(1.0, float(np.max(np.abs(brute)))))
    assert np.max(np.abs(auto[1])) < 1e-12, "the pivot itself is a candidate"


def test_large_weights_do_not_cancel():
    """Data agree with logits of 10^5, in float32: log p stays 0 when one of them grows."""
    y = classes(3)
    x = jnp.asarray(1e5 * jnp.eye(3)[y], jnp.float32)
    w = jnp.eye(3, dtype=jnp.float32)
    found = legrad.single_site_differences(lambda w: log_p(x @ w, y), w, 1.5 * w[None])
    assert np.all(np.asarray(found)[0][np.eye(3, dtype=bool)] == 0)


def test_a_latent_class_is_looked_up():
    logits = jnp.asarray(rng.normal(size=(4, 3)))
    f, z = lambda z: log_p(logits, z), jnp.array([0, 2, 1, 1])
    candidates = jnp.arange(3).reshape(3, 1)
    found = legrad.explain(f, z, jnp.broadcast_to(candidates, (3, 4)))
    assert not found.of("legrad_categorical_logits")
    want = (jax.nn.log_softmax(logits) - log_p(logits, z)[:, None]).T
    np.testing.assert_allclose(legrad.single_site_differences(f, z, candidates), want, rtol=1e-9, atol=1e-12)


def test_class_and_logits_are_latent():
    """Both local expectations and the plain way: the same gradients for each key."""

    def model(x):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([P, 3]).to_event(2))
        with numpyro.plate("data", 6):
            z = numpyro.sample("z", dist.Categorical(logits=x @ w))
            numpyro.sample("y", dist.Categorical(logits=W3[:3, 0][z]), obs=jnp.array([0, 1, 2, 0, 1, 2]))

    def guide(x):
        loc = numpyro.param("loc", jnp.zeros((P, 3)))
        logits = numpyro.param("logits", jnp.zeros((6, 3)))
        numpyro.sample("w", dist.Normal(loc, 0.5).to_event(2))
        with numpyro.plate("data", 6):
            numpyro.sample("z", dist.Categorical(logits=logits))

    params = {"loc": 0.1 * W3[:3, 0], "logits": jnp.asarray(rng.normal(size=(6, 3)))}

    def gradient(method):
        loss = legrad.LocalExpectation(method=method).loss
        return jax.jit(jax.grad(lambda p: loss(KEY, p, model, guide, X[:6])))(params)

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), *map(gradient, METHODS))


def test_rows_do_not_see_each_other():
    """Each datum sees its own latent alone, whatever is known of the data."""

    def program(x):
        return log_p(jnp.stack([x["z"], jnp.zeros(4), -x["z"]], axis=-1), x["y"])

    boxes = own_boxes((4,))
    found = reach.reach(Program(program, {"z": jnp.zeros(4), "y": jnp.zeros(4, int)}), {"z": boxes, "y": None})
    assert np.array_equal(found, boxes)


def test_a_log_rate_is_not_taken_back():
    """With a log-linear rate all but the rate is linear in the change; with another link it is not."""
    for name, linear in (("log-linear", True), ("another link", False)):
        f, x = COUNT_FUNCTIONS[name]
        assert bool(legrad.explain(f, x).of("legrad_poisson_log")) == linear


def test_a_rate_of_zero():
    gradient = jax.grad(lambda rate: jnp.sum(counts(rate, jnp.array([0, 2]))))(jnp.array([0.0, 4.0]))
    np.testing.assert_allclose(gradient, [-1.0, -0.5])


def test_a_support_check_of_known_data_costs_nothing():
    """NumPyro's densities test each datum; where the data are known, the change stays linear."""
    y, candidates = jnp.asarray(rng.normal(size=N)), jnp.ones((200, P))

    def changes(w, y):
        f = lambda w: dist.Normal(X @ w, 1.0, validate_args=True).log_prob(y)
        return legrad.single_site_differences(f, w, candidates)

    known = jax.make_jaxpr(lambda w: changes(w, y))(jnp.zeros(P))
    unknown = jax.make_jaxpr(changes)(jnp.zeros(P), y)
    assert str(known).count("select_n") < str(unknown).count("select_n")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("d", [lambda z: dist.Bernoulli(logits=z), lambda z: dist.Poisson(jnp.exp(z))])
def test_inside_vmap_and_grad_an_operation_is_what_it_is_made_of(d, method, monkeypatch):
    monkeypatch.setattr(Plan, "brute", False)
    y, w, candidates = jnp.asarray(rng.integers(0, 2, N)), jnp.asarray(rng.normal(size=P)), jnp.ones((2, P))

    def f(w, scale):
        return jnp.sum(log_prob(d(scale * (X @ w)), y))

    batched = lambda w: jax.vmap(lambda s: f(w, s))(jnp.arange(3.0)).sum()
    slope = lambda w: jax.grad(f, argnums=1)(w, 0.5)
    for g in (batched, slope):
        want = [[g(w.at[e].set(1.0)) - g(w) for e in range(P)]] * 2
        np.testing.assert_allclose(
            legrad.single_site_differences(g, w, candidates, method), want, rtol=1e-8, atol=1e-9
        )


def test_explain_names_the_line_of_a_poisson():
    f, x = COUNT_FUNCTIONS["log-linear"]
    (row,) = legrad.explain(f, x).of("legrad_poisson_log")
    assert row.line
