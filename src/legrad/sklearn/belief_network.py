"""A sigmoid belief network as a scikit-learn transformer; `standard.belief_network` has the model."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from legrad.sklearn.scaling import binarized, generator, positive, whole
from legrad.standard import belief_network


class SigmoidBeliefNetwork(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Binary features of binary data: hidden units that generate the columns, trained by local expectation gradients.

    Args:
        n_components: the number of hidden units.
        max_iter: the number of steps, each on 64 rows.
        learning_rate: of Adam; it falls to zero in the second half.
        binarize: the threshold above which a value is a one; None if X is between 0 and 1 already.
        n_draws: draws for each row in `score_samples` if there are more than 12 hidden units.
        random_state: a seed, a `RandomState`, or None.

    Attributes:
        components_: the weights from each hidden unit to each column.
        intercept_: the columns' biases.
        hidden_intercept_: the hidden units' biases.
        elbo_: the ELBO of a row at each step.
        n_iter_: the number of steps.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> from legrad.sklearn import SigmoidBeliefNetwork
        >>> images = load_digits().data[:200] / 16
        >>> network = SigmoidBeliefNetwork(n_components=8, max_iter=50, random_state=0).fit(images)
        >>> network.transform(images).shape
        (200, 8)
        >>> network.score_samples(images).shape, network.sample(3).shape
        ((200,), (3, 64))
    """

    def __init__(
        self,
        n_components: int = 16,
        *,
        max_iter: int = 2000,
        learning_rate: float = 0.02,
        binarize: float | None = 0.5,
        n_draws: int = 200,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.max_iter = max_iter
        self.learning_rate = learning_rate
        self.binarize = binarize
        self.n_draws = n_draws
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> SigmoidBeliefNetwork:
        """Train the network.

        Args:
            X: a table of rows and columns; a data frame keeps its names.
            y: ignored.
        """
        X = validate_data(self, X, dtype=np.float64)
        self._params, loss = belief_network.train(
            binarized(X, self.binarize), whole("n_components", self.n_components), whole("max_iter", self.max_iter),
            positive("learning_rate", self.learning_rate), generator(self.random_state),
        )  # fmt: skip
        self.components_, self.intercept_ = self._params["weights"], self._params["bias"]
        self.hidden_intercept_, self.elbo_ = self._params["hidden_bias"], -loss
        self.n_iter_ = len(loss)
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Return the probability of each hidden unit given each row, by the guide."""
        return np.asarray(expit(belief_network.encode(self._params, self._rows(X))))

    def score_samples(self, X: Any) -> np.ndarray:
        """Return the log-probability of each row: exact up to 12 hidden units, else an importance-weighted bound."""
        rows = self._rows(X)
        rng = np.random.default_rng(0)
        return belief_network.log_density(self._params, rows, whole("n_draws", self.n_draws), rng)

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean log-probability of the rows."""
        return float(self.score_samples(X).mean())

    def sample(self, n_samples: int = 1) -> np.ndarray:
        """Draw new rows of zeros and ones."""
        check_is_fitted(self)
        return belief_network.generate(self._params, whole("n_samples", n_samples), generator(self.random_state))

    @property
    def _n_features_out(self) -> int:
        return len(self.hidden_intercept_)

    def _rows(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        return binarized(X, self.binarize)
