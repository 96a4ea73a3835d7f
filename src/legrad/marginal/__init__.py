"""Sums over discrete latents, found from the traced program: `legrad.marginalize`."""
