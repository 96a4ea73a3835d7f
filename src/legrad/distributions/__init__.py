"""Distributions: log-densities, scalar elements, and the candidates that represent a support."""
