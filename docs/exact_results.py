"""Writes exact_results.md from results/exact.json, which benchmarks/exact/run.py makes."""

import json
import textwrap
from pathlib import Path

HERE = Path(__file__).parent
KEPT = HERE / "results" / "exact.json"
EXACT = "LeGrad, exact terms"

ASKED = """
`make bench-exact` takes eight problems of [the peers table](peers.md) as they are, and measures the gradient of
`LocalExpectation()`, which replaces terms by their expectations, beside the paper's estimator with one pivot
(`exact_terms=False`), beside the exact ELBO written by hand for that model in JAX and differentiated by `jax.grad`
(`benchmarks/exact/elbos_by_hand.py`), and beside one-sample reparameterization where all latents are continuous. All
methods of a problem run in one process, at the same parameters, inside the compiled loop of a fit, and take turns; a
ratio is the median over rounds of the ratios within a round. *Noise* is the standard deviation of the gradient over
keys, relative to its size; *from by hand* the distance of its mean from the gradient by hand, relative to that one's
size; *MB* what the compiled program needs beside its arguments and results.
"""


def page() -> str:
    """Return the page, from the results that are kept."""
    found = json.loads(KEPT.read_text())
    rows = found["rows"]
    lines = ["# Exact terms: measured", "", _fill(ASKED), ""]
    if found["quick"]:
        lines += ["**These are the small sizes of `--quick`: a trial of the program, not a result.**", ""]
    holding = sum(limit["holds"] for limit in found["limits"])
    lines += [f"**{holding} of {len(found['limits'])} limits hold.**", ""]
    for row in rows.values():
        lines += [f"## {row['title'][0].upper()}{row['title'][1:]}", "", *_table(row), ""]
        if row["explained"]:
            lines += ["What `legrad.explain` says of it:", "", *(f"- `{line}`" for line in row["explained"]), ""]
    lines += ["## What was asked", "", *_limits(found["limits"], rows), ""]
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    loads = [load for row in rows.values() for load in row["load"]]
    lines.append(
        _fill(
            f"{versions}, float32, {found['machine']}; data of the logistic regression: {found['data']}. "
            f"Processes that wanted a core meanwhile: {min(loads):.1f} to {max(loads):.1f}."
        )
    )
    return "\n".join(lines) + "\n"


def _table(row: dict) -> list[str]:
    head = ["method", "ms", "exact terms take", "variance", "noise", "from by hand", "compile s", "MB"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, r in row["methods"].items():
        ratio = f"{row['ratios'][name]:.2f} of that" if name in row["ratios"] else ""
        cells = [name, f"{1e3 * r['seconds']:.3g}", ratio, f"{r['variance']:.2g}", f"{r['noise']:.1g}"]
        cells += [f"{r['distance']:.1g}", f"{r['compiling']:.1f}", f"{r['bytes'] / 1e6:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _limits(limits: list, rows: dict) -> list[str]:
    lines = ["| problem | figure | limit | measured | holds |", "|---|---|---|---|---|"]
    for r in limits:
        holds = "yes" if r["holds"] else "**NO**"
        lines.append(f"| {rows[r['problem']]['title']} | {r['what']} | {r['limit']} | {r['figure']:.3g} | {holds} |")
    return lines


def _fill(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), 118, break_on_hyphens=False)


if __name__ == "__main__":
    (HERE / "exact_results.md").write_text(page())
