"""Steps per second of `legrad.fit` against a jitted `numpyro.infer.SVI.update` in a Python loop, on a tiny model.

The same loss, optimizer and model on both sides, in turns; the time of compiling is taken out by the difference of a
long and a short fit. `make bench-overhead` prints the median ratio.
"""

import time

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.infer import SVI

import legrad

ROUNDS, LOOP, LONG = 5, 5_000, 400_000


def model():
    z = numpyro.sample("z", dist.Bernoulli(0.3))
    numpyro.sample("y", dist.Normal(2.0 * z, 1.0), obs=1.3)


def main():
    guide, estimator = legrad.MeanField(model), legrad.LocalExpectation()
    svi = SVI(model, guide, optax.adam(1e-2), loss=estimator)
    state, update = svi.init(jax.random.key(0)), jax.jit(svi.update)
    state, _ = update(state)

    def fit(steps):
        settings = {"estimator": estimator, "optimizer": optax.adam(1e-2), "progress": False}
        return legrad.fit(model, guide, key=jax.random.key(0), steps=steps, **settings).seconds

    rows = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        for _ in range(LOOP):
            state, loss = update(state)
        jax.block_until_ready(loss)
        python = LOOP / (time.perf_counter() - begun)
        ours = LONG / (fit(LONG + 10) - fit(10))
        rows.append((python, ours, ours / python))
    python, ours, ratio = np.median(rows, axis=0)
    print(f"JAX {jax.__version__}: SVI.update in a loop {python:,.0f} steps/s, legrad.fit {ours:,.0f} steps/s")
    print(f"median ratio of {ROUNDS} rounds: {ratio:.1f}")


if __name__ == "__main__":
    main()
