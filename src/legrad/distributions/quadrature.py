"""Nodes and weights of continuous distributions: `v = Q(Φ(z))`, Q the quantile function, z Hermite nodes.

A distribution is admitted if its smallest number of nodes gives the gradients of E[x], E[x²] and the entropy to 2%
(the entropy by NumPyro's formula if there is one). A new distribution is a line in `QUADRATURE`, and a row in the
catalogue of `tests/distributions/test_quadrature.py`, which measures all distributions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array
from jax.scipy.special import ndtr, ndtri
from scipy import special

from legrad.distributions.quantiles import beta_logit, gamma_log, student_t

__all__ = ["QUADRATURE", "REFUSED", "Nodes", "Rule", "floats"]


class Nodes:
    """Normal scores z, one per node, with the masses below (u) and above (s) each score: constants, in float64."""

    def __init__(self, z: np.ndarray, ndim: int):
        self.z = z.reshape((-1,) + (1,) * ndim)
        self.u, self.s = special.ndtr(self.z), special.ndtr(-self.z)
        self.log_u, self.log_s = special.log_ndtr(self.z), special.log_ndtr(-self.z)


def hermite(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return Gauss-Hermite nodes and weights for the standard normal."""
    z, weights = np.polynomial.hermite_e.hermegauss(count)
    return z, weights / weights.sum()


