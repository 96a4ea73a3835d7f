"""A fit on data that are larger than the memory it may use: 10 million rows of 50 columns in a file.

    python benchmarks/out_of_core.py [--rows N] [--columns N] [--size N] [--folder DIR] [--processes N] [--steps N]

Writes the file once (2 GB by default), fits a regression to minibatches of it, and prints how much memory of its own
each process held at most: `RssAnon`, so that pages of the file that the system keeps are not counted. With several
processes, on this machine and by `jax.distributed`, each reads its own rows of every minibatch.
"""

import argparse
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import legrad


def anonymous_megabytes() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))


def write(path: Path, rows: int, columns: int, weights: np.ndarray) -> None:
    """The features and, in the last column, the response, a part at a time."""
    rng = np.random.default_rng(0)
    file = np.lib.format.open_memmap(path, "w+", np.float32, (rows, columns + 1))
    for start in range(0, rows, 500_000):
        stop = min(rows, start + 500_000)
        X = rng.standard_normal((stop - start, columns), np.float32)
        file[start:stop, :-1] = X
        file[start:stop, -1] = X @ weights + rng.standard_normal(stop - start, np.float32)
    file.flush()


def fit(path: Path, options: argparse.Namespace, weights: np.ndarray) -> None:
    """One fit, or the part of one process in it; process 0 prints what was measured."""

    def model(rows):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([options.columns]).to_event(1))
        with numpyro.plate("rows", options.rows, subsample_size=len(rows)):
            numpyro.sample("y", dist.Normal(rows[:, :-1] @ w, 1.0), obs=rows[:, -1])

    warnings.simplefilter("ignore", legrad.FitWarning)  # its sentence is printed below
    several = jax.process_count() > 1
    data = np.load(path, mmap_mode="r")
    peak, running = [0.0], True

    def watch() -> None:
        while running:
            peak[0] = max(peak[0], anonymous_megabytes())
            time.sleep(0.02)

    watcher = threading.Thread(target=watch)
    watcher.start()
    before = anonymous_megabytes()
    batches = legrad.Minibatches(data, size=options.size)
    rule = None if options.steps else legrad.AutoStop(tolerance=options.tolerance)
    result = legrad.fit(
        model, legrad.MeanField(model), key=jax.random.key(0), data=batches, stop=rule, steps=options.steps or 40_000,
        mesh=jax.make_mesh((jax.device_count(),), ("data",)) if several else None,
    )  # fmt: skip
    running = False
    watcher.join()
    name = f"process {jax.process_index()} of {jax.process_count()}"
    print(f"{name:24} own memory at most {peak[0]:.0f} MB, {peak[0] - before:.0f} MB of it in the fit", flush=True)
    if jax.process_index() == 0:
        error = np.max(np.abs(result.params["w_loc"] - weights))
        each = 1e3 * (result.clock[-1, 1] - result.clock[1, 1]) / (result.clock[-1, 0] - result.clock[1, 0])
        print(f"file                     {path.name}, {data.nbytes / 2**30:.2f} GB")
        print(f"steps                    {result.steps:,} of {options.size:,} rows, {each:.2f} ms each")
        print(f"rows per second          {1e3 * options.size / each:,.0f}")
        print(f"furthest weight is off   {error:.2g}; its posterior's scale is {options.rows**-0.5:.2g}")
        print(result.status, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--columns", type=int, default=50)
    parser.add_argument("--size", type=int, default=1000, help="rows of a minibatch")
    parser.add_argument("--folder", type=Path, help="where the file is kept; a temporary one if left out")
    parser.add_argument("--tolerance", type=float, default=0.5, help="of the fit, in posterior standard deviations")
    parser.add_argument("--steps", type=int, help="a number of steps, instead of a tolerance")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--process", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    weights = np.linspace(-1, 1, options.columns).astype(np.float32)
    if options.process is not None:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{options.port}", options.processes, options.process)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        path = folder / f"rows-{options.rows}-{options.columns}.npy"
        if not path.exists():
            write(path, options.rows, options.columns, weights)
        if options.processes == 1 or options.process is not None:
            fit(path, options, weights)
            return
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        again = [sys.executable, *sys.argv, "--folder", str(folder), "--port", str(port)]
        parts = [subprocess.Popen([*again, "--process", str(i)]) for i in range(options.processes)]
        codes = [part.wait() for part in parts]
        if any(codes):
            raise SystemExit(f"the processes ended with {codes}")


if __name__ == "__main__":
    main()
