"""Writes trust.md and images/trust.png from results/trust.json, which benchmarks/trust/table.py makes."""

import json
import textwrap
from pathlib import Path

from matplotlib.figure import Figure

HERE = Path(__file__).parent
KEPT = HERE / "results" / "trust.json"
REFERENCES = json.loads((HERE / "results" / "trust_references.json").read_text())
COLOURS = {"right": "#1e8449", "right, and flagged": "#b9770e", "flagged": "#b9770e", "SILENT FAILURE": "#c0392b"}

ASKED = """
Every problem has a posterior that is known by other means: exact enumeration, a closed form, a grid, or long runs
of NUTS or Gibbs, each checked by a second method (`benchmarks/trust/references.py`). Each is fitted with
`legrad.fit(..., stop="auto", restarts={restarts})`, default settings otherwise, and diagnosed with
`result.diagnose(key)`. A fit is *right* if every mean and standard deviation is within 0.1 posterior standard
deviations; it is *flagged* if it did not converge, its starts disagree, k-hat is above 0.7, or its moments change
by more than 0.1 when its draws are reweighted to the posterior. `make trust` makes this page.
"""
CHOSEN = """
The catalogue is designed, not a sample of problems: sizes, noise and seeds were chosen so that most guides can hold
their posterior with a margin (more data for logistic, Poisson and misspecified; an orthogonal design for the spike
and slab; seeds of HMM, noisy-or and mixture without very rare values), and so that the others fail for a known
reason.
"""
STOPPED = """
*Gap*: how much further a fit ten times as long (Adam, 0.05 or 0.02, cosine decay) gets, as a share of the ELBO's gain
from the start.
*Off*: how far the guide is from where that fit ends: the worst mean or standard deviation, in standard deviations.
*Fixed*: the fewest steps with which any of 10 schedules (Adam, rates 0.01 to 0.2, constant or cosine) ends as near
as that, or within 0.03. This is the best in hindsight: a user does not know which of them it is.
"""


def page() -> str:
    """The page, from the results that are kept."""
    results = json.loads(KEPT.read_text())
    rows, total = results["rows"], results["summary"]
    lines = [
        "# Is the fit right, or does it say that it is not?",
        "",
        _fill(ASKED.format(restarts=results["restarts"])),
        "",
        f"**{total['problems']} problems: {total['right']} right and not flagged, {total['flagged']} flagged, "
        f"{total['silent']} silent failures.**",
        "",
        "| problem | guide | worst mean | worst sd | k-hat | verdict | why flagged |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, r in rows.items():
        why = "; ".join(sorted({_reason(flag) for flag in r["flags"]}))
        lines.append(
            f"| {_name(name)} | {r['guide']} | {r['mean_error']:.3f} | {r['sd_error']:.3f} | {_khat(r['khat'])} "
            f"| {r['verdict']} | {why} |"
        )
    missing = sorted(set(REFERENCES) - set(rows))
    if missing:
        lines += ["", f"Not in this run, which took too long: {', '.join(map(_name, missing))}."]
    lines += [
        "",
        "![The worst errors of each problem, and whether they were flagged](images/trust.png)",
        "",
        _fill(CHOSEN),
        "",
        "What the guides can and cannot hold:",
        "",
        *(f"- **{_name(name)}** (posterior by {r['reference']}): {r['note']}." for name, r in rows.items()),
        "",
        "## Does it stop in the right place, in good time?",
        "",
        _fill(STOPPED),
        "",
        "| problem | steps | converged | gap | off | fixed | its schedule | steps / fixed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, r in rows.items():
        best, ratio = ("none", "below 1") if r["converged"] else ("", "")
        if r["fixed_steps"]:
            best, ratio = f"{r['fixed_steps']:,}", f"{r['steps'] / r['fixed_steps']:.1f}"
        lines.append(
            f"| {_name(name)} | {r['steps']:,} | {'yes' if r['converged'] else 'no'} | {_percent(r['gap'])} "
            f"| {_number(r['from_long'])} | {best} | {r['fixed_schedule'] or ''} | {ratio} |"
        )
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    lines += [
        "",
        _fill(f"""Of the fits that say they have converged, the largest gap is {100 * total["largest_gap"]:.2f}%
        (the aim: 1%) and the largest ratio {total["largest_ratio"]:.1f} (the aim: 3)."""),
        "",
        f"{versions}, float64, 2 shared cores.",
    ]
    return "\n".join(lines) + "\n"


def _fill(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), 118)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.3f}%"


def _number(x: float | None) -> str:
    return "" if x is None else f"{x:.3f}"


def _name(name: str) -> str:
    return name.replace("_", " ")


def _khat(k: float) -> str:
    return f"{k:.2f}" if k > -1 else "below −1"


def _reason(flag: str) -> str:
    if "has not converged" in flag:
        return "not converged"
    if "starts ended at another guide" in flag:
        return "starts disagree"
    if flag.startswith("k-hat"):
        return "k-hat"
    return "draws cannot tell" if "cannot tell" in flag or "about" in flag else "moments shift"


def draw() -> None:
    """The worst errors on a logarithmic scale, green where right, amber where flagged."""
    rows = json.loads(KEPT.read_text())["rows"]
    figure = Figure(figsize=(8, 0.36 * len(rows) + 1.2), layout="constrained")
    axes = figure.subplots()
    names = list(rows)[::-1]
    for i, name in enumerate(names):
        r = rows[name]
        colour = COLOURS[r["verdict"]]
        worst = max(r["mean_error"], r["sd_error"])
        axes.plot([0.001, worst], [i, i], color=colour, linewidth=1, alpha=0.4)
        axes.plot(r["mean_error"], i, "o", color=colour)
        axes.plot(r["sd_error"], i, "D", color=colour, markerfacecolor="white")
        axes.annotate(
            r["verdict"], (1.02, i), xycoords=("axes fraction", "data"), va="center", color=colour, fontsize=9
        )
    axes.axvline(0.1, color="#2c3e50", linewidth=1, linestyle=(0, (3, 3)))
    axes.set_xscale("log")
    axes.set_xlim(0.002, max(3.0, *(2 * max(r["mean_error"], r["sd_error"]) for r in rows.values())))
    axes.set_yticks(range(len(names)), [_name(name) for name in names])
    axes.set_xlabel(
        "worst error in posterior standard deviations (● mean, ◇ standard deviation); 0.1 counts as right"
    )
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(HERE / "images" / "trust.png", dpi=130)


if __name__ == "__main__":
    (HERE / "trust.md").write_text(page())
    draw()
