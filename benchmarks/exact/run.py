"""Exact terms against the paper's LeGrad, against exact ELBOs by hand, and against one-sample ReGrad.

    python benchmarks/exact/run.py [--only NAMES] [--quick] [--out FILE]      (make bench-exact)

For each of eight problems, in float32, all methods are compiled in one process and take turns; a ratio is the median
over the rounds of the ratios within a round. A gradient is timed inside a compiled loop, as a fit takes it: the loss
by hand is differentiated by `jax.grad`, and may keep what it computes from the data before the first step.
Variance is over keys, at the same parameters for all. Bytes are those of the compiled program beside its arguments.
Writes docs/results/exact.json, from which docs/exact_results.py makes the page.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "peers"))

import jax
import numpy as np
from data import sources
from elbos_by_hand import BY_HAND, PREPARED
from estimators import REGRAD, Method, sentence
from exact_limits import limits
from measure import Draws, Gradients
from problems import PROBLEMS
from row import Peer
from tqdm import tqdm

import legrad

OUT = Path(__file__).parents[2] / "docs" / "results" / "exact.json"
EXACT, ONE_PIVOT, HAND = "LeGrad, exact terms", "LeGrad, one pivot", "by hand"


@dataclass(frozen=True)
class Effort:
    """How much is measured: draws of a gradient, rounds of timing, seconds of a turn."""

    draws: int = 30
    rounds: int = 11
    turn: float = 0.15


QUICK = Effort(draws=8, rounds=3, turn=0.01)


def methods(peer: Peer) -> dict[str, Callable[[], Gradients]]:
    """Return what is measured on a problem, by name: a function that compiles it, or raises where it cannot run."""

    def with_estimator(name: str, make: Callable[[], Any]) -> Callable[[], Gradients]:
        return lambda: Gradients(peer, Method(name, peer.model, peer.guide, make()))

    def by_hand() -> Gradients:
        loss, number = BY_HAND[peer.name], len(peer.args)
        more = PREPARED[peer.name](*peer.args) if peer.name in PREPARED else ()
        method = Method(
            HAND,
            lambda *args: peer.model(*args[:number]),
            lambda *args: peer.guide(*args[:number]),
            None,
            lambda params, key, args: jax.grad(loss)(params, *args),
        )
        return Gradients(replace(peer, args=(*peer.args, *more)), method)

    return {
        EXACT: with_estimator(EXACT, legrad.LocalExpectation),
        ONE_PIVOT: with_estimator(ONE_PIVOT, lambda: legrad.LocalExpectation(exact_terms=False)),
        HAND: by_hand,
        REGRAD: with_estimator(REGRAD, legrad.Reparameterized),
    }


def row(peer: Peer, effort: Effort, tell: Callable[[str], Any]) -> dict[str, Any]:
    """Measure one problem."""
    programs, refused = {}, {}
    for name, make in methods(peer).items():
        tell(f"{peer.name}: compiling {name}")
        try:
            programs[name] = make()
        except Exception as error:  # ReGrad has nothing to say on discrete latents
            refused[name] = sentence(error)
    guide = peer.guide_parameters()
    tell(f"{peer.name}: variance")
    drawn = {name: p.draws(guide, effort.draws, effort.draws, 0.0) for name, p in programs.items()}
    tell(f"{peer.name}: seconds")
    turns = in_turns({name: p.last for name, p in programs.items()}, effort, programs[HAND].key)
    found = {}
    for name, draws in drawn.items():
        found[name] = {
            "seconds": float(np.median(turns[name])),
            "variance": draws.variance(),
            "noise": noise(draws),
            "distance": distance(draws, drawn[HAND]),
            "compiling": programs[name].compiled,
            "bytes": programs[name].temporaries,
        }
    tell(f"{peer.name}: what is exact")
    return {
        "title": peer.title,
        "methods": found,
        "refused": refused,
        "ratios": {
            other: float(np.median(np.divide(turns[EXACT], turns[other])))
            for other in found
            if other != EXACT and EXACT in found
        },
        "data_bytes": sum(np.asarray(a).nbytes for a in peer.args),
        "explained": explained(peer),
    }


def noise(draws: Draws) -> float:
    """Return the standard deviation of a gradient over keys, relative to the size of its mean."""
    size = math.sqrt(sum(float(np.sum(m**2)) for m in draws.mean.values()))
    spread = math.sqrt(sum(float(s.sum()) for s in draws.squares.values()) / (draws.number - 1))
    return spread / size


def distance(draws: Draws, truth: Draws) -> float:
    """Return how far the mean of a gradient is from the one by hand, relative to that one's size."""
    apart = sum(float(np.sum((draws.mean[n] - m) ** 2)) for n, m in truth.mean.items())
    return math.sqrt(apart / sum(float(np.sum(m**2)) for m in truth.mean.values()))


