"""The estimators in pipelines, grid searches, frames and pickles; their units, intervals and messages."""

import pickle
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.linear_model import BayesianRidge, LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import legrad
from legrad.sklearn import (
    BayesianLogisticRegression,
    LatentMixture,
    SigmoidBeliefNetwork,
    SpikeSlabClassifier,
    SpikeSlabRegressor,
)
from legrad.standard import spike_slab


def table(n=80, seed=0):
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(rng.normal([5, 0, -3], [2, 1, 0.1], size=(n, 3)), columns=["age", "shoe", "height"])
    return X, 3 * X["age"] - 40 * X["height"] + rng.normal(size=n)


X, y = table()
LABELS = np.where(y > np.median(y), "tall", "short")
ALL = {
    "regressor": (SpikeSlabRegressor(random_state=0), y),
    "classifier": (SpikeSlabClassifier(random_state=0), LABELS),
    "logistic": (BayesianLogisticRegression(random_state=0, prior_scale=1.0), LABELS),
    "mixture": (LatentMixture(random_state=0), None),
    "network": (SigmoidBeliefNetwork(2, max_iter=25, random_state=0), None),
}


@pytest.mark.parametrize("name", list(ALL))
def test_frames_pickles_and_pipelines(name):
    estimator, target = ALL[name]
    pipeline = make_pipeline(StandardScaler().set_output(transform="pandas"), estimator).fit(X, target)
    fitted = pipeline[-1]
    assert list(fitted.feature_names_in_) == list(X)
    use = "transform" if name == "network" else "predict"
    expected = getattr(pipeline, use)(X)
    np.testing.assert_array_equal(getattr(pickle.loads(pickle.dumps(pipeline)), use)(X), expected)
    again = make_pipeline(StandardScaler().set_output(transform="pandas"), estimator).fit(X, target)
    np.testing.assert_array_equal(getattr(again, use)(X), expected)  # random_state is a seed
    with pytest.raises(ValueError, match="feature names"):
        getattr(fitted, use)(X.rename(columns={"age": "years"}))


def test_grid_search():
    search = GridSearchCV(SpikeSlabRegressor(random_state=0, n_draws=50), {"prior_inclusion": [0.01, 0.5]}, cv=3)
    assert search.fit(X, y).best_score_ > 0.9
    mixture = GridSearchCV(LatentMixture(random_state=0), {"n_components": [1, 3]}, cv=3)
    two = np.concatenate([X.to_numpy(), X.to_numpy() + 9.0])
    assert mixture.fit(two).best_params_ == {"n_components": 3}


def test_slopes_are_in_the_units_of_the_data():
    fitted = ALL["regressor"][0].fit(X, y)
    np.testing.assert_allclose(fitted.coef_, [3, 0, -40], atol=2)
    assert fitted.get_support().tolist() == [True, False, True]
    np.testing.assert_allclose(fitted.predict(X), fitted.intercept_ + X.to_numpy() @ fitted.coef_)
    np.testing.assert_allclose(fitted.noise_, 1.0, atol=0.2)
    other = SpikeSlabRegressor(random_state=0).fit(X * [100, 1, 1], y * 5 + 7)
    np.testing.assert_allclose(other.coef_ / 5 * [100, 1, 1], fitted.coef_, rtol=1e-6)
    np.testing.assert_allclose(other.inclusion_probabilities_, fitted.inclusion_probabilities_, rtol=1e-6)


def test_with_every_column_and_a_flat_slab_it_is_ridge_regression():
    fitted = SpikeSlabRegressor(prior_inclusion=1 - 1e-9, slab_scale=50.0, random_state=0).fit(X, y)
    ridge = BayesianRidge(lambda_init=1e-9).fit(X, y)
    np.testing.assert_allclose(fitted.inclusion_probabilities_, 1.0, atol=1e-4)
    np.testing.assert_allclose(fitted.coef_, np.linalg.lstsq(np.c_[X, np.ones(80)], y, rcond=None)[0][:3], rtol=1e-2)
    np.testing.assert_allclose(fitted.predict(X), ridge.predict(X), atol=0.3)
    theirs = ridge.predict(X, return_std=True)[1]
    np.testing.assert_allclose(fitted.predict(X, return_std=True)[1], theirs, rtol=0.08)


