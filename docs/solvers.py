"""Write docs/solvers.md from docs/results/solvers.json (`make bench-solvers`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
OURS, STOCHASTIC = "legrad.fit", "LeGrad"  # the belief nets have noise

HEAD = """# No learning rate: how fast an exact ELBO is climbed

Where [all terms are exact](exact_terms.md), `legrad.fit(model, guide, args=args, key=key)` climbs the ELBO by natural
steps and L-BFGS in the geometry of the guide ([how](fitting.md#an-elbo-without-noise)). It is raced against what one
would do instead: Adam with the exact gradient, with LeGrad's, with that of other estimators and of NumPyro's; L-BFGS
with the exact gradient; and, for continuous latents, the ELBO of 30 fixed draws (the idea of DADVI) by L-BFGS, by
trust-ncg and by NumPyro's `Minimize`. The belief nets have noise that remains: there `fit` takes Adam with LeGrad's
gradient, as the others take Adam with theirs, and the ELBO is a mean of 100 draws.

Seconds, and in brackets steps, to 99% and to 99.9% of the way from the start to the best ELBO that any method found.
All start at the same parameters; the ELBO is evaluated exactly, off the clock; compilation is apart. Adam has the
best of three rates (0.01, 0.05, 0.2; for the nets 0.001, 0.003, 0.01) for the problem, which a user would have to
find. A step of L-BFGS or trust-ncg may take several gradients. A dash: not in 4,000 steps, nor in 20 times legrad's
seconds, of which there are half a second at least and four at most; the belief nets have three. What the summary
lacks of the eleven problems was not run to its end. NumPyro's `TraceEnum_ELBO` is tried on the mixture alone;
elsewhere it takes minutes to compile.
`make bench-solvers` makes this page.

The summary has two rivals: those with the exact gradient, which legrad makes for them, and the rest, which a user
would have otherwise. Climbs with few numbers are compiled quickly, and run several times as slowly, because
compiling takes much longer than they do; Adam and L-BFGS run fully optimized code here. On Ising and noisy-or L-BFGS
with the exact gradient is first: it needs fewer gradients there, and each takes less time. On the mixture Adam at its
best rate is first: a step of the climb costs more than one of Adam's. In the seconds that a belief net has
here, cheap
steps count more than little noise, and LeGrad is not first. The times are of two cores that other programs used as
well: differences below a factor of two mean little.
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
    lines = ["| problem | legrad to 99.9% | exact gradient, the best | ratio | the best other | ratio |"]
    lines += ["|---|---|---|---|---|---|"]
    for row in rows:
        ours = OURS if OURS in row["methods"] else STOCHASTIC
        mine = row["methods"][ours]["reached"]["0.999"]
        cells = [row["title"], "–" if mine is None else f"{mine[0]:.3g} s"]
        for exact in (True, False):
            rivals = [n for n in row["methods"] if n != ours and n.startswith("exact gradient") is exact]
            reached = {n: row["methods"][n]["reached"]["0.999"] for n in rivals}
            reached = {n: found for n, found in reached.items() if found}
            if not rivals or not reached:
                cells += ["none reaches it" if rivals else "", ""]
                continue
            name = min(reached, key=lambda n: reached[n][0])
            seconds = reached[name][0]
            cells += [f"{name.removeprefix('exact gradient, ')}: {seconds:.3g} s"]
            cells += ["" if mine is None else f"{seconds / mine[0]:.2g}"]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def page() -> str:
    """The whole page."""
    rows = list(json.loads((DOCS / "results" / "solvers.json").read_text()).values())
    lines = [HEAD, *summary(rows)]
    for row in rows:
        lines += section(row)
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    (DOCS / "solvers.md").write_text(page())


if __name__ == "__main__":
    main()
