"""Wherever brute force is accurate, `single_site` is: where a change cancels a mask, or the only cause of a rate.

|auto − exact| ≤ max(4 |brute − exact|, tolerance (1 + |exact|)), exact being brute force in float64.
"""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import hard_programs as hard
import legrad
from legrad.singlesite import digits
from legrad.singlesite.plan import Plan
from legrad.singlesite.rules.operand import Step

CONSTANTS = (1.0, 1e3, 1e6, 1e9, 1e12, 1e30, np.inf)
ALL = hard.SWITCHES | hard.REALS
TOLERANCE = {"float32": 1e-3, "float64": 1e-7}


@pytest.fixture(autouse=True)
def precise(monkeypatch):
    """The truth needs float64; changes are followed through small programs too."""
    monkeypatch.setattr(Plan, "brute", False)
    with jax.enable_x64(True):
        yield


def pivots(name, dtype):
    """Pivots, and candidates of all elements."""
    for seed in range(2):
        rng = np.random.default_rng(seed)
        if name in hard.REALS:
            yield jnp.asarray(rng.normal(size=hard.D), dtype), jnp.asarray(rng.normal(size=(3, hard.D)), dtype)
        else:  # all kinds of switches, and one cause alone
            z = rng.integers(0, 2, hard.D) if seed else np.eye(hard.D, dtype=int)[2]
            yield jnp.asarray(z, np.int32), jnp.stack([jnp.zeros(hard.D, np.int32), jnp.ones(hard.D, np.int32)])


def check(name, dtype, what=legrad.single_site_differences, constants=CONSTANTS):
    program = ALL[name]

    @jax.jit
    def found(x, candidates, c):
        return [what(lambda x: program(x, c), x, candidates, method) for method in ("auto", "brute")]

    @jax.jit
    def truth(x, candidates, c):
        return what(lambda x: program(x, c), x, candidates, "brute")

    for x, candidates in pivots(name, dtype):
        wide = [a.astype(float) if a.dtype == np.float32 else a for a in (x, candidates)]
        for c in constants:
            constant = jnp.asarray(c, dtype)
            auto, brute = (np.asarray(a, float) for a in found(x, candidates, constant))
            exact = np.asarray(truth(*wide, constant.astype(float)))
            with np.errstate(invalid="ignore"):
                allowed = np.maximum(4 * np.abs(brute - exact), TOLERANCE[dtype] * (1 + np.abs(exact)))
                right = (np.abs(auto - exact) <= allowed) | (auto == exact) | (auto == brute)
                right |= np.isnan(exact) | (np.isnan(auto) & np.isnan(brute))
            assert right.all(), f"{name}, {c}: {auto[~right]}, brute {brute[~right]}, exact {exact[~right]}"


@pytest.mark.parametrize("name", ALL)
def test_float32(name):
    check(name, "float32")


@pytest.mark.parametrize(
    "name", ["mixture", "largest", "categorical", "rate", "noisy_or", "cumulative_mask", "hinge"]
)
def test_float64(name):
    check(name, "float64")


@pytest.mark.parametrize("name", ["mixture", "normalized", "categorical_prior", "rate"])
def test_values(name):
    """f itself may cancel: a sum with a pivot of -1e9 has no digits left."""
    check(name, "float32", legrad.single_site)


@pytest.mark.parametrize("name", ["mixture", "rate"])
def test_the_check_finds_lost_digits(monkeypatch, name):
    """Without what this file tests, it fails."""
    monkeypatch.setattr(digits, "lost_at", lambda need, new, *parts: jnp.zeros(jnp.shape(new), bool))
    monkeypatch.setattr(Step, "values_known", lambda step: False)
    monkeypatch.setattr(digits.Digits, "flag", lambda *args: None)
    with pytest.raises(AssertionError, match=name):
        check(name, "float32")


