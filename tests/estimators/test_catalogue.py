"""Every estimator against the exact gradient, on every problem of the catalogue that it can treat.

With the mean over all pivots, and no noise; `test_catalogue_draws.py` draws them.
"""

import jax
import numpy as np
import pytest

import legrad
from catalogue import ROWS, named
from checking import Estimate, estimator_for, exact_gradient, flat, gradient_of
from legrad.estimators.base import Estimator
from legrad.model import problem
from legrad.singlesite.plan import Plan
from pivots import count, gradients, is_exact, pivots_of

DENSE = ("gamma_guide", "beta_guide")  # their noise has no short rule: they are drawn, as is DisARM with many cells
PAIRS = [(row, name) for row in ROWS if row.name not in DENSE for name in row.estimators if name != "local"]
PAIRS = [(row, name) for row, name in PAIRS if (row.name, name) != ("two_layers", "disarm")]
AS_IT_IS = ("chain", "categorical", "saturated_and_impossible", "poisson_window", "normal_guide", "subsampled_plate")
PAIRS += [(named(name), "local") for name in AS_IT_IS]  # the method that it takes; below, both for all rows


def test_the_catalogue_is_large_enough():
    assert len({row.name for row in ROWS}) == len(ROWS) >= 16


# --- the mean over all pivots ----------------------------------------------------------------------------------


def estimator(row, name):
    return legrad.ScoreFunction(2, "leave_one_out") if name == "leave_one_out" else estimator_for(row, name)


@pytest.mark.parametrize(("row", "name"), PAIRS, ids=[f"{row.name}-{name}" for row, name in PAIRS])
def test_the_mean_over_all_pivots_is_the_exact_gradient(row, name):
    assert is_exact(estimator(row, name), row, exact_gradient(row.name))


@pytest.mark.parametrize("name", ["chain", "global_site_with_children_in_a_plate", "categorical"])
def test_two_pivots_that_serve_as_baselines_of_each_other(name):
    assert is_exact(legrad.LocalExpectation(num_pivots=2), named(name), exact_gradient(name))


@pytest.mark.parametrize("name", ["local", "leave_one_out", "disarm"])
def test_a_bias_of_a_millionth_is_noticed(name, monkeypatch):
    """One component of one term, in the loss that all estimators share."""
    row = named("chain")
    right = Estimator.loss

    def slightly_off(self, key, params, *args):
        return right(self, key, params, *args) + 1e-6 * exact[0] * params["v"][0]

    exact = exact_gradient(row.name)
    assert is_exact(estimator(row, name), row, exact)
    monkeypatch.setattr(Estimator, "loss", slightly_off)
    assert not is_exact(estimator(row, name), row, exact)


# --- the pivots ------------------------------------------------------------------------------------------------

DISCRETE = [row for row in ROWS if row.exact is None or row.name == "poisson_window"]


def follow(row, number=1 << 16):
    """Whether draws come as often as the guide's density says, within 5 standard errors, and independently."""
    found = pivots_of(row)
    often, twice = count(row, found, number)
    same = np.sum(found.mass**2 / np.bincount(found.choice, found.mass)[found.choice])  # given the subsample
    expected, seen = number * np.append(found.mass, same), np.append(often, twice)
    return bool(np.all(np.abs(seen - expected) <= 5 * np.sqrt(expected * (1 - expected / number)) + 5))


@pytest.mark.parametrize("row", DISCRETE, ids=[row.name for row in DISCRETE])
def test_pivots_follow_the_guide(row):
    assert follow(row)


@pytest.mark.parametrize("mistake", ["one key for all sites", "one key for all pivots", "another probability"])
def test_pivots_that_do_not_follow_it_are_noticed(mistake, monkeypatch):
    def keys(self, msg):
        if msg["type"] in ("sample", "plate"):
            msg["kwargs"]["rng_key"] = self.noise.sites

    def one_key(self, noise, *layers):
        return right(self, problem.Noise(jax.random.key(0), noise.plates), *layers)

    def shifted(self, noise, *layers):
        return right(problem.Problem(self.model, self.guide, {"v": self.params["v"] + 0.05, "w": w}), noise, *layers)

    row, right = named("chain"), problem.Problem.draw
    w = row.params["w"]
    if mistake == "one key for all sites":
        monkeypatch.setattr(problem._Keys, "process_message", keys)
    else:
        monkeypatch.setattr(problem.Problem, "draw", one_key if mistake == "one key for all pivots" else shifted)
    assert not follow(row)


# --- both methods ----------------------------------------------------------------------------------------------

LOCAL = [row for row in ROWS if "local" in row.estimators]


@pytest.mark.long
@pytest.mark.parametrize("row", LOCAL, ids=[row.name for row in LOCAL])
def test_both_methods_give_the_same_gradient(row, monkeypatch):
    """Pivot by pivot, and in the mean the exact one."""
    monkeypatch.setattr(Plan, "brute", False)  # problems this small would be left to brute force
    auto, brute = (legrad.LocalExpectation(**{**row.local, "method": method}) for method in ("auto", "brute"))
    if row.name in DENSE:
        keys = jax.random.split(jax.random.key(7), 16)
        a, b = (flat(jax.jit(lambda k, e=e: jax.lax.map(gradient_of(e, row), k))(keys)) for e in (auto, brute))
    else:
        steps = pivots_of(row).repeated(1)
        a, b = (gradients(estimator, row, steps) for estimator in (auto, brute))
        for found in (a, b):
            np.testing.assert_allclose(steps.mass @ found, exact_gradient(row.name), rtol=0, atol=near(row))
    np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9 * max(1.0, float(np.max(np.abs(b)))))


def near(row):
    return 1e-9 * max(1.0, float(np.linalg.norm(exact_gradient(row.name))))


# --- the check of draws ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", [-1, 1])
def test_the_check_of_draws_fails_where_it_says_it_would(sign):
    """A mean that is off by the bias that a check could detect does not agree, in either direction."""
    rng = np.random.default_rng(0)
    exact = rng.normal(size=5)
    draws = exact + rng.normal(size=(10_000, 5))
    estimate = Estimate(draws.mean(0), draws.std(0) / 100, 10_000)
    bias, component = estimate.detectable(exact)
    assert estimate.agrees(exact)
    shift = np.zeros(5)
    shift[component] = sign * bias * exact[component]
    assert not estimate._replace(mean=estimate.mean + shift).agrees(exact)
