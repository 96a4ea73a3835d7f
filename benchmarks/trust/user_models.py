"""Models that users write, with data that are simulated from known values, at any size.

Each function makes a `UserModel`. Its quantities are what is compared, with components put in an order that does not
depend on their labels. What they are compared with is one of

    exact    means and sds in closed form, by a sum or on a grid (`user_answers.py`);
    summed   the same model with its discrete latents summed by hand, for NUTS to sample;
    planted  the values that the data came from, for models whose posterior nobody can compute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import lax
from jax.nn import log_sigmoid
from jax.scipy.special import logsumexp
from numpyro.contrib.control_flow import scan

Draws = Mapping[str, np.ndarray]
Quantities = dict[str, np.ndarray]


@dataclass(frozen=True)
class UserModel:
    """A model and its data.

    Attributes:
        what: the model in a few words.
        model: a NumPyro model of `args`.
        args: the data.
        quantities: what is compared, of draws with a leading axis.
        summed: the model with its discrete latents summed by hand.
        planted: the values that the data came from, by name.
    """

    what: str
    model: Callable[..., Any]
    args: tuple[Any, ...]
    quantities: Callable[[Draws], Quantities]
    summed: Callable[..., Any] | None = None
    planted: Mapping[str, np.ndarray] | None = None


def _sorted_by_mu(*names: str) -> Callable[[Draws], Quantities]:
    """The named vectors of components, from the lowest mu of a draw to the highest."""

    def quantities(draws: Draws) -> Quantities:
        order = np.argsort(draws["mu"], -1)
        return {name: np.take_along_axis(np.asarray(draws[name]), order, -1) for name in names}

    return quantities


# --- a mixture with unknown weights and scales --------------------------------------------------------------------


def _mixture_parameters(K):
    w = numpyro.sample("w", dist.Dirichlet(jnp.ones(K)))
    with numpyro.plate("components", K):
        mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
        sd = numpyro.sample("sd", dist.HalfNormal(3.0))
    return w, mu, sd


def _mixture(y, K):
    w, mu, sd = _mixture_parameters(K)
    with numpyro.plate("data", len(y)):
        z = numpyro.sample("z", dist.Categorical(w))
        numpyro.sample("y", dist.Normal(mu[z], sd[z]), obs=y)


def _mixture_summed(y, K):
    w, mu, sd = _mixture_parameters(K)
    numpyro.factor("y", logsumexp(jnp.log(w) + dist.Normal(mu, sd).log_prob(y[:, None]), -1).sum())


def mixture(n: int = 600) -> UserModel:
    rng = np.random.default_rng(1)
    weights, mu, sd = np.array([0.5, 0.3, 0.2]), np.array([-4.0, 0.0, 5.0]), np.array([0.8, 1.0, 1.5])
    z = rng.choice(3, n, p=weights)
    args = mu[z] + sd[z] * rng.normal(size=n), 3
    planted = {"w": weights, "mu": mu, "sd": sd}
    what = f"mixture of 3 Normals with unknown weights and scales, {n:,} points"
    return UserModel(what, _mixture, args, _sorted_by_mu("w", "mu", "sd"), _mixture_summed, planted)


# --- hidden Markov models -----------------------------------------------------------------------------------------


def _hmm_parameters(K):
    A = numpyro.sample("A", dist.Dirichlet(jnp.ones(K)).expand([K]).to_event(1))
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0).expand([K]).to_event(1))
    return A, mu, numpyro.sample("s", dist.HalfNormal(2.0))


def _hmm_loop(y, K):
    A, mu, s = _hmm_parameters(K)
    z = numpyro.sample("z0", dist.Categorical(jnp.full(K, 1 / K)))
    numpyro.sample("y0", dist.Normal(mu[z], s), obs=y[0])
    for t in range(1, len(y)):
        z = numpyro.sample(f"z{t}", dist.Categorical(A[z]))
        numpyro.sample(f"y{t}", dist.Normal(mu[z], s), obs=y[t])


def _hmm_scan(y, K):
    A, mu, s = _hmm_parameters(K)
    z = numpyro.sample("z0", dist.Categorical(jnp.full(K, 1 / K)))
    numpyro.sample("y0", dist.Normal(mu[z], s), obs=y[0])

    def step(z, y):
        z = numpyro.sample("z", dist.Categorical(A[z]))
        numpyro.sample("y", dist.Normal(mu[z], s), obs=y)
        return z, None

    scan(step, z, y[1:])


def _hmm_summed(y, K):  # the forward algorithm
    A, mu, s = _hmm_parameters(K)
    seen = dist.Normal(mu, s).log_prob(y[:, None])
    log_A = jnp.log(A)

    def step(alpha, here):
        return logsumexp(alpha[:, None] + log_A, 0) + here, None

    alpha, _ = lax.scan(step, seen[0] - jnp.log(K), seen[1:])
    numpyro.factor("y", logsumexp(alpha))


def _hmm_quantities(draws: Draws) -> Quantities:
    order = np.argsort(draws["mu"], -1)
    A = np.take_along_axis(np.take_along_axis(np.asarray(draws["A"]), order[:, :, None], 1), order[:, None, :], 2)
    stay = np.diagonal(A, axis1=1, axis2=2)
    return {"mu": np.take_along_axis(np.asarray(draws["mu"]), order, 1), "stay": stay, "s": np.asarray(draws["s"])}


def _hmm(form: str, model: Callable[..., Any], n: int) -> UserModel:
    rng = np.random.default_rng(2)
    A, mu, s = np.array([[0.9, 0.1], [0.2, 0.8]]), np.array([-1.0, 2.0]), 0.7
    z = [0]
    while len(z) < n:
        z.append(rng.choice(2, p=A[z[-1]]))
    args = mu[z] + s * rng.normal(size=n), 2
    planted = {"mu": mu, "stay": np.diag(A), "s": np.array(s)}
    what = f"hidden Markov model of 2 states, {n:,} steps, {form}"
    return UserModel(what, model, args, _hmm_quantities, _hmm_summed, planted)


def hmm_loop(n: int = 50) -> UserModel:
    return _hmm("written as a loop of sites", _hmm_loop, n)


def hmm_scan(n: int = 400) -> UserModel:
    return _hmm("written with NumPyro's scan", _hmm_scan, n)


# --- occupancy with missing visits --------------------------------------------------------------------------------


def _occupancy(y, made, x):
    a = numpyro.sample("a", dist.Normal(0.0, 2.0))
    b = numpyro.sample("b", dist.Normal(0.0, 2.0))
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    with numpyro.plate("sites", y.shape[0], dim=-2):
        z = numpyro.sample("z", dist.Bernoulli(logits=a + b * x[:, None]))
        with numpyro.plate("visits", y.shape[1], dim=-1), numpyro.handlers.mask(mask=made):
            numpyro.sample("y", dist.Bernoulli(z * p), obs=y)


def _occupancy_summed(y, made, x):
    a = numpyro.sample("a", dist.Normal(0.0, 2.0))
    b = numpyro.sample("b", dist.Normal(0.0, 2.0))
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    numpyro.factor("y", occupancy_likelihood(a, b, p, y, made, x))


def occupancy_likelihood(a, b, p, y, made, x):
    """log p(y | a, b, p): a site that is not occupied is never seen."""
    seen = jnp.where(made, y * jnp.log(p) + (1 - y) * jnp.log1p(-p), 0.0).sum(-1)
    empty = jnp.where((y * made).any(-1), -jnp.inf, 0.0)
    return jnp.logaddexp(log_sigmoid(a + b * x) + seen, log_sigmoid(-a - b * x) + empty).sum()


def occupancy(n: int = 200, visits: int = 5) -> UserModel:
    rng = np.random.default_rng(3)
    x = rng.normal(size=n)
    z = rng.random(n) < 1 / (1 + np.exp(-(0.3 + 1.2 * x)))
    y = ((rng.random((n, visits)) < 0.4) & z[:, None]).astype(int)
    args = y, rng.random((n, visits)) < 0.8, x
    planted = {"a": np.array(0.3), "b": np.array(1.2), "p": np.array(0.4)}
    what = f"occupancy of {n:,} sites, {visits} visits, a fifth of them missing"
    return UserModel(what, _occupancy, args, _named("a", "b", "p"), _occupancy_summed, planted)


def _named(*names: str) -> Callable[[Draws], Quantities]:
    return lambda draws: {name: np.asarray(draws[name]) for name in names}


# --- change point -------------------------------------------------------------------------------------------------

# Disasters in British coal mines by year, 1851 to 1961 (Jarrett, 1979).
COAL = np.array([
    4, 5, 4, 0, 1, 4, 3, 4, 0, 6, 3, 3, 4, 0, 2, 6, 3, 3, 5, 4, 5, 3, 1, 4, 4, 1, 5, 5, 3, 4, 2, 5, 2, 2, 3, 4, 2,
    1, 3, 2, 2, 1, 1, 1, 1, 3, 0, 0, 1, 0, 1, 1, 0, 0, 3, 1, 0, 3, 2, 2, 0, 1, 1, 1, 0, 1, 0, 1, 0, 0, 0, 2, 1, 0,
    0, 0, 1, 1, 0, 2, 3, 3, 1, 1, 2, 1, 1, 1, 1, 2, 4, 2, 0, 0, 1, 4, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 1,
])  # fmt: skip


def _change_point(y):
    early = numpyro.sample("early", dist.Exponential(0.3))
    late = numpyro.sample("late", dist.Exponential(0.3))
    t = numpyro.sample("t", dist.DiscreteUniform(0, len(y) - 1))
    numpyro.sample("y", dist.Poisson(jnp.where(jnp.arange(len(y)) < t, early, late)).to_event(1), obs=y)


def change_point() -> UserModel:
    return UserModel("change point, coal mining", _change_point, (COAL,), _named("early", "late", "t"))


# --- N-mixture ----------------------------------------------------------------------------------------------------


def _n_mixture(y):
    lam = numpyro.sample("lam", dist.Gamma(2.0, 0.1))
    p = numpyro.sample("p", dist.Beta(2.0, 2.0))
    with numpyro.plate("sites", y.shape[0], dim=-2):
        N = numpyro.sample("N", dist.Poisson(lam))
        with numpyro.plate("visits", y.shape[1], dim=-1):
            numpyro.sample("y", dist.Binomial(N, p), obs=y)


def n_mixture(n: int = 100, visits: int = 4) -> UserModel:
    rng = np.random.default_rng(4)
    y = rng.binomial(rng.poisson(8, size=n)[:, None], 0.45, size=(n, visits))
    what = f"N-mixture, {n:,} sites, {visits} visits"
    return UserModel(what, _n_mixture, (y,), _named("lam", "p"), planted={"lam": np.array(8.0), "p": np.array(0.45)})


# --- spike and slab -----------------------------------------------------------------------------------------------


def _spike_and_slab(X, y):
    with numpyro.plate("features", X.shape[1]):
        included = numpyro.sample("included", dist.Bernoulli(0.2))
        slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
    a = numpyro.sample("a", dist.Normal(0.0, 2.0))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Bernoulli(logits=a + X @ (included * slope)), obs=y)


def spike_and_slab(n: int = 400, p: int = 15) -> UserModel:
    rng = np.random.default_rng(5)
    X, effect = rng.normal(size=(n, p)), np.zeros(p)
    effect[[1, 4, p - 2]] = [1.5, -2.0, 1.0]
    y = (rng.random(n) < 1 / (1 + np.exp(-X @ effect))).astype(int)
    what = f"spike-and-slab logistic regression, {n:,} rows, {p} features"

    def quantities(draws: Draws) -> Quantities:
        return {"included": np.asarray(draws["included"]), "effect": np.asarray(draws["included"] * draws["slope"])}

    planted = {"included": effect != 0, "effect": effect}
    return UserModel(what, _spike_and_slab, (X, y), quantities, planted=planted)


# --- stochastic block model ---------------------------------------------------------------------------------------


def _block_model(i, j, edge, n, K):
    share = numpyro.sample("share", dist.Dirichlet(jnp.ones(K)))
    B = numpyro.sample("B", dist.Beta(1.0, 1.0).expand([K, K]).to_event(2))
    with numpyro.plate("nodes", n):
        z = numpyro.sample("z", dist.Categorical(share))
    with numpyro.plate("edges", len(edge)):
        numpyro.sample("y", dist.Bernoulli(B[z[i], z[j]]), obs=edge)


def block_model(n: int = 100, K: int = 3) -> UserModel:
    rng = np.random.default_rng(6)
    z = rng.integers(0, K, n)
    i, j = np.triu_indices(n, 1)
    edge = (rng.random(len(i)) < np.where(z[i] == z[j], 0.38, 0.08)).astype(int)
    what = f"stochastic block model, {n} nodes, {K} blocks"
    planted = {"z": z, "B": np.full((K, K), 0.08) + 0.3 * np.eye(K)}
    return UserModel(what, _block_model, (i, j, edge, n, K), _named("z", "B"), planted=planted)


# --- topics -------------------------------------------------------------------------------------------------------


def _topics(word, doc, D, K, V):
    with numpyro.plate("topics", K):
        beta = numpyro.sample("beta", dist.Dirichlet(jnp.full(V, 0.1)))
    with numpyro.plate("docs", D):
        theta = numpyro.sample("theta", dist.Dirichlet(jnp.full(K, 0.3)))
    with numpyro.plate("tokens", len(word)):
        z = numpyro.sample("z", dist.Categorical(theta[doc]))
        numpyro.sample("word", dist.Categorical(beta[z]), obs=word)


def topics(D: int = 60, length: int = 60, K: int = 3, V: int = 30) -> UserModel:
    rng = np.random.default_rng(7)
    beta, theta = rng.dirichlet(np.full(V, 0.1), K), rng.dirichlet(np.full(K, 0.3), D)
    doc = np.repeat(np.arange(D), length)
    word = np.array([rng.choice(V, p=beta[rng.choice(K, p=theta[d])]) for d in doc])
    what = f"topics (LDA), {D} documents of {length} words, {K} topics, {V} words"
    planted = {"beta": beta, "theta": theta}
    return UserModel(what, _topics, (word, doc, D, K, V), _named("beta", "theta"), planted=planted)


MODELS: dict[str, Callable[[], UserModel]] = {
    make.__name__: make
    for make in (
        mixture, hmm_loop, hmm_scan, block_model, occupancy, change_point, n_mixture, spike_and_slab, topics
    )
}  # fmt: skip
