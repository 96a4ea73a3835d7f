"""Distributions: log-densities, scalar elements, and the candidates that stand for a support."""
