"""E[log(1 + exp(u))] against a fine composite rule, for small and large variances."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from legrad.exact.softplus import expected_softplus

POINTS, WEIGHTS = np.polynomial.legendre.leggauss(24)


def fine(m, sd):
    kink = -m / sd
    edges = np.unique(np.clip([*np.linspace(-12, 12, 49), *(kink + np.linspace(-30, 30, 121) / sd)], -12, 12))
    half, middle = np.diff(edges)[:, None] / 2, (edges[1:] + edges[:-1])[:, None] / 2
    z = middle + half * POINTS
    return np.sum(half * WEIGHTS * np.logaddexp(0, m + sd * z) * np.exp(-0.5 * z**2)) / np.sqrt(2 * np.pi)


@pytest.mark.parametrize("sd", [0.1, 1.0, 4.0, 8.0, 30.0])
@pytest.mark.parametrize("m", [-9.0, -1.0, 0.0, 2.5, 12.0])
def test_the_mean_of_softplus(m, sd):
    found = expected_softplus(jnp.asarray(m), jnp.asarray(sd**2))
    np.testing.assert_allclose(found, fine(m, sd), rtol=1e-9)


def test_its_derivatives():
    check_grads(expected_softplus, (jnp.asarray(0.7), jnp.asarray(2.0)), order=2)


def test_infinite_means():
    value = expected_softplus(jnp.array([-jnp.inf, jnp.inf]), jnp.array([1.0, 1.0]))
    assert value[0] == 0
    assert value[1] > 1e100
