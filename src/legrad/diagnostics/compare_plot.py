"""The picture of a comparison: above, one mark per estimator for variance, time and efficiency; below, the variance
of each parameter. An estimator has the same colour and mark in all panels, and its name is written beside one mark.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from legrad.diagnostics.figure import new_figure

if TYPE_CHECKING:
    from legrad.diagnostics.compare import Comparison

# Okabe and Ito's colours, distinct in every kind of colour-blindness; the yellow is darkened for white paper.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#b8a000", "#000000", "#e69f00")
_MARKS = ("o", "s", "D", "^", "v", "P", "X", "p")
_PARAMETERS = 12
_INK, _RULE = "#333333", "#dddddd"


def plot_comparison(comparison: Comparison, path: Any = None) -> Any:
    """Plot a comparison; see `Comparison.plot`."""
    rows = comparison.rows
    parameters, left_out = _noisiest(comparison)
    tall = [
        0.85 + 0.3 * len(rows),
        0.9 + 0.25 * math.ceil(len(rows) / 4) + max(0.3, 0.07 * len(rows)) * len(parameters),
    ]
    figure = new_figure(figsize=(10, 0.5 + sum(tall)), layout="constrained", facecolor="white")
    above, below = figure.subfigures(2, 1, height_ratios=tall)
    panels = above.subplots(1, 3, sharey=True)
    quantities = {
        "gradient variance": [r.variance for r in rows.values()],
        "ms per gradient": [1e3 * r.seconds for r in rows.values()],
        "1/(variance × seconds)": [r.efficiency for r in rows.values()],
    }
    better = ("lower is better", "lower is better", "higher is better")
    for axes, (title, values), note in zip(panels, quantities.items(), better, strict=True):
        _ranking(axes, values)
        axes.set_title(title, loc="left", pad=18, fontsize=10, color=_INK, fontweight="bold")
        axes.text(0, 1.02, note, transform=axes.transAxes, fontsize=8, color="#777777")
    panels[0].set_yticks(range(len(rows)), [_short(name, 28) for name in rows])
    panels[0].set_ylim(len(rows) - 0.4, -0.6)
    _by_parameter(below.subplots(), comparison, parameters, left_out)
    if path is not None:
        figure.savefig(path, dpi=130)
    return figure


def _ranking(axes: Any, values: list[float]) -> None:
    """Draw one line per value, with the number at its mark."""
    places, low = _log_axis(axes, values, room=0.3)
    for i, (value, place) in enumerate(zip(values, places, strict=True)):
        axes.plot([low, place], [i, i], color=_colour(i), linewidth=1.2, alpha=0.45, zorder=2)
        axes.plot(place, i, _mark(i), color=_colour(i), markersize=7, zorder=3)
        axes.annotate(
            _number(value), (place, i), (7, 0), textcoords="offset points", va="center", fontsize=9, color=_INK
        )
    _bare(axes)


def _by_parameter(axes: Any, comparison: Comparison, parameters: list[str], left_out: int) -> None:
    rows = comparison.rows
    values = [rows[name].parameters[p].variance for name in rows for p in parameters]
    places, _ = _log_axis(axes, values, room=0.03)
    marks = np.reshape(places, (len(rows), len(parameters)))
    for i, name in enumerate(rows):
        beside = (i - (len(rows) - 1) / 2) * 0.6 / len(rows)  # equal values do not hide each other
        axes.plot(
            marks[i], np.arange(len(parameters)) + beside, _mark(i), color=_colour(i), markersize=6, zorder=3,
            label=_short(name, 28),
        )  # fmt: skip
    for j in range(len(parameters) - 1):
        axes.axhline(j + 0.5, color=_RULE, linewidth=0.8, zorder=1)
    axes.set_yticks(range(len(parameters)), [_short(p, 28) for p in parameters])
    axes.set_ylim(len(parameters) - 0.45, -0.55)
    title = "gradient variance by parameter, mean over its components"
    if left_out:
        title += f" (the {len(parameters)} noisiest; {left_out} more are in to_pandas())"
    axes.set_title(title, loc="left", fontsize=10, color=_INK, fontweight="bold")
    _bare(axes)
    axes.figure.legend(
        loc="outside lower left", ncols=4, frameon=False, fontsize=9, handletextpad=0.2, labelcolor=_INK
    )


def _log_axis(axes: Any, values: list[float], room: float) -> tuple[list[float], float]:
    """Make a log axis with `room` (a share of the axis) for labels on the right; return positions and the left end.

    Zero and infinity have no position on a log axis: they are drawn at its ends, where a tick says so.
    """
    from matplotlib.ticker import LogLocator

    finite = [v for v in values if 0 < v < math.inf] or [1.0]
    low, high = math.log10(min(finite)), math.log10(max(finite))
    span = max(high - low, 0.8)
    zero, start = low - 0.3 * span, low - (0.36 if min(values) <= 0 else 0.12) * span
    infinite = stop = high + (0.3 * span if math.inf in values else 0.0)
    right = stop + (room + 0.04) / (1 - room) * (stop - start)
    axes.set_xscale("log")
    axes.set_xlim(10**start, 10**right)
    ticks = [
        t
        for t in LogLocator(subs=(1, 2, 5) if right - start < 2.2 else (1,), numticks=7).tick_values(*axes.get_xlim())
        if low - 0.1 * span <= math.log10(t) <= (high + 0.1 * span if math.inf in values else right)
    ]
    labels = {t: f"{t:g}" if 1e-3 <= t < 1e5 else f"$10^{{{round(math.log10(t))}}}$" for t in ticks}
    if min(values) <= 0:
        labels = {10**zero: "0"} | labels
    if math.inf in values:
        labels |= {10**infinite: "∞"}
    axes.set_xticks(list(labels), list(labels.values()))
    axes.minorticks_off()
    return [10**zero if v <= 0 else 10**infinite if v == math.inf else v for v in values], 10**start


def _number(value: float) -> str:
    if value in (0.0, math.inf):
        return f"{'0' if value == 0 else '∞'}: no noise"
    return f"{value:,.0f}" if 1000 <= value < 1e7 else f"{value:.3g}"


def _bare(axes: Any) -> None:
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color("#999999")
    axes.tick_params(axis="y", length=0, labelsize=9.5, labelcolor=_INK)
    axes.tick_params(axis="x", which="both", labelsize=8.5, color="#999999", labelcolor="#555555")
    axes.grid(axis="x", color=_RULE, linewidth=0.6)
    axes.set_axisbelow(True)


def _noisiest(comparison: Comparison) -> tuple[list[str], int]:
    """Return the parameters to show, in their own order; if too many, those with the largest variance anywhere."""
    rows = list(comparison.rows.values())
    names = list(rows[0].parameters)
    worst = sorted(names, key=lambda p: -max(np.nan_to_num(r.parameters[p].variance) for r in rows))[:_PARAMETERS]
    return [p for p in names if p in worst], len(names) - len(worst)


def _short(name: str, most: int) -> str:
    return name if len(name) <= most else name[: most // 2 - 1] + "…" + name[-(most // 2) :]


def _colour(i: int) -> str:
    return _COLOURS[i % len(_COLOURS)]


def _mark(i: int) -> str:
    return _MARKS[(i + i // len(_MARKS)) % len(_MARKS)]
