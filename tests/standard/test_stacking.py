"""Stacked predictions: rows left out against real refits, weights against an optimizer, and rows not seen."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression

from legrad.standard.softmax_density import SoftmaxDensity
from legrad.standard.stacking import class_probabilities, fit_stacked, left_out, mode, stacking_weights


def data(n=80, p=4, classes=3, seed=0, strength=1.0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p))
    eta = strength * X @ rng.normal(size=(p, classes))
    return X, np.argmax(eta + rng.gumbel(size=eta.shape), axis=1)


def root_of(curvature, density):
    return np.linalg.inv(np.linalg.cholesky(curvature)).T.reshape(density.outputs, density.x.shape[1], -1)


@pytest.mark.parametrize("classes", [2, 3])
def test_the_mode_is_that_of_scikit_learn(classes):
    X, y = data(classes=classes)
    density = SoftmaxDensity(X, y, classes, 0.8)
    w, curvature = mode(density, np.zeros(density.size))
    gradient, _ = density.derivatives(w)
    np.testing.assert_allclose(gradient, 0.0, atol=1e-4)
    e = 1e-5 * np.random.default_rng(0).normal(size=len(w))
    np.testing.assert_allclose(
        density.derivatives(w + e)[0] - gradient, -curvature @ e, atol=1e-3 * np.abs(e).max() * 80
    )
    theirs = LogisticRegression(C=0.64, tol=1e-8, max_iter=1000).fit(X, y)
    mine = class_probabilities(density.x @ w.reshape(density.outputs, -1).T)
    np.testing.assert_allclose(mine, theirs.predict_proba(X), atol=0.01)  # its intercepts have no prior


@pytest.mark.parametrize("classes", [2, 3])
def test_a_row_left_out_is_that_of_a_refit(classes):
    """The shift that leaving a row out makes is found to within a tenth; without it, nothing would be."""
    X, y = data(classes=classes, seed=1)
    density = SoftmaxDensity(X, y, classes, 1.0)
    w, curvature = mode(density, np.zeros(density.size))
    found = left_out(density, w, root_of(curvature, density), y)
    inside = class_probabilities(density.rows(w)[0])[np.arange(len(y)), y]
    refits, averages = [], []
    rng = np.random.default_rng(0)
    for n in range(len(y)):
        rest = np.arange(len(y)) != n
        other = SoftmaxDensity(X[rest], y[rest], classes, 1.0)
        v, h = mode(other, w)
        x = np.append(1.0, X[n])
        refits.append(class_probabilities(x @ v.reshape(density.outputs, -1).T[:, :])[y[n]])
        draws = v + rng.normal(size=(4000, len(v))) @ np.linalg.inv(np.linalg.cholesky(h))
        averages.append(class_probabilities(draws.reshape(4000, density.outputs, -1) @ x)[:, y[n]].mean())
    for mine, truth in zip(found, (np.array(refits), np.array(averages)), strict=True):
        error, shift = np.log(mine) - np.log(truth), np.log(inside) - np.log(truth)
        assert np.sqrt(np.mean(error**2)) < 0.25 * np.sqrt(np.mean(shift**2))
    assert np.abs(np.log(found[0]) - np.log(refits)).mean() < 0.1 * np.abs(np.log(inside) - np.log(refits)).mean()


def test_the_weights_are_the_optimum():
    held_out = np.random.default_rng(0).uniform(0.05, 1.0, size=(6, 200))
    weights = stacking_weights(held_out)

    def loss(a):
        return -np.log(softmax(a) @ held_out).sum()

    best = minimize(loss, np.zeros(6), tol=1e-10)
    assert -np.log(weights @ held_out).sum() < best.fun + 1e-3
    np.testing.assert_allclose(weights.sum(), 1.0)


@pytest.mark.parametrize(("classes", "strength"), [(2, 1.0), (2, 3.0), (3, 1.0)])
def test_new_rows_are_predicted_about_as_well_as_by_the_best_scale(classes, strength):
    X, y = data(n=1100, classes=classes, strength=strength, seed=2)
    train, test = slice(0, 100), slice(100, None)
    scales = np.geomspace(0.03, 30.0, 10)

    def loss(p):
        return -np.log(p[np.arange(1000), y[test]]).mean()

    stacked = fit_stacked(X[train], y[train], classes, scales)
    each = [loss(fit_stacked(X[train], y[train], classes, scales[[i]]).probabilities(X[test])) for i in range(10)]
    assert loss(stacked.probabilities(X[test])) < min(each) + 0.02
    assert max(each) > min(each) + 0.05  # the choice matters
    assert 0 <= stacked.by_mode <= 1
