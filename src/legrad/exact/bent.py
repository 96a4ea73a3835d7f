"""Closed forms for what no quadrature passes: kinks and waves of a Normal u with mean m and standard deviation s.

    E[max(u, 0)] = m Φ(a) + s φ(a),   a = m/s      E[max(u, 0)²] = (m² + s²) Φ(a) + m s φ(a)
    E[|u|] = m (2 Φ(a) − 1) + 2 s φ(a)             E[u²] = m² + s²
    E[cos u] = exp(−s²/2) cos m                    E[cos² u] = (1 + exp(−2 s²) cos 2m)/2

The variances are written such that m² does not cancel. For a known c, max(u, c) = c + max(u − c, 0) and
min(u, c) = c − max(c − u, 0); sin u = cos(u − π/2).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtr

from legrad.exact.smooth import is_function
from legrad.trace.program import Op

_WAVES = {"cos": 0.0, "sin": jnp.pi / 2}
_KINKS = ("max", "min")


def is_bent(op: Op) -> bool:
    """Say whether an operation has closed forms here, apart from what its operands are."""
    return op.name in _KINKS or op.name in _WAVES or op.name == "abs" or is_function(op.eqn, (jax.nn.relu,))


def mean_and_variance(op: Op, m: Any, v: Any, c: Any) -> tuple[Any, Any]:
    """Return the mean and variance of the result.

    Args:
        op: the operation.
        m: the mean of its Normal operand.
        v: the variance of its Normal operand.
        c: the other operand, 0 if there is none.
    """
    if op.name in _WAVES:
        m = m - _WAVES[op.name]
        variance = -0.5 * jnp.expm1(-v) * (1 - jnp.exp(-v) * jnp.cos(2 * m))
        return jnp.exp(-0.5 * v) * jnp.cos(m), variance
    sign = -1 if op.name == "min" else 1
    m = sign * (m - c)
    sure = v <= 0
    s = jnp.sqrt(jnp.where(sure, 1.0, v))
    a = m / s
    below, above, density = ndtr(a), ndtr(-a), jnp.exp(-0.5 * a**2) / jnp.sqrt(2 * jnp.pi)
    if op.name == "abs":
        mean = m * (below - above) + 2 * s * density
        variance = v + 4 * (m * above - s * density) * (m * below + s * density)
        return jnp.where(sure, jnp.abs(m), mean), jnp.where(sure, 0.0, variance)
    mean = m * below + s * density
    variance = v * (below + a**2 * below * above + a * density * (above - below) - density**2)
    return c + sign * jnp.where(sure, jnp.maximum(m, 0), mean), jnp.where(sure, 0.0, variance)
