"""JAX programs, read operation by operation; no probability."""
