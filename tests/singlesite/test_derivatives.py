"""The result of `single_site` is differentiated as brute force is, where changes were run again as well."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.nn import logsumexp

import legrad
from legrad.singlesite.latent_changes import LatentChanges
from legrad.singlesite.plan import Plan

pytestmark = pytest.mark.usefixtures("strict_ranks")

RNG = np.random.default_rng(0)
N, D = 12, 5
Z = np.eye(D, dtype=np.int32)[2]  # one cause alone
TWO = np.array([0, 1, 1, 0, 0], np.int32)
BOTH = np.array([[0], [1]], np.int32)
START = {
    "w": np.abs(RNG.normal(size=(D, N))) * (RNG.random((D, N)) < 0.4) + 0.0,
    "ll": RNG.normal(size=(N, D)) - 3.0,
}
COUNTS = RNG.poisson(1.0, N)
BITS = RNG.integers(0, 2, N)
WEIGHT = RNG.normal(size=(2, D))


def mask(z, c, like):
    return jnp.where(z == 1, 0.0, -c).astype(like.dtype)


def summed(z, p):
    return z.astype(p["w"].dtype) @ p["w"]


PROGRAMS = {
    "mask -1e9": lambda z, p: logsumexp(mask(z, 1e9, p["ll"])[None] + p["ll"] + summed(z, p)[:, None], axis=1),
    "mask -inf": lambda z, p: logsumexp(mask(z, np.inf, p["ll"])[None] + p["ll"] + summed(z, p)[:, None], axis=1),
    "rate": lambda z, p: dist.Poisson(summed(z, p) + 1e-6).log_prob(COUNTS),
    "rate by hand": lambda z, p: COUNTS * jnp.log(summed(z, p) + 1e-9) - summed(z, p),
    "noisy or": lambda z, p: jnp.where(BITS == 1, jnp.log(-jnp.expm1(-summed(z, p) - 1e-7)), -summed(z, p)),
    "scale": lambda z, p: dist.Normal(0.0, jnp.sqrt(summed(z, p) + 1e-9)).log_prob(jnp.zeros(N, p["w"].dtype)),
    "shares": lambda z, p: p["ll"][:, 0] * summed(z, p) / jnp.sum(summed(z, p) + 1e-9),
    "unused log": lambda z, p: jnp.where(summed(z, p) > 0.1, jnp.log(summed(z, p) + 1e-9), -3.0),
    "running sums": lambda z, p: jnp.log(jnp.cumsum(z.astype(p["w"].dtype)[:, None] * p["w"], axis=0) + 1e-9),
    "widened": lambda z, p: jnp.log((summed(z, p) + 1e-9).astype(float)),
    "loop": lambda z, p: jax.lax.scan(
        lambda a, row: (jnp.logaddexp(a, row), None), p["ll"][:, 0], mask(z, 1e9, p["ll"])[:, None] + p["ll"].T
    )[0],
    "root": lambda z, p: jnp.sqrt(summed(z, p) * jnp.where(z[2] == 1, 1.0, 1e-9).astype(p["w"].dtype) + 1e-12),
}


@pytest.fixture(autouse=True)
def precise(monkeypatch):
    """The truth needs float64; changes are followed through small programs too."""
    monkeypatch.setattr(Plan, "brute", False)
    with jax.enable_x64(True):
        yield


def found(name, dtype, method, what=legrad.single_site_differences, candidates=BOTH, z=Z):
    """A function of parameters: the result, every number weighted."""

    def total(p):
        result = what(lambda z: PROGRAMS[name](z, p), jnp.asarray(z), jnp.asarray(candidates), method)
        return jnp.sum(result * WEIGHT.astype(dtype))

    return total, {n: jnp.asarray(v, dtype) for n, v in START.items()}


def agree(name, derivative, **kwargs):
    """Whether a derivative of the result is right: 4 times the error of brute force, or a thousandth."""
    exact = derivative(*found(name, "float64", "brute", **kwargs))
    brute, auto = (derivative(*found(name, "float32", method, **kwargs)) for method in ("brute", "auto"))
    for a, b, e in zip(*(map(np.asarray, jax.tree.leaves(t)) for t in (auto, brute, exact)), strict=True):
        assert np.isfinite(e).all(), "the test has no truth to compare with"
        allowed = np.maximum(4 * np.abs(b - e), 1e-3 * (np.abs(e) + np.max(np.abs(e))) + 1e-6)
        if not (np.abs(a - e) <= allowed).all():
            return False
    return True


def gradient(total, p):
    return jax.jit(jax.grad(total))(p)


def forward(total, p):
    direction = jax.tree.map(lambda v: jnp.cos(jnp.arange(v.size, dtype=v.dtype)).reshape(v.shape), p)
    return jax.jit(lambda p: jax.jvp(total, (p,), (direction,))[1])(p)


def second(total, p):
    """A Hessian times a vector, forward over reverse."""
    direction = jax.tree.map(lambda v: jnp.cos(jnp.arange(v.size, dtype=v.dtype)).reshape(v.shape) * v, p)
    return jax.jit(lambda p: jax.jvp(jax.grad(total), (p,), (direction,))[1])(p)


def second_backwards(total, p):
    """The same, reverse over reverse."""

    def inner(p):
        return sum(jnp.vdot(g, v) for g, v in zip(*map(jax.tree.leaves, (jax.grad(total)(p), p)), strict=True))

    return jax.jit(jax.grad(inner))(p)


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradient(name):
    assert agree(name, gradient, z=TWO)
    assert name == "mask -inf" or agree(name, gradient)  # with one component alone, f is -inf without it


@pytest.mark.parametrize("name", ["mask -inf", "shares", "noisy or"])
def test_gradient_of_values(name):
    assert agree(name, gradient, what=legrad.single_site, z=TWO)


@pytest.mark.parametrize("derivative", [forward, second, second_backwards])
@pytest.mark.parametrize("name", ["mask -inf", "shares"])
def test_other_derivatives(name, derivative):
    assert agree(name, derivative, z=TWO)


def test_candidates_of_each_element():
    assert agree("shares", gradient, candidates=np.broadcast_to(BOTH, (2, D)))


def test_batches():
    """Under vmap each member has its own derivative, whether digits were lost in it or not."""
    z = jnp.stack([jnp.asarray(Z), jnp.ones(D, np.int32), jnp.asarray([1, 0, 0, 1, 0], np.int32)])

    def derivative(method, dtype):
        def one(z):
            total, p = found("shares", dtype, method, z=z)
            return jax.grad(total)(p)["w"]

        return jax.jit(jax.vmap(one))(z)

    exact, auto = derivative("brute", "float64"), derivative("auto", "float32")
    np.testing.assert_allclose(auto, exact, rtol=1e-3, atol=1e-3 * np.max(np.abs(exact)))


@pytest.mark.parametrize("name", ["mask -inf", "shares"])
def test_the_check_finds_the_discarded_derivatives(monkeypatch, name):
    """Without the safe path, the test above fails."""
    monkeypatch.setattr(LatentChanges, "follow_differentiably", LatentChanges.follow)
    assert not agree(name, gradient, z=TWO)


def test_blocks():
    """Blocks in sequence are differentiated as well."""
    small = lambda f, x, candidates, method: legrad.single_site_differences(f, x, candidates, method, memory=2000)
    assert agree("shares", gradient, what=small)


@pytest.mark.parametrize("what", [legrad.single_site, legrad.single_site_differences])
@pytest.mark.parametrize("fast", [True, False])
def test_the_own_value_changes_nothing(monkeypatch, what, fast):
    """A candidate that is the pivot's own value gives f(x) itself, and a difference of exactly 0."""
    monkeypatch.setattr(Plan, "brute", not fast)
    W, V = (jnp.asarray(RNG.normal(size=(D, N)) ** 2, np.float32) for _ in range(2))

    def f(z):
        z = z.astype(np.float32)
        t = dist.StudentT(df=(z @ W) * 1e4 + 0.01, loc=(z @ V) * 1e3, scale=z @ W + 1e-4)
        return t.log_prob(jnp.arange(N, dtype=np.float32))

    result = jax.jit(lambda z: what(f, z, jnp.asarray(BOTH)))(Z)
    own = np.asarray(result)[Z, np.arange(D)]
    here = jax.jit(lambda z: jnp.sum(f(z)))(Z)
    np.testing.assert_allclose(own, 0.0 if what is legrad.single_site_differences else here, rtol=1e-5)
    assert len(set(own.tolist())) == 1
