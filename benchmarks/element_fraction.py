"""A random share of the elements each step, on latents that are many: a grid of spins and a mixture of many points.

    python benchmarks/element_fraction.py [--side 1000] [--points 10000000] [--fractions 1,0.1] [--seconds 60]

Each fit runs in a process of its own, for a time that is the same for all. The table shows the time of a step, the
memory of the process, the steps, and the ELBO of the first step and of the last tenth of all. The grid is Ising's
with noisy observations, the mixture has 8 components of known weights and unknown means.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
import warnings
from typing import Any

import jax
import numpy as np
import optax
from growth import ising, mixture

import legrad

PROBLEMS = {"ising": ising, "mixture": mixture}


def measure(problem: str, n: int, fraction: float, seconds: float) -> dict[str, Any]:
    """One fit in this process."""
    model, args = PROBLEMS[problem](n)
    begun = time.perf_counter()
    result = legrad.fit(
        model, legrad.MeanField(model), args=args, key=jax.random.key(0), seconds=seconds, steps=100_000,
        estimator=legrad.LocalExpectation(element_fraction=fraction), optimizer=optax.adam(0.1), progress=False,
    )  # fmt: skip
    total = time.perf_counter() - begun
    done, at = result.clock.T
    each = (np.diff(at) / np.diff(done))[1:]  # the first chunk's time is that of compiling
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    last = result.elbo[-max(1, len(result.elbo) // 10) :]
    return {
        "step": float(np.median(each)), "memory": memory, "steps": result.steps, "elbo": float(np.mean(last)) / n,
        "first": float(result.elbo[0]) / n, "setup": total - (at[-1] - at[1]),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=1000)
    parser.add_argument("--points", type=int, default=10_000_000)
    parser.add_argument("--fractions", default="1,0.1")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--one", nargs=3, metavar=("PROBLEM", "N", "FRACTION"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        warnings.simplefilter("ignore")
        problem, n, fraction = options.one
        print(json.dumps(measure(problem, int(n), float(fraction), options.seconds)))
        return
    print(
        "| problem | elements | fraction | ms per step | memory GB | steps | ELBO per element, first | at the end |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for problem, n in (("ising", options.side**2), ("mixture", options.points)):
        for fraction in options.fractions.split(","):
            command = [
                sys.executable,
                __file__,
                "--seconds",
                str(options.seconds),
                "--one",
                problem,
                str(n),
                fraction,
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                print(f"| {problem} | {n:,} | {fraction} | did not finish: {done.stderr.strip().splitlines()[-1:]} |")
                continue
            row = json.loads(done.stdout.splitlines()[-1])
            numbers = f"{1e3 * row['step']:.0f} | {row['memory']:.1f} | {row['steps']:,}"
            elbos = f"{row['first']:.4f} | {row['elbo']:.4f}"
            print(f"| {problem} | {n:,} | {fraction} | {numbers} | {elbos} |", flush=True)


if __name__ == "__main__":
    main()
