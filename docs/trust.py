"""Writes trust.md and its pictures from the results that benchmarks/trust keeps in results/trust*.json."""

import json
import statistics
import textwrap
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE / "results"
REFERENCES = json.loads((RESULTS / "trust_references.json").read_text())
PEERS = ("AutoMultivariateNormal", "AutoNormal", "AutoLaplaceApproximation", "Pathfinder", "Pathfinder, long", "NUTS")

OPENING = """
`legrad.fit(model, args=..., key=...)` gets a model, data and a random key, and nothing else: no guide, no learning
rate, no number of steps. Is what comes back right? Every posterior on this page is known by other means. A fit is
*right* if all means are within 0.1 posterior standard deviations and all standard deviations within 10%, of draws
that are corrected by importance resampling where k-hat is at most 0.7 (`result.sample(key, n, corrected=True)`), of
plain draws elsewhere. It is *flagged* if `result.diagnose(key)` finds fault with it. What is neither right nor
flagged is a *silent failure*. `make trust` makes this page.
"""
POSTERIORS = """
Twelve posteriors of posteriordb, with their data as posteriordb has them: years, dollars and logarithms side by
side. The numbers are the worst error of a mean or a standard deviation, in posterior standard deviations, and the
seconds of the fit, compilation included; bold is right. Every fit has a process of its own. NumPyro's guides take
20,000 steps of Adam with a rate of 1e-2. Pathfinder is blackjax's, one path with its default settings; *long* is the
same with up to 1,000 steps of L-BFGS instead of 30, and a tolerance of 1e-12 instead of 1e-5. NUTS has 4 chains of
1,000 draws, one after another, and an error of its own from having 4,000 draws. The peers run in float64, legrad in
JAX's default. Peers' draws are taken as they come, legrad's are corrected; seconds are those of the fit, without
draws.
"""
USERS = """
Models as users write them, discrete latents and all, with data simulated from known values (coal mining apart).
Where the answer is known, exactly or from NUTS with the discrete latents summed by hand, the rule is that of the
other tables. Block model, topics and spike and slab are compared with the values that their data came from, up to
relabelling: at least 95% of nodes in their block and edge probabilities within 0.1; words of each topic within a
total variation of 0.1, topics of documents within 0.15 on average; the right features in and their effects within 4
posterior standard deviations. Seconds include compilation. CPU seconds, where they were measured, are of both cores.
"""
PROBLEMS = """
Fifteen problems whose posterior is known by exact enumeration, a closed form, a grid, or long runs of NUTS or Gibbs,
each checked by a second method (`benchmarks/trust/references.py`). The left half is `legrad.fit` without a guide.
The right half has the guide that the row names, `stop="auto"`, `restarts={restarts}` and otherwise default settings;
its fits are judged by plain draws, and flagged also if they did not converge or if their starts disagree. Without a
guide, "gaussian" and "gaussian mean field" are the same problem, and so are both noisy-ors.
"""
CHOSEN = """
The catalogue is designed, not a sample of problems: sizes, noise and seeds were chosen so that most guides can hold
their posterior with a margin (more data for logistic, Poisson and misspecified; an orthogonal design for the spike
and slab; seeds of HMM, noisy-or and mixture without very rare values), and so that the others fail for a known
reason.
"""
STOPPED = """
This is about the fits with a guide, which take stochastic steps.
*Gap*: how much further a fit ten times as long (Adam, 0.05 or 0.02, cosine decay) gets, as a share of the ELBO's gain
from the start.
*Off*: how far the guide is from where that fit ends: the worst mean or standard deviation, in standard deviations.
*Fixed*: the fewest steps with which any of 10 schedules (Adam, rates 0.01 to 0.2, constant or cosine) ends as near
as that, or within 0.03. This is the best in hindsight: a user does not know which of them it is.
"""


def page() -> str:
    """The page, from the results that are kept."""
    sections = (_opening, _posteriors, _users, _problems, _stopping, _measured)
    return "\n".join(line for section in sections for line in section()) + "\n"


# --- sections -----------------------------------------------------------------------------------------------------


def _opening() -> list[str]:
    posteriors = {name: row["legrad"] for name, row in _kept("trust_posteriors")["rows"].items()}
    users, alone = _kept("trust_users")["rows"], _kept("trust_structured")["rows"]
    return [
        "# Is the fit right, or does it say that it is not?",
        "",
        _fill(OPENING),
        "",
        "| `legrad.fit` on | right | of them flagged | wrong, and flagged | silent failures | not finished |",
        "|---|---|---|---|---|---|",
        _counts("[posteriordb](#posteriordb)", posteriors),
        _counts("[users' models](#users-models)", users),
        _counts("[problems with an exact answer](#fifteen-problems)", alone),
        "",
    ]


