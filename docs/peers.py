"""Writes peers.md and images/peers.png from results/peers.json, which benchmarks/peers/table.py makes.

Rows of libraries that need an environment of their own come from results/peers_torch.json, where that is.
"""

import json
import textwrap
from pathlib import Path

from matplotlib.figure import Figure

HERE = Path(__file__).parent
KEPT = HERE / "results" / "peers.json"
TORCH = HERE / "results" / "peers_torch.json"
OURS, HAND = "LeGrad", " by hand"
COLOURS = {
    "LeGrad": "#c0392b",
    "ReGrad": "#2471a3",
    "DisARM": "#b9770e",
    "leave-one-out": "#1e8449",
    "REBAR": "#7d3c98",
    "RELAX": "#a569bd",
    "NumPyro": "#2c3e50",
}
OTHER = "#7f8c8d"

ASKED = """
`make bench` runs LeGrad and its alternatives on the same problems, in one process, with the methods taking turns.
LeGrad is the paper's estimator here, `LocalExpectation(exact_terms=False)`; by default eight of these eleven problems
have no noise at all, and are climbed without steps ([exact terms](exact_terms.md)).
*Variance* is that of the gradient in the unconstrained parameters of the guide, a mean over them, at the same
parameters for all. *ms* is the median time of a gradient inside a compiled loop. *Efficiency* is 1 / (variance ×
seconds): how fast averaging gradients buys precision. *To the ELBO* is the time of a compiled fit to the ELBO that
LeGrad has after some steps, with the same Adam, start and learning rate for all, compiling not counted; "> 10×"
means that it did not get there in ten times LeGrad's time. The best of each column is bold. *LeGrad by hand* is a
plain one-element step written by hand for that model: it is shown, and not counted among the winners. Problems may
have been run at different times (`--only`) and under different loads, so do not compare times across problems.
"""
APART = """
† in a process and an environment of its own, on the same machine while it was busy: their variances can be compared,
their times only roughly. Nothing is compiled there.
"""
READ = """
Efficiency is not all: noise that all coordinates share, or that Adam averages away, costs a fit less than the figure
says, and where the gradient is nearly exact a fit is limited by its learning rate. So the two columns need not agree.
"""


def results() -> dict:
    """The kept results, with the rows of other environments where there are any."""
    found = json.loads(KEPT.read_text())
    if TORCH.exists():
        other = json.loads(TORCH.read_text())
        found["versions"] |= other["versions"]
        for problem in found["rows"].keys() & other["rows"].keys():
            row = found["rows"][problem]
            for name, r in other["rows"][problem].items():
                if "cannot" in r:
                    row["refused"][name] = r["cannot"]
                else:
                    made = {"efficiency": 1 / max(r["variance"] * r["seconds"], 1e-30), "elsewhere": True}
                    row["estimators"][name] = r | made
    return found


def page() -> str:
    """The page, from the results that are kept."""
    found = results()
    rows = found["rows"]
    lines = ["# LeGrad and its peers, side by side", "", _fill(ASKED), ""]
    if found["quick"]:
        lines += ["**These are the small sizes of `--quick`: a trial of the program, not a result.**", ""]
    lines += [_fill(f"**{_summary(rows)}**"), ""]
    lines += ["![Efficiency of each method, relative to LeGrad's](images/peers.png)", "", _fill(READ), ""]
    for row in rows.values():
        lines += [f"## {row['title'][0].upper()}{row['title'][1:]}", "", *_table(row), ""]
        if row["refused"]:
            lines += [
                "Not in the table, and why:",
                "",
                *(f"- {name}: {_escape(why)}" for name, why in row["refused"].items()),
                "",
            ]
    lines += ["## What was asked of LeGrad", "", *_limits(found["limits"], rows), ""]
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    data = "; ".join(f"{what}: {source}" for what, source in found["data"].items())
    lines += [_fill(f"{versions}, float32. Data of the {data}.")]
    if any(r.get("elsewhere") for row in rows.values() for r in row["estimators"].values()):
        lines += ["", _fill(APART)]
    return "\n".join(lines) + "\n"


