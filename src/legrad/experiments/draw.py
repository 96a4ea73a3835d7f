"""Parts that the figures and tables of all experiments share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from legrad.experiments.record import window_variance
from legrad.experiments.section import Table
from legrad.experiments.stages import Arrays
from legrad.experiments.style import COLOURS, LINES
from legrad.experiments.symbols import number

BOUND = """The stochastic value of the lower bound (over the samples that a step takes anyway; smoothed lines over the
raw values), by step as in the paper, and by wall time, which the paper does not show. Compiling is left out."""
EFFICIENT = "1/(variance × seconds): how much a method's gradient is worth per second, at the end of LeGrad's fit."
EFFICIENCY = ("estimator", "variance, mu", "variance, log l", "seconds", "1/(variance of mu × seconds)")
EFFICIENCY_NOTE = """Variances are means over coordinates at the same parameters for all. Seconds are medians of
rounds in which the estimators take turns, each inside one compiled loop as in a fit. The variance of S independent
samples is 1/S of one sample's."""


def estimator(name: str) -> str:
    """The method that a label is about: the key of its colour."""
    return next((method for method in COLOURS if name.startswith(method)), "exact")


def line(axes: Axes, x: Any, y: Any, method: str, label: str | None = None, **style: Any) -> None:
    """A line in the method's colour."""
    method = estimator(method)
    style = {"color": COLOURS[method], "linestyle": LINES[method], "label": label} | style
    axes.plot(x, y, **style)


def band(axes: Axes, x: Sequence[int], y: np.ndarray, method: str, label: str) -> None:
    """The mean over coordinates, in a band from the least to the largest; the first axis of y goes with x."""
    y = np.maximum(y.reshape(len(y), -1), 1e-30)
    at = np.maximum(np.asarray(x), 1)
    axes.fill_between(at, y.min(axis=1), y.max(axis=1), color=COLOURS[estimator(method)], alpha=0.15, linewidth=0)
    line(axes, at, y.mean(axis=1), method, label, marker="o", markersize=3.5)
    axes.set_xscale("log")


def log_axis(axes: Axes, decades: float = 8.0) -> None:
    """A logarithmic axis without what is only rounding: lines that far below the largest are named instead."""
    axes.set_yscale("log")
    floor = max(float(np.max(drawn.get_ydata())) for drawn in axes.lines) / 10**decades
    if axes.get_ylim()[0] < floor:
        axes.set_ylim(bottom=floor)
    hidden = [str(drawn.get_label()) for drawn in axes.lines if float(np.max(drawn.get_ydata())) < floor]
    for i, name in enumerate(hidden):
        text = f"{name}: exact but for rounding"
        axes.text(0.03, 0.04 + 0.08 * i, text, transform=axes.transAxes, color=COLOURS[estimator(name)], fontsize=9)


def legend_above(figure: Figure, *panels: Axes) -> None:
    """One legend for all panels, above them: off the data. Each label stands once."""
    entries: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    figure.legend(list(entries.values()), list(entries), loc="outside upper left", ncols=len(entries), frameon=False)


def windows(axes: Axes, runs: Mapping[str, Arrays]) -> None:
    """The paper's measure by step; the trajectories have labels that begin with the method."""
    for label, run in runs.items():
        window = window_variance(run["gradient"])
        line(axes, np.arange(len(window)) + 10, np.maximum(window, 1e-30), label, label)
    axes.set(xlabel="step", ylabel="variance of the gradient of $\\mu_1$\nin a window of ten steps")


def fixed(s: Any, methods: Sequence[str], mu: Arrays, log_l: Arrays, decades: float = 8.0) -> Figure:
    """What the paper does not show: the true variance, all coordinates.

    Args:
        s: settings that have `kept` and `samples`.
        methods: their names.
        mu: the variance of the gradient of mu, by method; the first axis goes with `s.kept`.
        log_l: the same of log l.
        decades: how far below the largest the pictures end.
    """
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels = figure.subplots(1, 2)
    for axes, variance, title in zip(panels, (mu, log_l), (r"$\mu$", r"$\log\,\ell$"), strict=True):
        for name in methods:
            band(axes, s.kept, variance[name], name, f"LdGrad, {samples(s.samples)}" if name == "LdGrad" else name)
        axes.set(xlabel="step of LeGrad's fit", title=f"gradient of {title}", ylabel="variance at fixed parameters")
        log_axis(axes, decades)
    legend_above(figure, *panels)
    return figure


