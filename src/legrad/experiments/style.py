"""Colours of the report: one set for the estimators, and a light and a dark style around them."""

from __future__ import annotations

from typing import Any, NamedTuple

# LeGrad red, ReGrad blue and LdGrad green as in the paper. Their lightness gives each a contrast above 3 with the
# light and the dark paper, and keeps any two apart (CIELAB distance above 20) in the three kinds of colour-blindness.
COLOURS = {
    "LeGrad": "#dc1c33",
    "ReGrad": "#0d67f5",
    "LdGrad": "#2aa76c",
    "DisARM": "#c66cc6",
    "leave-one-out": "#e07703",
    "exact": "#6e7276",
}

# A second sign beside the colour, for print in grey.
LINES: dict[str, Any] = {
    "LeGrad": "-",
    "ReGrad": (0, (5, 1.5)),
    "LdGrad": (0, (1.5, 1.2)),
    "DisARM": (0, (6, 1.5, 1.5, 1.5)),
    "leave-one-out": (0, (3, 1.2, 1.2, 1.2, 1.2, 1.2)),
    "exact": (0, (8, 3)),
}


class Palette(NamedTuple):
    """What the page and its figures share, so that a figure stands on the page without an edge."""

    paper: str
    panel: str
    ink: str
    muted: str
    rule: str
    link: str
    good: str
    bad: str


LIGHT = Palette("#ffffff", "#f6f5f1", "#1d1f21", "#5b5e62", "#d9d6ce", "#1f4f8f", "#1b6b3a", "#a3201d")
DARK = Palette("#15171a", "#1e2125", "#e6e4df", "#a6a8a8", "#383c42", "#8db8ee", "#7fcf9b", "#f29a8f")


def rc(palette: Palette) -> dict[str, Any]:
    """The matplotlib settings of a style."""
    ink = dict.fromkeys(
        [
            "text.color",
            "axes.labelcolor",
            "axes.titlecolor",
            "lines.color",
            "hatch.color",
            "boxplot.boxprops.color",
            "boxplot.whiskerprops.color",
            "boxplot.capprops.color",
            "boxplot.medianprops.color",
            "boxplot.flierprops.color",
            "boxplot.flierprops.markeredgecolor",
        ],
        palette.ink,
    )
    muted = dict.fromkeys(["axes.edgecolor", "xtick.color", "ytick.color"], palette.muted)
    paper = dict.fromkeys(
        ["figure.facecolor", "axes.facecolor", "legend.facecolor", "patch.edgecolor"], palette.paper
    )
    return {
        **ink,
        **muted,
        **paper,
        "axes.prop_cycle": f"cycler('color', {list(COLOURS.values())!r})",
        "axes.axisbelow": True,
        "axes.grid": True,
        "axes.linewidth": 0.8,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlelocation": "left",
        "axes.titlesize": 10.5,
        "axes.titleweight": "bold",
        "font.size": 10,
        "grid.color": palette.rule,
        "grid.linewidth": 0.5,
        "legend.edgecolor": palette.rule,
        "legend.framealpha": 0.85,
        "legend.fontsize": 9,
        "lines.linewidth": 1.6,
        "savefig.facecolor": "auto",
        "xtick.labelcolor": palette.ink,
        "ytick.labelcolor": palette.ink,
        "xtick.labelsize": 9,
        "ytick.labelsize": 9,
    }
