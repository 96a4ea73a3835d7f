"""The gradient estimators: one file each."""

from legrad.estimators.disarm import DisARM
from legrad.estimators.exact import Exact
from legrad.estimators.local_expectation import LocalExpectation
from legrad.estimators.reparameterized import Reparameterized
from legrad.estimators.score_function import ScoreFunction

__all__ = ["DisARM", "Exact", "LocalExpectation", "Reparameterized", "ScoreFunction"]
