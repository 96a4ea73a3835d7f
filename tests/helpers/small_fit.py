"""A small fit that tests kill, resume and damage; run as a script it is one, for SIGKILL.

python small_fit.py FOLDER OUT [steps]
"""

import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import legrad

Y = jnp.asarray(np.random.default_rng(0).normal(size=8), jnp.float32)


def model(y):
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    with numpyro.plate("N", len(y)):
        z = numpyro.sample("z", dist.Bernoulli(0.3))
        numpyro.sample("y", dist.Normal(m + 2.0 * z, 1.0), obs=y)


def rows_model(x, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("rows", 64, subsample_size=8):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def rows():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(64, 3))
    return x, x @ [1.0, -1.0, 0.5] + rng.normal(size=64)


def fit(**settings):
    return legrad.fit(
        model, legrad.MeanField(model), args=(Y,), key=jax.random.key(0),
        **{"estimator": legrad.DisARM(2), "progress": False, **settings},
    )  # fmt: skip


def fit_rows(**settings):
    batches = legrad.Minibatches(*rows(), size=8)
    return legrad.fit(
        rows_model, legrad.MeanField(rows_model), data=batches, key=jax.random.key(0), progress=False, **settings
    )


def numbers(result):
    """All that must be the same, bit for bit."""
    leaves = [result.elbo, result.gradient_variance, *jax.tree.leaves((result.params, result.error))]
    return [np.asarray(leaf) for leaf in leaves]


def same(a, b):
    if len(a) != len(b):
        return False
    return all(x.dtype == y.dtype and np.array_equal(x, y, equal_nan=True) for x, y in zip(a, b, strict=True))


if __name__ == "__main__":
    folder, out = sys.argv[1:3]

    def slowly(snapshot):
        Path(f"{out}.begun").touch()
        time.sleep(0.01)  # so that there is time to be killed in

    result = fit_rows(
        checkpoint=folder, checkpoint_every=50, stop=legrad.AutoStop(tolerance=0.01), steps=3000, callback=slowly,
        callback_every=10,
    )  # fmt: skip
    np.savez(out, *numbers(result))