def legendre(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return Gauss-Legendre nodes for a uniform mass, as normal scores, and their weights."""
    x, weights = np.polynomial.legendre.leggauss(count)
    return special.ndtri(0.5 * (1 + x)), weights / weights.sum()


DEFAULT_NODES = 5


class Rule(NamedTuple):
    """How the nodes of a continuous distribution are found, and where they are good to 2%."""

    quantile: Callable[[Any, Nodes], Array]
    nodes: int = DEFAULT_NODES
    """what it takes for 2% where the user asks for 5 nodes; asking for more or fewer changes it by as much"""
    holds: str = "all parameters"
    """where they do"""
    fixed: tuple[str, ...] = ()
    """parameters that move the ends of the support: no score at a node sees that, so they must be constant"""
    grid: Callable[[int], tuple[np.ndarray, np.ndarray]] = hermite
    when: Callable[[Any], bool] = lambda d: True


def _positive(x: Array) -> Array:
    x = jnp.asarray(x)
    return jnp.maximum(x, jnp.finfo(x.dtype).tiny)


def _unit(x: Array) -> Array:
    x = jnp.asarray(x)
    return jnp.clip(x, jnp.finfo(x.dtype).tiny, 1 - jnp.finfo(x.dtype).epsneg)


def floats(*args: Any) -> tuple[Array, ...]:
    """Return the arguments as arrays of floats."""
    return tuple(jnp.asarray(a, jnp.result_type(a, float)) for a in args)


def _gamma(d: Any, n: Nodes) -> Array:
    (concentration,) = floats(d.concentration)
    return _positive(jnp.exp(gamma_log(concentration, n.z)) / d.rate)


def _inverse_gamma(d: Any, n: Nodes) -> Array:
    (concentration,) = floats(d.concentration)
    return _positive(d.rate * jnp.exp(-gamma_log(concentration, -n.z)))


def _beta(d: Any, n: Nodes) -> Array:
    a, b = jnp.broadcast_arrays(*floats(d.concentration1, d.concentration0))
    return _unit(jax.nn.sigmoid(beta_logit(a, b, n.z)))


def _student_t(d: Any, n: Nodes) -> Array:
    (df,) = floats(d.df)
    return d.loc + d.scale * student_t(df, n.z)


def _truncated(d: Any, n: Nodes) -> Array:
    """Return quantiles by both tails: the tail with less than half of the mass has the digits."""
    low, high = getattr(d, "low", -np.inf), getattr(d, "high", np.inf)
    loc, scale = d.base_dist.loc, d.base_dist.scale
    alpha, beta = floats((low - loc) / scale, (high - loc) / scale)
    below = n.s * ndtr(alpha) + n.u * ndtr(beta)
    above = n.s * ndtr(-alpha) + n.u * ndtr(-beta)
    return jnp.clip(loc + scale * jnp.where(below < 0.5, ndtri(below), -ndtri(above)), low, high)


def _normal_base(d: Any) -> bool:
    return type(d.base_dist) is dist.Normal


QUADRATURE: dict[type, Rule] = {
    dist.Normal: Rule(lambda d, n: d.loc + d.scale * n.z),
    dist.Uniform: Rule(
        lambda d, n: d.low + (d.high - d.low) * n.u,
        fixed=("low", "high"),
        grid=legendre,
        holds="constant ends",
    ),
    dist.Logistic: Rule(lambda d, n: d.loc + d.scale * (n.log_u - n.log_s)),
    dist.Gumbel: Rule(lambda d, n: d.loc - d.scale * np.log(-n.log_u)),
    dist.SoftLaplace: Rule(lambda d, n: d.loc + d.scale * np.log(np.tan(0.5 * np.pi * n.u)), nodes=9),
    dist.StudentT: Rule(_student_t, nodes=9, holds="df ≥ 3.5"),
    dist.HalfNormal: Rule(lambda d, n: -d.scale * special.ndtri(0.5 * n.s)),
    dist.Exponential: Rule(lambda d, n: -n.log_s / d.rate),
    dist.Gamma: Rule(_gamma, holds="concentration ≥ 0.3"),
    dist.Chi2: Rule(_gamma, holds="df ≥ 0.6"),
    dist.InverseGamma: Rule(_inverse_gamma, nodes=7, holds="concentration ≥ 4"),
    dist.Weibull: Rule(
        lambda d, n: _positive(d.scale * (-n.log_s) ** (1 / d.concentration)), holds="concentration ≥ 0.7"
    ),
    dist.Gompertz: Rule(lambda d, n: jnp.log1p(-n.log_s / d.concentration) / d.rate, holds="concentration ≥ 0.1"),
    dist.Dagum: Rule(
        lambda d, n: d.scale * jnp.expm1(-n.log_u / d.concentration) ** (-1 / d.sharpness),
        nodes=9,
        holds="concentration ≥ 0.7 and sharpness ≥ 4",
    ),
    dist.Beta: Rule(_beta, nodes=7, holds="both concentrations ≥ 0.7"),
    dist.BetaProportion: Rule(_beta, nodes=7, holds="mean and 1 - mean times concentration ≥ 0.7"),
    dist.Kumaraswamy: Rule(
        lambda d, n: _unit((-jnp.expm1(n.log_s / d.concentration0)) ** (1 / d.concentration1)),
        nodes=7,
        holds="both concentrations ≥ 0.7",
    ),
    dist.LeftTruncatedDistribution: Rule(
        _truncated, nodes=7, fixed=("low",), when=_normal_base, holds="Normal, constant end"
    ),
    dist.RightTruncatedDistribution: Rule(
        _truncated, nodes=7, fixed=("high",), when=_normal_base, holds="Normal, constant end"
    ),
    dist.TwoSidedTruncatedDistribution: Rule(
        _truncated,
        nodes=9,
        fixed=("low", "high"),
        when=_normal_base,
        holds="Normal, constant ends 1.5 scales apart or more",
    ),
}

# A transform without parameters has the nodes of its base, and is accurate to 2% if not too curved over them.
THROUGH_BASE: dict[str, str] = {
    "LogNormal": "scale ≤ 0.7",
    "sigmoid of a Normal": "scale ≤ 0.8",
}

NO_MOMENTS = "it has no variance, and nodes at its quantiles do not converge"
KINK = "the score jumps at its mode, and a quadrature does not see a jump"
MOVING_END = "the end of its support moves with a parameter, which no score at a node sees"
REFUSED: dict[type, str] = {
    dist.Cauchy: NO_MOMENTS,
    dist.HalfCauchy: NO_MOMENTS,
    dist.Levy: NO_MOMENTS,
    dist.Laplace: KINK,
    dist.AsymmetricLaplace: KINK,
    dist.AsymmetricLaplaceQuantile: KINK,
    dist.Pareto: MOVING_END,
    dist.FoldedDistribution: "two values of its base share one value",
    dist.RelaxedBernoulliLogits: "its mass is at both ends, and few nodes do not resolve it",
}
