"""Every test runs in float64, with warnings as errors; programs are compiled fast rather than to run fast."""

import jax

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_disable_most_optimizations", True)