def test_intervals_hold_what_they_say():
    held = []
    for seed in range(8):
        A, b = table(200, seed)
        fitted = SpikeSlabRegressor(random_state=0).fit(A[:60], b[:60])
        low, high = fitted.predict_interval(A[60:], level=0.8)
        held.append(np.mean((low < b[60:]) & (b[60:] < high)))
    assert abs(np.mean(held) - 0.8) < 0.05
    p, std = ALL["classifier"][0].fit(X, LABELS).predict_proba(X, return_std=True)
    low, high = ALL["classifier"][0].predict_interval(X, level=0.9)
    assert ((low <= p[:, 1] + 1e-9) & (p[:, 1] <= high + 1e-9)).mean() > 0.9
    assert std.shape == p.shape
    label, of_label = ALL["classifier"][0].predict(X, return_std=True)
    assert (label == LABELS).mean() > 0.9
    np.testing.assert_array_equal(of_label, std[:, 1])


def test_counts():
    rng = np.random.default_rng(0)
    counts = rng.poisson(np.exp(0.3 * X["age"] - 1))
    fitted = SpikeSlabRegressor(family="poisson", random_state=0).fit(X, counts)
    np.testing.assert_allclose(fitted.coef_[0], 0.3, atol=0.06)
    mean, std = fitted.predict(X, return_std=True)
    np.testing.assert_allclose(mean.mean(), counts.mean(), rtol=0.05)
    assert (std > np.sqrt(mean)).all()
    low, high = fitted.predict_interval(X, 0.9)
    assert np.mean((low <= counts) & (counts <= high)) > 0.85


def test_many_rows_and_a_wide_prior_give_the_answer_of_maximum_likelihood():
    A = np.random.default_rng(1).normal(size=(3000, 3))
    label = (A @ [1.0, -2.0, 0.0] + np.random.default_rng(2).logistic(size=3000) > 0).astype(int)
    mine = BayesianLogisticRegression(prior_scale=100.0, random_state=0, n_draws=4000).fit(A, label)
    theirs = LogisticRegression(C=np.inf).fit(A, label)
    np.testing.assert_allclose(mine.coef_, theirs.coef_, atol=0.03)
    np.testing.assert_allclose(mine.predict_proba(A), theirs.predict_proba(A), atol=0.01)
    assert mine.predict(A[:3], return_std=True)[1].max() < 0.05


def test_real_data():
    A, b = load_diabetes(return_X_y=True, as_frame=True)
    found = dict(zip(A, SpikeSlabRegressor(random_state=0).fit(A, b).inclusion_probabilities_, strict=True))
    assert min(found["bmi"], found["s5"], found["bp"]) > 0.95 > found["age"]
    A, b = load_breast_cancer(return_X_y=True)
    assert cross_val_score(BayesianLogisticRegression(random_state=0, prior_scale=1.0), A, b, cv=3).min() > 0.95


def test_more_classes():
    digits = load_digits(n_class=3)
    A, b = digits.data[:150, 18:22], digits.target[:150]
    many = BayesianLogisticRegression(random_state=0, prior_scale=1.0).fit(A, b)
    assert many.coef_.shape == many.coef_std_.shape == (3, 4)
    p, std = many.predict_proba(A, return_std=True)
    np.testing.assert_allclose(p.sum(1), 1.0)
    assert std.shape == p.shape
    one = OneVsRestClassifier(SpikeSlabClassifier(random_state=0)).fit(A, b)
    assert one.score(A, b) > 0.5


