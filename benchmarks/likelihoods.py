"""One-element changes of four likelihoods: by their own form, by NumPyro's, and by hand.

    python benchmarks/likelihoods.py [--rounds 9]      (make bench-likelihoods)

Regression with N rows and P weights (P × C for C classes), five candidates for each weight, in float32. The ways take
turns, and the table shows medians: milliseconds for all changes, nanoseconds for each (row, weight, candidate), and
how many times as long as by hand, and as a value and gradient of the likelihood.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import legrad
from legrad.diagnostics.timing import interleaved_seconds
from legrad.distributions import densities

N, P, C = 5_000, 40, 6
rng = np.random.default_rng(0)
X = jnp.asarray(rng.normal(size=(N, P)), jnp.float32)
STEPS = jnp.asarray(0.1 * np.polynomial.hermite_e.hermegauss(5)[0], jnp.float32)


class Likelihood(NamedTuple):
    """A distribution of data given the linear predictor, the data, and the changes of log p by hand."""

    of: Callable[[jax.Array], Any]
    data: jax.Array
    hand: Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
    shape: tuple[int, ...] = (P,)


def _by_rows(term: Callable[[jax.Array, jax.Array], jax.Array]) -> Callable[..., jax.Array]:
    """Changes of a sum over rows of term(z, y), written out."""

    def hand(w: jax.Array, d: jax.Array, y: jax.Array) -> jax.Array:
        z = X @ w
        return jnp.sum(term(z + d[..., None] * X.T, y) - term(z, y), axis=-1)

    return hand


def _normal(w: jax.Array, d: jax.Array, y: jax.Array) -> jax.Array:
    return d * ((y - X @ w) @ X) - 0.5 * d**2 * jnp.sum(X**2, axis=0)


def _poisson(w: jax.Array, d: jax.Array, y: jax.Array) -> jax.Array:
    z = X @ w
    return d * (y @ X) - jnp.sum(jnp.exp(z + d[..., None] * X.T) - jnp.exp(z), axis=-1)


def _categorical(w: jax.Array, d: jax.Array, y: jax.Array) -> jax.Array:
    z = X @ w
    p = jax.nn.softmax(z, axis=1)
    change = jnp.exp(d[..., None] * X.T[:, None])  # e^Δ, for every row of every weight
    logs = jnp.log1p(p.T * (change - 1))
    return d * (X.T @ jax.nn.one_hot(y, C)) - jnp.sum(logs, axis=-1)


PROBLEMS = {
    "Normal": Likelihood(lambda z: dist.Normal(z, 1.0), jnp.asarray(rng.normal(size=N), jnp.float32), _normal),
    "Bernoulli logits": Likelihood(
        lambda z: dist.Bernoulli(logits=z),
        jnp.asarray(rng.integers(0, 2, N), jnp.float32),
        _by_rows(lambda z, y: y * z - densities.softplus(z)),
    ),
    "Poisson": Likelihood(lambda z: dist.Poisson(jnp.exp(z)), jnp.asarray(rng.poisson(1.0, N)), _poisson),
    "Categorical logits": Likelihood(
        lambda z: dist.Categorical(logits=z), jnp.asarray(rng.integers(0, C, N)), _categorical, (P, C)
    ),
}


def measure(name: str, rounds: int) -> str:
    """A line of the table."""
    problem = PROBLEMS[name]
    w = jnp.asarray(0.1 * rng.normal(size=problem.shape), jnp.float32)
    d = jnp.broadcast_to(STEPS.reshape(-1, *(1,) * w.ndim), (len(STEPS), *w.shape))

    def changes(log_prob: Callable[[Any, jax.Array], jax.Array]) -> Callable[..., jax.Array]:
        def run(w: jax.Array, d: jax.Array, _: jax.Array) -> jax.Array:  # data are known while planning, as in `fit`
            return legrad.single_site_differences(lambda w: log_prob(problem.of(X @ w), problem.data), w, w + d)

        return run

    ways = {
        "ours": changes(densities.log_prob),
        "NumPyro's": changes(lambda fn, y: fn.log_prob(y)),
        "hand": problem.hand,
        "gradient": lambda w, d, y: jax.value_and_grad(lambda w: jnp.sum(problem.of(X @ w).log_prob(y)))(w),
    }
    compiled = {way: jax.jit(run).lower(w, d, problem.data).compile() for way, run in ways.items()}
    results = {way: run(w, d, problem.data) for way, run in compiled.items() if way != "gradient"}
    for way, found in results.items():  # sums of N numbers in float32
        np.testing.assert_allclose(found, results["hand"], rtol=1e-3, atol=0.05, err_msg=f"{name}, {way}")
    calls = {way: lambda run=run: jax.block_until_ready(run(w, d, problem.data)) for way, run in compiled.items()}
    took = interleaved_seconds(calls, rounds)
    each = 1e9 * took["ours"] / (N * d.size)
    ratios = [took["ours"] / took["hand"], took["ours"] / took["gradient"], took["NumPyro's"] / took["ours"]]
    cells = [name, f"{1e3 * took['ours']:.3g}", f"{each:.2f}", *(f"{ratio:.2f}" for ratio in ratios)]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    print("| likelihood | ms | ns each | / by hand | / value and gradient | NumPyro's form / ours |")
    print("|---|---|---|---|---|---|")
    for name in PROBLEMS:
        print(measure(name, rounds), flush=True)


if __name__ == "__main__":
    main()
