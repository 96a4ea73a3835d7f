"""Every test runs in float64, with warnings as errors; programs are compiled fast rather than to run fast."""

import os
from importlib.metadata import version

if version("jax").startswith("0.10."):
    # Compiles a quarter faster; other versions of XLA may end at a flag that they do not know.
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false".strip()

import jax

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_disable_most_optimizations", True)