def test_only_what_is_lost_runs_again(monkeypatch):
    """The way out is for the elements and candidates that need it, and for no call without them."""
    module, asked = importlib.import_module("legrad.singlesite.latent_changes"), []

    def watched(*args):
        jax.debug.callback(lambda flags: asked.append(np.asarray(flags)), args[-1])
        return recompute(*args)

    recompute = module.recompute
    monkeypatch.setattr(module, "recompute", watched)
    W = jnp.array([[1.0, 0.0, 2.0], [0.0, 1.0, 2.0]])

    def run(z, leak):
        rate = lambda z: jnp.log(z.astype(float) @ W + leak)
        return legrad.single_site_differences(rate, z, jnp.array([[0, 0], [1, 1]]))

    run = jax.jit(run)
    jax.block_until_ready(run(jnp.array([1, 1]), 1.0))
    jax.effects_barrier()
    assert not asked
    jax.block_until_ready(run(jnp.array([1, 0]), 1e-14))
    jax.effects_barrier()
    assert [a.tolist() for a in asked] == [[[True, False], [False, False]]]


def test_batches_decide_together():
    """Under vmap as well the result is right for each member."""
    ll = jnp.asarray(hard.LL, np.float32)

    def run(on, big, method):
        f = lambda on: jax.nn.logsumexp(
            jnp.where(on == 1, np.float32(0), -big) + ll @ (on * 1.0).astype(ll.dtype)[:, None]
        )
        return legrad.single_site_differences(f, on, jnp.array([[0], [1]]), method)

    on = jnp.array([[1, 0, 1, 1, 0, 1], [0, 0, 0, 1, 0, 0]])
    big = jnp.array([1e9, 1.0], np.float32)
    auto, brute = (jax.jit(jax.vmap(lambda o, b, m=m: run(o, b, m)))(on, big) for m in ("auto", "brute"))
    np.testing.assert_allclose(auto, brute, rtol=1e-4, atol=1e-4)


def test_derivatives_of_what_ran_again():
    def total(c, method):
        W = jnp.array([[1.0, 0.0], [0.5, 1.0]]) * c
        f = lambda z: jnp.log(z.astype(float) @ W + 1e-14)
        return jnp.sum(legrad.single_site_differences(f, jnp.array([1, 0]), jnp.array([[0, 0], [1, 1]]), method))

    found, exact = (jax.jit(jax.grad(lambda c, m=m: total(c, m)))(1.3) for m in ("auto", "brute"))
    np.testing.assert_allclose(found, exact, rtol=1e-9)


def test_a_fit_with_a_mask():
    """Two of six components are empty, and the guide learns so: the gradient is that of brute force."""
    rng = np.random.default_rng(1)
    y = jnp.asarray(np.concatenate([rng.normal(m, 0.3, 30) for m in (-6, -2, 2, 6)]), np.float32)
    mu = jnp.asarray([-6.0, -2, 2, 6, 20, -20], np.float32)

    def model():
        on = numpyro.sample("on", dist.Bernoulli(jnp.full(6, np.float32(0.5))).to_event(1))
        ll = dist.Normal(mu, 0.3).log_prob(y[:, None])
        numpyro.factor("y", jax.nn.logsumexp(jnp.where(on == 1, np.float32(0), np.float32(-1e9)) + ll, axis=1))

    def guide():
        logits = numpyro.param("logits", jnp.zeros(6, np.float32))
        numpyro.sample("on", dist.Bernoulli(logits=logits).to_event(1))

    def gradient(**kw):
        loss = legrad.LocalExpectation(**kw).loss
        return jax.jit(jax.grad(lambda p: loss(jax.random.key(3), p, model, guide)))

    p = {"logits": jnp.asarray([0.3, -0.2, 0.5, 0.1, -1.0, 0.7], np.float32)}
    found, right = (gradient(method=method, exact_terms=False)(p)["logits"] for method in ("auto", "brute"))
    np.testing.assert_allclose(found, right, rtol=1e-3, atol=1e-3)
    truth = jax.jit(jax.grad(lambda p: legrad.Exact().loss(jax.random.key(3), p, model, guide)))(
        {"logits": p["logits"].astype(float)}
    )["logits"]
    exact = gradient()(p)["logits"]  # the mixture is a table over all six
    np.testing.assert_allclose(exact, truth, rtol=1e-3, atol=1e-6 * float(jnp.max(jnp.abs(truth))))
