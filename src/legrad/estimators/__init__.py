"""The gradient estimators, one per file, and what they share."""

from legrad.estimators.disarm import DisARM
from legrad.estimators.exact import Exact
from legrad.estimators.local_expectation import LocalExpectation
from legrad.estimators.reparameterized import Reparameterized
from legrad.estimators.score_function import ScoreFunction

__all__ = ["DisARM", "Exact", "LocalExpectation", "Reparameterized", "ScoreFunction"]
