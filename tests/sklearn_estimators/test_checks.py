"""scikit-learn's own checks of every estimator."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from legrad.sklearn import (
    BayesianLogisticRegression,
    LatentMixture,
    SigmoidBeliefNetwork,
    SpikeSlabClassifier,
    SpikeSlabRegressor,
)

QUICK = [
    SpikeSlabClassifier(n_draws=100),
    SpikeSlabRegressor(n_draws=100),
    LatentMixture(),
    LatentMixture(components="bernoulli"),
]
SLOW = [BayesianLogisticRegression(n_draws=200), SigmoidBeliefNetwork(4, max_iter=25)]


# The checks make data that are too few or too large on purpose, and estimators warn of it.
ignored = pytest.mark.filterwarnings("ignore::legrad.FitWarning")


@ignored
@parametrize_with_checks(QUICK)
def test_check(estimator, check):
    check(estimator)


@ignored
@pytest.mark.long
@parametrize_with_checks(SLOW)
def test_slow_check(estimator, check):
    check(estimator)
