"""Twelve posteriors of posteriordb, by `legrad.fit(model, args=..., key=...)` and by its peers: errors and seconds.

    LEGRAD_DATA=... python benchmarks/trust/posteriors.py [--only NAMES] [--limit SECONDS]

Every fit has a process of its own. Seconds include compilation, as for a user who fits once; draws and diagnosis come
afterwards. Writes docs/results/trust_posteriors.json; without LEGRAD_DATA, what is kept there stays.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import blackjax  # noqa: E402
import isolated  # noqa: E402
import jax  # noqa: E402
import numpyro  # noqa: E402
import peer_methods  # noqa: E402
import posteriordb  # noqa: E402

import legrad  # noqa: E402

OUT = HERE.parents[1] / "docs" / "results" / "trust_posteriors.json"
LIMIT = 150.0
METHODS = ("legrad", *peer_methods.METHODS)
VERSIONS = {module.__name__: module.__version__ for module in (legrad, jax, numpyro, blackjax)}


def one(name: str, by: str) -> dict[str, Any]:
    """The row of a method on a posterior."""
    models = posteriordb.load()
    posterior = models.POSTERIORS[name]
    if by != "legrad":
        return peer(by, models, posterior)
    return {k: getattr(v, "item", lambda v=v: v)() for k, v in posteriordb.fit_one(models, posterior).items()}


def peer(by: str, models: Any, posterior: Any) -> dict[str, Any]:
    """The errors and the seconds of a peer, in float64."""
    jax.config.update("jax_enable_x64", True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        begun = time.perf_counter()
        try:
            draw = peer_methods.METHODS[by](posterior.model, posterior.args, jax.random.key(0))
            seconds = time.perf_counter() - begun
            mean, sd = map(float, posteriordb.errors(models, posterior, draw()))
        except Exception as error:
            return {"failed": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"}
    return {"right": mean <= 0.1 and sd <= 0.1, "mean": mean, "sd": sd, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the rows of posteriordb of docs/trust.md.")
    parser.add_argument("--one", help="print the row of this posterior and method, with a colon between them")
    parser.add_argument("--only", help="names of posteriors, with commas")
    parser.add_argument("--methods", default=";".join(METHODS), help="methods, with semicolons; the others stay")
    parser.add_argument("--limit", type=float, default=LIMIT, help="CPU seconds for a fit")
    options = parser.parse_args()
    if posteriordb.folder() is None:
        print("posteriordb skipped, its rows in docs/results stay: LEGRAD_DATA has no posteriordb/models.py")
        return
    if options.one:
        isolated.say(one(*options.one.split(":")))
        return
    posteriors = posteriordb.load().POSTERIORS
    for name in options.only.split(",") if options.only else posteriors:
        found = isolated.kept(OUT, name)
        for by in options.methods.split(";"):
            if by != "legrad" and posteriors[name].discrete:
                continue
            found[by] = r = isolated.row(__file__, f"{name}:{by}", options.limit)
            what = r.get("failed") or f"mean {r['mean']:.3f} sd {r['sd']:.3f} {r['seconds']:.1f} s"
            print(f"{name:27} {by:25} {what}", flush=True)
            isolated.keep(OUT, name, found, VERSIONS)


if __name__ == "__main__":
    main()
