"""The answers to the models of `user_models.py`, and whether draws of a fit agree with them.

Exact: the change point by a sum over the years, with rates that are conjugate given the year,

    p(t | y) ∝ Γ(a) r^−a Γ(b) s^−b,   a = 1 + Σ_{i<t} y_i,   r = 0.3 + t,   b = 1 + Σ_{i≥t} y_i,   s = 0.3 + n − t,

and the N-mixture on a grid over log λ and logit p, the counts summed. By NUTS: models whose discrete latents are
summed by hand. These fits are right if all means are within 0.1 posterior sds and all sds within 10%. The others are
compared with the values that their data came from, up to relabelling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import permutations
from typing import Any, NamedTuple

import jax
import numpy as np
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import MCMC, NUTS, init_to_value
from scipy.special import expit, gammaln, logsumexp

NEAR = 0.1
Moments = dict[str, dict[str, Any]]  # by quantity: "mean" and "sd"


class Judgement(NamedTuple):
    """Whether a fit is right; what was compared; and the worst errors of means and sds where moments are known."""

    right: bool
    said: str
    mean: float | None = None
    sd: float | None = None


# --- exact --------------------------------------------------------------------------------------------------------


def change_point(y: np.ndarray) -> Moments:
    """Moments of both rates and of the year, summed over the year."""
    n, t = len(y), np.arange(len(y))
    before = np.concatenate([[0], np.cumsum(y)])[:n]
    shape, rate = np.stack([1 + before, 1 + y.sum() - before]), np.stack([0.3 + t, 0.3 + n - t])
    log_w = (gammaln(shape) - shape * np.log(rate)).sum(0)
    w = np.exp(log_w - logsumexp(log_w))
    mean, square = shape / rate, shape * (shape + 1) / rate**2
    return {
        "early": _moments(w @ mean[0], w @ square[0]),
        "late": _moments(w @ mean[1], w @ square[1]),
        "t": _moments(w @ t, w @ t**2),
    }


def n_mixture(y: np.ndarray, nodes: int = 81, most: int = 120) -> Moments:
    """Moments of λ and p on a grid, with N summed up to `most`."""
    V, N = y.shape[1], np.arange(most + 1)
    log_lam, logit_p = (g.ravel() for g in np.meshgrid(np.linspace(1, 4.5, nodes), np.linspace(-4, 4, nodes)))
    lam, p = np.exp(log_lam), expit(logit_p)
    log_w = np.log(lam) - 0.1 * lam + log_lam  # Gamma(2, 0.1), and the grid's measure
    log_w += 2 * np.log(p * (1 - p))  # Beta(2, 2), and the grid's measure
    for site in y:
        inside = np.where(site.max() <= N, -gammaln(N + 1), -np.inf)
        for seen in site:
            inside = inside + gammaln(N + 1) - gammaln(np.maximum(N - seen, 0) + 1)
        terms = inside + N * (log_lam + V * np.log1p(-p))[:, None]
        log_w += logsumexp(terms, 1) - lam + site.sum() * logit_p
    w = np.exp(log_w - logsumexp(log_w))
    return {"lam": _moments(w @ lam, w @ lam**2), "p": _moments(w @ p, w @ p**2)}


def _moments(mean: float, square: float) -> dict[str, Any]:
    return {"mean": float(mean), "sd": float(np.sqrt(square - mean**2))}


EXACT: dict[str, Callable[..., Moments]] = {"change_point": change_point, "n_mixture": n_mixture}


# --- by NUTS ------------------------------------------------------------------------------------------------------


def by_nuts(user: Any, seed: int = 0, draws: int = 2_500) -> tuple[Moments, dict[str, float]]:
    """Moments of the model whose discrete latents are summed by hand; and R-hat and the effective sample size."""
    kernel = NUTS(user.summed, init_strategy=init_to_value(values=dict(user.planted)))
    chains = MCMC(kernel, num_warmup=1_000, num_samples=draws, num_chains=4, chain_method="sequential",
                  progress_bar=False)  # fmt: skip
    chains.run(jax.random.key(seed), *user.args)
    found = user.quantities({k: np.asarray(v) for k, v in chains.get_samples().items()})
    rhat, ess = 1.0, np.inf
    for x in found.values():
        x = x.reshape(4, draws, -1)
        rhat = max(rhat, float(np.max(split_gelman_rubin(x))))
        ess = min(ess, float(np.min(effective_sample_size(x))))
    moments = {name: {"mean": x.mean(0).tolist(), "sd": x.std(0).tolist()} for name, x in found.items()}
    return moments, {"rhat": rhat, "ess": ess}


# --- is a fit right? ----------------------------------------------------------------------------------------------


def compare(quantities: Mapping[str, np.ndarray], wanted: Moments) -> Judgement:
    """Compare means and sds."""
    mean = max(np.max(np.abs(quantities[k].mean(0) - m["mean"]) / m["sd"]) for k, m in wanted.items())
    sd = max(np.max(np.abs(quantities[k].std(0) / np.asarray(m["sd"]) - 1)) for k, m in wanted.items())
    right = bool(mean <= NEAR and sd <= NEAR)
    return Judgement(right, f"worst mean {mean:.3f} sd, worst sd {100 * sd:.1f}%", float(mean), float(sd))


def near_the_truth(quantities: Mapping[str, np.ndarray], planted: Mapping[str, np.ndarray], most: float = 4.0):
    """Compare with the values that the data came from, in posterior sds."""
    off = max(np.max(np.abs(quantities[k].mean(0) - v) / quantities[k].std(0)) for k, v in planted.items())
    return Judgement(bool(off <= most), f"the values that the data came from are within {off:.1f} posterior sds")


def features(quantities: Mapping[str, np.ndarray], planted: Mapping[str, np.ndarray]) -> Judgement:
    """Spike and slab: are the right features in, and are their effects near the planted ones?"""
    included, inside = quantities["included"].mean(0) > 0.5, planted["included"]
    effect = quantities["effect"][:, inside]
    off = np.max(np.abs(effect.mean(0) - planted["effect"][inside]) / effect.std(0))
    wrong = int((included != inside).sum())
    said = (
        f"{len(inside) - wrong} of {len(inside)} features rightly in or out, effects within {off:.1f} posterior sds"
    )
    return Judgement(bool(wrong == 0 and off <= 4), said)


def blocks(quantities: Mapping[str, np.ndarray], planted: Mapping[str, np.ndarray]) -> Judgement:
    """Stochastic block model: the share of nodes in their block, and the probabilities of edges."""
    true, B = planted["z"], planted["B"]
    K = len(B)
    label = (quantities["z"][..., None] == np.arange(K)).mean(0).argmax(-1)
    order = max(permutations(range(K)), key=lambda order: (np.asarray(order)[label] == true).sum())
    share = float((np.asarray(order)[label] == true).mean())
    back = np.argsort(order)  # true block -> its label
    off = float(np.abs(quantities["B"].mean(0)[np.ix_(back, back)] - B).max())
    said = f"{100 * share:.0f}% of nodes in their block, edge probabilities within {off:.3f}"
    return Judgement(bool(share >= 0.95 and off <= 0.1), said)


def topics(quantities: Mapping[str, np.ndarray], planted: Mapping[str, np.ndarray]) -> Judgement:
    """LDA: how far words are from those of the planted topics, and documents from their shares of topics."""
    beta, theta = quantities["beta"].mean(0), quantities["theta"].mean(0)

    def distance(order: tuple[int, ...]) -> float:
        return 0.5 * np.abs(beta[list(order)] - planted["beta"]).sum(-1).max()

    order = min(permutations(range(len(beta))), key=distance)
    words, shares = distance(order), 0.5 * np.abs(theta[:, list(order)] - planted["theta"]).sum(-1).mean()
    said = f"total variation: words of a topic at most {words:.3f}, topics of a document {shares:.3f} on average"
    return Judgement(bool(words <= 0.1 and shares <= 0.15), said)


TRUTH: dict[str, Callable[..., Judgement]] = {
    "spike_and_slab": features, "block_model": blocks, "topics": topics
}  # fmt: skip


def judge(name: str, user: Any, draws: Mapping[str, Any], kept: Mapping[str, Any] | None = None) -> Judgement:
    """Judge draws by the exact answer, else by one that NUTS found, else by the values that the data came from."""
    quantities = user.quantities({k: np.asarray(v) for k, v in draws.items()})
    if name in EXACT:
        return compare(quantities, EXACT[name](*user.args))
    if kept is not None:
        return compare(quantities, kept["moments"])
    return TRUTH.get(name, near_the_truth)(quantities, user.planted)
