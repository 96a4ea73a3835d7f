"""Digits that are lost before a choice, a product of two changes, an order or a threshold, against brute force.

In each program the first element holds a large row and is switched off: what is left has no digits in base + change.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import legrad
from legrad.singlesite import accuracy
from legrad.singlesite.digits import Digits

pytestmark = pytest.mark.usefixtures("strict_ranks")

N = 4000
RNG = np.random.default_rng(0)
REST = np.abs(RNG.normal(size=(7, N))) * 1e-3 + 1e-4
Z = np.array([1, 1] + [0] * 6)
TABLE, Y = RNG.normal(size=(N // 4, 4)), RNG.normal(size=N)
SIGNS = np.stack([-np.ones(N), np.ones(N)] + [np.zeros(N)] * 6)
NEAR_512 = np.concatenate([RNG.uniform(511.01, 511.99, (1, N)), np.ones((7, N))])
GAIN = np.concatenate([np.full((1, N), 900.3), np.full((7, N), 1e-4)])


def below(first):
    return np.concatenate([np.full((1, N), first) * RNG.uniform(0.5, 1, (1, N)), REST])


W9, W5 = below(1e9), below(1e5)


def picked(index):
    return jnp.take_along_axis(jnp.asarray(TABLE, jnp.float32), index[:, None], 1)


def rows(s):
    return s.reshape(-1, 4)


# Each takes z as numbers, and a function that multiplies z with a matrix of its own precision.
PROGRAMS = {
    "a choice by the element itself": lambda z, dot: jnp.where(z[0] == 1, 0.0, dot(W9)),
    "a look-up by the element itself": lambda z, dot: jnp.stack([dot(W9), 0 * dot(W9)])[z[0].astype(int)],
    "a product of two sums": lambda z, dot: dot(W9) * dot(SIGNS),
    "a gated residual": lambda z, dot: -0.5 * dot(SIGNS) * (1 - dot(W5)) ** 2,
    "a contraction of two sums": lambda z, dot: jnp.dot(dot(W5), dot(SIGNS)),
    "a square at a threshold": lambda z, dot: jnp.where(dot(W9) ** 2 > 1e-9, 1.0, -1.0),
    "jnp.square at a threshold": lambda z, dot: jnp.where(jnp.square(dot(W9)) > 1e-9, 1.0, -1.0),
    "a distance at a threshold": lambda z, dot: jnp.where(jnp.abs(dot(NEAR_512) - 1) < 1e-6, Y, 0),
    "a maximum that is compared": lambda z, dot: jnp.where(jnp.maximum(dot(NEAR_512), 1) == 1, Y, 0),
    "a remainder": lambda z, dot: dot(NEAR_512) % 1.0 * Y,
    "the largest of four": lambda z, dot: picked(jnp.argmax(rows(dot(NEAR_512)), 1)),
    "the order of four": lambda z, dot: jnp.argsort(rows(dot(NEAR_512)), 1) * TABLE,
    "a binary search": lambda z, dot: jnp.asarray(TABLE[:, 0])[jnp.searchsorted(jnp.arange(9.0), dot(NEAR_512))],
    "a gain after a nonlinearity": lambda z, dot: (
        dist.Bernoulli(logits=1e4 * jnp.tanh(dot(GAIN))).log_prob(jnp.ones(N)) / N
    ),
}


def error(name):
    """How far the differences in float32 are from those in float64 by brute force, and how far they may be."""

    def f(dtype, z):
        return PROGRAMS[name](z.astype(dtype), lambda matrix: z.astype(dtype) @ jnp.asarray(matrix, dtype))

    found = {}
    for method, dtype in (("auto", jnp.float32), ("brute", jnp.float32), ("brute", jnp.float64)):
        run = jax.jit(
            lambda z, method=method, dtype=dtype: legrad.single_site_differences(
                lambda z: f(dtype, z), z, jnp.array([[0], [1]]), method
            )
        )
        found[method, dtype] = np.asarray(run(jnp.asarray(Z, jnp.int32)), float)
    exact = found["brute", jnp.float64]
    allowed = np.maximum(4 * np.abs(found["brute", jnp.float32] - exact), 1e-3 * (1 + np.abs(exact)))
    return np.abs(found["auto", jnp.float32] - exact), allowed


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_accurate_as_brute_force(name):
    off, allowed = error(name)
    assert np.all(off <= allowed)


@pytest.mark.parametrize(
    ("name", "target", "fault"),
    [
        ("a choice by the element itself", (accuracy, "_CHOOSERS"), {}),
        ("a product of two sums", (Digits, "flag_lost"), lambda self, change, base: None),
        ("the largest of four", (accuracy, "EXACT"), accuracy.DIFFERENCES),
        ("a square at a threshold", (accuracy, "_for_threshold"), lambda *_: accuracy.DIFFERENCES),
    ],
)
def test_without_the_mechanism_they_are_wrong(name, target, fault, monkeypatch):
    monkeypatch.setattr(*target, fault)
    off, allowed = error(name)
    assert np.any(off > allowed)
