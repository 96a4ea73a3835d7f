"""Quadratic surrogates leave the mean of every gradient as it is, over all pivots, and take noise out of it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import legrad
from catalogue_row import Row
from checking import flat
from legrad.distributions.densities import bernoulli_logits
from legrad.estimators import quadratic_surrogates
from legrad.exact import known
from legrad.exact.laws import Law
from pivots import gradients, is_exact, pivots_of

RNG = np.random.default_rng(0)
Y = jnp.asarray(RNG.integers(0, 2, (2, 5)))
MASK = jnp.asarray(RNG.integers(0, 2, (2, 5)).astype(bool)).at[0, 0].set(False)
START = {
    "W": jnp.asarray(RNG.normal(size=(4, 5))),
    "b": jnp.asarray(RNG.normal(size=5)),
    "prior": jnp.asarray(RNG.normal(size=4)),
    "V": jnp.asarray(RNG.normal(size=(5, 4))),
}


def declared():
    return [numpyro.param(name, value) for name, value in START.items()]


def net(y):
    """A belief network with a plate's scale and a mask."""
    W, b, prior, _ = declared()
    with numpyro.plate("images", len(y)), numpyro.handlers.scale(scale=2.5):
        h = numpyro.sample("h", dist.Bernoulli(logits=prior).to_event(1))
        likelihood = dist.Bernoulli(logits=(2.0 * h - 1.0) @ W + b)
        numpyro.sample("y", likelihood.mask(MASK).to_event(1), obs=y)


def recognize(y):
    V = numpyro.param("V", START["V"])
    with numpyro.plate("images", len(y)):
        numpyro.sample("h", dist.Bernoulli(logits=y @ V).to_event(1))


def mixed(y):
    """Inclusions and categories side by side in one logit."""
    W, b, prior, _ = declared()
    z = numpyro.sample("z", dist.Bernoulli(logits=prior[:3]).to_event(1))
    c = numpyro.sample("c", dist.Categorical(logits=prior[:3]))
    numpyro.sample("y", dist.Bernoulli(logits=z @ W[:3] + b + 0.7 * c).to_event(1), obs=y[0])


def of_mixed(y):
    V = numpyro.param("V", START["V"])
    numpyro.sample("z", dist.Bernoulli(logits=V[:3, 0]).to_event(1))
    numpyro.sample("c", dist.Categorical(logits=V[0, :3]))


ROWS = [Row("net", net, recognize, START, (Y,)), Row("mixed", mixed, of_mixed, START, (Y,))]


@pytest.fixture(autouse=True)
def no_tables(monkeypatch):
    """Small as they are, these likelihoods would be summed exactly."""
    monkeypatch.setattr(known, "LIMIT", 4)


def exact(row):
    return flat(jax.jit(jax.grad(row.loss))(row.params))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_mean_over_all_pivots_is_the_exact_gradient(row, monkeypatch):
    assert is_exact(legrad.LocalExpectation(), row, exact(row))
    right = quadratic_surrogates.Surrogates.change
    monkeypatch.setattr(quadratic_surrogates.Surrogates, "change", lambda *a: (1 + 1e-6) * right(*a))
    assert not is_exact(legrad.LocalExpectation(), row, exact(row))


@pytest.mark.long
def test_two_pivots():
    assert is_exact(legrad.LocalExpectation(num_pivots=2), ROWS[0], exact(ROWS[0]))


def variance(estimator, row):
    found = pivots_of(row)
    g = gradients(estimator, row, found.repeated(1))
    mean = found.mass @ g
    return found.mass @ (g - mean) ** 2


def test_noise_is_taken_out():
    """Of the gradients of the guide, and of the model's parameters, whose noise is all in the likelihood."""
    names = np.concatenate([np.full(np.size(value), name) for name, value in sorted(START.items())])
    before, after = (variance(legrad.LocalExpectation(exact_terms=e), ROWS[0]) for e in (False, True))
    for name in ("V", "W", "b"):
        assert after[names == name].sum() < 0.3 * before[names == name].sum()


def found_in(f, x, variances):
    """The surrogates of a function of one site's numbers, as if they were Normal."""
    like = jnp.asarray(x, float)
    law = Law(
        like.shape, like[None], jnp.ones((1, *like.shape)), 0.3 * like, jnp.asarray(variances), False, like.dtype
    )
    return quadratic_surrogates.surrogates(lambda at: {"t": f(at["x"])}, {"x": law}, {"x": like})


def likelihood(logits, y=1.0):
    return bernoulli_logits(logits, jnp.full(logits.shape, y))


A = jnp.asarray(RNG.normal(size=(6, 4)))
REFUSED = {
    "not affine": lambda x: likelihood((A @ x) ** 2),
    "a product with another random number": lambda x: likelihood(A @ x) * x[0],
    "a nonlinear use": lambda x: jnp.exp(likelihood(A @ x)),
    "random data": lambda x: likelihood(A @ jnp.ones(4), 0.5) * x[0],
}


@pytest.mark.parametrize("f", REFUSED.values(), ids=REFUSED)
def test_what_is_not_proved_has_no_surrogate(f):
    assert found_in(f, np.ones(4), np.ones(4)) is None


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e15, 1e30])
def test_logits_of_any_size(scale):
    found = found_in(lambda x: likelihood(scale * (A @ x)), np.ones(4), np.full(4, 0.2))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found[:3]))


def test_one_element_changes_are_those_of_g():
    """A scale of the term, and an element on two routes, against the quadratic itself."""
    x, variances = RNG.normal(size=4), RNG.uniform(0.1, 1.0, 4)

    def f(x):
        return -2.0 * jnp.sum(likelihood(A @ x + A[:, ::-1] @ x + 0.5)[1:])

    found = found_in(f, x, variances)
    m = np.asarray((A + A[:, ::-1]) @ (0.3 * x) + 0.5)
    v = np.asarray((A + A[:, ::-1]) ** 2 @ variances)
    kappa = (1 + np.pi * v / 8) ** -0.5
    s = 1 / (1 + np.exp(-kappa * m))

    def g(x):
        away = np.asarray((A + A[:, ::-1]) @ x) + 0.5 - m
        return -2.0 * np.sum(((1 - s) * away - 0.5 * kappa * s * (1 - s) * away**2)[1:])

    for e in range(4):
        for moved in (-1.0, 2.0):
            there = x.copy()
            there[e] = moved
            change = found.change("x", np.full((1, 4), moved), x)[0, e]
            assert change == pytest.approx(g(there) - g(x), rel=1e-9)
    expected = -2.0 * np.sum((-0.5 * kappa * s * (1 - s) * v)[1:])
    assert found.value == pytest.approx(expected - g(x), rel=1e-9)


@pytest.mark.long
def test_disarm_keeps_its_mean_and_loses_noise():
    """With the quadratic taken out of the likelihood, over all cells of the uniform numbers."""
    row = ROWS[0]
    assert is_exact(legrad.DisARM(), row, exact(row))
    keys = jax.random.split(jax.random.key(0), 300)

    def variance(estimator):
        one = jax.grad(lambda p, key: estimator.loss(key, p, row.model, row.guide, *row.args))
        found = jax.jit(jax.vmap(one, (None, 0)))(row.params, keys)
        return float(jnp.sum(jnp.var(found["V"], axis=0)))

    assert variance(legrad.DisARM()) < 0.2 * variance(legrad.DisARM(surrogates=False))
