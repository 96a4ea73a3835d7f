"""Weak and strong scaling of a step, measured on the cores of this machine and modelled beyond them.

    python benchmarks/scaling.py [--seconds 10] [--problems logistic,mixture] [--json docs/results/scaling.json]

Every process has a core of its own and one device; processes meet by `jax.distributed` on loopback (Gloo). The model:

    step(N, P) = a + b N / P + c log2 P + G / B       N rows or members, P processes, G bytes added up

with a and b from one process at two sizes, and c and B from sums over two processes. A row measured beside its
model is a check of the model, as two processes are not among what the model is made from.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SIZES = {"logistic": (50_000, 200_000), "mixture": (50_000, 200_000)}
BEYOND = (8, 64, 512)
COLUMNS, COMPONENTS = 50, 8
NUMBERS = 5  # for each parameter of a member: value, gradient, Adam's two moments, update
LATENCY, BANDWIDTH = 50e-6, 10e9  # of a data centre's network: seconds for a doubling of processes, bytes a second


def problem(name: str, n: int) -> tuple[Any, Any]:
    """Return a model and its arguments: rows that share latents, or members with a latent each."""
    import growth
    import jax.numpy as jnp
    import numpy as np
    import numpyro
    import numpyro.distributions as dist

    if name == "mixture":
        return growth.mixture(n)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, COLUMNS), np.float32)
    y = (X.sum(1) + rng.standard_normal(n) > 0).astype(np.float32)

    def model(X: Any, y: Any) -> None:
        w = numpyro.sample("w", dist.Normal(jnp.zeros(COLUMNS), 1.0).to_event(1))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)

    return model, (X, y)


def measure(name: str, n: int, seconds: float) -> dict[str, Any]:
    """Return the seconds of a step of one fit in this process, and the process's memory."""
    import jax
    import numpy as np

    import legrad

    model, args = problem(name, n)
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    result = legrad.fit(
        model, legrad.MeanField(model), args=args, key=0, seconds=seconds, steps=100_000, mesh=mesh, progress=False,
        estimator=legrad.LocalExpectation(),
    )  # fmt: skip
    done, at = result.clock.T
    each = (np.diff(at) / np.diff(done))[1:]
    status = Path("/proc/self/status").read_text().splitlines()
    memory = next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) / 1024
    return {"step": float(np.median(each)), "memory": memory}


def sums(seconds: float) -> dict[str, Any]:
    """Return the seconds of a sum over processes, for a few numbers of bytes."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    found = {}
    for size in (1, 1 << 18, 1 << 22):
        sharding = NamedSharding(mesh, PartitionSpec("data"))
        x = jax.make_array_from_callback(
            (jax.device_count(), size), sharding, lambda i, size=size: np.ones((1, size), np.float32)
        )
        whole = NamedSharding(mesh, PartitionSpec())
        add = jax.jit(lambda x: jnp.sum(x, 0), out_shardings=whole)
        jax.block_until_ready(add(x))
        times = []
        for _ in range(20):
            begun = time.perf_counter()
            jax.block_until_ready(add(x))
            times.append(time.perf_counter() - begun)
        found[str(4 * size)] = float(np.median(times))
    return found


def run(processes: int, *what: str) -> dict[str, Any]:
    """Measure in processes of their own, each with a core; return what process 0 found."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, __file__, "--part"]
    parts = [
        subprocess.Popen([*command, str(processes), str(i), str(port), *what], stdout=subprocess.PIPE, text=True)
        for i in range(processes)
    ]
    said = [part.communicate()[0] for part in parts]
    if any(part.returncode for part in parts):
        raise SystemExit(f"{what} with {processes} processes ended with {[part.returncode for part in parts]}")
    return json.loads(said[0].splitlines()[-1])


