"""Posterior moments by sampling: NUTS, a Gibbs sampler, and weighted draws from the prior or a wide Student t."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from exact import Features, Moments, joint, weigh
from numpyro import handlers
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import MCMC, NUTS
from row import TrustProblem

CHAINS, WARMUP, DRAWS, PRIOR_DRAWS, BATCH = 4, 2_000, 20_000, 2_000_000, 100_000


def nuts(problem: TrustProblem, seed: int) -> Moments:
    """Long chains of NUTS."""
    draws, facts = run(problem.model, problem.args, seed)
    return of_chains(problem, draws, **facts)


def run(
    model: Callable[..., Any], args: tuple[Any, ...], seed: int, accept: float = 0.9
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The draws of all chains, one chain after another, and how many diverged."""
    settings = {"num_chains": CHAINS, "chain_method": "sequential", "progress_bar": False}
    chains = MCMC(NUTS(model, target_accept_prob=accept), num_warmup=WARMUP, num_samples=DRAWS, **settings)
    chains.run(jax.random.key(seed), *args)
    return chains.get_samples(), {"divergences": int(np.sum(chains.get_extra_fields()["diverging"]))}


def of_chains(problem: TrustProblem, draws: dict[str, Any], **facts: Any) -> Moments:
    """Moments of draws of several chains in a row, with the standard errors that their correlation leaves."""
    features = problem.features(draws)
    mean, sd = weigh(np.zeros(len(next(iter(features.values())))), features)
    ess, mean_error, sd_error, rhat = {}, {}, {}, []
    for name, x in features.items():
        chains = x.reshape(CHAINS, -1, x.shape[1])
        squares = (chains - mean[name]) ** 2
        ess[name] = np.minimum(effective_sample_size(chains), effective_sample_size(squares))
        mean_error[name] = sd[name] / np.sqrt(effective_sample_size(chains))
        sd_error[name] = squares.std((0, 1)) / np.sqrt(effective_sample_size(squares)) / (2 * sd[name])
        rhat.append(max(split_gelman_rubin(chains).max(), split_gelman_rubin(squares).max()))
    facts |= {"ess": min(float(e.min()) for e in ess.values()), "rhat": float(max(rhat)), "chains": CHAINS}
    return Moments(mean, sd, mean_error, sd_error, facts)


