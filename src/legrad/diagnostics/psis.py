"""Pareto-smoothed importance sampling from a guide: k-hat, the ELBO, and the importance-weighted bound.

The weights are w = p(x, z) / q(z) at draws of the guide. The largest 3√n weights follow a generalized Pareto
distribution, whose shape k says how many moments w has (those below 1/k): up to k = 0.7 reweighting by w can be
trusted, beyond that it cannot (Vehtari et al. 2024, Yao et al. 2018).

If most draws count and k-hat is high all the same, the tail may begin among nearly equal weights, which have no
Pareto shape: the tail is halved until k-hat is low, or too few weights are left.

A discrete guide has few distinct weights, and a Pareto fitted to ties says nothing (ArviZ returns inf, NaN or an
error). Its w is bounded and has all moments; the remaining question is whether the draws have seen enough of the
large weights. So if half of the tail are ties, k-hat is the shape of the Pareto whose n draws have the same
effective size n_eff = (Σw)² / Σw²:

    k = (½ − n_eff/n) / (1 − n_eff/n)    by its first two moments, k < ½
    k = 1 − ½ log n_eff / log n          if n_eff < n^0.6, as n_eff ~ n^(2(1−k)): k > 0.7
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import jax
import numpy as np

from legrad import _compat
from legrad.diagnostics.weights import Draws, log_weights
from legrad.model.messages import FitWarning
from legrad.model.problem import Problem

__all__ = ["LIMIT", "ElboEstimate", "elbo_estimate", "khat", "log_weights"]

LIMIT = 0.7  # the k-hat up to which importance weights can be trusted
FEW = 0.01  # the share of draws whose log-density may be not a number
FEWEST = 100  # the least number of draws
_DISTINCT = 0.5  # the least share of distinct values in a tail to fit a Pareto to
_SHORTEST = 25  # weights that a tail needs
_EQUAL = 1e-3  # weights that differ by less are equal: there is nothing to reweight


@dataclass(frozen=True)
class ElboEstimate:
    """The ELBO of a fitted guide, and a tighter bound on the log evidence.

    Attributes:
        elbo: the mean of log w; -inf if a draw has no probability under the model.
        error: the standard error of the ELBO.
        bound: the log of the mean of w over the draws, the importance-weighted bound: below the log evidence on
            average, and close to it if k-hat is small. None if the bound does not exist; see `reason`.
        bound_error: the standard error of the bound by the delta method, sd(w) / (mean(w) √n): itself an estimate
            to trust only if k-hat is small.
        draws: the number of draws.
        reason: why there is no `bound`.
    """

    elbo: float
    error: float
    bound: float | None
    bound_error: float | None
    draws: int
    reason: str = ""

    def __str__(self) -> str:
        text = f"ELBO {_with_error(self.elbo, self.error)}"
        if self.bound is not None:
            text += f", importance-weighted bound {_with_error(self.bound, self.bound_error or 0.0)}"
        return f"{text} ({self.draws} draws)" + (f"; no importance-weighted bound: {self.reason}" * bool(self.reason))


def _with_error(value: float, error: float) -> str:
    """Format a value with as many digits as its error allows."""
    digits = 4 if error < 1e-6 else max(0, 1 - math.floor(math.log10(error)))
    return f"{value:,.{digits}f} ± {error:.2g}"


def khat(problem: Problem, key: jax.Array, num_samples: int = 16_000) -> float:
    """Return the shape of the Pareto tail of the importance weights: how far the guide is from the posterior.

    Below 0.5 the guide is close; up to 0.7 its draws can be reweighted to the posterior; above, they cannot, and a
    `FitWarning` says so. -inf means that the weights are practically equal. k-hat does not see a mode that no draw
    has visited. In many dimensions k-hat is high even for guides whose single latents are right: see `diagnose`.

    Args:
        problem: model, guide, fitted parameters and data.
        key: the random key.
        num_samples: the number of draws from the guide, at least 100.

    Raises:
        ValueError: in the cases listed at `log_weights`, for example with subsampled plates.
    """
    draws = weighing(problem, key, num_samples)
    log_w = draws.f()
    _, k = smoothed_weights(log_w)
    for message in concerns(k, log_w, draws.unknown):
        warnings.warn(message, FitWarning, stacklevel=2)
    return k


def elbo_estimate(problem: Problem, key: jax.Array, n: int = 1000) -> ElboEstimate:
    """Estimate the ELBO and the importance-weighted bound from fresh draws, with their standard errors.

    With subsampled plates each draw takes its own subsample: the ELBO is right and its error includes that noise, but
    there is no importance-weighted bound, which needs every row.

    Args:
        problem: model, guide, fitted parameters and data.
        key: the random key.
        n: the number of draws from the guide.

    Example:
        >>> print(elbo_estimate(result.problem, jax.random.key(1)))
    """
    draws = Draws(problem, key, n)
    return summary(known(draws), draws.no_ratio)


def known(draws: Draws) -> np.ndarray:
    """Return the log-weights, less those that are not known, as the model cannot be computed there, if few are."""
    f = draws.f()
    return f[np.isfinite(f)] if 0 < draws.unknown <= FEW * draws.n else f


def summary(f: np.ndarray, reason: str = "") -> ElboEstimate:
    """Return the ELBO and the bound from log-weights; only the ELBO if there is a `reason` against the bound."""
    n = len(f)
    sure = not np.isneginf(f).any()  # one draw without probability makes the ELBO -inf, with no uncertainty
    elbo, error = (float(f.mean()), float(f.std(ddof=1) / math.sqrt(n))) if sure else (-math.inf, 0.0)
    if reason or np.isneginf(f).all():
        return ElboEstimate(elbo, error, None, None, n, reason or "no draw has any probability under the model")
    w = np.exp(f - f.max())
    bound = float(np.log(w.mean()) + f.max())
    return ElboEstimate(elbo, error, bound, float(w.std(ddof=1) / (w.mean() * math.sqrt(n))), n)


def weighing(problem: Problem, key: jax.Array, n: int) -> Draws:
    """Return draws for weights; raise if weights are undefined, or the draws too few for a tail."""
    if isinstance(n, int) and n < FEWEST:
        raise ValueError(f"num_samples={n}: a Pareto tail needs at least {FEWEST} draws, and 4000 are better")
    draws = Draws(problem, key, n)
    draws.require_ratio()
    return draws


def smoothed_weights(log_w: np.ndarray) -> tuple[np.ndarray, float]:
    """Return weights with a smoothed tail, summing to one, and k-hat; raw weights if no Pareto can be fitted."""
    if np.isneginf(log_w).all():
        raise ValueError(
            "no draw of the guide has any probability under the model: check that the guide's support lies inside "
            "the model's"
        )
    w = np.exp(log_w - log_w.max())
    w /= w.sum()
    if np.ptp(log_w) < _EQUAL:
        return w, -math.inf
    bounded = _tied_khat(1 / float(np.sum(w**2)), len(w))
    tail, distinct = _tail(log_w)
    if distinct >= max(5, _DISTINCT * tail):
        smoothed, k = _compat.pareto_smoothed(log_w, tail)
        effective = 1 / float(np.sum(w**2))
        while k > LIMIT and effective > len(w) / 2 and tail >= 2 * _SHORTEST:
            tail, distinct = tail // 2, min(distinct, tail // 2)
            smoothed, k = _compat.pareto_smoothed(log_w, tail)
        if math.isfinite(k):
            return np.exp(smoothed), k if distinct == tail else max(k, bounded)
    return w, bounded


def concerns(k: float, log_w: np.ndarray, unknown: int = 0) -> list[str]:
    """Return sentences about weights that cannot be trusted; none if they can.

    Args:
        k: k-hat.
        log_w: the log-weights.
        unknown: how many of them are -inf as the log-density is not a number; a few are no concern.
    """
    found = []
    if k > LIMIT:
        found.append(
            f"k-hat is {k:.3g}, above {LIMIT}: the guide is far from the posterior, and its reweighted draws cannot "
            "be trusted. Try a richer guide (with the dependence between latents that it lacks), more steps, "
            "or several restarts; if only single latents matter, check them against NUTS"
        )
    lost = int(np.isneginf(log_w).sum()) - unknown
    if lost:
        found.append(
            f"{lost} of {len(log_w)} draws of the guide have no probability under the model, so the ELBO is -inf: "
            "keep the guide's support inside the model's"
        )
    if unknown > FEW * len(log_w):
        found.append(
            f"the log-density is not a number at {unknown} of {len(log_w)} draws: their weights are taken as zero, "
            "which is right only if the posterior has nothing there. Find out where the model cannot be computed"
        )
    return found


def _tail(log_w: np.ndarray) -> tuple[int, int]:
    """Return how many of the largest weights form the tail, and how many of these are distinct.

    The tail begins above a value, never inside a group of equal values: otherwise the Pareto's origin would be one of
    the points it is fitted to.
    """
    n = len(log_w)
    ordered = np.sort(log_w)
    cutoff = ordered[-math.ceil(min(n / 5, 3 * math.sqrt(n))) - 1]
    if np.isneginf(cutoff):
        return 0, 0
    same = 1e-6 * (ordered[-1] - cutoff)  # a discrete latent's weights, blurred by the rounding of others
    above = ordered[ordered > cutoff + same]
    return len(above), int(np.sum(np.diff(above, prepend=cutoff) > same))


def _tied_khat(size: float, n: int) -> float:
    """Return k-hat from the effective size of n draws; see the module docstring."""
    if size < n**0.6:
        return 1 - math.log(max(size, 1.0)) / (2 * math.log(n))
    share = size / n
    return (0.5 - share) / (1 - share) if share < 1 - _EQUAL else -math.inf
