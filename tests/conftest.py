"""Every test runs in float64, with warnings as errors; programs are compiled fast rather than to run fast."""

import gc
import os
from importlib.metadata import version
from pathlib import Path

if version("jax").startswith("0.10."):
    # Compiles a quarter faster; other versions of XLA may end at a flag that they do not know.
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false".strip()

# Each of several workers has one core; BLAS's threads would only wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import pytest

# Traced programs are many small objects in cycles: looking for garbage less often saves a tenth of the time.
gc.freeze()
gc.set_threshold(100_000, 20, 10)

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_disable_most_optimizations", True)

_MEMORY = 2 << 30  # bytes of a worker, above which compiled programs of earlier modules are let go


@pytest.fixture(autouse=True, scope="module")
def let_go_of_programs():
    """Let go of compiled programs where they have taken much memory: a laptop runs two workers."""
    yield
    pages = int(Path("/proc/self/statm").read_text().split()[1]) if Path("/proc/self/statm").exists() else 0
    if pages * os.sysconf("SC_PAGE_SIZE") > _MEMORY:
        jax.clear_caches()
        gc.collect()


@pytest.fixture
def strict_ranks():
    """Arrays of different rank are not broadcast silently.

    This can be had where all of the program is ours. NumPyro's densities broadcast parameters against candidates, and
    most programs of the tests are written as users write them; so the tests of `trace` and of the machinery of
    `singlesite` ask for it, and those of distributions, models and estimators cannot.
    """
    with jax.numpy_rank_promotion("raise"):
        yield
