"""The ELBOs by hand that exact terms are measured against: they are the models', with their gradients."""

import continuous
import discrete
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact.elbos_by_hand import BY_HAND, MODERATE, expected_softplus

import legrad
from expected.dense import Dense
from sums.oracle import close

pytestmark = pytest.mark.long

PROBLEMS = {
    "gaussian_100": lambda: continuous.gaussian_100(small=True, size=3),
    "logistic": lambda: continuous.logistic(small=True),
    "spike_and_slab": lambda: discrete.spike_and_slab(small=True, size=(5, 2, 1)),
    "ising": lambda: discrete.ising(small=True, size=3),
    "mixture": lambda: discrete.mixture(small=True, size=(4, 2)),
    "factorial_hmm": lambda: discrete.factorial_hmm(small=True, size=3),
    "noisy_or": lambda: discrete.noisy_or(small=True),
}


def moved(params, scale, **shapes):
    """Parameters away from where a fit starts, of other shapes where given."""
    rng = np.random.default_rng(3)
    return {
        name: scale * jnp.asarray(rng.normal(size=shapes.get(name, jnp.shape(value))))
        for name, value in params.items()
    }


def compared(name, peer, args, params):
    found = jax.jit(jax.value_and_grad(BY_HAND[name]))(params, *args)
    if all(kind in ("Bernoulli", "Categorical") for kind in peer.latents.values()):
        exact = legrad.Exact()
        loss = lambda p: exact.loss(jax.random.key(0), p, peer.model, peer.guide, *args)
        return found, jax.jit(jax.value_and_grad(loss))(params)
    return found, Dense(peer.model, peer.guide, params, args)(params)


@pytest.mark.parametrize("name", PROBLEMS)
def test_elbos_and_gradients_are_those_of_the_models(name):
    peer = PROBLEMS[name]()
    args, params = peer.args, moved(peer.params, 0.7)
    if name == "logistic":  # two columns of the 21
        args = (args[0][:, -2:], args[1])
        params = moved(peer.params, 0.7, loc=(2,), log_scale=(2,))
    if name == "noisy_or":  # a cause listed twice, and one listed three times
        assert any(len(set(row)) < len(row) for row in np.asarray(args[2]))
        args = (*args[:2], args[2].at[0].set(jnp.asarray([3, 3, 1, 3, 2])))
    found, expected = compared(name, peer, args, params)
    assert close(found, expected, 1e-9)


def test_problems_of_another_size_share_a_loss():
    assert BY_HAND["gaussian_1000"] is BY_HAND["gaussian_100"]
    assert set(BY_HAND) == {*PROBLEMS, "gaussian_1000"}


@pytest.mark.parametrize("sd", [1e-3, 0.3, 0.99 * MODERATE, 1.01 * MODERATE, 8.0, 30.0])
def test_the_mean_of_softplus_is_right_at_any_deviation(sd):
    mean = jnp.asarray([-40.0, -5.0, -0.3, 0.0, 2.0, 50.0])
    t = np.linspace(-9, 9, 30_001)
    density = np.exp(-(t**2) / 2) / np.sum(np.exp(-(t**2) / 2))

    def of_line(mean):
        z = mean[:, None] + sd * t
        return np.logaddexp(0, z) @ density, 1 / (1 + np.exp(-z)) @ density

    value, slope = of_line(np.asarray(mean))
    for more in ([], [30.0]):  # others with large deviations choose the other rule
        m, v = jnp.append(mean, jnp.zeros(len(more))), jnp.asarray([sd**2] * 6 + [a**2 for a in more])
        found, by_mean = jax.vjp(lambda m, v=v: expected_softplus(m, v), m)
        np.testing.assert_allclose(found[:6], value, rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(by_mean(jnp.ones_like(m))[0][:6], slope, rtol=1e-9, atol=1e-9)