def from_prior(problem: TrustProblem, seed: int) -> Moments:
    """Draws from the prior, weighted by the likelihood."""

    def one(key: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        trace = handlers.trace(handlers.seed(problem.model, key)).get_trace(*problem.args)
        seen = [s["fn"].log_prob(s["value"]).sum() for s in trace.values() if s.get("is_observed")]
        return sum(seen, jnp.zeros(())), {name: trace[name]["value"] for name in problem.latents}

    batch = jax.jit(lambda key: jax.vmap(one)(jax.random.split(key, BATCH)))
    parts = [batch(key) for key in jax.random.split(jax.random.key(seed), PRIOR_DRAWS // BATCH)]
    draws = {name: np.concatenate([p[1][name] for p in parts]) for name in problem.latents}
    return _weighted(np.concatenate([p[0] for p in parts]), problem.features(draws))


def from_student(problem: TrustProblem, seed: int) -> Moments:
    """Draws of the vector `w` from a Student t at the mode, with the curvature there, weighted by p over t."""
    d, nu = problem.args[0].shape[1], 10.0

    def minus(w: jax.Array) -> jax.Array:
        return -numpyro.infer.util.log_density(problem.model, problem.args, {}, {"w": w})[0]

    w = jnp.zeros(d)
    for _ in range(30):
        w = w - jnp.linalg.solve(jax.hessian(minus)(w), jax.grad(minus)(w))
    wide = dist.MultivariateStudentT(nu, w, jnp.linalg.cholesky(jnp.linalg.inv(jax.hessian(minus)(w))))
    draws = wide.sample(jax.random.key(seed), (PRIOR_DRAWS // 4,))
    return _weighted(joint(problem, {"w": draws}) - np.asarray(wide.log_prob(draws)), {"w": np.asarray(draws)})


def _weighted(log_w: np.ndarray, features: Features) -> Moments:
    mean, sd = weigh(log_w, features)
    w = np.exp(log_w - log_w.max())
    w /= w.sum()
    mean_error = {k: np.sqrt(w**2 @ (x - mean[k]) ** 2) for k, x in features.items()}
    sd_error = {k: np.sqrt(w**2 @ ((x - mean[k]) ** 2 - sd[k] ** 2) ** 2) / (2 * sd[k]) for k, x in features.items()}
    return Moments(mean, sd, mean_error, sd_error, {"ess": float(1 / np.sum(w**2))})


# --- for one model each -----------------------------------------------------------------------------------------


def horseshoe_apart(X: jax.Array, y: jax.Array) -> None:
    """The model of `horseshoe` with coefficients in units of their scales: no funnel."""
    tau = numpyro.sample("tau", dist.HalfCauchy(0.3))
    with numpyro.plate("features", X.shape[1]):
        shrink = numpyro.sample("shrink", dist.HalfCauchy(1.0))
        unit = numpyro.sample("unit", dist.Normal(0.0, 1.0))
    beta = numpyro.deterministic("beta", unit * tau * shrink)
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(X @ beta, 1.0), obs=y)


def horseshoe_nuts(problem: TrustProblem, seed: int) -> Moments:
    """NUTS without the funnels of `horseshoe`."""
    draws, facts = run(horseshoe_apart, problem.args, seed, accept=0.99)
    return of_chains(problem, draws, **facts)


def horseshoe_gibbs(problem: TrustProblem, seed: int) -> Moments:
    """Gibbs for `horseshoe`: a half-Cauchy's square is an inverse gamma whose rate is one over an inverse gamma.

    References:
        Makalic, Schmidt (2016), "A simple sampler for the horseshoe estimator".
    """
    X, y = problem.args
    p = X.shape[1]

    def inverse_gamma(key: jax.Array, shape: float, rate: jax.Array) -> jax.Array:
        return rate / jax.random.gamma(key, shape, jnp.shape(rate))

    def step(state: tuple[jax.Array, ...], key: jax.Array) -> tuple[tuple[jax.Array, ...], jax.Array]:
        shrink2, tau2, a, b = state
        keys = jax.random.split(key, 5)
        factor = jnp.linalg.cholesky(X.T @ X + jnp.diag(1.0 / (shrink2 * tau2)))
        noise = jax.random.normal(keys[0], (p,))
        centre = jax.scipy.linalg.cho_solve((factor, True), X.T @ y)
        beta = centre + jax.scipy.linalg.solve_triangular(factor.T, noise, lower=False)
        shrink2 = inverse_gamma(keys[1], 1.0, 1 / a + beta**2 / (2 * tau2))
        tau2 = inverse_gamma(keys[2], (p + 1) / 2, 1 / b + jnp.sum(beta**2 / shrink2) / 2)
        a = inverse_gamma(keys[3], 1.0, 1 + 1 / shrink2)
        b = inverse_gamma(keys[4], 1.0, 1 / 0.3**2 + 1 / tau2)
        return (shrink2, tau2, a, b), beta

    def chain(key: jax.Array) -> jax.Array:
        start = jnp.ones(p), jnp.ones(()), jnp.ones(p), jnp.ones(())
        return jax.lax.scan(step, start, jax.random.split(key, 10 * DRAWS))[1][WARMUP:]

    draws = jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(seed), CHAINS))
    return of_chains(problem, {"beta": draws.reshape(-1, p)})


def mixture_summed(y: jax.Array) -> None:
    """The model of `mixture` with the assignments summed out."""
    weight = numpyro.sample("weight", dist.Beta(4.0, 4.0))
    mu = numpyro.sample("mu", dist.Normal(jnp.array([-1.2, 1.2]), 0.5).to_event(1))
    which = dist.Categorical(probs=jnp.stack([1 - weight, weight]))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.MixtureSameFamily(which, dist.Normal(mu, 1.5)), obs=y)


def mixture_nuts(problem: TrustProblem, seed: int) -> Moments:
    """NUTS with the assignments of `mixture` summed out, and drawn afterwards."""
    draws, facts = run(mixture_summed, problem.args, seed)
    mu, weight, y = draws["mu"], draws["weight"][:, None], problem.args[0]
    zero = jnp.log1p(-weight) + dist.Normal(mu[:, :1], 1.5).log_prob(y)
    one = jnp.log(weight) + dist.Normal(mu[:, 1:], 1.5).log_prob(y)
    z = dist.Bernoulli(logits=one - zero).sample(jax.random.key(seed + 1))
    return of_chains(problem, draws | {"z": z}, **facts)
