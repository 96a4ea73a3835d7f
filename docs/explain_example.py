"""The example of `explain` in single_site.md: a regression, and a chain of switches that turn its residuals off."""

import jax
import jax.numpy as jnp
import numpy as np

import legrad

X = np.random.default_rng(0).normal(size=(1000, 50))


def f(x):
    residual = X @ x["w"]
    weight = jax.nn.sigmoid(x["on"])
    coupled = x["on"][1:] * x["on"][:-1]
    return -jnp.sum(weight * residual**2) + jnp.sum(coupled)


if __name__ == "__main__":
    print(legrad.explain(f, {"w": jnp.zeros(50), "on": jnp.zeros(1000)}))
