"""Mixtures against exact evidences, sums over all labels, and scikit-learn's limit."""

import itertools

import numpy as np
import pytest
from scipy.special import betaln, gammaln, logsumexp
from sklearn.mixture import GaussianMixture

from legrad.standard import mixture
from legrad.standard.mixture import KINDS, fit_mixture


def fitted(X, number, kind, **settings):
    given = {"concentration": 1.0, "restarts": 4, "sweeps": 2000, "rng": np.random.default_rng(0)} | settings
    return fit_mixture(X, number, kind, **given)


def evidence_of_one(X, kind):
    """The log evidence of a single component: the product of the predictive densities, row after row."""
    total = 0.0
    for n in range(len(X)):
        components = KINDS[kind].given(X[:n], np.ones((n, 1)))
        total += components.predictive(X[n : n + 1])[0, 0]
    return total


def rows(kind, n, seed=0):
    rng = np.random.default_rng(seed)
    label = rng.random(n) < 0.4
    if kind == "gaussian":
        return np.where(label[:, None], 2.0, -1.0) + 0.5 * rng.normal(size=(n, 2))
    return (rng.random((n, 3)) < np.where(label[:, None], 0.9, 0.2)).astype(float)


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_elbo_of_one_component_is_the_log_evidence(kind):
    X = rows(kind, 12)
    found = fitted(X, 1, kind)
    np.testing.assert_allclose(found.elbo[-1], evidence_of_one(X, kind), rtol=1e-9)


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_elbo_of_two_components_is_below_the_sum_over_all_labels_and_near_it(kind):
    X = rows(kind, 9)
    log_p = []
    for labels in itertools.product([0, 1], repeat=len(X)):
        r = np.eye(2)[list(labels)]
        count = r.sum(0)
        of_labels = gammaln(2) - gammaln(2 + len(X)) + gammaln(1 + count).sum()
        log_p.append(of_labels + sum(evidence_of_one(X[r[:, k] > 0], kind) for k in range(2)))
    exact = logsumexp(log_p)
    found = fitted(X, 2, kind)
    assert exact - 3.0 < found.elbo[-1] < exact  # log 2 of it are the two orders of the components


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_elbo_rises(kind):
    found = fitted(rows(kind, 200), 3, kind, restarts=1)
    assert found.converged
    assert (np.diff(found.elbo) > -1e-8 * np.abs(found.elbo[-1])).all()


def test_many_rows_give_the_mixture_that_maximizes_the_likelihood():
    X = rows("gaussian", 4000)
    theirs = GaussianMixture(2, covariance_type="diag", random_state=0, tol=1e-8).fit(X)
    found = fitted(X, 2, "gaussian")
    order = np.argsort(-theirs.weights_)
    np.testing.assert_allclose(found.weights, theirs.weights_[order], atol=2e-3)
    np.testing.assert_allclose(found.components.m, theirs.means_[order], atol=2e-3)
    np.testing.assert_allclose(logsumexp(found.joint(X), axis=1).mean(), theirs.score(X), atol=2e-3)


@pytest.mark.parametrize("kind", list(KINDS))
def test_draws_have_the_means_of_the_rows(kind):
    X, rng = rows(kind, 500), np.random.default_rng(1)
    found = fitted(X, 2, kind)
    labels = rng.choice(2, 40_000, p=found.weights)
    np.testing.assert_allclose(found.components.draw(labels, rng).mean(0), X.mean(0), atol=0.03)


def test_a_component_that_is_not_needed_is_empty():
    found = fitted(rows("gaussian", 400), 5, "gaussian", concentration=0.01)
    assert (found.weights > 0.01).sum() == 2


def test_the_divergences_are_zero_at_the_prior():
    for kind in KINDS:
        assert abs(KINDS[kind].given(np.zeros((0, 2)), np.zeros((0, 3))).divergence()) < 1e-12
    assert mixture._dirichlet(np.full(3, 0.7), 0.7) == pytest.approx(0.0, abs=1e-12)
    assert betaln(0.5, 0.5) == pytest.approx(np.log(np.pi))
