"""The problems of the trust table by `legrad.fit(model, args=..., key=...)` and nothing else: no guide, no settings.

    python benchmarks/trust/structured.py [--only NAMES] [--limit SECONDS]

A fit is right if all means are within 0.1 posterior standard deviations and all sds within 10%; draws are corrected
by importance resampling where k-hat is at most 0.7. Every fit has a process of its own, in float32, as a user's would
be; seconds include compilation. Writes docs/results/trust_structured.json.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import isolated
import jax
import numpy as np
import numpyro
from problems import PROBLEMS
from references import RESULTS as REFERENCES

import legrad

OUT = Path(__file__).parents[2] / "docs" / "results" / "trust_structured.json"
DRAWS, NEAR, LIMIT = 20_000, 0.1, 200.0
VERSIONS = {module.__name__: module.__version__ for module in (legrad, jax, numpyro)}


def fit(name: str) -> dict[str, Any]:
    """Fit a problem, and judge the fit against its reference."""
    problem = PROBLEMS[name]()
    begun, cpu = time.perf_counter(), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", legrad.FitWarning)
        result = legrad.fit(problem.model, args=problem.args, key=jax.random.key(0))
        seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
        found = result.diagnose(jax.random.key(1))
    corrected = bool(found.khat <= 0.7)
    try:
        draws = result.sample(jax.random.key(2), DRAWS, corrected=corrected)
    except ValueError:  # a k-hat that is on either side of 0.7 in different draws
        corrected, draws = False, result.sample(jax.random.key(2), DRAWS)
    mean, sd = errors(problem.features(draws), json.loads(REFERENCES.read_text())[name]["latents"])
    right, flagged = max(mean, sd) <= NEAR, not found.ok
    return {
        "mean_error": mean, "sd_error": sd, "khat": float(found.khat), "corrected": corrected, "flags": found.flags,
        "verdict": verdict(right, flagged), "converged": bool(result.converged), "steps": result.steps,
        "gradients": result.gradients, "seconds": seconds, "cpu": cpu, "method": result.method,
        "status": result.status,
    }  # fmt: skip


def errors(features: dict[str, np.ndarray], wanted: dict[str, Any]) -> tuple[float, float]:
    """The worst shift of a mean in posterior sds, and the worst relative error of an sd."""
    means, sds = [], []
    for name, x in features.items():
        sd = np.maximum(wanted[name]["sd"], 1e-9)
        means.append(np.max(np.abs(x.mean(0) - wanted[name]["mean"]) / sd))
        sds.append(np.max(np.abs(x.std(0) / sd - 1)))
    return float(max(means)), float(max(sds))


def verdict(right: bool, flagged: bool) -> str:
    """What the table calls a fit."""
    if right:
        return "right, and flagged" if flagged else "right"
    return "flagged" if flagged else "SILENT FAILURE"


def main() -> None:
    parser = argparse.ArgumentParser(description="Fit the problems of the trust table without a guide.")
    parser.add_argument("--one", help="print the row of this problem")
    parser.add_argument("--only", default=",".join(PROBLEMS), help="names of problems, with commas")
    parser.add_argument("--limit", type=float, default=LIMIT, help="CPU seconds for a fit with its diagnosis")
    options = parser.parse_args()
    if options.one:
        isolated.say(fit(options.one))
        return
    for name in options.only.split(","):
        r = isolated.row(__file__, name, options.limit)
        isolated.keep(OUT, name, r, VERSIONS)
        what = r.get("failed") or (
            f"{r['verdict']:18} mean {r['mean_error']:.3f} sd {r['sd_error']:.3f} k-hat {r['khat']:5.2f} "
            f"steps {r['steps']} {r['seconds']:.0f} s"
        )
        print(f"{name:20} {what}", flush=True)


if __name__ == "__main__":
    main()
