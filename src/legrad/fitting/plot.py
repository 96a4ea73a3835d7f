"""A fit on one page: the ELBO, the gradient's noise, the step size, where and why it stopped; and the posterior."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np

from legrad.diagnostics.figure import new_figure
from legrad.diagnostics.summary import Summary
from legrad.fitting import plot_posterior

if TYPE_CHECKING:
    from legrad.fitting.result import FitResult


_FEW = 3  # steps that show nothing
_BLUE, _RED, _GREEN, _GREY, _INK = "#2471a3", "#c0392b", "#1e8449", "#7f8c8d", "#2c3e50"


def plot_fit(result: FitResult, summary: Summary | None, path: Any = None) -> Any:
    """Plot the ELBO with its running mean, the gradient's variance and the step size; next to them the posterior.

    Args:
        result: a result of `legrad.fit`.
        summary: its latents, with the quantiles `plot_posterior.LEVELS`; None to leave them out.
        path: the file to write the picture to; if None, the figure is only returned.
    """
    auto, quiet = bool(result.phases), is_quiet(result)
    heights = [3.0, 1.4, 0.9] if auto else [3.0] if quiet else [3.0, 1.4]
    latents, more = ([], 0) if summary is None else plot_posterior.chosen(summary)
    alone = bool(latents) and quiet and len(result.elbo) <= _FEW  # there is no way to show
    words = textwrap.wrap(result.status, 110 if alone or summary is None else 185)
    sizes = plot_posterior.heights(latents)
    height = 1.3 + max(0.0 if alone else sum(heights), sum(sizes)) + 0.18 * len(words)
    figure = new_figure(figsize=(14.0 if latents and not alone else 8.5, height), layout="constrained")
    left: Any = None if alone else figure
    right: Any = figure if alone else None
    if latents and not alone:
        parts: Any = figure.subfigures(1, 2, width_ratios=[8.5, 5.5], wspace=0.03)
        left, right = parts
    if left is not None:
        _optimization(left, heights, result)
    if right is not None:
        below = 0.0 if alone else max(0.0, sum(heights) - sum(sizes))  # few latents need not fill the height
        ratios = [*sizes, below] if below > 0.3 else sizes
        places = np.atleast_1d(right.subplots(len(ratios), 1, height_ratios=ratios))
        for place, one in zip(places, latents, strict=False):
            plot_posterior.draw(place, one)
        for place in places[len(latents) :]:
            place.axis("off")
        if more:
            places[len(latents) - 1].set_xlabel(f"and {more} more latents: result.summary(key)", fontsize=8)
    badge, colour = ("converged", _GREEN) if result.converged else ("not converged", _RED)
    if not (auto or quiet or result.converged):
        badge, colour = "fixed steps", _GREY
    how = result.how.split(",")[0] if quiet and result.how else result.estimator_name
    count = f"{result.steps:,} step{'s' * (result.steps != 1)}"
    figure.suptitle(f"{how[:1].upper()}{how[1:]}, {count} in {result.seconds:.1f} s", x=0.02, ha="left", color=_INK)
    figure.text(0.985, 0.985, badge, ha="right", va="top", color="white", fontsize=10, fontweight="bold",
                bbox={"boxstyle": "round,pad=0.35", "facecolor": colour, "edgecolor": "none"})  # fmt: skip
    figure.supxlabel("\n".join(words), x=0.02, ha="left", fontsize=9, color=_INK)
    if path is not None:
        figure.savefig(path, dpi=130)
    return figure


def is_quiet(result: FitResult) -> bool:
    """Whether the gradients of a fit had no noise, so that there is none to show."""
    return not result.phases and not np.any(result.gradient_variance > 0)


def _optimization(figure: Any, heights: list[float], result: FitResult) -> None:
    panels = np.atleast_1d(figure.subplots(len(heights), 1, sharex=True, height_ratios=heights))
    _bound(panels[0], result)
    if len(panels) > 1:
        _noise(panels[1], result)
    if len(panels) > 2:
        _step_size(panels[2], result)
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(colors=_INK)
        panel.grid(axis="y", color="#ecf0f1", linewidth=0.8)
        panel.set_axisbelow(True)
        panel.margins(x=0.01)
    for panel in panels:
        _phases(panel, result)
    panels[-1].set_xlabel("step")
    panels[-1].xaxis.get_major_locator().set_params(integer=True)
    panels[-1].xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    figure.align_ylabels(panels)


def _bound(axes: Any, result: FitResult) -> None:
    elbo, window = result.elbo, max(1, len(result.elbo) // 50)
    steps = np.arange(1, len(elbo) + 1)
    for other in result.restarts:
        if not np.array_equal(other.elbo, elbo):
            axes.plot(
                *_running(other.elbo[: len(elbo)], min(window, len(other.elbo))),
                color=_GREY,
                alpha=0.6,
                linewidth=0.9,
            )
    if window == 1:
        axes.plot(steps, elbo, "o-", color=_RED, markersize=3, label="each step")
    else:
        axes.plot(steps, elbo, color=_BLUE, alpha=0.25, linewidth=0.6, label="each step")
        axes.plot(*_running(elbo, window), color=_RED, label=f"mean of {window:,} steps")
    if result.restarts:
        axes.plot([], [], color=_GREY, alpha=0.6, label="other starts")
    finite = elbo[np.isfinite(elbo)]
    if len(finite) > 10:
        # The first steps are often far below: the picture should show where the fit ends.
        # Single draws that are far off are cut, too.
        tail = finite[len(finite) // 2 :]
        high = finite.max()
        low = min(np.percentile(finite, 10), np.percentile(tail, 1), _running(tail, min(window, len(tail)))[1].min())
        axes.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    axes.set_ylabel("ELBO", color=_INK)
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.1, ncols=3, frameon=False, fontsize=9)


def _noise(axes: Any, result: FitResult) -> None:
    noise = result.gradient_variance
    seen = np.isfinite(noise) & (noise > 0)
    steps = np.arange(1, len(noise) + 1)
    if seen.any():
        axes.plot(steps[seen], noise[seen], color=_BLUE, alpha=0.25, linewidth=0.6)
        axes.plot(*_running(np.where(seen, noise, np.nan), max(1, len(noise) // 50)), color=_RED)
        axes.set_yscale("log")
        low, high = np.percentile(noise[seen], [0.5, 100])
        axes.set_ylim(low / 2, high * 2)
    else:
        axes.text(0.5, 0.5, "no noise", transform=axes.transAxes, ha="center", color=_GREY)
    axes.set_ylabel("gradient\nvariance", color=_INK)


def _step_size(axes: Any, result: FitResult) -> None:
    for phase in result.phases:
        stop = phase.stop if phase.stop >= 0 else result.steps
        axes.plot([phase.start, stop], [phase.rate] * 2, color=_INK, linewidth=2, solid_capstyle="butt")
        axes.annotate(f"×{phase.rate:.3g}", (phase.start, phase.rate), xytext=(3, 3), textcoords="offset points",
                      fontsize=8, color=_INK)  # fmt: skip
    axes.set_yscale("log")
    rates = [phase.rate for phase in result.phases]
    axes.set_ylim(min(rates) / 2, max(rates) * 4)
    axes.set_yticks([])
    axes.minorticks_off()
    axes.set_ylabel("step size", color=_INK)


def _phases(axes: Any, result: FitResult) -> None:
    """Mark where the step size changed, the averaged iterates in green, and where the fit ended."""
    for phase in result.phases[1:]:
        axes.axvline(phase.start, color=_GREY, linewidth=0.8, linestyle=(0, (2, 3)))
    if result.converged and result.phases:
        axes.axvspan(result.phases[-1].averaged, result.steps, color=_GREEN, alpha=0.10, linewidth=0)
        if axes.get_ylabel() == "ELBO":
            axes.annotate("averaged", (result.phases[-1].averaged, 1.0), xycoords=("data", "axes fraction"),
                          xytext=(4, -12), textcoords="offset points", fontsize=8, color=_GREEN)  # fmt: skip
    axes.axvline(result.steps, color=_GREEN if result.converged else _GREY, linewidth=1.2)


def _running(values: np.ndarray, window: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of the finite values among the last `window` values at each step."""
    finite = np.isfinite(values)
    sums, counts = (np.cumsum(np.concatenate([[0.0], x])) for x in (np.where(finite, values, 0.0), finite))
    with np.errstate(invalid="ignore"):
        mean = (sums[window:] - sums[:-window]) / (counts[window:] - counts[:-window])
    return np.arange(window, len(values) + 1), mean
