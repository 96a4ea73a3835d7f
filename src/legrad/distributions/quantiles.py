"""Quantiles of the Gamma, Beta and Student t distributions, which JAX and NumPyro lack.

A quantile is computed at a fixed normal score z, that is with mass Φ(z) below it. In a coordinate y on the
whole line the logarithm of the mass in the nearer tail is concave, so the third-order (Halley) step on

    f(y) = log tail(y) - log tail mass at z,      f' = pdf / tail,      f'' = f' (d log pdf / dy - f')

converges from anywhere: three or four steps reach the precision of JAX's incomplete gamma and beta functions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.scipy.special import betainc, betaln, gammainc, gammaincc, gammaln
from scipy import special

__all__ = ["beta_logit", "gamma_log", "student_t"]

Tail = Callable[[np.ndarray], Array]


def _halley(
    start: Array,
    log_mass: Array,
    tail: Callable[[Array], Array],
    log_pdf: Callable[[Array], Array],
    slope: Callable[[Array], Array],
    sign: float,
    steps: int,
) -> Array:
    """Solve `log tail(y) = log_mass`; `sign` is +1 for the mass below y and -1 for the mass above it."""
    tiny = jnp.finfo(start.dtype).tiny

    def step(_: int, y: Array) -> Array:
        mass = jnp.maximum(tail(y), tiny)
        first = jnp.exp(log_pdf(y)) / mass
        newton = sign * (jnp.log(mass) - log_mass) / first
        curvature = newton * (slope(y) - sign * first)
        return y - jnp.clip(newton / (1 - 0.5 * jnp.clip(curvature, -1, 1)), -4, 4)

    return lax.fori_loop(0, steps, step, start)


def _by_tail(lower: Tail, upper: Tail, z: np.ndarray) -> Array:
    """Compute each score from its own tail: one minus a mass near one has no digits left in float32."""
    below, above = np.flatnonzero(z <= 0), np.flatnonzero(z > 0)
    parts = [f(at) for f, at in ((lower, below), (upper, above)) if at.size]
    return jnp.concatenate(parts)[np.argsort(np.concatenate([below, above]))]


def _limit(dtype: jnp.dtype) -> float:
    """Return the concentration above which the asymptotic start beats a log-density that rounding has degraded."""
    return 2e3 if jnp.finfo(dtype).bits <= 32 else 1e6


def gamma_log(concentration: Array, z: np.ndarray) -> Array:
    """Return the log of the quantile of Gamma(concentration, 1) at scores `z` (leading axis: the nodes)."""
    below, above = special.log_ndtr(z), special.log_ndtr(-z)
    return _by_tail(
        lambda at: _gamma_tail(concentration, z[at], below[at], below[at], 1.0),
        lambda at: _gamma_tail(concentration, z[at], below[at], above[at], -1.0),
        z,
    )


@partial(jax.jit, static_argnames="sign")
def _gamma_tail(a: Array, z: Array, log_below: Array, log_mass: Array, sign: float) -> Array:
    cube_root = 1 - 1 / (9 * a) + z / (3 * jnp.sqrt(a))  # Wilson and Hilferty
    wilson = jnp.log(a) + 3 * jnp.log(jnp.maximum(cube_root, 0.1))
    series = (log_below + gammaln(a + 1)) / a  # the incomplete gamma function near zero
    near_zero = series if sign > 0 else jnp.maximum(series, wilson)
    start = jnp.where((a > 0.5) & (cube_root > 0.1), wilson, near_zero)
    incomplete = gammainc if sign > 0 else gammaincc
    refined = _halley(
        start,
        log_mass,
        tail=lambda y: incomplete(jnp.broadcast_to(a, y.shape), jnp.exp(y)),
        log_pdf=lambda y: a * y - jnp.exp(y) - gammaln(a),
        slope=lambda y: a - jnp.exp(y),
        sign=sign,
        steps=3,
    )
    return jnp.where(a > _limit(start.dtype), start, refined)


def beta_logit(concentration1: Array, concentration0: Array, z: np.ndarray) -> Array:
    """Return the logit of the quantile of a Beta distribution at scores `z` (leading axis: the nodes)."""
    a, b = concentration1, concentration0
    below, above = special.log_ndtr(z), special.log_ndtr(-z)
    return _by_tail(
        lambda at: _beta_lower(a, b, z[at], below[at], above[at]),
        lambda at: -_beta_lower(b, a, -z[at], above[at], below[at]),
        z,
    )


@jax.jit
def _beta_lower(a: Array, b: Array, z: Array, log_below: Array, log_above: Array) -> Array:
    start = _beta_start(a, b, z, log_below, log_above)
    refined = _halley(
        start,
        log_below,
        tail=lambda y: betainc(jnp.broadcast_to(a, y.shape), jnp.broadcast_to(b, y.shape), jax.nn.sigmoid(y)),
        log_pdf=lambda y: a * jax.nn.log_sigmoid(y) + b * jax.nn.log_sigmoid(-y) - betaln(a, b),
        slope=lambda y: a - (a + b) * jax.nn.sigmoid(y),
        sign=1.0,
        steps=4,
    )
    return jnp.where(jnp.minimum(a, b) > _limit(start.dtype), start, refined)


def _beta_start(a: Array, b: Array, z: Array, log_below: Array, log_above: Array) -> Array:
    """Abramowitz and Stegun 26.5.22 where both concentrations are one or more; else one power law per end."""
    inv_a, inv_b = 1 / (2 * jnp.maximum(a, 1) - 1), 1 / (2 * jnp.maximum(b, 1) - 1)
    h, spread = 2 / (inv_a + inv_b), (z**2 - 3) / 6
    root = jnp.sqrt(jnp.maximum(spread + h, 0))
    w = -z * root / h - (inv_b - inv_a) * (spread + 5 / 6 - 2 / (3 * h))
    smooth = jnp.log(a / b) - 2 * w

    log_left = a * jnp.log(a / (a + b)) - jnp.log(a)
    log_right = b * jnp.log(b / (a + b)) - jnp.log(b)
    log_total = jnp.logaddexp(log_left, log_right)

    def end(log_mass: Array, c: Array) -> Array:
        log_x = jnp.minimum((log_mass + jnp.log(c) + log_total) / c, -1e-3)
        return log_x - jnp.log(-jnp.expm1(log_x))

    power = jnp.where(log_below < log_left - log_total, end(log_below, a), -end(log_above, b))
    return jnp.where((a >= 1) & (b >= 1), smooth, power)


def student_t(df: Array, z: np.ndarray) -> Array:
    """Quantile of the standard Student t at scores `z` (leading axis: the nodes).

    `df / (df + t²)` is Beta(df/2, 1/2); with many degrees of freedom that has few digits, and the expansion
    around the normal has many.
    """
    score = np.where(z == 0, 1.0, np.abs(z))
    logit = beta_logit(0.5 * df, jnp.full_like(df, 0.5), special.ndtri(2 * special.ndtr(-score)))
    exact = jnp.sqrt(df) * jnp.exp(-0.5 * logit)
    expansion = (
        score
        + (score**3 + score) / (4 * df)
        + (5 * score**5 + 16 * score**3 + 3 * score) / (96 * df**2)
        + (3 * score**7 + 19 * score**5 + 17 * score**3 - 15 * score) / (384 * df**3)
    )
    return np.sign(z) * jnp.where(df > (100 if jnp.finfo(exact.dtype).bits <= 32 else 1e4), expansion, exact)