def test_a_mixture_in_the_units_of_the_data():
    rng = np.random.default_rng(0)
    A = np.concatenate([rng.normal(100, 5, (60, 2)), rng.normal(200, 5, (40, 2))])
    fitted = LatentMixture(2, random_state=0).fit(A)
    np.testing.assert_allclose(fitted.means_, [[100, 100], [200, 200]], atol=3)
    grid = np.linspace(0, 300, 400)
    plane = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
    np.testing.assert_allclose(np.exp(fitted.score_samples(plane)).sum() * (300 / 399) ** 2, 1.0, atol=0.01)
    drawn, labels = fitted.sample(2000)
    np.testing.assert_allclose(drawn[labels == 1].mean(0), [200, 200], atol=3)
    np.testing.assert_allclose(fitted.predict_proba(A).sum(1), 1.0)
    bits = (A > 150).astype(float)
    of_bits = LatentMixture(2, components="bernoulli", random_state=0).fit(bits)
    every = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    np.testing.assert_allclose(np.exp(of_bits.score_samples(every)).sum(), 1.0)
    assert (of_bits.predict(bits) == fitted.labels_).all()


def test_a_belief_network_knows_digits():
    images = load_digits().data[:400] / 16
    fitted = SigmoidBeliefNetwork(8, max_iter=300, random_state=0).fit(images[:300])
    noise = np.random.default_rng(0).random((100, 64))
    assert fitted.score(images[300:]) > fitted.score(noise) + 10
    assert fitted.elbo_[-25:].mean() > fitted.elbo_[:25].mean() + 3
    assert list(fitted.get_feature_names_out()[:2]) == ["sigmoidbeliefnetwork0", "sigmoidbeliefnetwork1"]
    assert set(np.unique(fitted.sample(5))) <= {0.0, 1.0}


@pytest.mark.parametrize(
    ("estimator", "target", "words"),
    [
        (SpikeSlabRegressor(prior_inclusion=2), y, "prior_inclusion=2: give 'auto', or a positive number below 1"),
        (SpikeSlabRegressor(slab_scale="wide"), y, "slab_scale='wide': give 'auto', or a positive number"),
        (SpikeSlabRegressor(family="gamma"), y, "family='gamma': give 'gaussian' or 'poisson'"),
        (SpikeSlabRegressor(family="poisson"), y, "in row 0, which is not a count: set family='gaussian'"),
        (SpikeSlabRegressor(restarts=0), y, "restarts=0: give a whole number of at least 1"),
        (SpikeSlabClassifier(), np.arange(80) % 3, "has 3 classes|3 classes: wrap .* in sklearn.multiclass"),
        (BayesianLogisticRegression(), np.ones(80), "y has one class, .*: a classifier needs at least two"),
        (LatentMixture(components="poisson"), None, "components='poisson': give 'gaussian' or 'bernoulli'"),
        (LatentMixture(100), None, "n_components=100 is larger than n_samples=80: take fewer"),
        (LatentMixture(weight_concentration=0), None, "weight_concentration=0: give a positive number"),
        (SigmoidBeliefNetwork(binarize=None), None, "in row 0, column 0, which is not between 0 and 1: set binarize"),
    ],
)
def test_messages(estimator, target, words):
    with pytest.raises(ValueError, match=words):
        estimator.fit(X, target)


def test_what_cannot_be_trusted_is_said(monkeypatch):
    monkeypatch.setattr(spike_slab, "_DRAWS", 300)
    rng = np.random.default_rng(0)
    A = rng.normal(size=(30, 60))  # too few rows to tell which of sixty columns matter
    with pytest.warns(legrad.FitWarning, match="k-hat is .*, above 0.7.* as a ranking"):
        SpikeSlabRegressor(random_state=0, n_draws=20).fit(A, A[:, :10].sum(1) + 3 * rng.normal(size=30))
    with pytest.raises(ValueError, match="level=1.5: give a number between 0 and 1"):
        ALL["regressor"][0].fit(X, y).predict_interval(X, level=1.5)
    with pytest.warns(legrad.FitWarning, match="not converged after 1 sweeps: raise max_iter"):
        LatentMixture(max_iter=1, random_state=0).fit(X)


def test_legrad_itself_does_not_import_scikit_learn():
    code = "import sys, legrad, legrad.cli; sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
