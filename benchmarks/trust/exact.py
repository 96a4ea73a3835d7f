"""Posterior moments without sampling: enumeration, closed forms, and grids.

All of them weigh points at which the mean and the mean square of what is compared are known:

    E[f] = Σ_i w_i E[f | point i],    w_i ∝ exp(log density of point i + log of its cell)
"""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.infer.util import log_density
from row import TrustProblem
from scipy.special import expit
from scipy.stats import beta as beta_distribution
from scipy.stats import halfcauchy, norm

Features = dict[str, np.ndarray]


class Moments(NamedTuple):
    """Means and standard deviations by latent, the error of each, and what more is known about how good they are."""

    mean: Features
    sd: Features
    mean_error: Features
    sd_error: Features
    facts: dict[str, Any]


def weigh(log_w: np.ndarray, mean: Features, square: Features | None = None) -> tuple[Features, Features]:
    """Mean and standard deviation from weighted points; `square` where a point is a distribution, not a value."""
    w = np.exp(log_w - log_w.max())
    w /= w.sum()
    square = {k: v**2 for k, v in mean.items()} if square is None else square
    first = {k: w @ v for k, v in mean.items()}
    return first, {k: np.sqrt(w @ square[k] - first[k] ** 2) for k in mean}


def without_error(found: tuple[Features, Features], **facts: Any) -> Moments:
    """Sums that are exact but for rounding."""
    zero = {k: np.zeros_like(v) for k, v in found[0].items()}
    return Moments(*found, zero, zero, facts)


def by_coarser(fine: tuple[Features, Features], coarse: tuple[Features, Features], **facts: Any) -> Moments:
    """A grid's result, its error being the difference to a grid with every other point."""
    errors = ({k: np.abs(a[k] - b[k]) for k in a} for a, b in zip(fine, coarse, strict=True))
    return Moments(*fine, *errors, facts)


def joint(problem: TrustProblem, points: dict[str, Any]) -> np.ndarray:
    """The log joint density of the model at each of many values of its latents."""
    density = jax.jit(jax.vmap(lambda values: log_density(problem.model, problem.args, {}, values)[0]))
    return np.asarray(density(points))


# --- for any model ----------------------------------------------------------------------------------------------


def enumeration(problem: TrustProblem) -> Moments:
    """Every joint value of discrete latents."""
    values = np.array(list(product(*(range(K or 2) for K in problem.latents.values()))))
    points = dict(zip(problem.latents, jnp.asarray(values.T), strict=True))
    return without_error(weigh(joint(problem, points), problem.features(points)), points=len(values))


def grid(problem: TrustProblem, *axes: np.ndarray) -> Moments:
    """A grid over the elements of the latents, in the order of `problem.latents`, one axis of nodes for each."""

    def solve(axes: list[np.ndarray]) -> tuple[Features, Features]:
        x = np.stack([a.ravel() for a in np.meshgrid(*axes, indexing="ij")], axis=1)
        cell = np.log(np.stack([a.ravel() for a in np.meshgrid(*map(np.gradient, axes), indexing="ij")])).sum(0)
        points = {}
        for name in problem.latents:
            shape = _shapes(problem)[name]
            size = int(np.prod(shape))
            points[name], x = jnp.asarray(x[:, :size].reshape(-1, *shape)), x[:, size:]
        return weigh(joint(problem, points) + cell, problem.features(points))

    return by_coarser(solve(list(axes)), solve([a[::2] for a in axes]), points=int(np.prod([len(a) for a in axes])))


def _shapes(problem: TrustProblem) -> dict[str, tuple[int, ...]]:
    trace = handlers.trace(handlers.seed(problem.model, 0)).get_trace(*problem.args)
    return {name: np.shape(trace[name]["value"]) for name in problem.latents}


# --- for one model each -----------------------------------------------------------------------------------------


def linear(problem: TrustProblem) -> Moments:
    """The Gaussian posterior of `gaussian`: y ~ Normal(X w, 1/2), w ~ Normal(0, 1)."""
    X, y = map(np.asarray, problem.args)
    covariance = np.linalg.inv(np.eye(X.shape[1]) + 4.0 * X.T @ X)
    return without_error(({"w": covariance @ X.T @ y * 4.0}, {"w": np.sqrt(np.diag(covariance))}))


