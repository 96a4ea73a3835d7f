"""Two rivals on the belief network of one layer, as one would write them by hand for that model and nothing else.

Each takes two draws h, h' of the hidden units. Of f(h) = log p(y, h) − log q(h | y), an image at a time, only the
difference matters to the gradient by the logits a of q, and in it what does not depend on h drops out:

    DisARM          ½ (f(h) − f(h')) · (−1)^h' · [h ≠ h'] · σ(|a|)         h' antithetic to h
    leave-one-out   ½ (f(h) − f(h')) · (h − h')                            h' independent of h

The gradient by the parameters of p is the mean over both draws.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

Gradient = dict[str, jax.Array]


def disarm(params: Any, key: jax.Array, args: tuple[Any, ...]) -> Gradient:
    """The gradient of the loss by DisARM with one antithetic pair."""
    y, a = _logits(params, args)
    u, q = jax.random.uniform(key, a.shape), jax.nn.sigmoid(a)
    h = jnp.stack([u < q, 1 - u < q]).astype(a.dtype)
    by_p, change = _two_draws(params, y, a, h)
    sign = jnp.where(h[0] != h[1], 1 - 2 * h[1], 0.0)
    return _of_loss(y, by_p, 0.5 * change[:, None] * sign * jax.nn.sigmoid(jnp.abs(a)))


def leave_one_out(params: Any, key: jax.Array, args: tuple[Any, ...]) -> Gradient:
    """The gradient of the loss by the score function with two draws, each the baseline of the other."""
    y, a = _logits(params, args)
    h = (jax.random.uniform(key, (2, *a.shape)) < jax.nn.sigmoid(a)).astype(a.dtype)
    by_p, change = _two_draws(params, y, a, h)
    return _of_loss(y, by_p, 0.5 * change[:, None] * (h[0] - h[1]))


def _logits(params: Any, args: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
    y = args[0].astype(params["V"].dtype)
    return y, y @ params["V"] + params["c"]


def _two_draws(params: Any, y: jax.Array, a: jax.Array, h: jax.Array) -> tuple[Gradient, jax.Array]:
    """The gradient by the parameters of p, and f(h) − f(h') of each image, for draws on a leading axis of two."""
    prior, flat = params["prior"], h.reshape(-1, h.shape[-1])
    z = (flat @ params["W"] + params["b"]).reshape(2, *y.shape)
    f = jnp.sum(h * (prior - a), axis=-1) - jnp.sum(_softplus((1 - 2 * y) * z), axis=-1)
    by_z = y - jax.nn.sigmoid(z)
    mean = {"W": flat.T @ by_z.reshape(-1, y.shape[1]), "b": by_z.sum((0, 1)), "prior": flat.sum(0)}
    mean = jax.tree.map(lambda total: 0.5 * total, mean)
    return mean | {"prior": mean["prior"] - len(y) * jax.nn.sigmoid(prior)}, f[0] - f[1]


def _of_loss(y: jax.Array, by_p: Gradient, by_a: jax.Array) -> Gradient:
    return jax.tree.map(jnp.negative, by_p | {"V": y.T @ by_a, "c": by_a.sum(0)})


def _softplus(x: jax.Array) -> jax.Array:
    return jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x)))
