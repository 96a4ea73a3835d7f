"""Spike-and-slab regression for numbers and counts as a scikit-learn estimator."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from legrad.model.messages import warn
from legrad.sklearn.scaling import Scaling, generator, level_of, positive_or_auto, whole
from legrad.standard.spike_slab import fit_spike_slab

_FAMILIES = ("gaussian", "poisson")


class SpikeSlabRegressor(RegressorMixin, BaseEstimator):
    """Regression that says which columns matter, and averages its predictions over all that may.

    The posterior is over subsets of columns, with slopes integrated out. Up to 10 columns every subset is counted;
    above, subsets are drawn from a variational guide and weighed.

    Args:
        prior_inclusion: the probability that a column matters, before the data; "auto" for a uniform prior over it.
        slab_scale: the standard deviation of a slope that matters, in standard deviations of column and target (of
            the log of the mean, for counts); "auto" to average over 0.15, 0.4 and 1.
        family: "gaussian" for numbers, "poisson" for counts.
        restarts: how many starts the guide has.
        n_draws: how many draws of the posterior to keep.
        random_state: a seed, a `RandomState`, or None.

    Attributes:
        inclusion_probabilities_: the posterior probability that each column matters.
        coef_: the posterior mean of each slope, in the units of the data; zero counts where a column does not matter.
        intercept_: the posterior mean of the intercept.
        coef_draws_: draws of the slopes, with their zeros.
        noise_: the posterior mean of the noise; 0 for counts.
        khat_: the PSIS k-hat of the weights: up to 0.7 they can be trusted; -inf if every subset was counted.
        status_: a sentence that says what was done, and whether to trust it.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> A = rng.normal(size=(60, 4))
        >>> b = A @ [1.0, 0.0, 0.0, -2.0] + 0.5 * rng.normal(size=60)
        >>> from legrad.sklearn import SpikeSlabRegressor
        >>> regressor = SpikeSlabRegressor(random_state=0).fit(A, b)
        >>> regressor.get_support()
        array([ True, False, False,  True])
        >>> mean, std = regressor.predict(A, return_std=True)
        >>> low, high = regressor.predict_interval(A, level=0.9)
    """

    def __init__(
        self,
        *,
        prior_inclusion: float | str = "auto",
        slab_scale: float | str = "auto",
        family: str = "gaussian",
        restarts: int = 4,
        n_draws: int = 1000,
        random_state: Any = None,
    ) -> None:
        self.prior_inclusion = prior_inclusion
        self.slab_scale = slab_scale
        self.family = family
        self.restarts = restarts
        self.n_draws = n_draws
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = self.family == "poisson"
        return tags

    def fit(self, X: Any, y: Any) -> SpikeSlabRegressor:
        """Fit the posterior over subsets of columns.

        Args:
            X: a table of rows and columns; a data frame keeps its names.
            y: the target of each row.
        """
        if self.family not in _FAMILIES:
            raise ValueError(f"family={self.family!r}: give 'gaussian' or 'poisson'")
        rate = positive_or_auto("prior_inclusion", self.prior_inclusion, below=1.0)
        slab = positive_or_auto("slab_scale", self.slab_scale)
        X, y = validate_data(self, X, y, y_numeric=True, ensure_min_samples=2, dtype=np.float64)
        y = np.asarray(y, float)
        gaussian = self.family == "gaussian"
        if not gaussian and ((y < 0) | (y != np.round(y))).any():
            row = int(np.argmax((y < 0) | (y != np.round(y))))
            raise ValueError(f"y is {y[row]:g} in row {row}, which is not a count: set family='gaussian'")
        scaling = Scaling.of(X)
        target = Scaling.of(y) if gaussian else Scaling(np.zeros(()), np.ones(()))
        found = fit_spike_slab(
            scaling(X), target(y), self.family, rate=rate, slab=slab, rng=generator(self.random_state),
            restarts=whole("restarts", self.restarts), draws=whole("n_draws", self.n_draws),
        )  # fmt: skip
        unit = target.scale / scaling.scale
        self.inclusion_probabilities_ = found.inclusion
        self.coef_ = found.slopes * unit
        self.intercept_ = float(target.center + target.scale * found.intercept - scaling.center @ self.coef_)
        self.coef_draws_ = found.draws * unit
        self.noise_ = float(found.noise * target.scale)
        self.khat_, self.status_ = found.khat, found.status
        self._intercepts = target.center + target.scale * found.intercept_draws - self.coef_draws_ @ scaling.center
        self._noises = found.noise_draws * target.scale
        if not found.trusted:
            warn(found.status)
        return self

    def get_support(self, threshold: float = 0.5) -> np.ndarray:
        """Return which columns matter with a probability above a threshold."""
        check_is_fitted(self)
        return np.asarray(self.inclusion_probabilities_ > threshold)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predict the target, averaged over the posterior.

        Args:
            X: a table of rows and columns.
            return_std: whether to return the standard deviation of a new target too, as a second array.
        """
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        if self.family == "gaussian":
            mean = X @ self.coef_ + self.intercept_
            if not return_std:
                return mean
            spread = self._linear(X).var(0)
            return mean, np.sqrt(spread + np.mean(self._noises**2))
        means = np.exp(self._linear(X))
        mean = means.mean(0)
        return (mean, np.sqrt(means.var(0) + mean)) if return_std else mean

    def predict_interval(self, X: Any, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of intervals that hold a new target with a probability of `level`."""
        check_is_fitted(self)
        quantiles = level_of(level)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        rng = np.random.default_rng(0)
        linear = self._linear(X)
        if self.family == "gaussian":
            new = linear + self._noises[:, None] * rng.normal(size=linear.shape)
        else:
            new = rng.poisson(np.exp(np.minimum(linear, 30.0))).astype(float)
        low, high = np.quantile(new, quantiles, axis=0)
        return low, high

    def _linear(self, X: np.ndarray) -> np.ndarray:
        return np.asarray(self.coef_draws_ @ X.T + self._intercepts[:, None])
