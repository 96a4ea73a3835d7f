"""legrad.sklearn against scikit-learn: who finds the support, and whose probabilities are better.

    python benchmarks/sklearn_table.py [--quick]

Writes docs/results/sklearn.json, which docs/scikit_learn.py turns into docs/scikit_learn.md. Four tables:

1. Simulations with a known support: spike and slab against LassoCV, ARDRegression and an L1 logistic regression.
2. Public data with as many shuffled columns again, which are known not to matter.
3. Log-loss and calibration of logistic regression on held-out folds, against the C that cross-validation finds best.
4. Held-out R² and intervals of regressions, on the same public data.
"""

import argparse
import json
import platform
import time
import warnings
from importlib.metadata import version
from pathlib import Path

import numpy as np
from sklearn import datasets
from sklearn.linear_model import ARDRegression, LassoCV, LogisticRegression
from sklearn.metrics import average_precision_score, log_loss
from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from legrad.sklearn import BayesianLogisticRegression, SpikeSlabClassifier, SpikeSlabRegressor

KEPT = Path(__file__).parents[1] / "docs" / "results" / "sklearn.json"
STRENGTHS = np.geomspace(1e-3, 1e3, 13)
SIMULATIONS = [  # kind, rows, columns, columns that matter, correlation of neighbours, noise
    ("regression", 100, 20, 5, 0.0, 1.0),
    ("regression", 100, 20, 5, 0.8, 1.0),
    ("regression", 100, 100, 5, 0.5, 1.0),
    ("regression", 60, 200, 5, 0.5, 1.0),
    ("regression", 200, 50, 20, 0.3, 2.0),
    ("classification", 200, 20, 5, 0.3, 0.0),
    ("classification", 200, 60, 5, 0.3, 0.0),
]


def simulated(kind, n, p, k, correlation, noise, seed):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, p))
    X = z.copy()
    for j in range(1, p):
        X[:, j] = correlation * X[:, j - 1] + np.sqrt(1 - correlation**2) * z[:, j]
    slopes = np.zeros(p)
    where = rng.choice(p, k, replace=False)
    slopes[where] = rng.choice([-1, 1], k) * rng.uniform(0.3, 1.2, k) * (1.5 if kind == "classification" else 1.0)
    mean = X @ slopes
    y = mean + noise * rng.normal(size=n) if kind == "regression" else mean + rng.logistic(size=n) > 0
    return X, y, slopes != 0


def l1_logistic():
    return GridSearchCV(
        LogisticRegression(l1_ratio=1.0, solver="liblinear", max_iter=2000),
        {"C": np.geomspace(0.01, 100, 13)},
        scoring="neg_log_loss",
        cv=5,
    )


def selections(kind, X, y):
    """For each method: a score for each column, and which columns it takes."""
    X = StandardScaler().fit_transform(X)
    if kind == "regression":
        mine = SpikeSlabRegressor(random_state=0).fit(X, y)
        others = {"LassoCV": LassoCV(cv=5, max_iter=20_000), "ARDRegression": ARDRegression()}
        coefs = {name: method.fit(X, y).coef_ for name, method in others.items()}
    else:
        mine = SpikeSlabClassifier(random_state=0).fit(X, y)
        coefs = {"L1 logistic, CV": l1_logistic().fit(X, y).best_estimator_.coef_[0]}
    found = {"spike and slab": (mine.inclusion_probabilities_, mine.get_support())}
    return found | {name: (np.abs(c), np.abs(c) > 1e-8) for name, c in coefs.items()}, float(mine.khat_)


def support_row(given, seeds):
    kind = given[0]
    rows, khats = {}, []
    for seed in range(seeds):
        X, y, truth = simulated(*given, seed)
        found, khat = selections(kind, X, y)
        khats.append(khat)
        for name, (score, chosen) in found.items():
            hits = int((chosen & truth).sum())
            rows.setdefault(name, []).append(
                [average_precision_score(truth, score), hits / max(1, chosen.sum()), hits / truth.sum()]
            )
    return {
        "kind": kind, "rows": given[1], "columns": given[2], "matter": given[3], "correlation": given[4],
        "seeds": seeds, "untrusted": int(np.sum(np.array(khats) > 0.7)),
        "methods": {name: _support(np.array(values)) for name, values in rows.items()},
    }  # fmt: skip