def _posteriors() -> list[str]:
    rows = _kept("trust_posteriors")["rows"]
    lines = [
        "## posteriordb",
        "",
        _fill(POSTERIORS),
        "",
        f"| posterior | legrad | k-hat | flagged | gradients: model, ELBO | {' | '.join(PEERS)} |",
        "|---|---|---|---|---|" + "---|" * len(PEERS),
    ]
    for name, row in rows.items():
        mine = row["legrad"]
        if "failed" in mine:
            about = " |  | "
        else:
            gradients = f"{mine['model']}, {mine['objective']}" if "model" in mine else "stochastic steps"
            about = f"{_khat(mine['khat'])} | {'yes' if mine['flagged'] else ''} | {gradients}"
        cells = " | ".join(_cell(row[peer]) if peer in row else "" for peer in PEERS)
        lines.append(f"| {_name(name)} | {_cell(mine)} | {about} | {cells} |")
    shared = {name: row for name, row in rows.items() if "AutoMultivariateNormal" in row}
    for what, of in (("right", _right), ("median seconds", _seconds)):
        cells = [of([row[by] for row in shared.values() if by in row], len(shared)) for by in ("legrad", *PEERS)]
        lines.append(f"| *{what}, of the {len(shared)} with peers* | {cells[0]} |  |  |  | {' | '.join(cells[1:])} |")
    lines += ["", "![Worst error against seconds, for every method](images/trust_peers.png)", ""]
    if len(shared) < len(rows):
        without = ", ".join(_name(name) for name in rows if name not in shared)
        lines += [f"These have discrete latents, which none of the peers can hold: {without}.", ""]
    return lines + _unfinished({f"{_name(n)} by {by}": r for n, row in rows.items() for by, r in row.items()})


