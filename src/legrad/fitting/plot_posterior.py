"""The posterior in pictures: intervals of numbers, probabilities of labels, one panel for each latent.

Few elements get a line each, with their names; many are drawn against their position.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from legrad.diagnostics.summary import LatentSummary, Summary

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
_LATENTS = 5  # panels
_NAMED = 16  # elements with a line of their own
_WIDE = 28  # characters of a name
_BLUE, _GREY, _INK = "#2471a3", "#7f8c8d", "#2c3e50"


def chosen(summary: Summary) -> tuple[list[LatentSummary], int]:
    """Return the latents to draw, and how many are left out; single numbers of several latents share no panel."""
    found = [one for one in summary.latents.values() if one.mean.size]
    return found[:_LATENTS], len(found) - len(found[:_LATENTS])


def heights(latents: list[LatentSummary]) -> list[float]:
    """Return the height of each panel, in inches."""
    return [0.75 + 0.21 * min(one.mean.size, _NAMED) if one.mean.size <= _NAMED else 1.9 for one in latents]


def draw(axes: Any, one: LatentSummary) -> None:
    """Draw one latent."""
    few = one.mean.size <= _NAMED
    if one.probabilities is None:
        _intervals(axes, one) if few else _band(axes, one)
    else:
        _bars(axes, one) if few else _shares(axes, one)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=_INK, labelsize=8)
    axes.set_axisbelow(True)


def _title(axes: Any, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=9, color=_INK)


def _named(axes: Any, one: LatentSummary) -> np.ndarray:
    """Give each element a line, from the top down; return their heights."""
    y = np.arange(one.mean.size)
    names = [name if len(name) <= _WIDE else f"{name[: _WIDE - 1]}…" for name, _ in one.elements()]
    axes.set_yticks(y, names)
    axes.set_ylim(len(y) - 0.4, -0.6)
    return y


def _intervals(axes: Any, one: LatentSummary) -> None:
    y = _named(axes, one)
    low, lower, middle, upper, high = one.quantiles.reshape(len(LEVELS), -1)
    axes.hlines(y, low, high, color=_BLUE, linewidth=1.2)
    axes.hlines(y, lower, upper, color=_BLUE, linewidth=3.5)
    axes.plot(middle, y, "o", color="white", markeredgecolor=_BLUE, markersize=5, linestyle="none")
    if low.min() < 0 < high.max():
        axes.axvline(0, color=_GREY, linewidth=0.8, linestyle=(0, (2, 3)), zorder=0)
    axes.grid(axis="x", color="#ecf0f1", linewidth=0.8)
    _title(axes, f"{one.name}: median, 50% and 90% intervals")


def _band(axes: Any, one: LatentSummary) -> None:
    x = np.arange(one.mean.size)
    low, lower, middle, upper, high = one.quantiles.reshape(len(LEVELS), -1)
    axes.fill_between(x, low, high, color=_BLUE, alpha=0.18, linewidth=0)
    axes.fill_between(x, lower, upper, color=_BLUE, alpha=0.3, linewidth=0)
    axes.plot(x, middle, color=_BLUE, linewidth=1.0)
    axes.grid(axis="y", color="#ecf0f1", linewidth=0.8)
    axes.margins(x=0.01)
    axes.set_xlabel("element", fontsize=8, color=_INK)
    _title(axes, f"{one.name}: median, 50% and 90% intervals")


def _bars(axes: Any, one: LatentSummary) -> None:
    y = _named(axes, one)
    assert one.probabilities is not None
    p = one.probabilities.reshape(len(y), -1)
    axes.set_xlim(0, 1.13)
    axes.set_xticks([0, 0.5, 1])
    if p.shape[1] == 2:
        axes.barh(y, p[:, 1], color=_BLUE, height=0.6)
        for place, value in zip(y, p[:, 1], strict=True):
            axes.text(min(value, 1.0) + 0.015, place, f"{value:.2f}", va="center", fontsize=8, color=_INK)
        _title(axes, f"P({one.name} = 1)")
        return
    left = np.zeros(len(y))
    for k, colour in enumerate(_shades(p.shape[1])):
        axes.barh(y, p[:, k], left=left, color=colour, height=0.6, label=str(k))
        for place, start, value in zip(y, left, p[:, k], strict=True):
            if value > 0.12:
                axes.text(start + value / 2, place, str(k), ha="center", va="center", fontsize=8, color=_text(colour))
        left += p[:, k]
    _title(axes, f"probabilities of the {p.shape[1]} categories of {one.name}")


def _shares(axes: Any, one: LatentSummary) -> None:
    assert one.probabilities is not None
    p = one.probabilities.reshape(one.mean.size, -1)
    axes.set_xlabel("element", fontsize=8, color=_INK)
    if p.shape[1] == 2:
        axes.bar(np.arange(len(p)), p[:, 1], width=1.0, color=_BLUE)
        axes.set_ylim(0, 1.02)
        axes.margins(x=0.01)
        _title(axes, f"P({one.name} = 1)")
        return
    axes.imshow(p.T, aspect="auto", cmap="Blues", vmin=0, vmax=1, interpolation="nearest", origin="lower")
    axes.set_yticks(range(0, p.shape[1], max(1, p.shape[1] // 8)))
    axes.set_ylabel("category", fontsize=8, color=_INK)
    _title(axes, f"probabilities of the categories of {one.name} (dark: 1)")


def _shades(number: int) -> list[tuple[float, ...]]:
    from matplotlib import colormaps

    return [colormaps["Blues"](x) for x in np.linspace(0.9, 0.2, number)]


def _text(colour: tuple[float, ...]) -> str:
    return "white" if sum(colour[:3]) < 1.6 else _INK
