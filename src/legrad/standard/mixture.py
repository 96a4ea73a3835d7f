"""Mixtures with their labels summed out, by variational Bayes: each factor in turn is set to its optimum.

weights ~ Dirichlet(c),   label_n ~ Categorical(weights),   x_nj ~ component(label_n, j)
Gaussian:   precision ~ Gamma(a, b),  mean ~ Normal(0, 1 / (κ precision)),  x_nj ~ Normal(mean, 1 / precision)
Bernoulli:  probability ~ Beta(½, ½),  x_nj ~ Bernoulli(probability)

ELBO = Σ_n log Σ_k exp E[log weights_k + log p(x_n | k)] − KL(weights) − Σ_kj KL(component k, column j)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.special import betaln, digamma, gammaln, logsumexp

_STILL = 1e-7  # the relative change of the ELBO that ends a climb
_KAPPA, _A, _B = 0.05, 1.0, 0.1


class Components(Protocol):
    """The factors of the components: their posteriors given responsibilities."""

    def expected(self, X: np.ndarray) -> np.ndarray:
        """Return E[log p(x | component)] for each row and component."""

    def predictive(self, X: np.ndarray) -> np.ndarray:
        """Return log E[p(x | component)] for each row and component."""

    def divergence(self) -> float:
        """Return the divergence of the factors from their priors."""

    def draw(self, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return a new row for each label."""


