"""Local expectation gradients for variational inference."""
