"""Fits that are killed with SIGKILL at random moments, started again, and compared bit by bit with one that was not.

    python benchmarks/survival.py [--kills 50] [--seed 0]

Each trial starts `tests/helpers/small_fit.py` (minibatches, stop="auto", a checkpoint every 50 steps) in a folder of
its own, kills it at a random moment, one in five while it imports and compiles, the others while it takes its steps,
and starts it again. Compiled programs are kept by JAX between the processes, to save time.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from tqdm import tqdm

SCRIPT = Path(__file__).parents[1] / "tests" / "helpers" / "small_fit.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        environment = os.environ | {
            "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }

        def start(name: str) -> subprocess.Popen:
            command = [sys.executable, "-W", "ignore", str(SCRIPT), str(folder / name), str(folder / f"{name}.npz")]
            return subprocess.Popen(command, env=environment)

        def numbers(name: str) -> list[bytes]:
            with np.load(folder / f"{name}.npz") as file:
                return [file[key].tobytes() for key in file.files]

        def begun(name: str, process: subprocess.Popen) -> None:
            while not (folder / f"{name}.npz.begun").exists() and process.poll() is None:
                time.sleep(0.002)

        for name in ("compiling", "whole"):
            started = time.perf_counter()
            process = start(name)
            begun(name, process)
            before = time.perf_counter() - started
            assert process.wait() == 0
            stepping = time.perf_counter() - started - before
        wanted = numbers("whole")
        assert numbers("compiling") == wanted
        alike, kept, late = 0, 0, 0
        for trial in tqdm(range(options.kills), desc="kills"):
            name = f"trial-{trial}"
            process = start(name)
            if rng.random() < 0.2:
                time.sleep(rng.uniform(0.0, before))
            else:
                begun(name, process)
                time.sleep(rng.uniform(0.0, stepping))
            process.send_signal(signal.SIGKILL)
            late += process.wait() == 0
            kept += (folder / name / "checkpoint.legrad").exists()
            assert start(name).wait() == 0
            alike += numbers(name) == wanted
    print(f"a run takes {before:.1f} s to its first steps, and {stepping:.1f} s for all of them")
    print(
        f"{options.kills} were killed: {options.kills - kept} before their first checkpoint, {kept - late} after it, "
    )
    print(f"and {late} were done; {alike} of {options.kills} ended bit by bit like the whole run")
    sys.exit(alike != options.kills)


if __name__ == "__main__":
    main()
