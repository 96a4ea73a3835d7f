"""The nodes of sums over Normal numbers: a trapezoid rule in the number's standard units, denser near zero.

    E[g(m + s ξ)] ≈ Σ_k w_k g(m + s ξ_k),        w_k ∝ exp(−ξ_k²/2) ξ'(k)

With equidistant nodes, ξ(k) = k H, the error falls like exp(−2π d/H), where d is how far from the real axis g stops
being analytic, in standard deviations. For log(1 + exp(u)) that is π/s: the rule would fail where s is large. So the
nodes are moved towards the c with m + s c = 0, as far as 1/s, the width there of what happens at u ≈ 0:

    ξ(k) = c + x(k − c/H)/s,    1/x(T) = 1/sinh(T/b) + a/T,    a = 1/(s H)

Near c the nodes lie like those of a sinh rule, b to a unit, and further out they are equidistant again: b is such
that this is so before the nodes end. Then the error does not grow with s. ξ is an analytic function, so the rule
still converges exponentially, like exp(−π² b) for a singularity near u = 0.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

STEP = 0.125  # H
_REACH = {4: 6.0, 8: 8.5}  # the largest |ξ|, by the bytes of a number: the mass beyond is lost in rounding
_DENSE, _LEAST = 4.0, 1.0  # the largest and smallest b
_FAR = 30.0  # units of T/b beyond which the nodes are equidistant
_FINEST = 1e-5  # the smallest 1/s


def plain(dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return equidistant nodes, and their weights."""
    xi = STEP * _numbers(dtype)
    weights = np.exp(-0.5 * xi**2)
    return xi, weights / weights.sum()


def _numbers(dtype: Any) -> np.ndarray:
    count = round(_REACH.get(np.dtype(dtype).itemsize, 8.5) / STEP)
    return np.arange(-count, count + 1.0)


def crowded(center: Any, width: Any, dtype: Any) -> tuple[Any, Any]:
    """Return nodes that are denser near a point, and their weights: (K, *shape), without derivatives.

    Args:
        center: c, an array.
        width: 1/s, of the same shape.
        dtype: the type of the nodes.
    """
    center, width = jax.lax.stop_gradient((jnp.asarray(center, dtype), jnp.asarray(width, dtype)))
    c = jnp.clip(jnp.nan_to_num(center), -100.0, 100.0)
    a = jnp.clip(jnp.nan_to_num(width, nan=1.0), _FINEST, 1e5) / STEP
    k = _numbers(dtype).reshape(-1, *(1,) * jnp.ndim(c)).astype(dtype)
    left = jnp.maximum(k[-1] - jnp.abs(c) / STEP, 8.0)  # nodes between c and the nearer end
    b = jnp.clip(left / jnp.arcsinh(30 * left / a), _LEAST, _DENSE)
    T = k - c / STEP
    near = jnp.abs(T) <= _FAR * b
    y = jnp.where(near, T / b, 1.0)
    middle = jnp.abs(y) < 1e-3
    q = jnp.where(middle, 1 + y**2 / 6, jnp.sinh(y) / jnp.where(middle, 1.0, y)) / b
    xi = STEP * (k - jnp.where(near, T / (1 + a * q), 0.0))
    # (a q² + cosh(y)/b) / (1 + a q)², without squares that overflow
    slope = jnp.where(near, a * (q / (1 + a * q)) * (a * q / (1 + a * q)) + _rest(a, b, q, y), 1.0)
    weights = jnp.exp(-0.5 * xi**2) * slope
    return xi, weights / jnp.sum(weights, axis=0)


def _rest(a: Any, b: Any, q: Any, y: Any) -> Any:
    return a * (jnp.cosh(y) / (1 + a * q)) / (b * (1 + a * q))


def rule_error(parts: Any, total: Any, axis: int) -> Any:
    """Estimate the relative error of a sum over nodes, at its worst position.

    A rule of every second node has the root of the error, exp(−2π d/2H), so the error is the square of what the two
    rules differ by; where they differ by more than a tenth, nothing converges, and it is the difference. What the
    outermost nodes add says how much is beyond them.
    """
    second = jnp.arange(parts.shape[axis]) % 2 == parts.shape[axis] // 2 % 2
    half = 2.0 * jnp.sum(jnp.where(second.reshape(-1, *(1,) * (parts.ndim - axis - 1)), parts, 0.0), axis=axis)
    size = jnp.sum(jnp.abs(parts), axis=axis)
    safe = jnp.where(size > 0, size, 1.0)

    def worst(error: Any) -> Any:
        relative = jnp.where(size > 0, jnp.abs(error) / safe, 0.0)
        return jnp.max(jnp.where(jnp.isfinite(relative), relative, 0.0), initial=0.0)

    apart = worst(half - total)
    ends = [jax.lax.index_in_dim(parts, k, axis, keepdims=False) for k in (0, -1)]
    beyond = worst(jnp.maximum(*map(jnp.abs, ends)) / STEP)
    return jnp.maximum(jnp.where(apart < 0.1, apart**2, apart), jnp.where(beyond > 1e-6, beyond, 0.0))
