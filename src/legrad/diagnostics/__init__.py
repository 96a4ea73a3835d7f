"""How good is an estimator, a quadrature, a fit."""
