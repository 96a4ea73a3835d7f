"""Draws images/fit.png: a spike-and-slab regression, fitted from three starts until it is done."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import legrad

rng = np.random.default_rng(0)
X = jnp.asarray(rng.normal(size=(100, 10)))
y = X[:, 0] - 0.5 * X[:, 1] + 0.3 * X[:, 2] + 0.5 * jnp.asarray(rng.normal(size=100))


def model(X, y):
    with numpyro.plate("features", X.shape[1]):
        included = numpyro.sample("included", dist.Bernoulli(0.2))
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(X @ (included * slope), 0.5), obs=y)


result = legrad.fit(model, legrad.MeanField(model), args=(X, y), key=jax.random.key(0), stop="auto", restarts=3)
print(result.status)
print(result.diagnose(jax.random.key(1)))
result.plot(Path(__file__).parent / "images" / "fit.png")
