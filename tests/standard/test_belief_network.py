"""The belief network's log-density sums to one, its bound is near, and training finds structure."""

import itertools

import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from scipy.special import expit

from legrad.standard import belief_network as network


def params(hidden=3, columns=4, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "hidden_bias": rng.normal(size=hidden),
        "weights": 2 * rng.normal(size=(hidden, columns)),
        "bias": rng.normal(size=columns),
        "encoder": rng.normal(size=(columns, hidden)),
        "encoder_bias": rng.normal(size=hidden),
    }


EVERY = np.array(list(itertools.product([0.0, 1.0], repeat=4)))


def test_probabilities_of_all_rows_sum_to_one_and_are_those_of_draws():
    p = np.exp(network.log_density(params(), EVERY, 1, np.random.default_rng(0)))
    np.testing.assert_allclose(p.sum(), 1.0)
    drawn = network.generate(params(), 50_000, np.random.default_rng(1))
    np.testing.assert_allclose(drawn.mean(0), p @ EVERY, atol=0.01)
    np.testing.assert_allclose(drawn.T @ drawn / 50_000, EVERY.T @ (p[:, None] * EVERY), atol=0.01)


def test_the_bound_is_near_the_log_density(monkeypatch):
    close = params() | {"encoder": np.zeros((4, 3)), "encoder_bias": np.zeros(3)}  # each value is drawn often
    exact = network.log_density(close, EVERY, 1, np.random.default_rng(0))
    monkeypatch.setattr(network, "ENUMERATED", 1)
    bound = network.log_density(close, EVERY, 20_000, np.random.default_rng(0))
    np.testing.assert_allclose(bound, exact, atol=0.1)


def test_the_program_is_the_same_model():
    p, x, z = params(), EVERY[5:7], np.array([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    given = handlers.substitute(network.model, data={k: jnp.asarray(v) for k, v in p.items()} | {"z": jnp.asarray(z)})
    with handlers.seed(rng_seed=0), handlers.trace() as trace:
        given(jnp.asarray(x), jnp.ones(4, bool), 3)
    total = sum(trace[name]["fn"].log_prob(trace[name]["value"]).sum() for name in ("z", "x"))
    np.testing.assert_allclose(network.log_joint(p, x, z).sum(), total, rtol=1e-6)


def test_training_finds_columns_that_go_together():
    rng = np.random.default_rng(0)
    z = rng.random((300, 2)) < 0.5
    X = np.repeat(z, 3, axis=1) ^ (rng.random((300, 6)) < 0.05)
    X = X.astype(float)
    found, loss = network.train(X, 2, 400, 0.05, rng)
    assert len(loss) == 400
    independent = -np.mean(np.sum(X * np.log(X.mean(0)) + (1 - X) * np.log(1 - X.mean(0)), axis=1))
    best = 2 * np.log(2) - 6 * (0.05 * np.log(0.05) + 0.95 * np.log(0.95))  # the entropy of the rows, or a bit less
    mine = -network.log_density(found, X, 1, rng).mean()
    assert mine < 0.75 * independent
    assert mine < 1.1 * best
    together = np.corrcoef(expit(network.encode(found, X)).T, z.T)[:2, 2:]
    assert np.abs(together).max(axis=0).min() > 0.8
