"""Where brute force in float32 has few digits itself, `single_site` has no fewer.

Functions that cancel (log-gammas of large concentrations, matrices that are nearly singular) leave noise. A single
error may be many times that of brute force, which is lucky now and then, so the sizes of many errors are compared:

    rms(auto − exact) ≤ 2 rms(brute − exact),    exact being brute force in float64
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import hard_programs as hard
import legrad
from legrad.singlesite.plan import Plan

D, N, PIVOTS = hard.D, hard.N, 12
VOTES = np.random.default_rng(1).multinomial(40, np.ones(D) / D, size=N)


def student(x):
    """Degrees of freedom of about 10⁴, whose log-gammas cancel."""
    df = jnp.square(x) @ hard.W.astype(x.dtype) * 1e4 + 1e3
    return dist.StudentT(df, 0.0, 1.0).log_prob(hard.Y.astype(x.dtype))


def dirichlet_multinomial(x):
    concentration = jnp.exp(0.1 * x + hard.V.T.astype(x.dtype)) * 1e4
    return dist.DirichletMultinomial(concentration, 40).log_prob(VOTES)


def beta_binomial(x):
    a, b = (jnp.square(x) @ w.astype(x.dtype) * 1e4 + 1e4 for w in (hard.W, hard.W[::-1]))
    return dist.BetaBinomial(a, b, 10).log_prob(np.minimum(hard.COUNTS, 10))


def covariance(x):
    """A quadratic form in the inverse of a matrix made of latents, which is nearly singular."""
    u = hard.V[:, :8].astype(x.dtype)
    matrix = (u.T * jnp.square(x)) @ u + 1e-3 * jnp.eye(8, dtype=x.dtype)
    return dist.MultivariateNormal(jnp.zeros(8, x.dtype), matrix).log_prob(hard.Y[:8].astype(x.dtype))


def large_logits(x):
    return jax.nn.softplus(x @ hard.V.astype(x.dtype) + 1e6) - 1e6


@pytest.fixture(autouse=True)
def precise(monkeypatch):
    """The truth needs float64; changes are followed through small programs too."""
    monkeypatch.setattr(Plan, "brute", False)
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("program", [student, dirichlet_multinomial, beta_binomial, covariance, large_logits])
def test_no_more_noise(program):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(PIVOTS, D)).astype(np.float32)
    near = x[:, None] + np.float32([1e-4, 1e-2])[:, None]
    candidates = np.concatenate([near, rng.normal(size=(PIVOTS, 2, D)).astype(np.float32)], axis=1)

    def found(method, dtype):
        run = lambda x, candidates: legrad.single_site_differences(program, x, candidates, method)
        return np.asarray(jax.jit(jax.vmap(run))(x.astype(dtype), candidates.astype(dtype)), float)

    exact = found("brute", float)
    auto, brute = (np.sqrt(np.mean((found(m, np.float32) - exact) ** 2, axis=(0, 2))) for m in ("auto", "brute"))
    assert (auto <= 2 * brute + 1e-3).all(), f"{auto} against {brute}"
