"""Natural gradients: the Fisher information of a guide, and optimizers that use it."""
