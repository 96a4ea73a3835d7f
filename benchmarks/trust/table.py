"""Is a fit right, or does it say that it is not? And does stop="auto" end in the right place, in good time?

    python benchmarks/trust/table.py [--only NAMES] [--restarts 8]      (make trust)

Every problem is fitted with `stop="auto"` and several starts, and diagnosed. Means and standard deviations of the
guide are compared with the posterior that `references.py` found by other means. A fit ten times as long, with a
decaying step size, says where the ELBO and the guide end up; the grid of `schedules.py` says how few steps a fixed
schedule needs to end as near to that. Writes docs/results/trust.json, from which docs/trust.py makes the page.
"""

from __future__ import annotations

import argparse
import inspect
import json
import math
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import Predictive
from problems import PROBLEMS
from references import RESULTS as REFERENCES
from row import TrustProblem
from schedules import Fixed
from tqdm import tqdm

import legrad
from legrad.diagnostics.psis import elbo_estimate
from legrad.model.problem import Problem

OUT = Path(__file__).parents[2] / "docs" / "results" / "trust.json"
DRAWS, ELBO_DRAWS = 20_000, 20_000
NEAR, SAME = 0.1, 0.03  # posterior standard deviations: what counts as right, and as the same place


class Guide:
    """Moments of a problem's guide at any parameters, with the same noise for all of them."""

    def __init__(self, problem: TrustProblem, key: jax.Array) -> None:
        self.problem, self.key = problem, key
        guide = getattr(problem.guide, "whole", problem.guide)

        @jax.jit
        def draw(params: Any) -> dict[str, jax.Array]:
            return Predictive(guide, params=params, num_samples=DRAWS, parallel=True)(key, *problem.args)

        self.draw = draw

    def moments(self, params: Any) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        features = self.problem.features(self.draw(params))
        return {k: x.mean(0) for k, x in features.items()}, {k: x.std(0) for k, x in features.items()}

    def elbo(self, params: Any) -> float:
        problem = self.problem
        there = Problem(problem.model, problem.guide, jax.tree.map(jnp.asarray, params), problem.args)
        return elbo_estimate(there, self.key, ELBO_DRAWS).elbo


def errors(found: Any, wanted: Any) -> tuple[float, float]:
    """The furthest that a mean and a standard deviation are off, in the wanted standard deviations."""
    (mean, sd), (true_mean, true_sd) = found, wanted
    true_sd = {k: np.maximum(s, 1e-9) for k, s in true_sd.items()}
    off = [
        (np.max(np.abs(mean[k] - true_mean[k]) / true_sd[k]), np.max(np.abs(sd[k] - true_sd[k]) / true_sd[k]))
        for k in true_mean
    ]
    return tuple(float(max(column)) for column in zip(*off, strict=True))


def row(name: str, restarts: int) -> dict[str, Any]:
    """All that is measured about one problem."""
    problem = PROBLEMS[name]()
    reference = json.loads(REFERENCES.read_text())[name]
    of_fit, of_diagnosis, of_long, of_draws = jax.random.split(jax.random.key(0), 4)
    settings = {"args": problem.args, "estimator": problem.estimator, "progress": False}
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", legrad.FitWarning)
        result = legrad.fit(problem.model, problem.guide, key=of_fit, stop="auto", restarts=restarts, **settings)
        seconds = time.perf_counter() - begun
        diagnosis = result.diagnose(of_diagnosis)
    guide = Guide(problem, of_draws)
    latents = reference["latents"]
    truth = tuple({k: np.asarray(v[what]) for k, v in latents.items()} for what in ("mean", "sd"))
    here = guide.moments(result.params)
    off = errors(here, truth)
    right, flagged = max(off) <= NEAR, not diagnosis.ok

    stopping = ended(problem, result, guide, here, of_long) if result.converged else {}
    return {
        "guide": "by hand" if inspect.isfunction(problem.guide) else type(problem.guide).__name__,
        "note": problem.note,
        "expected": problem.expected,
        "reference": reference["method"],
        "mean_error": off[0],
        "sd_error": off[1],
        "khat": diagnosis.khat,
        "flags": diagnosis.flags,
        "verdict": _verdict(right, flagged),
        "converged": result.converged,
        "status": result.status,
        "steps": result.steps,
        "seconds": seconds,
        "gap": None,
        "from_long": None,
        "fixed_steps": None,
        "fixed_schedule": None,
        **stopping,
    }  # fmt: skip


def ended(problem: TrustProblem, result: legrad.FitResult, guide: Guide, here: Any, key: jax.Array) -> dict[str, Any]:
    """Where a fit that says it has converged ended, against a longer one and fixed schedules."""
    fixed = Fixed(problem, key)
    steps = 10 * result.steps
    long = max((fixed.fit(rate, "cosine", steps, steps) for rate in (0.05, 0.02)), key=guide.elbo)
    elbos = {
        "start": guide.elbo(fixed.parameters.initial),
        "auto": guide.elbo(result.params),
        "long": guide.elbo(long),
    }
    end = guide.moments(long)
    from_long = max(errors(here, end))

    def near(params: Any) -> bool:
        return max(errors(guide.moments(params), end)) <= max(from_long, SAME)

    best = fixed.fewest(near, result.steps)
    return {
        "elbo": elbos,
        "gap": (elbos["long"] - elbos["auto"]) / (elbos["long"] - elbos["start"]),
        "from_long": from_long,
        "fixed_steps": best[0] if best else None,
        "fixed_schedule": best[1] if best else None,
    }


def _verdict(right: bool, flagged: bool) -> str:
    if right:
        return "right, and flagged" if flagged else "right"
    return "flagged" if flagged else "SILENT FAILURE"


def summary(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What the issue asks: counts over all rows."""
    ended = [r for r in rows.values() if r["converged"]]
    ratios = [r["steps"] / r["fixed_steps"] for r in ended if r["fixed_steps"]]
    return {
        "problems": len(rows),
        "right": sum(r["verdict"] == "right" for r in rows.values()),
        "flagged": sum("flagged" in r["verdict"] for r in rows.values()),
        "silent": sum(r["verdict"] == "SILENT FAILURE" for r in rows.values()),
        "largest_gap": max((r["gap"] for r in ended), default=math.nan),
        "largest_ratio": max(ratios, default=math.nan),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the table of docs/trust.md.")
    parser.add_argument("--only", default=",".join(PROBLEMS), help="names of problems, with commas")
    parser.add_argument("--restarts", type=int, default=8)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    rows = json.loads(options.out.read_text())["rows"] if options.out.exists() else {}
    for name in (bar := tqdm(options.only.split(","))):
        bar.set_description(name)
        rows[name] = r = row(name, options.restarts)
        tqdm.write(
            f"{name:20} {r['verdict']:18} mean {r['mean_error']:.3f} sd {r['sd_error']:.3f} k-hat {r['khat']:5.2f} "
            f"flags {len(r['flags'])} steps {r['steps']:6} fixed {r['fixed_steps']} ({r['fixed_schedule']}) "
            f"gap {r['gap']} from long {r['from_long']} {r['seconds']:.0f} s"
        )
        kept = {n: rows[n] for n in PROBLEMS if n in rows}
        versions = {m.__name__: m.__version__ for m in (jax, legrad)}
        text = {"summary": summary(kept), "versions": versions, "restarts": options.restarts, "rows": kept}
        options.out.write_text(json.dumps(text, indent=1) + "\n")
    print(json.dumps(summary(rows), indent=1))
    sys.exit(summary(rows)["silent"] > 0)


if __name__ == "__main__":
    main()
