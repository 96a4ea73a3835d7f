"""How the cost of a fit grows with its latents: a step, setting up, and memory, from 10^4 to 10^6 elements.

    python benchmarks/growth.py [--problems mixture,ising,chain] [--sizes 10000,1000000] [--json FILE]

Each problem and size is fitted in a process of its own, so that its memory is its own. Setting up is what a fit takes
beyond its steps: tracing, planning and compiling. A step is the median over chunks of compiled steps. The last two
columns compare with the smallest size: a step per element, which is 1 where cost grows as the work does, and set-up.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import legrad

SIZES = (10_000, 100_000, 1_000_000)
STEP_LIMIT, SETUP_LIMIT = 1.5, 2.0
SECONDS = 15.0  # of steps


def mixture(n: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Which of 8 components each of n points comes from."""
    rng = np.random.default_rng(6)
    y = jnp.asarray(3.0 * rng.integers(0, 8, n) + rng.normal(size=n), float)

    def model(y: jax.Array) -> None:
        mu = numpyro.sample("mu", dist.Normal(jnp.full(8, 10.0), 10.0).to_event(1))
        with numpyro.plate("data", len(y)):
            z = numpyro.sample("z", dist.Categorical(jnp.full(8, 1 / 8)))
            numpyro.sample("y", dist.Normal(mu[z], 1.0), obs=y)

    return model, (y,)


def ising(n: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A grid of about n spins, each seen with noise."""
    side = round(n**0.5)
    y = jnp.asarray(np.random.default_rng(0).normal(size=(side, side)) + 0.5, float)

    def model(y: jax.Array) -> None:
        with numpyro.plate("rows", side, dim=-2), numpyro.plate("columns", side, dim=-1):
            z = numpyro.sample("z", dist.Bernoulli(0.5))
            s = 2.0 * z - 1.0
            numpyro.sample("y", dist.Normal(s, 1.0), obs=y)
        numpyro.factor("pairs", 0.3 * (jnp.sum(s[1:] * s[:-1]) + jnp.sum(s[:, 1:] * s[:, :-1])))

    return model, (y,)


def chain(n: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A hidden Markov chain of n states, each of four values."""
    y = jnp.asarray(np.random.default_rng(0).normal(size=n), float)
    log_p = jnp.log(jnp.full((4, 4), 0.1) + 0.6 * jnp.eye(4))

    def model(y: jax.Array) -> None:
        with numpyro.plate("time", len(y)):
            z = numpyro.sample("z", dist.Categorical(jnp.full(4, 0.25)))
            numpyro.sample("y", dist.Normal(jnp.arange(4.0)[z], 1.0), obs=y)
        numpyro.factor("steps", log_p[z[:-1], z[1:]])

    return model, (y,)


PROBLEMS = {"mixture": mixture, "ising": ising, "chain": chain}


def measure(problem: str, n: int) -> dict[str, float]:
    """One fit in this process."""
    model, args = PROBLEMS[problem](n)
    begun = time.perf_counter()
    result = legrad.fit(model, legrad.MeanField(model), args=args, key=jax.random.key(0), seconds=SECONDS)
    total = time.perf_counter() - begun
    done, seconds = result.clock.T
    each = np.diff(seconds) / np.diff(done)
    step = float(np.median(each[len(each) // 2 :]))  # the first chunk's time is that of compiling
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"n": n, "step": step, "setup": total - (seconds[-1] - seconds[1]), "memory": memory}


def in_a_process(problem: str, n: int) -> dict[str, float]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--one", problem, "--sizes", str(n)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", default=",".join(PROBLEMS))
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--one", metavar="PROBLEM", help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = [int(n) for n in options.sizes.split(",")]
    if options.one:
        print(json.dumps(measure(options.one, sizes[0])))
        return
    print(
        "| problem | elements | ms per step | set-up s | memory MB | step per element, relative | set-up, relative |"
    )
    print("|---|---|---|---|---|---|---|")
    rows = {}
    for problem in options.problems.split(","):
        rows[problem] = found = [in_a_process(problem, n) for n in sizes]
        for row in found:
            growth = row["step"] / row["n"] / (found[0]["step"] / found[0]["n"])
            setup = row["setup"] / found[0]["setup"]
            print(
                f"| {problem} | {row['n']:,} | {1e3 * row['step']:.3g} | {row['setup']:.1f} | {row['memory']:,.0f} "
                f"| {growth:.2f} ({STEP_LIMIT} allowed) | {setup:.2f} ({SETUP_LIMIT} allowed) |",
                flush=True,
            )
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
