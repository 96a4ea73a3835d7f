"""Discrete latents summed out: legrad.marginalize, densities by hand, and NumPyro's enumeration with funsor.

    python benchmarks/marginalize.py [--problems NAME[;NAME...]] [--seconds 20] [--no-write]

Measured is one value and gradient of the potential that NUTS asks for, in float32, compiled, the data as constants.
All methods of a problem are timed in one process, in turns; medians are shown. The seconds to trace and compile and
the peak memory of each method are those of a process of its own. Before timing, values and gradients must agree.
Writes docs/results/marginalize.json and docs/marginalize_results.md; what did not run is left out and named.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from marginalize_models import PROBLEMS, Problem
from numpyro import handlers
from numpyro.infer.util import potential_energy, unconstrain_fn

import legrad

DOCS = Path(__file__).resolve().parent.parent / "docs"
AGREE = 2e-3  # of the largest entry; sums of 10^6 float32 terms


def methods(problem: Problem) -> dict[str, Callable[[Any], Any]]:
    """Return the potential of each method that is there, by name."""
    found = {f"hand: {name}": potential(model, problem.args) for name, model in problem.by_hand.items()}
    if hasattr(legrad, "marginalize"):
        found["legrad"] = potential(legrad.marginalize(problem.model), problem.args)
    if problem.funsor is not None:
        from numpyro.contrib.funsor import config_enumerate, enum

        model = enum(config_enumerate(problem.funsor), -problem.plates - 1)
        found["funsor"] = potential(model, problem.args, enumerated=True)
    return found


def potential(model: Callable[..., Any], args: tuple, enumerated: bool = False) -> Callable[[Any], Any]:
    """Return value and gradient of a model's potential in unconstrained space."""
    return jax.value_and_grad(lambda x: potential_energy(model, args, {}, x, enum=enumerated))


def start(problem: Problem) -> dict[str, jax.Array]:
    """Return a draw of the prior in unconstrained space."""
    model = next(iter(problem.by_hand.values()))
    trace = handlers.trace(handlers.seed(model, jax.random.key(1))).get_trace(*problem.args)
    values = {n: s["value"] for n, s in trace.items() if s["type"] == "sample" and not s["is_observed"]}
    return unconstrain_fn(model, problem.args, {}, values)


def memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def cell(name: str, method: str) -> dict[str, float]:
    """Compile and run one method in this process: seconds, and peak memory beside what was there before."""
    problem = PROBLEMS[name]()
    f, x = methods(problem)[method], start(problem)
    before = memory()
    begun = time.perf_counter()
    compiled = jax.jit(f).lower(x).compile()
    seconds = time.perf_counter() - begun
    for _ in range(3):
        jax.block_until_ready(compiled(x))
    return {"compile": seconds, "memory": memory(), "memory_before": before}


def turns(name: str, seconds: float) -> dict[str, Any]:
    """Time all methods of a problem in turns, after comparing what they compute."""
    problem = PROBLEMS[name]()
    x, compiled, failed = start(problem), {}, {}
    for method, f in methods(problem).items():
        try:
            compiled[method] = jax.jit(f).lower(x).compile()
        except Exception as error:
            failed[method] = f"{type(error).__name__}: {error}"[:300]
    reference, *others = compiled
    truth = jax.tree.leaves(compiled[reference](x))
    distance = {}
    for method in others:
        pairs = zip(jax.tree.leaves(compiled[method](x)), truth, strict=True)
        distance[method] = max(float(np.max(np.abs(a - b)) / max(1.0, np.max(np.abs(b)))) for a, b in pairs)
        if not distance[method] < AGREE:
            failed[method] = f"differs from {reference} by {distance[method]:.1e} of the largest entry"
            del compiled[method]
    times: dict[str, list[float]] = {method: [] for method in compiled}
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds or min(map(len, times.values())) < 7:
        for method, f in compiled.items():
            now = time.perf_counter()
            jax.block_until_ready(f(x))
            times[method].append(time.perf_counter() - now)
    medians = {method: float(np.median(each)) for method, each in times.items()}
    quartiles = {method: [float(q) for q in np.quantile(each, [0.25, 0.75])] for method, each in times.items()}
    return {
        "seconds": medians,
        "quartiles": quartiles,
        "runs": {method: len(each) for method, each in times.items()},
        "distance": distance,
        "failed": failed,
    }


