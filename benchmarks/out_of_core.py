"""A fit on data that are larger than the memory it may use: 10 million rows of 50 columns in a file.

    python benchmarks/out_of_core.py [--rows N] [--columns N] [--folder DIR]

Writes the file once (2 GB by default), fits a regression to minibatches of it, and prints how much memory of its own
the process held at most: `RssAnon`, so that pages of the file that the system keeps are not counted.
"""

import argparse
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--columns", type=int, default=50)
    parser.add_argument("--size", type=int, default=1000, help="rows of a minibatch")
    parser.add_argument(
        "--folder", type=Path, default=None, help="where the file is kept; a temporary one if left out"
    )
    parser.add_argument("--tolerance", type=float, default=0.5, help="of the fit, in posterior standard deviations")
    options = parser.parse_args()
    weights = np.linspace(-1, 1, options.columns).astype(np.float32)

    def model(rows):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([options.columns]).to_event(1))
        with numpyro.plate("rows", options.rows, subsample_size=len(rows)):
            numpyro.sample("y", dist.Normal(rows[:, :-1] @ w, 1.0), obs=rows[:, -1])

    warnings.simplefilter("ignore", legrad.FitWarning)  # its sentence is printed below
    with tempfile.TemporaryDirectory() as temporary:
        path = (options.folder or Path(temporary)) / f"rows-{options.rows}-{options.columns}.npy"
        if not path.exists():
            write(path, options.rows, options.columns, weights)
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
        rule = legrad.AutoStop(tolerance=options.tolerance)
        result = legrad.fit(
            model, legrad.MeanField(model), key=jax.random.key(0), data=batches, stop=rule, steps=40_000
        )
        running = False
        watcher.join()
    error = np.max(np.abs(result.params["w_loc"] - weights))
    each = 1e3 * (result.clock[-1, 1] - result.clock[1, 1]) / (result.clock[-1, 0] - result.clock[1, 0])
    print(f"file                     {path.name}, {data.nbytes / 2**30:.2f} GB")
    print(f"own memory, at most      {peak[0]:.0f} MB (JAX and imports before the fit: {before:.0f} MB)")
    print(f"steps                    {result.steps:,} of {options.size:,} rows, {each:.2f} ms each")
    print(f"furthest weight is off   {error:.2g}; its posterior's scale is {options.rows**-0.5:.2g}")
    print(result.status)


if __name__ == "__main__":
    main()
