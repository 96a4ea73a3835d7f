"""NumPyro models and guides as a problem: latents, additive terms, parameters."""
