"""Every test runs in float64, on the CPU, with warnings as errors."""

import jax

jax.config.update("jax_enable_x64", True)