def _support(values):
    precision, recall = values[:, 1], values[:, 2]
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    return {
        "average_precision": float(values[:, 0].mean()),
        "each": values[:, 0].round(4).tolist(),
        "error": float(values[:, 0].std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None,
        "precision": float(precision.mean()),
        "recall": float(recall.mean()),
        "f1": float(f1.mean()),
    }


def digits(classes, rows=None):
    X, y = datasets.load_digits(return_X_y=True)
    keep = np.isin(y, classes)
    X, y = X[keep][:rows], y[keep][:rows]
    return X[:, X.std(0) > 0.3], y


SHUFFLED = {
    "diabetes": ("regression", lambda: datasets.load_diabetes(return_X_y=True)),
    "breast cancer": ("classification", lambda: datasets.load_breast_cancer(return_X_y=True)),
    "wine, class 1": ("classification", lambda: _one_class(*datasets.load_wine(return_X_y=True))),
    "iris, petal width": ("regression", lambda: _petal(datasets.load_iris().data)),
    "digits, 3 or 8": ("classification", lambda: digits([3, 8])),
}


def _one_class(X, y):
    return X, (y == 1).astype(int)


def _petal(X):
    return X[:, :3], X[:, 3]


def shuffled_row(name, seeds):
    kind, load = SHUFFLED[name]
    X, y = load()
    rows, khats = {}, []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        fake = np.column_stack([rng.permutation(column) for column in X.T])
        found, khat = selections(kind, np.column_stack([X, fake]), np.asarray(y))
        khats.append(khat)
        for method, (_, chosen) in found.items():
            rows.setdefault(method, []).append([chosen[: X.shape[1]].sum(), chosen[X.shape[1] :].sum()])
    return {
        "name": name, "kind": kind, "rows": len(X), "columns": X.shape[1], "seeds": seeds,
        "untrusted": int(np.sum(np.array(khats) > 0.7)),
        "methods": {m: dict(zip(("real", "shuffled"), np.mean(v, axis=0).tolist(), strict=True))
                    for m, v in rows.items()},
    }  # fmt: skip


PROBABILITIES = {
    "breast cancer": lambda: datasets.load_breast_cancer(return_X_y=True),
    "wine": lambda: datasets.load_wine(return_X_y=True),
    "iris": lambda: datasets.load_iris(return_X_y=True),
    "digits, 3 or 8": lambda: digits([3, 8]),
    "digits, 0 to 4": lambda: digits([0, 1, 2, 3, 4], 500),
    "diabetes, above the median": lambda: _above(*datasets.load_diabetes(return_X_y=True)),
}


def _above(X, y):
    return X, (y > np.median(y)).astype(int)


def calibration_error(p, y, bins=10):
    """The expected calibration error of the probabilities of all classes, in bins of equal counts."""
    hot = np.eye(p.shape[1])[y].ravel()
    flat = p.ravel()
    parts = np.array_split(np.argsort(flat, kind="stable"), bins)
    return float(sum(len(i) / len(flat) * abs(flat[i].mean() - hot[i].mean()) for i in parts))


def best_c():
    search = GridSearchCV(
        LogisticRegression(max_iter=2000), {"C": STRENGTHS}, scoring="neg_log_loss", cv=StratifiedKFold(5)
    )
    return make_pipeline(StandardScaler(), search)


def probability_row(name, folds, seeds):
    X, y = PROBABILITIES[name]()
    y = np.unique(y, return_inverse=True)[1]
    methods = {"legrad": lambda: BayesianLogisticRegression(random_state=0), "best C": best_c}
    losses, errors, seconds = ({m: [] for m in methods} for _ in range(3))
    each_row = {m: 0.0 for m in methods}
    for seed in range(seeds):
        held = {m: np.zeros((len(y), len(np.unique(y)))) for m in methods}
        for train, test in StratifiedKFold(folds, shuffle=True, random_state=seed).split(X, y):
            for method, make in methods.items():
                begun = time.perf_counter()
                held[method][test] = make().fit(X[train], y[train]).predict_proba(X[test])
                seconds[method].append(time.perf_counter() - begun)
        for method, p in held.items():
            losses[method].append(log_loss(y, np.clip(p, 1e-15, 1)))
            each_row[method] -= np.log(np.clip(p, 1e-15, 1))[np.arange(len(y)), y] / seeds
            errors[method].append(calibration_error(p, y))
    each = {
        m: {"log_loss": float(np.mean(losses[m])), "calibration": float(np.mean(errors[m])),
            "seconds": float(np.median(seconds[m]))}
        for m in methods
    }  # fmt: skip
    worse = each_row["legrad"] - each_row["best C"]
    return {"name": name, "rows": len(y), "columns": X.shape[1], "classes": len(np.unique(y)),
            "folds": folds, "seeds": seeds, "methods": each, "difference": float(worse.mean()),
            "difference_error": float(worse.std(ddof=1) / np.sqrt(len(y)))}  # fmt: skip


def prediction_row(name, seeds):
    """Held-out R² of regressions, and the share of held-out targets inside intervals of 90%."""
    X, y = SHUFFLED[name][1]()
    r2, held = {}, []
    for seed in range(seeds):
        for train, test in KFold(5, shuffle=True, random_state=seed).split(X):
            methods = {
                "spike and slab": SpikeSlabRegressor(random_state=0),
                "LassoCV": LassoCV(cv=5, max_iter=20_000),
                "ARDRegression": ARDRegression(),
            }
            for method, estimator in methods.items():
                fitted = make_pipeline(StandardScaler(), estimator).fit(X[train], y[train])
                r2.setdefault(method, []).append(fitted.score(X[test], y[test]))
                if method == "spike and slab":
                    low, high = fitted[-1].predict_interval(fitted[0].transform(X[test]), 0.9)
                    held += list((low < y[test]) & (y[test] < high))
    return {"name": name, "r2": {m: float(np.mean(v)) for m, v in r2.items()}, "inside": float(np.mean(held))}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed of each, to see that it runs; writes nothing")
    parser.add_argument("--only", choices=("probabilities", "support", "shuffled", "predictions"), help="one table")
    given = parser.parse_args()
    quick = given.quick
    warnings.simplefilter("ignore")
    seeds, begun = (1 if quick else 10), time.perf_counter()
    results = {"support": [], "shuffled": [], "probabilities": [], "predictions": []}
    if given.only:
        results = json.loads(KEPT.read_text()) | {given.only: []}
        if given.only == "probabilities":
            results.pop("note", None)  # which says that this table is old

    def done(table, row):
        results[table].append(row)
        print(f"{time.perf_counter() - begun:.0f} s", json.dumps(row), flush=True)

    def wanted(table):
        return given.only in (None, table)

    for name in PROBABILITIES if wanted("probabilities") else ():
        done("probabilities", probability_row(name, 5, 1 if quick else 2))
    for problem in SIMULATIONS if wanted("support") else ():
        done("support", support_row(problem, seeds))
    for name in SHUFFLED if wanted("shuffled") else ():
        done("shuffled", shuffled_row(name, 1 if quick else 2))
    for name in ("diabetes", "iris, petal width") if wanted("predictions") else ():
        done("predictions", prediction_row(name, 1 if quick else 4))
    results["versions"] = {n: version(n) for n in ("scikit-learn", "numpy", "scipy")}
    results["versions"]["Python"] = platform.python_version()
    if not quick:
        KEPT.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
