"""The problems of the peers table whose latents are all continuous: reparameterization is the peer there."""

from __future__ import annotations

import data
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from estimators import LEGRAD
from row import Peer
from warm import warmed

from legrad.experiments.gaussian import covariance


def _normals(site: str, n: int, log_scale: float):
    """A guide with a Normal factor for each element of one site."""

    def guide(*_):
        loc = numpyro.param("loc", jnp.zeros(n))
        width = numpyro.param("log_scale", jnp.full(n, log_scale))
        numpyro.sample(site, dist.Normal(loc, jnp.exp(width)).to_event(1))

    return guide


def logistic(small: bool = False) -> Peer:
    """Bayesian logistic regression on two digits, 12660x785 at full size, 85% of it zeros."""
    X, y = data.ones_and_sixes(small)

    def model(X: jax.Array, y: jax.Array) -> None:
        w = numpyro.sample("w", dist.Normal(jnp.zeros(X.shape[1]), 1.0).to_event(1))
        with numpyro.plate("examples", len(y)):
            numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)

    guide = _normals("w", X.shape[1], np.log(0.1))
    rate, steps = 0.05, 30
    return Peer(
        "logistic",
        f"logistic regression, {X.shape[0]:,} × {X.shape[1]}",
        model,
        guide,
        (X, y),
        warmed(model, guide, (X, y), 0 if small else 15, rate),
        {"w": "Normal"},
        rate,
        steps,
        focus={"log scales": ("log_scale",)},
        hand={LEGRAD: data.by_hand("logistic_numpyro")},
    )


def _gaussian(name: str, n: int, small: bool) -> Peer:
    precision = jnp.asarray(np.linalg.inv(covariance(n)), float)

    def model(precision: jax.Array) -> None:
        x = numpyro.sample("x", dist.ImproperUniform(dist.constraints.real_vector, (), (n,)))
        r = x - 2.0
        numpyro.factor("target", -0.5 * r @ precision @ r)

    guide, rate, steps = _normals("x", n, 0.0), 0.02, 1000 if n <= 100 else 300
    return Peer(
        name,
        f"Gaussian given its precision, n = {n:,}",
        model,
        guide,
        (precision,),
        warmed(model, guide, (precision,), 0 if small else steps // 2, rate),
        {"x": "Normal"},
        rate,
        steps,
        focus={"means": ("loc",)},
    )


def gaussian_100(small: bool = False, size: int | None = None) -> Peer:
    """The paper's correlated Gaussian and a factorized guide."""
    return _gaussian("gaussian_100", size or (12 if small else 100), small)


def gaussian_1000(small: bool = False) -> Peer:
    """The same on a finer grid."""
    return _gaussian("gaussian_1000", 20 if small else 1000, small)
