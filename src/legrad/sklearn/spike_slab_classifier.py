"""Spike-and-slab logistic regression for two classes, as a scikit-learn estimator."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

from legrad.model.messages import warn
from legrad.sklearn.scaling import Scaling, encoded, generator, level_of, positive_or_auto, whole
from legrad.standard.spike_slab import fit_spike_slab


class SpikeSlabClassifier(ClassifierMixin, BaseEstimator):
    """Logistic regression that says which columns matter, and averages its probabilities over all that may.

    For two classes; `sklearn.multiclass.OneVsRestClassifier` makes it one for more.

    Args:
        prior_inclusion: the probability that a column matters, before the data; "auto" for a uniform prior over it.
        slab_scale: the standard deviation of a slope that matters, in logits for a standard deviation of its column;
            "auto" to average over 0.2, 0.6 and 1.8.
        restarts: how many starts the guide has.
        n_draws: how many draws of the posterior to keep.
        random_state: a seed, a `RandomState`, or None.

    Attributes:
        classes_: the two classes.
        inclusion_probabilities_: the posterior probability that each column matters.
        coef_: the posterior mean of each slope, in the units of the data, of shape (1, columns).
        intercept_: the posterior mean of the intercept, of shape (1,).
        coef_draws_: draws of the slopes, with their zeros.
        khat_: the PSIS k-hat of the weights: up to 0.7 they can be trusted; -inf if every subset was counted.
        status_: a sentence that says what was done, and whether to trust it.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> A = rng.normal(size=(200, 3))
        >>> from legrad.sklearn import SpikeSlabClassifier
        >>> classifier = SpikeSlabClassifier(random_state=0).fit(A, A[:, 1] + 0.3 * rng.normal(size=200) > 0)
        >>> bool(classifier.inclusion_probabilities_[1] > 0.99)
        True
        >>> probability, std = classifier.predict_proba(A, return_std=True)
    """

    def __init__(
        self,
        *,
        prior_inclusion: float | str = "auto",
        slab_scale: float | str = "auto",
        restarts: int = 4,
        n_draws: int = 1000,
        random_state: Any = None,
    ) -> None:
        self.prior_inclusion = prior_inclusion
        self.slab_scale = slab_scale
        self.restarts = restarts
        self.n_draws = n_draws
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def fit(self, X: Any, y: Any) -> SpikeSlabClassifier:
        """Fit the posterior over subsets of columns.

        Args:
            X: a table of rows and columns; a data frame keeps its names.
            y: the class of each row.
        """
        rate = positive_or_auto("prior_inclusion", self.prior_inclusion, below=1.0)
        slab = positive_or_auto("slab_scale", self.slab_scale)
        X, y = validate_data(self, X, y, ensure_min_samples=2, dtype=np.float64)
        self.classes_, labels = encoded(y)
        if len(self.classes_) > 2:
            raise ValueError(
                f"Only binary classification is supported. The type of the target is {type_of_target(y)}, with "
                f"{len(self.classes_)} classes: wrap the classifier in sklearn.multiclass.OneVsRestClassifier"
            )
        scaling = Scaling.of(X)
        found = fit_spike_slab(
            scaling(X), labels.astype(float), "bernoulli", rate=rate, slab=slab, rng=generator(self.random_state),
            restarts=whole("restarts", self.restarts), draws=whole("n_draws", self.n_draws),
        )  # fmt: skip
        self.inclusion_probabilities_ = found.inclusion
        self.coef_ = (found.slopes / scaling.scale)[None]
        self.intercept_ = found.intercept - self.coef_ @ scaling.center
        self.coef_draws_ = found.draws / scaling.scale
        self.khat_, self.status_ = found.khat, found.status
        self._intercepts = found.intercept_draws - self.coef_draws_ @ scaling.center
        if not found.trusted:
            warn(found.status)
        return self

    def get_support(self, threshold: float = 0.5) -> np.ndarray:
        """Return which columns matter with a probability above a threshold."""
        check_is_fitted(self)
        return np.asarray(self.inclusion_probabilities_ > threshold)

    def predict_proba(self, X: Any, return_std: bool = False) -> Any:
        """Return the probability of each class, averaged over the posterior.

        Args:
            X: a table of rows and columns.
            return_std: whether to return the posterior standard deviation of each probability too.
        """
        p = self._draws(X)
        mean = p.mean(0)
        both = np.column_stack([1 - mean, mean])
        return (both, np.column_stack([p.std(0)] * 2)) if return_std else both

    def predict_interval(self, X: Any, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of central intervals of the probability of the second class."""
        low, high = np.quantile(self._draws(X), level_of(level), axis=0)
        return low, high

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the log-odds of the second class, from the averaged probability."""
        p = np.clip(self.predict_proba(X)[:, 1], 1e-15, 1 - 1e-15)
        return np.asarray(np.log(p) - np.log1p(-p))

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predict the class of each row.

        Args:
            X: a table of rows and columns.
            return_std: whether to return the posterior standard deviation of that class's probability too.
        """
        p, std = self.predict_proba(X, return_std=True)
        label = self.classes_[(p[:, 1] > 0.5).astype(int)]
        return (label, std[:, 1]) if return_std else label

    def _draws(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        return np.asarray(expit(self.coef_draws_ @ X.T + self._intercepts[:, None]))