def schools(problem: TrustProblem) -> Moments:
    """A grid over log tau; given tau, mu and theta are Gaussian."""
    effect, error = map(np.asarray, problem.args)

    def solve(log_tau: np.ndarray) -> tuple[Features, Features]:
        tau = np.exp(log_tau)[:, None]
        alone = 1.0 / (error**2 + tau**2)  # precision of an effect about mu
        var_mu = 1.0 / (1 / 25.0 + alone.sum(1))
        mean_mu = var_mu * (alone @ effect)
        # log p(effect | tau), mu integrated out
        fit = -0.5 * (alone @ effect**2) + 0.5 * mean_mu**2 / var_mu
        log_w = fit + 0.5 * np.log(alone).sum(1) + 0.5 * np.log(var_mu)
        log_w += halfcauchy.logpdf(tau[:, 0], scale=5.0) + log_tau
        pull = tau**2 * alone  # how far theta goes from mu to the effect
        mean_theta = mean_mu[:, None] * (1 - pull) + effect * pull
        var_theta = (1 - pull) * tau**2 + (1 - pull) ** 2 * var_mu[:, None]
        mean = {"mu": mean_mu[:, None], "tau": tau, "theta": mean_theta}
        square = {"mu": (var_mu + mean_mu**2)[:, None], "tau": tau**2, "theta": var_theta + mean_theta**2}
        return weigh(log_w, mean, square)

    nodes = np.linspace(-14.0, 10.0, 20_001)
    return by_coarser(solve(nodes), solve(nodes[::2]), points=len(nodes))


def spike(problem: TrustProblem) -> Moments:
    """Every value of gamma; given it, the slopes of `spike_and_slab` are Gaussian."""
    X, y = map(np.asarray, problem.args)
    p, prior_var = X.shape[1], 0.25
    log_w, mean, square = [], [], []
    gammas = np.array(list(product((0, 1), repeat=p)))
    for gamma in gammas:
        A = X * gamma
        precision = np.eye(p) / prior_var + A.T @ A
        covariance = np.linalg.inv(precision)
        centre = covariance @ A.T @ y
        log_w.append(0.5 * centre @ precision @ centre - 0.5 * np.linalg.slogdet(precision)[1])
        mean.append(centre)
        square.append(centre**2 + np.diag(covariance))
    means = {"gamma": gammas.astype(float), "beta": np.array(mean)}
    squares = {"gamma": gammas.astype(float), "beta": np.array(square)}
    return without_error(weigh(np.array(log_w), means, squares), points=len(gammas))


def two_components(problem: TrustProblem) -> Moments:
    """A grid over the weight and the two means of `mixture`; given them, the assignments are independent."""
    y = np.asarray(problem.args[0])

    def solve(nodes: int) -> tuple[Features, Features]:
        logit, low, high = np.linspace(-4.5, 4.5, nodes), np.linspace(-4, 1, nodes), np.linspace(-1, 4, nodes)
        logit, low, high = (a.ravel() for a in np.meshgrid(logit, low, high, indexing="ij"))
        weight = expit(logit)
        zero = np.log1p(-weight)[:, None] + norm.logpdf(y, low[:, None], 1.5)
        one = np.log(weight)[:, None] + norm.logpdf(y, high[:, None], 1.5)
        log_w = beta_distribution.logpdf(weight, 4, 4) + np.log(weight * (1 - weight))
        log_w += norm.logpdf(low, -1.2, 0.5) + norm.logpdf(high, 1.2, 0.5) + np.logaddexp(zero, one).sum(1)
        z = expit(one - zero)
        mean = {"weight": weight[:, None], "mu": np.stack([low, high], axis=1), "z": z}
        return weigh(log_w, mean, {"weight": mean["weight"] ** 2, "mu": mean["mu"] ** 2, "z": z})

    return by_coarser(solve(61), solve(31), points=61**3)