def _users() -> list[str]:
    rows = _kept("trust_users")["rows"]
    rows = {name: rows[name] for name in sorted(rows, key=lambda name: "failed" in rows[name])}
    lines = [
        "## Users' models",
        "",
        _fill(USERS),
        "",
        "| model | answer by | right | how near | k-hat | flagged | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, r in rows.items():
        if "failed" in r:
            lines.append(f"| {_name(name)} |  | {r['failed']} |  |  |  |  |")
            continue
        flagged = "; ".join(sorted({_reason(flag) for flag in r["flags"]}))
        near = r["said"] + (", corrected" if r["corrected"] else "")
        lines.append(
            f"| {r['what']} | {r['by']} | {'yes' if r['right'] else 'NO'} | {near} | {_khat(r['khat'])} "
            f"| {flagged} | {_time(r)} |"
        )
    left = [f"- {_name(name)}, the diagnosis: {r['unfinished']}" for name, r in rows.items() if "unfinished" in r]
    if left:
        lines += ["", "Not finished:", "", *left]
    lines += ["", "What was done:", ""]
    lines += [f"- **{_name(name)}**: {r['method']}." for name, r in rows.items() if "failed" not in r]
    return [*lines, ""]


def _problems() -> list[str]:
    results, alone = _kept("trust"), _kept("trust_structured")["rows"]
    rows, total = results["rows"], results["summary"]
    lines = [
        "## Fifteen problems",
        "",
        _fill(PROBLEMS.format(restarts=results["restarts"])),
        "",
        f"With a guide: {total['right']} right and unflagged, {total['flagged']} flagged, {total['silent']} silent.",
        "",
        "| problem | worst mean | worst sd | k-hat | verdict | why flagged | seconds "
        "| guide | worst mean | worst sd | k-hat | verdict | why flagged |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, r in rows.items():
        mine = alone.get(name, {"failed": "not run"})
        left = f"{mine['failed']} |  |  |  |  | " if "failed" in mine else f"{_judged(mine)} | {_time(mine)}"
        lines.append(f"| {_name(name)} | {left} | {r['guide']} | {_judged(r)} |")
    missing = sorted(set(REFERENCES) - set(rows))
    if missing:
        lines += ["", f"Not in this run, which took too long: {', '.join(map(_name, missing))}."]
    return [
        *lines,
        "",
        "The fits with a guide:",
        "",
        "![The worst errors of each problem, and whether they were flagged](images/trust.png)",
        "",
        _fill(CHOSEN),
        "",
        "What these guides can and cannot hold:",
        "",
        *(f"- **{_name(name)}** (posterior by {r['reference']}): {r['note']}." for name, r in rows.items()),
        "",
    ]


def _stopping() -> list[str]:
    results = _kept("trust")
    total = results["summary"]
    lines = [
        "## Does it stop in the right place, in good time?",
        "",
        _fill(STOPPED),
        "",
        "| problem | steps | converged | gap | off | fixed | its schedule | steps / fixed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, r in results["rows"].items():
        best, ratio = ("none", "below 1") if r["converged"] else ("", "")
        if r["fixed_steps"]:
            best, ratio = f"{r['fixed_steps']:,}", f"{r['steps'] / r['fixed_steps']:.1f}"
        lines.append(
            f"| {_name(name)} | {r['steps']:,} | {'yes' if r['converged'] else 'no'} | {_percent(r['gap'])} "
            f"| {_number(r['from_long'])} | {best} | {r['fixed_schedule'] or ''} | {ratio} |"
        )
    return [
        *lines,
        "",
        _fill(f"""Of the fits that say they have converged, the largest gap is {100 * total["largest_gap"]:.2f}%
        (the aim: 1%) and the largest ratio {total["largest_ratio"]:.1f} (the aim: 3)."""),
        "",
    ]


def _measured() -> list[str]:
    """On what, and beside what, these results were measured."""
    rows = [r for row in _kept("trust_posteriors")["rows"].values() for r in row.values()]
    rows += [*_kept("trust_users")["rows"].values(), *_kept("trust_structured")["rows"].values()]
    others = [r["others"] for r in rows]
    busy = ""
    if statistics.median(others) > 0.2:
        busy = f"""The machine was busy: other programs used {statistics.median(others):.1f} of its 2 cores at the
        median of these fits, and {max(others):.1f} at most. Seconds are good for comparison, and too high."""
    names = ("trust_posteriors", "trust_users", "trust_structured")
    versions = {name: version for kept in names for name, version in _kept(kept)["versions"].items()}
    said = ", ".join(f"{name} {version}" for name, version in versions.items())
    return [_fill(f"{busy} Measured with {said}, on 2 shared cores; the fits with a guide in float64.")]


# --- cells --------------------------------------------------------------------------------------------------------


def _kept(name: str) -> dict:
    file = RESULTS / f"{name}.json"
    return json.loads(file.read_text()) if file.exists() else {"rows": {}, "versions": {}}


def _counts(what: str, rows: dict[str, dict]) -> str:
    done = [r for r in rows.values() if "failed" not in r]
    right = [r for r in done if _is_right(r)]
    wrong = [r for r in done if not _is_right(r)]
    flagged = sum(map(_is_flagged, wrong))
    return (
        f"| {what} | {len(right)} of {len(rows)} | {sum(map(_is_flagged, right))} | {flagged} "
        f"| {len(wrong) - flagged} | {len(rows) - len(done)} |"
    )


def _is_right(r: dict) -> bool:
    return r["right"] if "right" in r else r["verdict"].startswith("right")


def _is_flagged(r: dict) -> bool:
    return r["flagged"] if "flagged" in r else bool(r["flags"])


def _judged(r: dict) -> str:
    why = "; ".join(sorted({_reason(flag) for flag in r["flags"]}))
    return f"{r['mean_error']:.3f} | {r['sd_error']:.3f} | {_khat(r['khat'])} | {r['verdict']} | {why}"


def _time(r: dict) -> str:
    return f"{r['seconds']:.0f}" + (f" ({r['cpu']:.0f} of CPU)" if "cpu" in r else "")


def _cell(r: dict) -> str:
    if "failed" in r:
        return "failed"
    worst = max(r["mean"], r["sd"])
    shown = f"{worst:.3f}" if worst < 1 else f"{worst:.1f}"
    return f"{f'**{shown}**' if r['right'] else shown} ({r['seconds']:.1f} s)"


def _right(rows: list[dict], number: int) -> str:
    return f"{sum('failed' not in r and r['right'] for r in rows)}"


def _seconds(rows: list[dict], number: int) -> str:
    done = [r["seconds"] for r in rows if "failed" not in r]
    return (f"{statistics.median(done):.1f}" if done else "") + ("" if len(done) == number else f" (of {len(done)})")


def _unfinished(rows: dict[str, dict]) -> list[str]:
    found = [f"- {name}: {r['failed']}" for name, r in rows.items() if "failed" in r]
    return ["Not finished:", "", *found, ""] if found else []


def _fill(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), 118)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.3f}%"


def _number(x: float | None) -> str:
    return "" if x is None else f"{x:.3f}"


def _name(name: str) -> str:
    return name.replace("_", " ")


def _khat(k: float | None) -> str:
    if k is None:
        return "not diagnosed"
    return f"{k:.2f}" if k > -1 else "below −1"


def _reason(flag: str) -> str:
    if "has not converged" in flag:
        return "not converged"
    if "starts ended at another guide" in flag:
        return "starts disagree"
    if flag.startswith("k-hat"):
        return "k-hat"
    return "draws cannot tell" if "cannot tell" in flag or "about" in flag else "moments shift"


if __name__ == "__main__":
    import trust_figures

    (HERE / "trust.md").write_text(page())
    trust_figures.guides()
    trust_figures.peers()
