"""Models that users write, by `legrad.fit(model, args=..., key=...)` and nothing else: right, flagged, seconds.

    python benchmarks/trust/user_table.py [--only NAMES] [--limit SECONDS] [--answers]

Every fit has a process of its own; seconds include compilation. Writes docs/results/trust_users.json. The answers of
NUTS are kept in docs/results/trust_user_answers.json; `--answers` finds them again.
"""

from __future__ import annotations

import argparse
import contextlib
import time
import warnings
from pathlib import Path
from typing import Any

import isolated
import jax
import numpyro
from user_answers import EXACT, by_nuts, judge
from user_models import MODELS

import legrad

RESULTS = Path(__file__).parents[2] / "docs" / "results"
OUT, ANSWERS = RESULTS / "trust_users.json", RESULTS / "trust_user_answers.json"
DRAWS, LIMIT = 8_000, 300.0
VERSIONS = {module.__name__: module.__version__ for module in (legrad, jax, numpyro)}


def fit(name: str) -> None:
    """Fit a model and judge the fit; print a row before the diagnosis, which may take longer, and one after it."""
    user = MODELS[name]()
    kept = isolated.kept(ANSWERS, name)
    by = "exact" if name in EXACT else "NUTS, discrete latents summed by hand" if kept else "simulated truth"
    begun, cpu = time.perf_counter(), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", legrad.FitWarning)
        result = legrad.fit(user.model, args=user.args, key=jax.random.key(0))
    row = {
        "what": user.what, "by": by, "seconds": time.perf_counter() - begun, "cpu": time.process_time() - cpu,
        "steps": result.steps, "converged": bool(result.converged), "method": result.method, "status": result.status,
    }  # fmt: skip
    plain = judge(name, user, result.sample(jax.random.key(2), DRAWS), kept)
    row |= {**plain._asdict(), "plain": plain.said, "corrected": False, "flags": [], "khat": None}
    isolated.say(row)
    found = result.diagnose(jax.random.key(1))
    row |= {"flags": found.flags, "khat": float(found.khat)}
    if found.khat <= 0.7:
        with contextlib.suppress(ValueError):  # a k-hat that is on either side of 0.7 in different draws
            draws = result.sample(jax.random.key(2), DRAWS, corrected=True)
            row |= {**judge(name, user, draws, kept)._asdict(), "corrected": True}
    isolated.say(row)


def answer(name: str) -> dict[str, Any]:
    """The moments that NUTS finds."""
    jax.config.update("jax_enable_x64", True)
    begun = time.perf_counter()
    moments, facts = by_nuts(MODELS[name]())
    return {"moments": moments, **facts, "seconds": time.perf_counter() - begun}


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the rows of users' models of docs/trust.md.")
    parser.add_argument("--one", help="print the row of this model")
    parser.add_argument("--only", default=",".join(MODELS), help="names of models, with commas")
    parser.add_argument("--limit", type=float, default=LIMIT, help="CPU seconds for a fit with its diagnosis")
    parser.add_argument("--answers", action="store_true", help="find the answers of NUTS first")
    options = parser.parse_args()
    if options.one:
        kind, name = options.one.split(":")
        if kind == "fit":
            fit(name)
        else:
            isolated.say(answer(name))
        return
    for name in options.only.split(","):
        if options.answers and name not in EXACT and MODELS[name]().summed is not None:
            row = isolated.row(__file__, f"answer:{name}", options.limit)
            said = row.get("failed") or f"R-hat {row['rhat']:.4f}, ess {row['ess']:.0f}, {row['seconds']:.0f} s"
            print(f"{name:15} NUTS: {said}", flush=True)
            if "failed" not in row:
                isolated.keep(ANSWERS, name, row, VERSIONS)
        row = isolated.row(__file__, f"fit:{name}", options.limit)
        isolated.keep(OUT, name, row, VERSIONS)
        said = row.get("failed") or (
            f"{'right' if row['right'] else 'WRONG':5} {row['said']}; k-hat {row['khat']}, "
            f"{len(row['flags'])} flags, {row['seconds']:.0f} s"
        )
        print(f"{name:15} {said}", flush=True)


if __name__ == "__main__":
    main()
