"""Bayesian logistic regression as a scikit-learn estimator; `standard.logistic` has the model and its fit.

`standard.stacking` has the predictions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from legrad.diagnostics.psis import LIMIT
from legrad.model.messages import warn
from legrad.sklearn.scaling import Scaling, encoded, generator, positive_or_auto, whole
from legrad.standard.logistic import SCALES, fit_logistic
from legrad.standard.stacking import fit_stacked

_NUMBERS = 4_000_000  # numbers of one batch of predictions


class BayesianLogisticRegression(ClassifierMixin, BaseEstimator):
    """Logistic regression for two or more classes: the posterior of the coefficients, and stacked predictions.

    Nothing needs to be chosen by cross-validation. The strength of the penalty, here the scale of the prior, is
    averaged over: in the posterior by its evidence; in predictions by how well each scale, with its most probable
    coefficients or with an average around them, predicts each training row from the others.

    Args:
        prior_scale: the standard deviation of the coefficients' prior, for standardized columns; "auto" to average
            over a grid from 0.03 to 30.
        predictive: what `predict_proba` returns: "stacked" predictions, which aim at the best log-loss on new rows;
            or "posterior", the average over the draws of the coefficients.
        n_draws: how many draws of the posterior to keep.
        random_state: a seed, a `RandomState`, or None.

    Attributes:
        classes_: the classes.
        coef_: the posterior mean of the coefficients, in the units of the data; one row for two
            classes, else one each.
        coef_std_: their posterior standard deviations.
        intercept_: the posterior mean of the intercepts.
        prior_scale_: the posterior mean of the prior's scale.
        log_evidence_: a lower bound on the log evidence, to compare models of the same labels.
        khat_: the PSIS k-hat of the draws: up to 0.7 they are draws of the posterior; NaN with more than 80
            coefficients, whose draws are those of the best Gaussian.
        status_: a sentence that says what was done.
        stacked_modes_: the weight that stacking gives to predictions by the most probable coefficients; averages
            have the rest. NaN with `predictive="posterior"`.

    Example:
        >>> from sklearn.datasets import load_breast_cancer
        >>> from legrad.sklearn import BayesianLogisticRegression
        >>> A, benign = load_breast_cancer(return_X_y=True)
        >>> classifier = BayesianLogisticRegression(random_state=0).fit(A, benign)
        >>> classifier.predict(A[:2])
        array([0, 0])
        >>> probability, std = classifier.predict_proba(A, return_std=True)
    """

    def __init__(
        self,
        *,
        prior_scale: float | str = "auto",
        predictive: str = "stacked",
        n_draws: int = 1000,
        random_state: Any = None,
    ) -> None:
        self.prior_scale = prior_scale
        self.predictive = predictive
        self.n_draws = n_draws
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> BayesianLogisticRegression:
        """Fit the posterior of the coefficients.

        Args:
            X: a table of rows and columns; a data frame keeps its names.
            y: the class of each row.
        """
        scale = positive_or_auto("prior_scale", self.prior_scale)
        if self.predictive not in ("stacked", "posterior"):
            raise ValueError(f"predictive={self.predictive!r}: 'stacked' or 'posterior'")
        X, y = validate_data(self, X, y, ensure_min_samples=2, dtype=np.float64)
        self.classes_, labels = encoded(y)
        scaling = Scaling.of(X)
        found = fit_logistic(
            scaling(X), labels, len(self.classes_), scale=scale, draws=whole("n_draws", self.n_draws),
            rng=generator(self.random_state),
        )  # fmt: skip
        self._draws = found.draws / scaling.scale
        self._intercepts = found.intercept_draws - self._draws @ scaling.center
        self.coef_, self.coef_std_ = self._draws.mean(0), self._draws.std(0)
        self.intercept_ = self._intercepts.mean(0)
        self.prior_scale_, self.log_evidence_ = found.scale, found.log_evidence
        self.khat_, self.status_ = found.khat, found.status
        self._scaling, self._stacked = scaling, None
        if self.predictive == "stacked":
            scales = SCALES if scale is None else np.array([scale])
            self._stacked = fit_stacked(scaling(X), labels, len(self.classes_), scales)
        self.stacked_modes_ = self._stacked.by_mode if self._stacked else float("nan")
        if self.khat_ > LIMIT:
            warn(f"{self.status_}, above {LIMIT}: the draws are those of the Gaussians, not weighed")
        return self

    def predict_proba(self, X: Any, return_std: bool = False) -> Any:
        """Return the probability of each class; see `predictive`.

        Args:
            X: a table of rows and columns.
            return_std: whether to return the posterior standard deviation of each probability too.
        """
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        step = max(1, _NUMBERS // (len(self._draws) * len(self.classes_)))
        parts = [self._moments(X[i : i + step]) for i in range(0, len(X), step)]
        mean, std = (np.concatenate(found) for found in zip(*parts, strict=True))
        if self._stacked:
            mean = np.concatenate(
                [self._stacked.probabilities(self._scaling(part)) for part in np.array_split(X, len(parts))]
            )
        return (mean, std) if return_std else mean

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the logs of the averaged probabilities; for two classes the log-odds of the second."""
        p = np.clip(self.predict_proba(X), 1e-15, 1.0)
        return np.asarray(np.log(p[:, 1]) - np.log(p[:, 0]) if len(self.classes_) == 2 else np.log(p))

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predict the class of each row.

        Args:
            X: a table of rows and columns.
            return_std: whether to return the posterior standard deviation of that class's probability too.
        """
        p, std = self.predict_proba(X, return_std=True)
        best = p.argmax(1)
        return (self.classes_[best], std[np.arange(len(p)), best]) if return_std else self.classes_[best]

    def _moments(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        eta = X @ self._draws.swapaxes(1, 2) + self._intercepts[:, None]
        p = softmax(eta, axis=-1) if len(self.classes_) > 2 else np.concatenate([expit(-eta), expit(eta)], axis=-1)
        return p.mean(0), p.std(0)
