"""Every estimator against the exact gradient, on every problem of the catalogue that it can treat."""

from contextlib import contextmanager
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import legrad
from catalogue import ROWS
from checking import ESTIMATORS, Estimate, draw_until, flat, gradient_of
from legrad.singlesite.plan import Plan


@contextmanager
def optimized(wanted=True):
    """A program that runs for a million draws is worth compiling well."""
    jax.config.update("jax_disable_most_optimizations", not wanted)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@cache
def exact_gradient(name):
    row = named(name)
    return flat(jax.jit(jax.grad(row.loss))(row.params))


def named(name):
    (row,) = [row for row in ROWS if row.name == name]
    return row


PAIRS = [(row, name) for row in ROWS for name in row.estimators]


def estimator_for(row, name):
    return legrad.LocalExpectation(**row.local) if name == "local" else ESTIMATORS[name]()


def test_the_catalogue_is_large_enough():
    assert len({row.name for row in ROWS}) == len(ROWS) >= 16


DETECTABLE = {"local": 0.01}  # the relative bias that a check must be able to catch; 10% for the others


@pytest.mark.parametrize(("row", "name"), PAIRS, ids=[f"{row.name}-{name}" for row, name in PAIRS])
def test_gradient_is_exact_in_the_mean(row, name, capsys):
    exact, wanted = exact_gradient(row.name), DETECTABLE.get(name, 0.1)
    with optimized(name == "local"):
        estimate = draw_until(gradient_of(estimator_for(row, name), row), exact, wanted)
    bias, component = estimate.detectable(exact)
    with capsys.disabled():
        print(f"\n{row.name}, {name}: could detect a bias of {bias:.2%} ({estimate.draws} draws)", end=" ")
    assert estimate.agrees(exact), (estimate.mean, exact, estimate.error)
    assert bias <= wanted
    for sign in (-1, 1):  # and so the check can fail
        biased = estimate.mean.copy()
        biased[component] += sign * wanted * exact[component]
        assert not Estimate(biased, estimate.error, estimate.draws).agrees(exact)


LOCAL = [row for row in ROWS if "local" in row.estimators]


@pytest.mark.parametrize("row", LOCAL, ids=[row.name for row in LOCAL])
def test_both_methods_give_the_same_gradient(row, monkeypatch):
    """Key by key, so that what is shown of one method in the mean holds for the other."""
    monkeypatch.setattr(Plan, "brute", False)  # problems this small would be left to brute force
    keys = jax.random.split(jax.random.key(7), 16)
    draws = {}
    for method in ("auto", "brute"):
        one = gradient_of(legrad.LocalExpectation(**{**row.local, "method": method}), row)
        draws[method] = jax.jit(lambda keys, one=one: jax.lax.map(one, keys))(keys)
    for a, b in zip(*map(jax.tree.leaves, draws.values()), strict=True):
        scale = max(1.0, float(np.max(np.abs(b))))
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9 * scale)


@pytest.mark.parametrize("name", ["chain", "normal_guide"])
def test_a_bias_of_one_percent_in_the_estimator_is_caught(name):
    row, exact = named(name), exact_gradient(name)
    clean = gradient_of(legrad.LocalExpectation(**row.local), row)

    def biased(key):
        leaves = [jnp.ravel(leaf) for leaf in jax.tree.leaves(clean(key))]
        return jnp.concatenate(leaves).at[component].add(0.01 * exact[component])

    with optimized():
        honest = draw_until(clean, exact, 0.01)
        component = honest.detectable(exact)[1]
        assert honest.agrees(exact)
        assert not draw_until(biased, exact, 0.01).agrees(exact)


@pytest.mark.parametrize("name", ["local", "disarm"])
def test_estimator_and_oracle_see_the_same_subsample(name):
    """With the same key, the difference from `Exact` has no noise from subsampling, and mean zero."""
    row = named("subsampled_plate")
    mine, oracle = gradient_of(estimator_for(row, name), row), gradient_of(legrad.Exact(), row)
    shift = 1.0  # a mean of zero has no relative error: compare mine − oracle + 1 with 1

    def paired(key):
        return jax.tree.map(lambda a, b: a - b + shift, mine(key), oracle(key))

    ones = np.ones_like(flat(row.params))
    estimate = draw_until(paired, ones, 0.05)
    assert estimate.agrees(ones)