def _table(row: dict) -> list[str]:
    there = row["estimators"]
    focus = sorted({key for r in there.values() for key in r if key.startswith("variance of ")})
    head = ["method", "variance", *focus, "ms", "efficiency", f"to the ELBO after {row['steps']} steps"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    fair = {name: r for name, r in there.items() if not name.endswith(HAND)}
    best = {
        key: min((r[key] for r in fair.values() if key in r), default=None) for key in ("variance", "seconds", *focus)
    }
    most = max(r["efficiency"] for r in fair.values())
    first = min((s for r in fair.values() if (s := _to(r)) is not None), default=None)
    for name, r in sorted(there.items(), key=lambda item: -item[1]["efficiency"]):
        counts = not name.endswith(HAND)
        cells = [name + (" †" if r.get("elsewhere") else "")]
        cells += [_bold(f"{r[k]:.3g}", counts and r[k] == best[k]) if k in r else "" for k in ("variance", *focus)]
        cells.append(_bold(f"{1e3 * r['seconds']:.3g}", counts and r["seconds"] == best["seconds"]))
        cells.append(_bold(f"{r['efficiency']:.3g}", counts and r["efficiency"] == most))
        fit = r.get("to_elbo")
        if fit is None:
            cells.append("")
        elif fit["seconds"] is None:
            cells.append("> 10×")
        else:
            cells.append(_bold(f"{fit['seconds']:.3g} s, {fit['steps']:,} steps", fit["seconds"] == first))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _summary(rows: dict) -> str:
    """Who wins where, in efficiency and in time to the ELBO."""
    efficient, fast = [], []
    for row in rows.values():
        fair = {name: r for name, r in row["estimators"].items() if not name.endswith(HAND)}
        most = max(fair, key=lambda name: fair[name]["efficiency"])
        reached = {name: s for name, r in fair.items() if (s := _to(r)) is not None}
        first = min(reached, key=reached.get) if reached else OURS
        if not most.startswith(OURS):
            efficient.append(f"{most} ({row['title']})")
        if not first.startswith(OURS):
            fast.append(f"{first} ({row['title']})")
    text = f"Of {len(rows)} problems LeGrad is the most efficient on {len(rows) - len(efficient)}"
    text += f", and the first at its ELBO on {len(rows) - len(fast)}."
    if efficient:
        text += f" Another is more efficient: {'; '.join(efficient)}."
    if fast:
        text += f" Another is faster to the ELBO: {'; '.join(fast)}."
    return text


def _limits(limits: list, rows: dict) -> list[str]:
    lines = ["| problem | figure | limit | measured | holds |", "|---|---|---|---|---|"]
    for r in limits:
        figure = "not reached in 10×" if r["figure"] is None else f"{r['figure']:,.3g}"
        holds = "yes" if r["holds"] else "**NO**"
        lines.append(f"| {rows[r['problem']]['title']} | {r['what']} | {r['limit']} | {figure} | {holds} |")
    return lines


def _to(r: dict) -> float | None:
    return (r.get("to_elbo") or {}).get("seconds")


def _bold(text: str, yes: bool) -> str:
    return f"**{text}**" if yes else text


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("_", "\\_").rstrip(".") + "."


def _fill(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), 118, break_on_hyphens=False)


def _colour(name: str) -> str:
    return next((colour for start, colour in COLOURS.items() if name.startswith(start)), OTHER)


