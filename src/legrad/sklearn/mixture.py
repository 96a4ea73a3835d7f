"""Mixtures of Gaussians or Bernoullis as a scikit-learn estimator; `standard.mixture` has the model and its fit."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import logsumexp
from sklearn.base import BaseEstimator, ClusterMixin, DensityMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from legrad.model.messages import warn
from legrad.sklearn.scaling import Scaling, binarized, generator, positive, whole
from legrad.standard.mixture import KINDS, fit_mixture


class LatentMixture(ClusterMixin, DensityMixin, BaseEstimator):
    """A mixture whose weights and components have posteriors, and whose labels are summed out.

    Columns are independent within a component. Components that the data do not need become empty.

    Args:
        n_components: the largest number of components.
        components: "gaussian" for numbers, "bernoulli" for zeros and ones.
        weight_concentration: of the Dirichlet prior of the weights; well below 1 empties components.
        binarize: for "bernoulli", the threshold above which a value is a one; None if X is between 0 and 1 already.
        n_init: how many starts to fit; the one with the best ELBO is kept.
        max_iter: the largest number of sweeps of one start.
        random_state: a seed, a `RandomState`, or None.

    Attributes:
        weights_: the posterior mean of the weights, the largest first.
        means_: the posterior mean of each component's means, in the units of the data; probabilities for "bernoulli".
        labels_: the most likely component of each row of the data.
        lower_bound_: the ELBO, in the units of the data.
        n_iter_: the number of sweeps.
        converged_: whether the last sweep changed nothing.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> A = np.concatenate([rng.normal(-3, 1, (50, 2)), rng.normal(3, 1, (50, 2))])
        >>> from legrad.sklearn import LatentMixture
        >>> mixture = LatentMixture(n_components=2, random_state=0).fit(A)
        >>> bool((mixture.labels_[:50] != mixture.labels_[50:]).all())
        True
        >>> rows, labels = mixture.sample(10)
    """

    def __init__(
        self,
        n_components: int = 2,
        *,
        components: str = "gaussian",
        weight_concentration: float = 1.0,
        binarize: float | None = 0.5,
        n_init: int = 4,
        max_iter: int = 1000,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.components = components
        self.weight_concentration = weight_concentration
        self.binarize = binarize
        self.n_init = n_init
        self.max_iter = max_iter
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> LatentMixture:
        """Fit the posterior of weights and components.

        Args:
            X: a table of rows and columns; a data frame keeps its names.
            y: ignored.
        """
        if self.components not in KINDS:
            raise ValueError(f"components={self.components!r}: give 'gaussian' or 'bernoulli'")
        number = whole("n_components", self.n_components)
        X = validate_data(self, X, ensure_min_samples=2, dtype=np.float64)
        if len(X) < number:
            raise ValueError(f"n_components={number} is larger than n_samples={len(X)}: take fewer components")
        columns = X.shape[1]
        self._scaling = Scaling.of(X) if self._is_gaussian else Scaling(np.zeros(columns), np.ones(columns))
        rows = self._prepared(X)
        found = fit_mixture(
            rows, number, self.components, concentration=positive("weight_concentration", self.weight_concentration),
            restarts=whole("n_init", self.n_init), sweeps=whole("max_iter", self.max_iter),
            rng=generator(self.random_state),
        )  # fmt: skip
        self._posterior = found
        factors: Any = found.components
        means = factors.m if self._is_gaussian else factors.a / (factors.a + factors.b)
        self.weights_, self.means_ = found.weights, self._scaling.center + self._scaling.scale * means
        self.labels_ = found.joint(rows).argmax(1)
        self.lower_bound_ = float(found.elbo[-1] - len(X) * np.log(self._scaling.scale).sum())
        self.n_iter_, self.converged_ = len(found.elbo), found.converged
        if not found.converged:
            warn(f"the best start has not converged after {self.n_iter_} sweeps: raise max_iter")
        return self

    def score_samples(self, X: Any) -> np.ndarray:
        """Return the log posterior predictive density of each row."""
        return np.asarray(logsumexp(self._joint(X), axis=1) - np.log(self._scaling.scale).sum())

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean log posterior predictive density of the rows."""
        return float(self.score_samples(X).mean())

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each component for each row."""
        joint = self._joint(X)
        return np.asarray(np.exp(joint - logsumexp(joint, axis=1, keepdims=True)))

    def predict(self, X: Any) -> np.ndarray:
        """Return the most likely component of each row."""
        return np.asarray(self._joint(X).argmax(1))

    def sample(self, n_samples: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Draw new rows from the posterior predictive; return them with their components."""
        check_is_fitted(self)
        rng = generator(self.random_state)
        labels = rng.choice(len(self.weights_), whole("n_samples", n_samples), p=self.weights_)
        rows = self._posterior.components.draw(labels, rng)
        return self._scaling.center + self._scaling.scale * rows, labels

    @property
    def _is_gaussian(self) -> bool:
        return self.components == "gaussian"

    def _prepared(self, X: np.ndarray) -> np.ndarray:
        return self._scaling(X) if self._is_gaussian else binarized(X, self.binarize)

    def _joint(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        return self._posterior.joint(self._prepared(X))
