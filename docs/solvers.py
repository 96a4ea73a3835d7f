"""Write docs/solvers.md from docs/results/solvers.json (`make bench-solvers`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
OURS = "legrad.fit"

HEAD = """# No learning rate: how fast an exact ELBO is climbed

Where [all terms are exact](exact_terms.md), `legrad.fit(model, guide, args=args, key=key)` climbs the ELBO by natural
steps and L-BFGS in the geometry of the guide ([how](fitting.md#an-elbo-without-noise)). It is raced against what one
would do instead: Adam with the exact gradient, with LeGrad's, with that of other estimators and of NumPyro's; L-BFGS
with the exact gradient; and, for continuous latents, L-BFGS on the ELBO of 30 fixed draws (the idea of DADVI).

Seconds, and in brackets steps, to 99% and to 99.9% of the way from the start to the best ELBO that any method found.
All start at the same parameters; the ELBO is evaluated exactly, off the clock; compilation is apart. Adam has the
best of three rates (0.01, 0.05, 0.2) for the problem, which a user would have to find. A step of L-BFGS may take
several gradients. A dash: not in 4,000 steps and 20 times legrad's seconds (ten seconds at least).
`make bench-solvers` makes this page.
"""


def cell(found: Any) -> str:
    return "–" if found is None else f"{found[0]:.3g} ({found[1]:,})"


def section(row: dict[str, Any]) -> list[str]:
    methods = row["methods"]
    lines = [f"## {row['title']}", "", f"From {row['start']:,.2f} to {row['best']:,.2f}.", ""]
    lines += ["| method | rate | 99% | 99.9% | best ELBO |", "|---|---|---|---|---|"]
    for name, found in methods.items():
        rate = "" if found["rate"] is None else found["rate"]
        reached = found["reached"]
        elbo = "" if found["elbo"] is None else f"{found['elbo']:,.2f}"
        lines.append(f"| {name} | {rate} | {cell(reached['0.99'])} | {cell(reached['0.999'])} | {elbo} |")
    return [*lines, ""]


def summary(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["| problem | legrad.fit to 99.9% | the best other method | ratio |", "|---|---|---|---|"]
    for row in rows:
        mine = row["methods"][OURS]["reached"]["0.999"]
        others = {n: f["reached"]["0.999"] for n, f in row["methods"].items() if n != OURS and f["reached"]["0.999"]}
        if not others:
            best, ratio = "none reaches it", ""
        else:
            name = min(others, key=lambda n: others[n][0])
            best = f"{name}: {others[name][0]:.3g} s"
            ratio = "" if mine is None else f"{others[name][0] / mine[0]:.3g}"
        lines.append(f"| {row['title']} | {'–' if mine is None else f'{mine[0]:.3g} s'} | {best} | {ratio} |")
    return [*lines, ""]


def main() -> None:
    rows = list(json.loads((DOCS / "results" / "solvers.json").read_text()).values())
    lines = [HEAD, *summary(rows)]
    for row in rows:
        lines += section(row)
    (DOCS / "solvers.md").write_text("\n".join(lines).rstrip() + "\n")


if __name__ == "__main__":
    main()