def draw() -> None:
    """Efficiency relative to LeGrad on a logarithmic scale, a line a problem, a mark a method."""
    rows = results()["rows"]
    names = list(rows)[::-1]
    figure = Figure(figsize=(10, 0.55 * len(names) + 1.9), layout="constrained")
    axes = figure.subplots()
    marks = dict(zip(("NumPyro Trace_ELBO", "NumPyro TraceGraph_ELBO", "NumPyro TraceEnum_ELBO"), "v^s", strict=True))
    seen = {}
    for i, name in enumerate(names):
        there = rows[name]["estimators"]
        ratios = {method: r["efficiency"] / there[OURS]["efficiency"] for method, r in there.items()}
        axes.plot([min(ratios.values()), max(ratios.values())], [i, i], color="#d5d8dc", linewidth=1, zorder=1)
        for method, ratio in ratios.items():
            mark = "*" if method.endswith(HAND) else marks.get(method, "o" if method == OURS else "D")
            mark = "P" if method.endswith("pivots") else "s" if method.startswith("Storchastic") else mark
            face = "white" if method.endswith(HAND) or there[method].get("elsewhere") else _colour(method)
            style = {"markersize": 10 if mark in "*o" else 7, "color": _colour(method), "markerfacecolor": face}
            (seen[method],) = axes.plot(ratio, i, mark, zorder=3, linestyle="none", **style)
    axes.axvline(1.0, color=COLOURS[OURS], linewidth=1, linestyle=(0, (3, 3)), zorder=2)
    axes.set_xscale("log")
    axes.set_ylim(-0.5, len(names) - 0.5)
    axes.set_yticks(range(len(names)), [rows[name]["title"] for name in names])
    axes.set_xlabel("efficiency, 1 / (variance × seconds), relative to LeGrad's: to the right is better")
    axes.grid(axis="x", color="#eaecee", zorder=0)
    axes.spines[["top", "right"]].set_visible(False)
    # One entry for each library whose estimators share a mark, and room for the longest name in every column.
    shared = {}
    for method, mark in seen.items():
        library = method.split()[0]
        shared.setdefault(library if library in ("Pyro", "Storchastic") else method, mark)
    figure.legend(list(shared.values()), list(shared), loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    figure.savefig(HERE / "images" / "peers.png", dpi=130, bbox_inches="tight", pad_inches=0.15)


def gains(rows: dict) -> list[tuple[str, float, str, float | None]]:
    """For each problem: its title, LeGrad's efficiency over that of the best other method, who that is, and the same
    over the best of NumPyro's own; only methods that ran in the same process count."""
    found = []
    for row in rows.values():
        there = row["estimators"]
        ours = there[OURS]["efficiency"]
        others = {
            name: r["efficiency"]
            for name, r in there.items()
            if not name.startswith(OURS) and not name.endswith(HAND) and not r.get("elsewhere")
        }
        best = max(others, key=others.get)
        numpyro = [value for name, value in others.items() if name.startswith("NumPyro")]
        found.append((row["title"], ours / others[best], best, ours / max(numpyro) if numpyro else None))
    return sorted(found, key=lambda gain: gain[1])


def draw_gains() -> None:
    """The README's picture: LeGrad against the best alternative on each problem, where it loses too."""
    found = gains(results()["rows"])
    figure = Figure(figsize=(10, 0.5 * len(found) + 1.5), layout="constrained")
    axes = figure.subplots()
    for i, (_, ratio, best, numpyro) in enumerate(found):
        if numpyro is not None:
            axes.plot(numpyro, i, "|", color=COLOURS["NumPyro"], markersize=13, markeredgewidth=2.5, zorder=3)
        axes.barh(i, ratio - 1, left=1, height=0.55, color=COLOURS[OURS] if ratio > 1 else OTHER, zorder=2)
        words = f"{ratio:,.0f}× {best}" if ratio > 10 else f"{ratio:.2g}× {best}"
        end = max(ratio, 1.0)
        if numpyro is not None and end < numpyro < 30 * end:
            end = numpyro  # the words would hide the mark
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        axes.annotate(
            words, (end, i), (9, 0), textcoords="offset points", va="center", fontsize=9, zorder=4, bbox=box
        )
    axes.axvline(1.0, color="#2c3e50", linewidth=1, zorder=3)
    words = "over NumPyro's best ELBO"
    axes.plot([], [], "|", color=COLOURS["NumPyro"], markersize=13, markeredgewidth=2.5, label=words)
    axes.set_xscale("log")
    axes.set_xlim(left=min(ratio for _, ratio, *_ in found) / 3)  # where LeGrad loses, that is seen too
    axes.set_yticks(range(len(found)), [title for title, *_ in found])
    title = "How much more a second of LeGrad is worth than a second of the best alternative"
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel(
        "1 / (variance × seconds) of LeGrad's gradient over that of the best other method; grey: LeGrad loses"
    )
    axes.grid(axis="x", color="#eaecee", zorder=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", frameon=False, fontsize=9)  # the rows at the bottom, where LeGrad loses, are short
    figure.savefig(HERE / "images" / "gain.png", dpi=130, bbox_inches="tight", pad_inches=0.15)


if __name__ == "__main__":
    (HERE / "peers.md").write_text(page())
    draw()
    draw_gains()
