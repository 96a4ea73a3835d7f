"""Sums over chains: probabilities where they are safe, logarithms where mass could be lost."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import logsumexp

from legrad.marginal.recursion import log_partition

rng = np.random.default_rng(0)


def by_logarithms(u, m):
    alpha = u[0]
    for t in range(1, len(u)):
        alpha = logsumexp(alpha[:, :, None] + jnp.broadcast_to(m, (len(u) - 1, *m.shape[1:]))[t - 1], axis=1) + u[t]
    return logsumexp(alpha, axis=-1)


def chain(length, count, states, tables, spread=1.0):
    u = jnp.asarray(rng.normal(size=(length, count, states)) * spread)
    return u, jnp.asarray(rng.normal(size=(*tables, states, states)))


@pytest.mark.parametrize("tables", [(1, 1), (5, 1), (1, 3), (5, 3)])
def test_value_and_gradient(tables):
    u, m = chain(6, 3, 4, tables, spread=30.0)
    found = jax.value_and_grad(lambda u, m: log_partition(u, m).sum(), (0, 1))(u, m)
    truth = jax.value_and_grad(lambda u, m: by_logarithms(u, m).sum(), (0, 1))(u, m)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), found, truth)


def test_a_path_that_looks_hopeless_for_long_is_kept():
    """Two states that never change, in float32: state 1 is e^-200 behind before data favour it by e^400."""
    u = np.zeros((9, 1, 2), np.float32)
    u[:4, 0, 1], u[5:, 0, 1] = -50.0, 100.0
    m = jnp.array([[[[0.0, -jnp.inf], [-jnp.inf, 0.0]]]], jnp.float32)
    found, gradient = jax.value_and_grad(lambda u: log_partition(u, m).sum())(jnp.asarray(u))
    np.testing.assert_allclose(found, 200.0, rtol=1e-5)
    np.testing.assert_allclose(gradient[:, 0, 1], 1.0, rtol=1e-5)
    nearly = jnp.maximum(m, -1e9)  # the same for a mask of -1e9
    np.testing.assert_allclose(log_partition(jnp.asarray(u), nearly), [200.0], rtol=1e-5)


def test_impossible_data_have_no_probability_and_no_nan():
    u, m = chain(5, 2, 3, (1, 1))
    u = u.at[2, 0].set(-jnp.inf)
    found, gradient = jax.value_and_grad(lambda u: log_partition(u, m)[1])(u)
    assert np.isneginf(log_partition(u, m)[0])
    assert np.isfinite(found)
    assert not np.isnan(gradient).any()


def test_float32_over_a_thousand_steps():
    u, m = chain(1000, 2, 4, (1, 1), spread=3.0)
    f = jax.jit(jax.grad(lambda u, m: log_partition(u, m).sum(), (0, 1)))
    single = f(u.astype(jnp.float32), m.astype(jnp.float32))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5 * np.abs(b).max()), single, f(u, m))


def test_a_batch_of_chains_decides_together():
    """Under vmap a table with impossible links beside one without: both sums are right."""
    u, m = chain(6, 2, 3, (1, 1))
    tables = jnp.stack([m, m.at[..., 0, 1].set(-jnp.inf)])
    found = jax.jit(jax.vmap(lambda m: log_partition(u, m)))(tables)
    np.testing.assert_allclose(found, [by_logarithms(u, t) for t in tables], rtol=1e-10)
