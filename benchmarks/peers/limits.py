"""What LeGrad must reach in the table: ratios to its peers, measured in one run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from estimators import CHOICES, DISARM, GRAPH, HAND_DISARM, HAND_LOO, LEGRAD, LOO, REGRAD, SCORE

BIASED = 6.0  # standard errors


def limits(rows: dict[str, Any]) -> list[dict[str, Any]]:
    """Each limit of the rows that there are: problem, what, the figure, the limit, and whether it holds."""
    there = {name: row for name, row in rows.items() if LEGRAD in row["estimators"]}
    return [limit for name, row in there.items() for of in (_of, _automatic) for limit in of(name, row)]


def _of(name: str, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    there = row["estimators"]
    ours = there[LEGRAD]

    def time(other: str) -> float:
        return ours["seconds"] / there[other]["seconds"] if other in there else math.nan

    def by_hand(what: str, name: str, hand: str) -> float:
        return there[name][what] / there[hand][what] if name in there and hand in there else math.nan

    def variance(other: str, what: str = "variance") -> float:
        return there[other][what] / ours[what] if other in there else math.nan

    def efficiency(others: tuple[str, ...]) -> float:
        best = max((there[o]["efficiency"] for o in others if o in there), default=math.nan)
        return ours["efficiency"] / best

    def at_most(what: str, figure: float, limit: float) -> dict[str, Any]:
        return _row(name, what, figure, f"≤ {limit:g}", figure <= limit)

    def at_least(what: str, figure: float, limit: float) -> dict[str, Any]:
        return _row(name, what, figure, f"≥ {limit:,g}", figure >= limit)

    if name in ("sbn_random", "sbn_trained"):
        for short, peer, hand in (("DisARM", DISARM, HAND_DISARM), ("leave-one-out", LOO, HAND_LOO)):
            for what in ("seconds", "variance"):
                yield at_most(f"{what}, {short} / {short} by hand", by_hand(what, peer, hand), 1.15)
        yield at_most("seconds, LeGrad / DisARM", time(DISARM), 2.5)
        yield at_least("variance, DisARM / LeGrad", variance(DISARM), 50)
        yield at_least("variance, leave-one-out / LeGrad", variance(LOO), 30)
        yield at_least("variance, TraceGraph / LeGrad", variance(GRAPH), 50_000)
        yield at_least(
            "efficiency, LeGrad / the best of these", efficiency((DISARM, LOO, GRAPH, HAND_DISARM, HAND_LOO)), 20
        )
        if row.get("compiled_share") is not None:
            yield at_least("share of `fit` inside compiled code", row["compiled_share"], 0.95)
    if name == "logistic":
        yield at_most("seconds, LeGrad / ReGrad", time(REGRAD), 12)
        yield at_most("seconds, LeGrad / ReGrad, the aim", time(REGRAD), 6)
        yield at_least("variance of log scales, ReGrad / LeGrad", variance(REGRAD, "variance of log scales"), 100)
    if name in ("gaussian_100", "gaussian_1000"):
        yield at_most("seconds, LeGrad / ReGrad", time(REGRAD), 3)
        yield at_least("variance of means, ReGrad / LeGrad", variance(REGRAD, "variance of means"), 8)
    if name in ("spike_and_slab", "ising", "mixture", "noisy_or"):
        yield at_least("efficiency, LeGrad / the best score function", efficiency(SCORE), 20)
        if ours.get("to_elbo") and GRAPH in there:
            theirs = there[GRAPH].get("to_elbo")
            ratio = theirs["seconds"] / ours["to_elbo"]["seconds"] if theirs["seconds"] else math.inf
            yield at_least("seconds to the same ELBO, TraceGraph / LeGrad", ratio, 10)


def _automatic(name: str, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Seconds to the ELBO by the choice of `estimator="auto"`, relative to the best fixed choice."""
    there = row["estimators"]
    took = {c: there[c]["to_elbo"]["seconds"] for c in CHOICES if there.get(c, {}).get("to_elbo")}
    best = min((seconds for seconds in took.values() if seconds), default=math.nan)
    mine = took.get(row["auto"]) or math.inf
    yield _row(
        name, f"seconds to the ELBO, auto ({row['auto']}) / the best choice", mine / best, "≤ 1.5", mine <= 1.5 * best
    )


def _row(problem: str, what: str, figure: float, limit: str, holds: bool) -> dict[str, Any]:
    # JSON has no infinity: null is "was not reached in ten times the time"
    return {
        "problem": problem,
        "what": what,
        "figure": figure if math.isfinite(figure) else None,
        "limit": limit,
        "holds": bool(holds),
    }
