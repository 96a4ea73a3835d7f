"""A sigmoid belief net with one layer of binary units, its recognition model, and how it is judged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers

UNITS = 200


class Net:
    """p(x) p(y | x) with learned prior logits, and q(x | y).

    Args:
        Y: the training images, for the bias of the pixels and the mean that the recognition model takes off.
        signs: whether the units count as −1 and 1 in the products, and not as 0 and 1.
        units: how many.
    """

    def __init__(self, Y: np.ndarray, signs: bool = True, units: int = UNITS) -> None:
        self.mean, self.signs, self.units = np.asarray(Y.mean(axis=0), np.float32), signs, units
        self.rows = len(Y)
        self.bound = jax.jit(self._bound, static_argnames="samples")

    @contextmanager
    def images(self, y: jax.Array) -> Iterator[None]:
        """The plate, without its scale: TraceGraph_ELBO would scale the scores with it as well."""
        with numpyro.plate("images", self.rows, subsample_size=len(y)), handlers.scale(scale=len(y) / self.rows):
            yield

    def model(self, y: jax.Array) -> None:
        """The images y, a minibatch."""
        pixels, mean = y.shape[1], np.clip(self.mean, 0.01, 0.99)
        W = numpyro.param("W", partial(_uniform, shape=(self.units, pixels)))
        b = numpyro.param("b", jnp.asarray(np.log(mean / (1 - mean))))
        prior = numpyro.param("prior", jnp.zeros(self.units))
        with self.images(y):
            x = numpyro.sample("x", dist.Bernoulli(logits=prior).to_event(1))
            x = 2.0 * x - 1.0 if self.signs else x
            numpyro.sample("y", dist.Bernoulli(logits=x @ W + b).to_event(1), obs=y)

    def guide(self, y: jax.Array) -> None:
        """The recognition model: one linear layer."""
        V = numpyro.param("V", partial(_uniform, shape=(y.shape[1], self.units)))
        c = numpyro.param("c", jnp.zeros(self.units))
        with self.images(y):
            numpyro.sample("x", dist.Bernoulli(logits=2.0 * (y - self.mean) @ V + c).to_event(1))

    def _bound(self, key: jax.Array, params: Any, y: jax.Array, samples: int) -> jax.Array:
        """The bound of each image by importance weights; of one sample it is the ELBO."""
        logits = 2.0 * (y - self.mean) @ params["V"] + params["c"]

        def weight(key: jax.Array) -> jax.Array:
            x = jax.random.bernoulli(key, jax.nn.sigmoid(logits)).astype(logits.dtype)
            s = 2.0 * x - 1.0 if self.signs else x
            p = _log_p(params["prior"], x) + _log_p(s @ params["W"] + params["b"], y)
            return p - _log_p(logits, x)

        return jax.nn.logsumexp(jax.lax.map(weight, jax.random.split(key, samples)), axis=0) - jnp.log(samples)

    def judge(self, key: jax.Array, params: Any, Y: np.ndarray, samples: int = 1, size: int = 1000) -> float:
        """The mean bound over images."""
        parts = [Y[i : i + size].astype(np.float32) for i in range(0, len(Y), size)]
        keys = jax.random.split(key, len(parts))
        bounds = [self.bound(k, params, part, samples) for k, part in zip(keys, parts, strict=True)]
        return float(np.mean(np.concatenate(bounds)))


def _uniform(key: jax.Array, shape: tuple[int, int]) -> jax.Array:
    limit = (6.0 / sum(shape)) ** 0.5
    return jax.random.uniform(key, shape, minval=-limit, maxval=limit)


def _log_p(logits: jax.Array, value: jax.Array) -> jax.Array:
    return -jax.nn.softplus((1 - 2 * value) * logits).sum(axis=-1)
