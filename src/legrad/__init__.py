"""Local expectation gradients: low-variance variational inference for latent variables of any kind."""

from legrad.diagnostics.calibrate import calibrate
from legrad.diagnostics.compare import compare
from legrad.diagnostics.explain import explain
from legrad.estimators import DisARM, Exact, LocalExpectation, Reparameterized, ScoreFunction
from legrad.estimators.expectation import expectation
from legrad.fitting.callbacks import JsonLines, Snapshot
from legrad.fitting.checkpoint import CheckpointError
from legrad.fitting.data import Minibatches
from legrad.fitting.fit import fit
from legrad.fitting.lost_process import ProcessLostError
from legrad.fitting.quadrature_error import quadrature_error
from legrad.fitting.result import FitResult, load
from legrad.fitting.stopping import AutoStop
from legrad.guides.mean_field import MeanField
from legrad.guides.structured import Structured
from legrad.marginal.marginalize import Marginal, marginalize
from legrad.model.log_density import log_density
from legrad.model.messages import FitWarning
from legrad.natural.gradient import natural_gradient
from legrad.singlesite import single_site, single_site_differences

__version__ = "0.1.0"
__all__ = [
    "AutoStop",
    "CheckpointError",
    "DisARM",
    "Exact",
    "FitResult",
    "FitWarning",
    "JsonLines",
    "LocalExpectation",
    "Marginal",
    "MeanField",
    "Minibatches",
    "ProcessLostError",
    "Reparameterized",
    "ScoreFunction",
    "Snapshot",
    "Structured",
    "calibrate",
    "compare",
    "expectation",
    "explain",
    "fit",
    "load",
    "log_density",
    "marginalize",
    "natural_gradient",
    "quadrature_error",
    "single_site",
    "single_site_differences",
]