def in_turns(calls: dict[str, Callable[..., Any]], effort: Effort, key: jax.Array) -> dict[str, list[float]]:
    """Return the seconds of one step, for each method in each round; the methods take turns."""
    steps = {}
    for name, call in calls.items():
        number, took = 1, 0.0
        while took < effort.turn / 2:
            number = number if not took else max(2 * number, int(min(10.0, effort.turn / took) * number))
            took = _seconds(call, key, number)
        steps[name] = number
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(effort.rounds):
        for name, call in calls.items():
            times[name].append(_seconds(call, key, steps[name]) / steps[name])
    return times


def _seconds(call: Callable[..., Any], key: jax.Array, steps: int) -> float:
    begun = time.perf_counter()
    call(key, steps)
    return time.perf_counter() - begun


def explained(peer: Peer) -> list[str]:
    """Return the lines of `legrad.explain` that say of each term whether it is exact."""
    try:
        text = str(legrad.explain(peer.model, peer.guide, args=peer.args, params=peer.params))
    except Exception as error:
        return [f"explain failed: {sentence(error)}"]
    return [line.strip() for line in text.splitlines() if "exact" in line or "sampled" in line]


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the table of docs/exact_results.md.")
    parser.add_argument("--only", default=",".join(BY_HAND), help="names of problems, with commas")
    parser.add_argument("--quick", action="store_true", help="small problems, little effort: a trial of the program")
    parser.add_argument("--out", type=Path, help="the JSON file; rows that it has and that are not run again stay")
    options = parser.parse_args()
    out = options.out or (Path("out/exact_quick.json") if options.quick else OUT)
    out.parent.mkdir(parents=True, exist_ok=True)
    effort = QUICK if options.quick else Effort()
    warnings.filterwarnings("ignore", module="numpyro")
    rows = json.loads(out.read_text())["rows"] if out.exists() else {}
    for name in (bar := tqdm(options.only.split(","))):
        before = os.getloadavg()[0]
        rows[name] = row(PROBLEMS[name](small=options.quick), effort, bar.set_description)
        rows[name]["load"] = [before, os.getloadavg()[0]]
        rows = {n: rows[n] for n in BY_HAND if n in rows}
        _tell(rows[name])
        text = {
            "versions": {"jax": jax.__version__, "legrad": legrad.__version__},
            "machine": f"{os.cpu_count()} cores, {platform.machine()}",
            "quick": options.quick,
            "data": sources(options.quick)["logistic regression"],
            "effort": vars(effort),
            "limits": limits(rows),
            "rows": rows,
        }
        out.write_text(json.dumps(text, indent=1) + "\n")
        jax.clear_caches()
    for limit in limits(rows):
        holds = "yes" if limit["holds"] else "NO"
        print(f"{limit['problem']:15} {limit['what']:44} {limit['figure']:>10.3g} ({limit['limit']})  holds {holds}")


def _tell(row: dict[str, Any]) -> None:
    tqdm.write(row["title"])
    for name, r in row["methods"].items():
        tqdm.write(
            f"  {name:22} ms {1e3 * r['seconds']:9.4g}  variance {r['variance']:9.3g}  noise {r['noise']:8.2g}  "
            f"from by hand {r['distance']:8.2g}  compiling {r['compiling']:5.1f} s  {r['bytes'] / 1e6:8.2f} MB"
        )
    for name, why in row["refused"].items():
        tqdm.write(f"  {name:22} {why}")
    for line in row["explained"]:
        tqdm.write(f"    {line}")


if __name__ == "__main__":
    main()
