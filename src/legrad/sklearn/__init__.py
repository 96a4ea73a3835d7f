"""Estimators for people with a table and scikit-learn habits; needs the extra `sklearn`."""

try:
    import sklearn as _sklearn  # noqa: F401
except ImportError as error:
    raise ImportError("legrad.sklearn needs scikit-learn: pip install 'legrad[sklearn]'") from error

from legrad.sklearn.belief_network import SigmoidBeliefNetwork
from legrad.sklearn.logistic import BayesianLogisticRegression
from legrad.sklearn.mixture import LatentMixture
from legrad.sklearn.spike_slab_classifier import SpikeSlabClassifier
from legrad.sklearn.spike_slab_regressor import SpikeSlabRegressor

__all__ = [
    "BayesianLogisticRegression",
    "LatentMixture",
    "SigmoidBeliefNetwork",
    "SpikeSlabClassifier",
    "SpikeSlabRegressor",
]
