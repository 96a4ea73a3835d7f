"""Generated models with discrete latents, and their sums by enumeration or by hand."""
