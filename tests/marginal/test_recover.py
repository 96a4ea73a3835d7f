"""Draws, probabilities and best assignments of summed sites against the exact conditionals of an enumeration."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chi2

import legrad
from sums.counts import WINDOWS
from sums.generated import case
from sums.oracle import close

DRAWS = 20_000
LONG = [
    "mixture-0",
    "two_in_a_member-0",
    "groups_and_members-0",
    "global_above_members-0",
    "missing_data-0",
    "array_chain-0",
    "loop_chain-0",
    "scan_chain-0",
    "scan_batch-0",
    "factorial_scan-0",
    "separate_sites-0",
    "ring-0",
    "tree-0",
    "change_point-0",
    "binomial-0",
    "shifted_uniform-0",
    "switching_walk-0",
    "classes_of_a_latent-0",
]
FAST = ["mixture-0", "scan_chain-0", "tree-0"]
ROWS = [*FAST, *(pytest.param(name, marks=pytest.mark.long) for name in LONG if name not in FAST)]


def repeated(x, n):
    return {name: jnp.broadcast_to(v, (n, *jnp.shape(v))) for name, v in x.items()}


def nearby(x, n):
    """Values of the continuous latents around x, inside their supports: simplexes stay simplexes."""
    rng = np.random.default_rng(0)

    def moved(name, v):
        v = np.broadcast_to(np.asarray(v), (n, *np.shape(v)))
        if name in ("weights", "steps", "table", "tables", "a", "b") and np.allclose(v.sum(-1), 1):
            other = rng.dirichlet(np.full(v.shape[-1], 2.0), v.shape[:-1])
            return jnp.asarray(0.7 * v + 0.3 * other)
        return jnp.asarray(v * rng.uniform(0.8, 1.1, v.shape))

    return {name: moved(name, v) for name, v in x.items()}


def p_value(positions, probabilities):
    """Pearson's chi-square of draws against probabilities; cells that expect fewer than 5 are pooled."""
    n = len(positions)
    observed = np.bincount(positions, minlength=len(probabilities)).astype(float)
    expected = n * probabilities
    small = expected < 5
    if small.any():
        observed = np.append(observed[~small], observed[small].sum())
        expected = np.append(expected[~small], expected[small].sum())
        if expected[-1] < 5 and len(expected) > 1:  # too little even together: into the smallest of the others
            least = np.argmin(expected[:-1])
            observed[least] += observed[-1]
            expected[least] += expected[-1]
            observed, expected = observed[:-1], expected[:-1]
    assert len(expected) > 1, "one cell cannot tell anything"
    return chi2.sf(np.sum((observed - expected) ** 2 / expected), len(expected) - 1)


def wrong(probabilities):
    """Move 5% of the mass to the least likely configuration: a uniform would hide in what is nearly uniform."""
    return 0.95 * probabilities + 0.05 * (np.arange(len(probabilities)) == np.argmin(probabilities))


@pytest.mark.parametrize("name", ROWS)
def test_draws_follow_the_joint_conditional(name):
    row = case(name)
    exact = row.enumeration()
    found = legrad.marginalize(row.model).recover(jax.random.key(1), repeated(row.x, DRAWS), *row.args)
    assert set(found.draws) == set(exact.sizes)
    positions = exact.position(found.draws)
    truth = exact.posterior(row.x)
    assert p_value(positions, truth) > 1e-4
    assert p_value(positions, wrong(truth)) < 1e-4, "the test would not notice a wrong conditional"


@pytest.mark.parametrize("name", ROWS)
def test_the_chi_square_test_tells_right_from_wrong_draws(name):
    """Draws made here, from the exact conditional and from a wrong one: the first pass, the second do not."""
    row = case(name)
    truth = row.enumeration().posterior(row.x)
    rng = np.random.default_rng(2)
    assert p_value(rng.choice(len(truth), DRAWS, p=truth), truth) > 1e-4
    assert p_value(rng.choice(len(truth), DRAWS, p=wrong(truth)), truth) < 1e-4


@pytest.mark.long
@pytest.mark.parametrize("name", ROWS)
def test_probabilities_and_best_assignments_are_exact(name):
    row, n = case(name), 3
    exact = row.enumeration()
    draws = nearby(row.x, n)
    marginal = legrad.marginalize(row.model)
    found = marginal.recover(jax.random.key(0), draws, *row.args)
    best = marginal.recover(jax.random.key(0), draws, *row.args, most_likely=True)
    for i in range(n):
        x = {site: v[i] for site, v in draws.items()}
        assert close({s: p[i] for s, p in found.probabilities.items()}, exact.probabilities(x), 1e-10)
        joint = np.asarray(jax.jit(exact.joint)(x))
        chosen = exact.position({s: v[i : i + 1] for s, v in best.draws.items()})[0]
        assert joint[chosen] > joint.max() - 1e-9, "another assignment has a higher probability"


@pytest.mark.long
def test_the_best_assignment_is_joint():
    """Somewhere the best sequence differs from the best state at each time: else Viterbi would not be tested."""
    differs = 0
    for seed in range(4):
        for family in ("array_chain", "loop_chain", "scan_chain", "ring", "tree"):
            row = case(f"{family}-{seed}")
            exact = row.enumeration()
            top = int(np.argmax(jax.jit(exact.joint)(row.x)))
            each = {s: np.argmax(p, -1) for s, p in exact.probabilities(row.x).items()}
            differs += any((exact.indices[s][top] != each[s]).any() for s in each)
    assert differs > 0


@pytest.mark.long
def test_counts_without_an_end_are_recovered():
    """The mean of a count under its window, against a long sum; draws within Monte Carlo error of it."""
    row = case("poisson_counts-0")
    (y,), rate, slope = row.args, row.x["rate"], row.x["slope"]
    k = np.arange(100)
    logits = k * np.log(rate) - np.cumsum(np.log(np.maximum(k, 1))) - 0.5 * (np.asarray(y)[:, None] - slope * k) ** 2
    truth = np.asarray(jax.nn.softmax(logits, -1))
    mean = truth @ k
    sd = np.sqrt(truth @ k**2 - mean**2)
    n = 4_000
    found = legrad.marginalize(row.model).recover(jax.random.key(0), repeated(row.x, n), *row.args)
    support = np.asarray(found.support["z"][0])
    expected = (np.asarray(found.probabilities["z"][0]) * support).sum(-1)
    np.testing.assert_allclose(expected, mean, atol=WINDOWS * 100)
    error = np.abs(np.asarray(found.draws["z"]).mean(0) - mean) / (sd / n**0.5)
    assert (error < 4.5).all()
    biased = np.abs(np.asarray(found.draws["z"]).mean(0) + 0.1 * sd - mean) / (sd / n**0.5)
    assert (biased > 4.5).any(), "a mean that is off by a tenth of an sd would not be noticed"


def test_keys_decide_the_draws():
    row = case("mixture-0")
    marginal = legrad.marginalize(row.model)
    draws = repeated(row.x, 50)
    one, same, other = (marginal.recover(jax.random.key(k), draws, *row.args).draws["z"] for k in (0, 0, 1))
    assert (one == same).all()
    assert (one != other).any()
