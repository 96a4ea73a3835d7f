"""Fits of twelve posteriors of posteriordb with `legrad.fit(model, args=..., key=...)`, against their references.

    LEGRAD_DATA=... python benchmarks/posteriordb.py [names] [--no-peer]

A posterior is right if all means are within 0.1 posterior standard deviations and all sds within 10%; draws are
corrected by importance resampling where k-hat is at most 0.7. It is flagged if `diagnose` or the fit says that
something is wrong. Beside it: seconds of NumPyro's AutoMultivariateNormal with 20,000 Adam steps.
"""

import argparse
import importlib.util
import os
import sys
import time
import warnings
from functools import cache
from pathlib import Path

import jax
import numpy as np

import legrad

STEPS, DRAWS = 20_000, 8_000


def folder() -> Path | None:
    """Where the posteriors are, if LEGRAD_DATA says so."""
    data = os.environ.get("LEGRAD_DATA")
    found = Path(data) / "posteriordb" if data else None
    return found if found is not None and (found / "models.py").exists() else None


@cache
def load():
    """The module of models, data and references."""
    spec = importlib.util.spec_from_file_location("posteriordb_models", folder() / "models.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # the module leaves closing its files to Python
        spec.loader.exec_module(module)
    return module


def errors(models, posterior, draws) -> tuple[float, float]:
    """The worst shift of a mean in posterior sds, and the worst relative error of an sd."""
    quantities = models.moments(posterior, draws)
    means, sds = [], []
    for name, reference in models.REFS[posterior.ref].items():
        x = quantities.get(name, quantities.get(name.replace("[1]", "")))
        means.append(abs(x.mean() - reference["mean"]) / reference["sd"])
        sds.append(abs(x.std() / reference["sd"] - 1))
    return max(means), max(sds)


def fit_one(models, posterior, seed=0) -> dict:
    """Fit a posterior, and judge the fit against its reference."""
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", legrad.FitWarning)
        result = legrad.fit(posterior.model, args=posterior.args, key=jax.random.key(seed))
        seconds = time.perf_counter() - begun
        found = result.diagnose(jax.random.key(seed + 1))
    try:
        draws = result.sample(jax.random.key(seed + 2), DRAWS, corrected=found.khat <= 0.7)
    except ValueError:  # a k-hat that is on either side of 0.7 in different draws
        draws = result.sample(jax.random.key(seed + 2), DRAWS)
    mean, sd = errors(models, posterior, draws)
    flagged = not found.ok
    return {
        "right": mean <= 0.1 and sd <= 0.1, "flagged": flagged, "mean": mean, "sd": sd, "khat": found.khat,
        "seconds": seconds, "converged": result.converged, "method": result.method, **result.gradients,
    }  # fmt: skip


def peer_seconds(posterior) -> float:
    """Seconds of AutoMultivariateNormal, compilation included."""
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoMultivariateNormal
    from numpyro.optim import Adam

    begun = time.perf_counter()
    svi = SVI(posterior.model, AutoMultivariateNormal(posterior.model), Adam(1e-2), Trace_ELBO())
    jax.block_until_ready(svi.run(jax.random.key(0), STEPS, *posterior.args, progress_bar=False).params)
    return time.perf_counter() - begun


def main():
    if folder() is None:
        print("skipped: LEGRAD_DATA does not name a folder with posteriordb/models.py")
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--no-peer", action="store_true")
    asked = parser.parse_args()
    models = load()
    rows = []
    print(f"{'posterior':27} right flagged  mean    sd  k-hat  model objective seconds  peer")
    for name, posterior in models.POSTERIORS.items():
        if asked.names and name not in asked.names:
            continue
        try:
            row = fit_one(models, posterior)
        except Exception as error:
            print(f"{name:27} crashed: {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)
            rows.append(None)
            continue
        row["peer"] = np.nan if asked.no_peer or posterior.discrete else peer_seconds(posterior)
        rows.append(row)
        print(
            f"{name:27} {'yes' if row['right'] else 'NO':5} {'yes' if row['flagged'] else '-':7} {row['mean']:5.3f} "
            f"{row['sd']:5.3f} {row['khat']:6.2f} {row.get('model', -1):6} {row.get('objective', -1):9} "
            f"{row['seconds']:7.1f} {row['peer']:5.1f}",
            flush=True,
        )
    done = [row for row in rows if row is not None]
    silent = sum(not row["right"] and not row["flagged"] for row in done)
    print(f"{sum(row['right'] for row in done)} of {len(rows)} right, {silent} silent, {rows.count(None)} crashed")
    times = [(row["seconds"], row["peer"]) for row in done if np.isfinite(row["peer"])]
    if times:
        mine, peer = np.median(times, axis=0)
        print(f"median seconds {mine:.1f}, AutoMultivariateNormal with {STEPS:,} steps {peer:.1f}")


if __name__ == "__main__":
    main()
