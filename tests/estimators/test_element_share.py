"""A random share of the elements: the mean over all shares is the estimate from all elements, for the same noise."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import legrad
from catalogue import ROWS
from legrad.estimators import element_share, local_expectation


def model():
    """Sites of several lengths, one too short to be cut, with terms over neighbours and over all."""
    z = numpyro.sample("z", dist.Bernoulli(0.3 * jnp.ones(5)).to_event(1))
    w = numpyro.sample("w", dist.Categorical(jnp.ones((4, 3)) / 3).to_event(1))
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    numpyro.factor("f", jnp.sum(z[1:] * z[:-1]) + jnp.sin(z.sum() * w.sum() + m) + jnp.asarray([0.1, 1, -1])[w].sum())


def guide():
    """Blankets: w depends on z."""
    a = numpyro.param("a", jnp.linspace(-1, 1, 5))
    z = numpyro.sample("z", dist.Bernoulli(logits=a).to_event(1))
    b = numpyro.param("b", jnp.linspace(-1, 1, 12).reshape(4, 3))
    numpyro.sample("w", dist.Categorical(logits=b + z.sum() / 3).to_event(1))
    numpyro.sample("m", dist.Normal(numpyro.param("m_loc", jnp.asarray(0.3)), 0.5))


PARAMS = {"a": jnp.linspace(-1, 1, 5), "b": jnp.linspace(-1, 1, 12).reshape(4, 3), "m_loc": jnp.asarray(0.3)}


def mean_over_shares(monkeypatch, estimator, params, model, guide, args=()):
    """The mean of the gradient over all shares with the same noise."""
    number, found = round(1 / estimator.element_fraction), {}

    def drawn(x, fraction, key):
        return {
            n: share._replace(block=found["block"]) for n, share in element_share.shares(x, fraction, key).items()
        }

    monkeypatch.setattr(local_expectation, "shares", drawn)

    @jax.jit
    def gradient(params, block):
        found["block"] = block
        return jax.grad(lambda p: estimator.loss(jax.random.key(5), p, model, guide, *args))(params)

    each = [gradient(params, block) for block in range(number)]
    monkeypatch.undo()
    return jax.tree.map(lambda *parts: sum(parts) / number, *each)


def compare(monkeypatch, settings, fraction, params, model, guide, args=()):
    """Compare the mean over the shares with the estimate from all elements."""
    whole = legrad.LocalExpectation(**settings)
    exact = jax.grad(lambda p: whole.loss(jax.random.key(5), p, model, guide, *args))(params)
    some = legrad.LocalExpectation(**settings, element_fraction=fraction)
    mean = mean_over_shares(monkeypatch, some, params, model, guide, args)
    for name, value in exact.items():
        np.testing.assert_allclose(mean[name], value, rtol=1e-9, atol=1e-11, err_msg=name)


@pytest.mark.long
@pytest.mark.parametrize(
    ("fraction", "settings"), [(0.5, {}), (1 / 3, {"num_pivots": 2}), (0.2, {"method": "brute"})]
)
def test_the_mean_over_the_shares_is_the_whole(monkeypatch, fraction, settings):
    compare(monkeypatch, settings, fraction, PARAMS, model, guide)


@pytest.mark.long
def test_a_fault_in_the_scale_is_noticed(monkeypatch):
    counted = element_share.Share.counted
    monkeypatch.setattr(element_share.Share, "counted", lambda self, weights: 1.01 * counted(self, weights))
    with pytest.raises(AssertionError):
        compare(monkeypatch, {}, 0.5, PARAMS, model, guide)


@pytest.mark.long
@pytest.mark.parametrize("row", [row for row in ROWS if "local" in row.estimators][::6], ids=lambda row: row.name)
def test_on_rows_of_the_catalogue(monkeypatch, row):
    compare(monkeypatch, row.local, 0.5, row.params, row.model, row.guide, row.args)


def test_shares_differ_from_step_to_step():
    x = {"z": jnp.zeros((3, 40)), "short": jnp.zeros(4)}
    keys = jax.random.split(jax.random.key(0), 200)
    blocks = [int(element_share.shares(x, 0.1, key)["z"].block) for key in keys]
    assert set(blocks) == set(range(10))
    assert "short" not in element_share.shares(x, 0.1, keys[0])
    share = element_share.shares(x, 0.1, keys[0])["z"]
    assert (share.axis, share.size) == (1, 4)


@pytest.mark.parametrize("fraction", [0, 1.5, 0.001, "half"])
def test_a_wrong_fraction_is_named(fraction):
    with pytest.raises(ValueError, match=r"element_fraction=.*it must be between 1/64 and 1"):
        legrad.LocalExpectation(element_fraction=fraction)
