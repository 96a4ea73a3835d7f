"""Writes paper.md from the results of a full run: `legrad reproduce all --out DIR`, then `python docs/paper.py DIR`.

Without a directory it writes the page anew from the results kept beside it.
"""

import json
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
KEPT = HERE / "results" / "paper.json"
PICTURES = ("gaussian-window", "gaussian-variance", "logistic-bound", "sbn-bound", "sbn-reconstructions")
VERDICT = {True: "holds", False: "**does not hold**", None: "not measured"}


def page() -> str:
    """The page, from the results that are kept."""
    results = json.loads(KEPT.read_text())
    claims = results["claims"]
    ours = [claim for claim in claims if claim["claim"].startswith("Not in the paper")]
    theirs = [claim for claim in claims if claim not in ours]
    counts = [f"{sum(claim['holds'] is True for claim in some)} of {len(some)}" for some in (theirs, ours)]
    versions = ", ".join(f"{name} {results['versions'][name]}" for name in ("python", "jax", "numpyro", "optax"))
    lines = [
        "# The paper, reproduced",
        "",
        "What `make reproduce` (`legrad reproduce all` at full size) measured. The command writes the whole report,",
        "with all figures and settings, as one page. Times are from a shared machine with 2 cores: compare ratios.",
        "These stages were run one experiment at a time while the code was being finished, not as one command.",
        "",
        f"{counts[0]} claims of the paper hold, and {counts[1]} statements of ours that the paper does not make.",
        f"{versions}; all stages took {results['seconds'] / 60:.0f} minutes.",
        "",
        "| id | claim | measured | verdict |",
        "|---|---|---|---|",
    ]
    lines += [_row(c["id"], c["claim"], c["measured"], VERDICT[c["holds"]]) for c in claims]
    for table in results["tables"]:
        lines += ["", f"**{table['section']}: {table['caption']}**", ""]
        lines += [_row(*table["header"]), "|" + "---|" * len(table["header"])]
        lines += [_row(*row) for row in table["rows"]]
        if table.get("note"):
            lines += ["", table["note"]]
    lines += ["", "Data: " + "; ".join(f"{name}: {source}" for name, source in results["data"].items()) + "."]
    for name in PICTURES:
        lines += ["", f"![{name}](images/paper/{name}.png)"]
    return "\n".join(lines) + "\n"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        out = Path(sys.argv[1])
        KEPT.parent.mkdir(exist_ok=True)
        if json.loads((out / "results.json").read_text())["quick"]:
            sys.exit(f"{out} holds a quick run: this page is for a full one")
        shutil.copy(out / "results.json", KEPT)
        (HERE / "images" / "paper").mkdir(parents=True, exist_ok=True)
        for name in PICTURES:
            shutil.copy(out / "figures" / f"{name}.png", HERE / "images" / "paper" / f"{name}.png")
    (HERE / "paper.md").write_text(page())