def part(processes: int, process: int, port: str, what: str, *given: str) -> None:
    """One of the processes."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[process % len(cores)]})
    warnings.simplefilter("ignore")
    import jax

    if processes > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{port}", processes, process)
    found = sums(float(given[0])) if what == "sums" else measure(what, int(given[0]), float(given[1]))
    print(json.dumps(found), flush=True)


def fitted(one: dict[int, dict[str, Any]]) -> tuple[float, float]:
    """Return a and b from the steps of one process at two sizes."""
    (n, small), (m, large) = sorted(one.items())
    b = max(0.0, (large["step"] - small["step"]) / (m - n))
    return max(0.0, small["step"] - b * n), b


def table(found: dict[str, Any]) -> str:
    """Return the tables as Markdown."""
    sum_times = {int(k): v for k, v in found["sums"].items()}
    (least, c), *_, (most, long) = sorted(sum_times.items())
    per_byte = max(0.0, (long - c) / (most - least))
    lines = []
    for name, rows in found["problems"].items():
        one = {int(n): row for n, row in rows["1"].items()}
        a, b = fitted(one)
        shared = 4 * (2 * COLUMNS if name == "logistic" else 16)

        small, large = min(one), max(one)
        lines += [f"**{name}**, a = {1e3 * a:.2f} ms, b = {1e9 * b:.1f} ns a row or member", ""]
        lines += ["| | processes | size | step, ms | efficiency | |", "|---|---|---|---|---|---|"]
        for kind, p in [(kind, p) for kind in ("strong", "weak") for p in (1, 2, *BEYOND)]:
            size, base = (large, one[large]["step"]) if kind == "strong" else (small * p, one[small]["step"])
            added = c * max(1.0, p.bit_length() - 1.0) + per_byte * shared if p > 1 else 0.0
            modelled, row = a + b * size / p + added, rows.get(str(p), {}).get(str(size))
            step = modelled if row is None else row["step"]
            gain = base / step / (p if kind == "strong" else 1)
            beside = "" if row is None or p == 1 else f"; the model says {1e3 * modelled:.2f} ms"
            mark = "modelled" if row is None else f"measured{beside}"
            lines.append(f"| {kind} | {p} | {size:,} | {1e3 * step:.2f} | {gain:.2f} | {mark} |")
        lines.append("")
    lines.append(
        f"A sum over two processes takes {1e3 * c:.2f} ms for {least} bytes and {1e3 * long:.1f} ms for "
        f"{most / 2**20:.0f} MB (loopback)."
    )
    return "\n".join(lines)


def beyond(found: dict[str, Any]) -> str:
    """Return the cost model of sizes that no machine here holds, as Markdown; nothing in it was measured but b."""
    lines = [
        "| | size | processes | step | memory of a process | added up over processes |",
        "|---|---|---|---|---|---|",
    ]
    cases = [("logistic", 10**9, p) for p in (64, 512)] + [("mixture", 10**8, p) for p in (8, 64)]
    for name, n, p in [case for case in cases if case[0] in found["problems"]]:
        b = fitted({int(size): row for size, row in found["problems"][name]["1"].items()})[1]
        each = 4 * (COLUMNS + 1) if name == "logistic" else 4 * (1 + NUMBERS * COMPONENTS)
        added = 4 * (2 * COLUMNS if name == "logistic" else 2 * COMPONENTS)
        step = b * n / p + LATENCY * (p.bit_length() - 1) + added / BANDWIDTH
        lines.append(f"| {name} | {n:,} | {p} | {step:.2f} s | {n / p * each / 2**30:.2f} GB | {added} bytes |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each fit")
    parser.add_argument("--json", type=Path, default=ROOT / "docs" / "results" / "scaling.json")
    parser.add_argument("--problems", default=",".join(SIZES))
    parser.add_argument("--part", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        processes, process, *rest = options.part
        part(int(processes), int(process), *rest)
        return
    found: dict[str, Any] = {"sums": run(2, "sums", "1"), "problems": {}}
    for name in options.problems.split(","):
        small, large = SIZES[name]
        rows: dict[str, Any] = {"1": {}, "2": {}}
        for processes, sizes in ((1, (small, large)), (2, (2 * small, large))):
            for n in sizes:
                rows[str(processes)][str(n)] = run(processes, name, str(n), str(options.seconds))
        found["problems"][name] = rows
    options.json.write_text(json.dumps(found, indent=1) + "\n")
    print(table(found), beyond(found), sep="\n\n")


if __name__ == "__main__":
    main()
