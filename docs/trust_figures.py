"""Draws images/trust.png, the errors of fits with a guide, and images/trust_peers.png, error against time."""

import json
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

HERE = Path(__file__).parent
COLOURS = {"right": "#1e8449", "right, and flagged": "#b9770e", "flagged": "#b9770e", "SILENT FAILURE": "#c0392b"}
MARKERS = {
    "legrad": ("o", "#1e8449"),
    "AutoLaplaceApproximation": ("s", "#8e44ad"),
    "Pathfinder": ("v", "#d35400"),
    "Pathfinder, long": ("^", "#e59866"),
    "AutoNormal": ("P", "#7f8c8d"),
    "AutoMultivariateNormal": ("D", "#2471a3"),
    "NUTS": ("X", "#17202a"),
}


def guides() -> None:
    """The worst errors on a logarithmic scale, green where right, amber where flagged."""
    rows = _rows("trust")
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
    axes.set_yticks(range(len(names)), [name.replace("_", " ") for name in names])
    axes.set_xlabel(
        "worst error in posterior standard deviations (● mean, ◇ standard deviation); 0.1 counts as right"
    )
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(HERE / "images" / "trust.png", dpi=130)


def peers() -> None:
    """The worst error of every method on every posterior, against its seconds, and the medians of each method."""
    rows = _rows("trust_posteriors")
    figure = Figure(figsize=(9, 5.2), layout="constrained")
    axes = figure.subplots()
    shared = [row for row in rows.values() if len(row) > 1]  # posteriors that the peers can hold
    for method, (marker, colour) in MARKERS.items():
        done = [row[method] for row in shared if method in row and "failed" not in row[method]]
        if not done:
            continue
        seconds = np.array([r["seconds"] for r in done])
        error = np.array([max(r["mean"], r["sd"]) for r in done])
        axes.scatter(seconds, error, marker=marker, color=colour, s=26, alpha=0.35, linewidth=0)
        right = sum(r["right"] for r in done)
        label = f"{method}: {right} of {len(shared)} right"
        middle = np.median(seconds), np.median(error)
        axes.scatter(
            *middle, marker=marker, color=colour, s=150, edgecolor="white", linewidth=1.2, label=label, zorder=3
        )
    axes.axhline(0.1, color="#2c3e50", linewidth=1, linestyle=(0, (3, 3)))
    axes.set_xscale("log")
    axes.set_yscale("log")
    ticks = [t for t in (1, 2, 5, 10, 20, 50, 100) if axes.get_xlim()[0] <= t <= axes.get_xlim()[1]]
    axes.set_xticks(ticks, [str(t) for t in ticks])
    axes.minorticks_off()
    axes.set_xlabel("seconds for a fit, compilation included")
    axes.set_ylabel("worst error of a mean or an sd, in posterior sds")
    axes.set_title(
        "small: a posterior; large: a method's median; below the dashed line: right", fontsize=10, loc="left"
    )
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right center", frameon=False, fontsize=9, labelspacing=1.2)
    figure.savefig(HERE / "images" / "trust_peers.png", dpi=130)


def _rows(name: str) -> dict:
    return json.loads((HERE / "results" / f"{name}.json").read_text())["rows"]
