"""The statistical check: |mean − exact| ≤ 5 standard errors + 1e-6·‖exact‖ for every component."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import jax
import numpy as np

import legrad
from catalogue import named

ESTIMATORS = {
    "local": legrad.LocalExpectation,
    "score": lambda: legrad.ScoreFunction(4),
    "leave_one_out": lambda: legrad.ScoreFunction(4, baseline="leave_one_out"),
    "disarm": legrad.DisARM,
    "reparam": lambda: legrad.Reparameterized(4),
}


@contextmanager
def optimized(wanted=True):
    """Compile well: worth it for a program that runs for a million draws, or for a long fit."""
    jax.config.update("jax_disable_most_optimizations", not wanted)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", True)


def flat(tree):
    """All components of a gradient in one vector."""
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


class Estimate(NamedTuple):
    mean: np.ndarray
    error: np.ndarray  # standard error of the mean
    draws: int

    def agrees(self, exact):
        return bool(np.all(np.abs(self.mean - exact) <= 5 * self.error + 1e-6 * np.linalg.norm(exact)))

    def detectable(self, exact):
        """The smallest relative bias of one component that the check surely catches, and that component.

        A bias of twice the slack is caught whatever the noise did, as long as the noise alone stays within it.
        """
        slack = 5 * self.error + 1e-6 * np.linalg.norm(exact)
        sizes = 2 * slack / np.maximum(np.abs(exact), 1e-300)
        return float(sizes.min()), int(sizes.argmin())


def draw_until(gradient, exact, wanted, batch=1 << 15, most=200):
    """Average gradients of fresh keys until a relative bias of `wanted` in one component could be seen."""
    many = jax.jit(lambda keys: jax.vmap(gradient)(keys))
    total, squares, count = 0.0, 0.0, 0
    for i in range(most):
        draws = many(jax.random.split(jax.random.key(100 + i), batch))
        draws = np.concatenate([np.reshape(leaf, (batch, -1)) for leaf in jax.tree.leaves(draws)], axis=1)
        assert np.isfinite(draws).all(), "a gradient is not finite"
        centred = draws - exact  # so that squares do not lose the variance
        total, squares, count = total + centred.sum(0), squares + (centred**2).sum(0), count + batch
        mean = total / count
        variance = np.maximum(squares / count - mean**2, 0.0)
        estimate = Estimate(exact + mean, np.sqrt(variance / count), count)
        if estimate.detectable(exact)[0] <= wanted:
            break
    return estimate


def gradient_of(estimator, row):
    """One draw of an estimator's gradient on a row of the catalogue."""

    def one(key):
        return jax.grad(lambda p: estimator.loss(key, p, row.model, row.guide, *row.args))(row.params)

    return one


def estimator_for(row, name):
    """An estimator by its name, with the settings that the row wants."""
    return legrad.LocalExpectation(**row.local) if name == "local" else ESTIMATORS[name]()


@cache
def exact_gradient(name):
    """The exact gradient of a row of the catalogue, by its name."""
    row = named(name)
    return flat(jax.jit(jax.grad(row.loss))(row.params))