def in_a_process(*options: str) -> dict[str, Any]:
    """Run one measurement in a process of its own."""
    done = subprocess.run([sys.executable, __file__, *options], capture_output=True, text=True)
    if done.returncode:
        return {
            "failed": {"process": done.stderr.strip().splitlines()[-1][:300] if done.stderr.strip() else "killed"}
        }
    return json.loads(done.stdout.splitlines()[-1])


def measure(name: str, seconds: float) -> dict[str, Any]:
    """Measure one problem: all methods in turns, then the set-up of each."""
    row = in_a_process("--turns", name, "--seconds", str(seconds))
    row["cells"] = {method: in_a_process("--cell", name, method) for method in row.get("seconds", {})}
    return row


def lines(name: str, row: dict[str, Any]) -> list[str]:
    """Write the rows of the table that a problem fills: its fastest form by hand, legrad, funsor."""
    seconds = row.get("seconds", {})
    hand = [method for method in seconds if method.startswith("hand")]
    if not hand:
        return []
    best = min(hand, key=seconds.__getitem__)
    written = []
    for method in (best, "legrad", "funsor", *(m for m in hand if m != best)):
        if method not in seconds:
            continue
        cell = row["cells"][method]
        setup = f"{cell['compile']:.1f} | {cell['memory']:,.0f}" if "compile" in cell else "– | –"
        written.append(
            f"| {name} | {method} | {1e3 * seconds[method]:.3g} | {seconds[method] / seconds[best]:.2f} | {setup} |"
        )
    return written


HEADER = ["| problem | method | ms | times the fastest by hand | compile s | peak MB |", "|---|---|---|---|---|---|"]


def page(results: dict[str, Any]) -> str:
    """Write the page of the results."""
    rows = [line for name, row in results["problems"].items() for line in lines(name, row)]
    failed = [
        f"- {name}, {method}: {reason}"
        for name, row in results["problems"].items()
        for method, reason in row.get("failed", {}).items()
    ]
    parts = [
        "# Discrete latents summed out: measured",
        "",
        "One value and gradient of the potential, float32, compiled; medians of runs in turns, in one process for",
        "each problem. Compile seconds and peak memory (of the whole process) are those of a process for each",
        "method. The first row of a problem is its fastest form by hand; others by hand follow last. Written",
        f"by `make bench-marginalize` on {results['machine']}, JAX {results['jax']};",
        f"processes that wanted a core, from begin to end: {results['load'][0]:.1f} to {results['load'][1]:.1f}.",
        "",
        *HEADER,
        *rows,
    ]
    if "legrad" not in {method for row in results["problems"].values() for method in row.get("seconds", {})}:
        parts += ["", "`legrad.marginalize` was not there when this was measured."]
    if failed:
        parts += ["", "What did not run, or did not agree:", "", *failed]
    return "\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", default=";".join(PROBLEMS), help="names, with ; between them")
    parser.add_argument("--seconds", type=float, default=20.0, help="of runs for each problem")
    parser.add_argument("--no-write", action="store_true", help="print the table only")
    parser.add_argument("--turns", metavar="PROBLEM", help=argparse.SUPPRESS)
    parser.add_argument("--cell", nargs=2, metavar=("PROBLEM", "METHOD"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.turns:
        print(json.dumps(turns(options.turns, options.seconds)))
        return
    if options.cell:
        print(json.dumps(cell(*options.cell)))
        return
    machine = f"{os.cpu_count()} cores, {platform.machine()}"
    results: dict[str, Any] = {
        "machine": machine,
        "jax": jax.__version__,
        "load": [os.getloadavg()[0]],
        "problems": {},
    }
    print("\n".join(HEADER), flush=True)
    for name in options.problems.split(";"):
        row = results["problems"][name] = measure(name, options.seconds)
        for line in lines(name, row) or [f"{name}: nothing ran"]:
            print(line, flush=True)
        for method, reason in row.get("failed", {}).items():
            print(f"  {method}: {reason}", flush=True)
    results["load"].append(os.getloadavg()[0])
    if not options.no_write:
        (DOCS / "results" / "marginalize.json").write_text(json.dumps(results, indent=1) + "\n")
        (DOCS / "marginalize_results.md").write_text(page(results))


if __name__ == "__main__":
    main()