@dataclass(frozen=True)
class GaussianComponents:
    """Normal-Gamma factors, all (components, columns): precision ~ Gamma(a, b), mean ~ Normal(m, 1/(κ precision))."""

    m: np.ndarray
    kappa: np.ndarray
    a: np.ndarray
    b: np.ndarray

    @classmethod
    def given(cls, X: np.ndarray, r: np.ndarray) -> GaussianComponents:
        """Return the optimum given responsibilities."""
        n = r.sum(0)[:, None]
        first, second = r.T @ X, r.T @ X**2
        kappa = _KAPPA + n
        m = first / kappa
        return cls(m, kappa, _A + n / 2, _B + 0.5 * np.maximum(second - kappa * m**2, 0.0))

    def expected(self, X: np.ndarray) -> np.ndarray:
        """Return E[log Normal(x; mean, 1 / precision)], summed over columns."""
        precision = self.a / self.b
        constant = (digamma(self.a) - np.log(self.b) - math.log(2 * math.pi) - 1 / self.kappa).sum(1)
        square = X**2 @ precision.T - 2 * X @ (precision * self.m).T + (precision * self.m**2).sum(1)
        return 0.5 * (constant - square)

    def predictive(self, X: np.ndarray) -> np.ndarray:
        """Return the log-density of a Student-t, summed over columns."""
        scale2 = self.b * (self.kappa + 1) / (self.a * self.kappa)
        df = 2 * self.a
        constant = gammaln((df + 1) / 2) - gammaln(df / 2) - 0.5 * np.log(df * math.pi * scale2)
        columns = [
            c - (d + 1) / 2 * np.log1p((X - m) ** 2 / (d * s))
            for c, d, m, s in zip(constant, df, self.m, scale2, strict=True)
        ]
        return np.stack([column.sum(1) for column in columns], axis=1)

    def divergence(self) -> float:
        """Return KL(Normal-Gamma factors, prior)."""
        precision = self.a / self.b
        normal = 0.5 * (_KAPPA / self.kappa - 1 - np.log(_KAPPA / self.kappa) + _KAPPA * precision * self.m**2)
        gamma = (
            (self.a - _A) * digamma(self.a) - gammaln(self.a) + gammaln(_A)
            + _A * (np.log(self.b) - math.log(_B)) + self.a * (_B - self.b) / self.b
        )  # fmt: skip
        return float(np.sum(normal + gamma))

    def draw(self, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return rows of the posterior predictive."""
        scale = np.sqrt(self.b * (self.kappa + 1) / (self.a * self.kappa))[labels]
        return self.m[labels] + scale * rng.standard_t(2 * self.a[labels])


@dataclass(frozen=True)
class BernoulliComponents:
    """Beta factors: probability ~ Beta(a, b); both (components, columns)."""

    a: np.ndarray
    b: np.ndarray

    @classmethod
    def given(cls, X: np.ndarray, r: np.ndarray) -> BernoulliComponents:
        """Return the optimum given responsibilities."""
        ones = r.T @ X
        return cls(0.5 + ones, 0.5 + r.sum(0)[:, None] - ones)

    def expected(self, X: np.ndarray) -> np.ndarray:
        """Return E[log Bernoulli(x; probability)], summed over columns."""
        total = digamma(self.a + self.b)
        return X @ (digamma(self.a) - total).T + (1 - X) @ (digamma(self.b) - total).T

    def predictive(self, X: np.ndarray) -> np.ndarray:
        """Return log Bernoulli(x; E[probability]), summed over columns."""
        total = np.log(self.a + self.b)
        return X @ (np.log(self.a) - total).T + (1 - X) @ (np.log(self.b) - total).T

    def divergence(self) -> float:
        """Return KL(Beta factors, prior)."""
        a, b = self.a, self.b
        total = digamma(a + b)
        each = betaln(0.5, 0.5) - betaln(a, b) + (a - 0.5) * (digamma(a) - total) + (b - 0.5) * (digamma(b) - total)
        return float(np.sum(each))

    def draw(self, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return rows of the posterior predictive."""
        p = (self.a / (self.a + self.b))[labels]
        return (rng.random(p.shape) < p).astype(float)


KINDS: dict[str, type[GaussianComponents] | type[BernoulliComponents]] = {
    "gaussian": GaussianComponents,
    "bernoulli": BernoulliComponents,
}


@dataclass(frozen=True)
class MixturePosterior:
    """A fitted mixture.

    Attributes:
        counts: the parameters of the Dirichlet factor of the weights.
        components: the factors of the components.
        elbo: the ELBO after each sweep.
        converged: whether the last sweep changed nothing.
    """

    counts: np.ndarray
    components: GaussianComponents | BernoulliComponents
    elbo: np.ndarray
    converged: bool

    @property
    def weights(self) -> np.ndarray:
        """The posterior mean of the weights."""
        return self.counts / self.counts.sum()

    def joint(self, X: np.ndarray) -> np.ndarray:
        """Return the log predictive density of each row together with each label."""
        return self.components.predictive(X) + np.log(self.weights)


def fit_mixture(
    X: np.ndarray, number: int, kind: str, *, concentration: float, restarts: int, sweeps: int,
    rng: np.random.Generator,
) -> MixturePosterior:  # fmt: skip
    """Fit a mixture from several starts, and return the one with the best ELBO, its largest component first."""
    found = [_climb(X, _start(X, number, rng), kind, concentration, sweeps) for _ in range(restarts)]
    return max(found, key=lambda one: one.elbo[-1])


def _start(X: np.ndarray, number: int, rng: np.random.Generator) -> np.ndarray:
    """Return responsibilities around rows that are far from each other (k-means++)."""
    centers = [X[rng.integers(len(X))]]
    for _ in range(number - 1):
        distance = np.min([np.sum((X - c) ** 2, axis=1) for c in centers], axis=0)
        total = distance.sum()
        centers.append(X[rng.choice(len(X), p=distance / total) if total > 0 else rng.integers(len(X))])
    distance = np.stack([np.sum((X - c) ** 2, axis=1) for c in centers], axis=1)
    scale = max(float(distance.min(1).mean()), 1e-12)
    log_r = -0.5 * X.shape[1] * distance / (scale * max(X.shape[1], 1)) * 2
    return np.exp(log_r - logsumexp(log_r, axis=1, keepdims=True))


def _climb(X: np.ndarray, r: np.ndarray, kind: str, concentration: float, sweeps: int) -> MixturePosterior:
    number, history = r.shape[1], []
    for _ in range(sweeps):
        order = np.argsort(-r.sum(0), kind="stable")
        r = r[:, order]
        counts, components = concentration + r.sum(0), KINDS[kind].given(X, r)
        log_r = components.expected(X) + digamma(counts) - digamma(counts.sum())
        total = logsumexp(log_r, axis=1, keepdims=True)
        r = np.exp(log_r - total)
        history.append(float(total.sum()) - _dirichlet(counts, concentration) - components.divergence())
        if len(history) > 1 and history[-1] - history[-2] < _STILL * (abs(history[-1]) + number):
            return MixturePosterior(counts, components, np.array(history), True)
    return MixturePosterior(counts, components, np.array(history), False)


def _dirichlet(counts: np.ndarray, concentration: float) -> float:
    """Return KL(Dirichlet(counts), Dirichlet(concentration))."""
    k, total = len(counts), counts.sum()
    return float(
        gammaln(total) - gammaln(counts).sum() - gammaln(k * concentration) + k * gammaln(concentration)
        + np.sum((counts - concentration) * (digamma(counts) - digamma(total)))
    )  # fmt: skip
