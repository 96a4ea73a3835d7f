"""Estimators as they are used, with draws: their mean is the exact gradient, within 5 standard errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import legrad
from catalogue import ROWS, named
from checking import draw_until, estimator_for, exact_gradient, gradient_of, optimized

pytestmark = pytest.mark.long

PAIRS = [(row, name) for row in ROWS for name in row.estimators]
DETECTABLE = {"local": 0.01}  # the relative bias that a check must be able to catch; 10% for the others


@pytest.mark.parametrize(("row", "name"), PAIRS, ids=[f"{row.name}-{name}" for row, name in PAIRS])
def test_gradient_is_exact_in_the_mean(row, name, capsys):
    exact, wanted = exact_gradient(row.name), DETECTABLE.get(name, 0.1)
    with optimized(name == "local"):
        estimate = draw_until(gradient_of(estimator_for(row, name), row), exact, wanted)
    bias = estimate.detectable(exact)[0]
    with capsys.disabled():
        print(f"\n{row.name}, {name}: could detect a bias of {bias:.2%} ({estimate.draws} draws)", end=" ")
    assert estimate.agrees(exact), (estimate.mean, exact, estimate.error)
    assert bias <= wanted


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

    ones = np.ones(sum(np.size(v) for v in row.params.values()))
    estimate = draw_until(paired, ones, 0.05)
    assert estimate.agrees(ones)
