"""Local expectation gradients: low-variance variational inference for latent variables of any kind."""

from legrad.diagnostics.compare import compare
from legrad.diagnostics.explain import explain
from legrad.diagnostics.quadrature_error import quadrature_error
from legrad.estimators import DisARM, Exact, LocalExpectation, Reparameterized, ScoreFunction
from legrad.expectations import expectation
from legrad.fitting.loop import fit
from legrad.fitting.result import FitResult
from legrad.guides import MeanField
from legrad.problem import log_density
from legrad.singlesite import single_site, single_site_differences

__version__ = "0.1.0"
__all__ = [
    "DisARM",
    "Exact",
    "FitResult",
    "LocalExpectation",
    "MeanField",
    "Reparameterized",
    "ScoreFunction",
    "compare",
    "expectation",
    "explain",
    "fit",
    "log_density",
    "quadrature_error",
    "single_site",
    "single_site_differences",
]