def samples(count: int) -> str:
    """The number of samples as a figure names it."""
    return f"$S$ = {count:,}"


def smooth(y: np.ndarray, width: int) -> np.ndarray:
    """A running mean; the first values average what there is."""
    total = np.cumsum(np.insert(np.asarray(y, float), 0, 0.0))
    i = np.arange(1, len(y) + 1)
    start = np.maximum(0, i - width)
    return (total[i] - total[start]) / (i - start)


def bounds(runs: Mapping[str, Arrays]) -> Figure:
    """The bound by step and by wall time; the picture goes down to somewhat below the worst method's end."""
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    by_step, by_time = figure.subplots(1, 2, sharey=True)
    ends, tops = [], []
    for name, run in runs.items():
        elbo, steps = run["elbo"], np.arange(1, len(run["elbo"]) + 1)
        mean = smooth(elbo, max(1, len(elbo) // 50))
        ends.append(mean[-1])
        tops.append(np.percentile(elbo, 99.5))
        for axes, x in ((by_step, steps), (by_time, run["seconds"])):
            axes.plot(x, elbo, color=COLOURS[estimator(name)], alpha=0.15, linewidth=0.5)
            line(axes, x, mean, name, name)
    floor, top = min(ends), max(tops)
    by_step.set(xlabel="step", ylabel="lower bound", title="by step")
    by_step.set_ylim(floor - 0.4 * (top - floor), top + 0.05 * (top - floor))
    by_time.set(xlabel="seconds", title="by wall time", xscale="log")
    legend_above(figure, by_step)
    return figure


def efficiencies(table: Table) -> Figure:
    """The last column of a table of efficiencies, as bars."""
    rows = [(row[0], float(row[-1].replace(",", ""))) for row in table.rows if row[-1] != "no noise"][::-1]
    written = [row[-1] for row in table.rows if row[-1] != "no noise"][::-1]
    figure = Figure(figsize=(7, 0.7 + 0.38 * len(rows)), layout="constrained")
    axes = figure.subplots()
    bars = axes.barh([n for n, _ in rows], [v for _, v in rows], color=[COLOURS[estimator(n)] for n, _ in rows])
    axes.bar_label(bars, labels=written, padding=3, fontsize=8)
    axes.set(xscale="log", xlabel="worth per second: 1/(variance × seconds)")
    axes.set_yticks(range(len(rows)), [name.replace("log q inside f", r"$\log\,q$ inside $f$") for name, _ in rows])
    axes.grid(axis="y", visible=False)
    axes.margins(x=0.12)
    return figure


def drift(gradient: np.ndarray, true: np.ndarray, kept: Sequence[int]) -> np.ndarray:
    """The paper's window over the true variance, at each kept step: mean of ten windows from there on."""
    windows = window_variance(gradient)
    starts = [min(i, len(windows) - 10) for i in kept]
    return np.array([windows[i : i + 10].mean() for i in starts]) / np.maximum(true, 1e-30)


def settings(s: Any) -> dict[str, Any]:
    """The settings with names to read."""
    return {name.replace("_", " "): value for name, value in asdict(s).items()}


def efficiency_row(name: str, mu: float, log_l: float, seconds: float) -> tuple[str, ...]:
    """A row of the table of variance, time and 1/(variance × time)."""
    return (
        name,
        number(mu),
        number(log_l) if log_l > 1e-9 else "0 (exact)",
        number(seconds),
        efficiency(mu, seconds),
    )


def efficiency(variance: float, seconds: float) -> str:
    """1/(variance × seconds), in words where there is no variance."""
    return number(1 / (variance * seconds)) if variance > 1e-12 else "no noise"


def first_step(elbo: np.ndarray, target: float, width: int = 10) -> int:
    """The first step after which the smoothed bound is at the target; one more than there are if it never is."""
    there = smooth(elbo, width) >= target
    return int(np.argmax(there)) + 1 if there.any() else len(elbo) + 1


def first_at(run: Arrays, target: float, width: int = 20) -> float:
    """The seconds after which the smoothed bound first reaches the target; infinite if it does not."""
    there = smooth(run["elbo"], width) >= target
    return float(run["seconds"][np.argmax(there)]) if there.any() else float("inf")
