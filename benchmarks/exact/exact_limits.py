"""What exact terms must reach in the table of docs/exact_results.md: ratios of times within one run, and sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

EXACT, ONE_PIVOT, HAND, REGRAD = "LeGrad, exact terms", "LeGrad, one pivot", "by hand", "ReGrad"
ROUNDING = 1e-5  # standard deviation of a float32 gradient over keys, relative to its size
AGAINST_ONE_PIVOT = {
    "gaussian_100": 0.35,
    "gaussian_1000": 0.35,
    "spike_and_slab": 0.35,
    "ising": 0.35,
    "factorial_hmm": 0.35,
    "mixture": 0.6,
    "logistic": 0.6,
    "noisy_or": 1.0,
}
DESIGN = ("gaussian_1000", "spike_and_slab", "logistic")  # the problems whose data are a large matrix
SQUARE = 1.25  # one square of that matrix, and a quarter of it for all else


def limits(rows: dict[str, Any]) -> list[dict[str, Any]]:
    """Return each limit of the rows that there are: problem, what, the figure, the limit, and whether it holds."""
    return [limit for name, row in rows.items() if EXACT in row["methods"] for limit in _of(name, row)]


def _of(name: str, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    ours = row["methods"][EXACT]

    def at_most(what: str, figure: float, limit: float) -> dict[str, Any]:
        holds = math.isfinite(figure) and figure <= limit
        return {"problem": name, "what": what, "figure": figure, "limit": f"≤ {limit:g}", "holds": holds}

    yield at_most("noise over keys, relative to the gradient", ours["noise"], ROUNDING)
    yield at_most("seconds, exact terms / one pivot", row["ratios"].get(ONE_PIVOT, math.nan), AGAINST_ONE_PIVOT[name])
    yield at_most("seconds, exact terms / by hand", row["ratios"][HAND], 1.3)
    if name == "logistic":
        yield at_most("seconds, exact terms / ReGrad", row["ratios"].get(REGRAD, math.nan), 3)
    yield at_most("seconds to compile", ours["compiling"], 10)
    if name in DESIGN:
        yield at_most("bytes of temporaries / bytes of data", ours["bytes"] / row["data_bytes"], SQUARE)
