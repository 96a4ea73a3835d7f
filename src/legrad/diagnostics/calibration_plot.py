"""Histograms of probability integral transforms, with one panel per site."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from legrad.diagnostics.figure import new_figure

if TYPE_CHECKING:
    from legrad.diagnostics.calibration import Calibration

_OTHERS = 30  # the most elements of a site to draw beside the most suspicious one
_COLUMNS = 3


def plot_calibration(calibration: Calibration, path: Any = None) -> Any:
    """Plot for each site the histogram of its most suspicious element as bars, and those of others as lines.

    Args:
        calibration: a result of `legrad.calibrate`.
        path: the file to write the picture to; if None, the figure is only returned.
    """
    names = list(calibration.pit)
    columns = min(_COLUMNS, len(names))
    rows = math.ceil(len(names) / columns)
    figure = new_figure(figsize=(max(5.5, 3.6 * columns), 0.9 + 2.5 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    handles: dict[str, Any] = {}
    for axes, name in zip(panels, names, strict=False):
        _panel(axes, calibration, name)
        found, labels = axes.get_legend_handles_labels()
        handles |= dict(zip(labels, found, strict=True))
    for axes in panels[len(names) :]:
        axes.remove()
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    figure.supxlabel("where the truth lies in q:  0 = below all draws,  1 = above all", fontsize=10)
    figure.supylabel("simulations", fontsize=10)
    if path is not None:
        figure.savefig(path, dpi=130)
    return figure


def _panel(axes: Any, calibration: Calibration, name: str) -> None:
    from scipy import stats  # slow to import, and only needed here

    pit = calibration.pit[name]
    flat = pit.reshape(len(pit), -1)
    worst = calibration.worst(name)
    axes.set(xlim=(0, 1), xticks=[0, 0.5, 1])
    axes.spines[["top", "right"]].set_visible(False)
    axes.yaxis.get_major_locator().set_params(integer=True)
    if worst is None:
        axes.set_title(f"{name}: not tested", loc="left", fontsize=10)
        return
    faults = calibration.faults(name)
    colour = "#c0392b" if faults else "#7f8c8d"
    chosen = int(np.ravel_multi_index(worst, pit.shape[1:])) if worst else 0
    kept = flat[~np.isnan(flat[:, chosen])]
    bins = int(np.clip(len(kept) // 20, 5, 20))
    edges = np.linspace(0, 1, bins + 1)
    counts = np.histogram(kept[:, chosen], edges)[0]
    # Over all bins and elements, histograms of a calibrated guide leave the band with probability `level`.
    tail = calibration.level / (bins * flat.shape[1]) / 2
    low, high = stats.binom.ppf([tail, 1 - tail], len(kept), 1 / bins)
    axes.bar((edges[:-1] + edges[1:]) / 2, counts, 0.94 / bins, color=colour, alpha=0.75)
    axes.axhspan(
        low, high, color="#2471a3", alpha=0.13, linewidth=0, zorder=0, label="where a calibrated guide stays"
    )
    for edge in (low, high):
        axes.axhline(edge, color="#2471a3", linewidth=0.7, linestyle=(0, (4, 3)))
    axes.axhline(len(kept) / bins, color="#2471a3", linewidth=0.9, label="uniform")
    others = [i for i in range(flat.shape[1]) if i != chosen and not np.isnan(kept[:, i]).any()]
    for i in others[:: max(1, math.ceil(len(others) / _OTHERS))]:
        heights = np.histogram(kept[:, i], edges)[0]
        axes.stairs(heights, edges, color="#1d1f21", alpha=0.3, linewidth=0.7, label="other elements of the site")
    index = f"[{', '.join(map(str, worst))}]" if worst else ""
    axes.set_title(f"{name}{index}{': ' if faults else ''}{', '.join(faults)}", loc="left", fontsize=10)
    axes.set_ylim(0, 1.08 * max(high, counts.max()))
