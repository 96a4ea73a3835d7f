"""Draws images/how_pivot.png, how_blanket.png and how_summing.png for how_it_works.md."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

IMAGES = Path(__file__).parent / "images"
RED, BLUE, GREY, PALE, INK = "#c0392b", "#2471a3", "#7f8c8d", "#f2f3f4", "#1d1f21"


def _bare(width: float, height: float, panels: int) -> tuple[Figure, list[Axes]]:
    fig = Figure(figsize=(width, height), layout="constrained")
    axes = [fig.add_subplot(1, panels, i + 1) for i in range(panels)]
    for ax in axes:
        ax.set_axis_off()
    return fig, axes


def _cell(ax: Axes, x: float, y: float, text: str, colour: str = PALE, ink: str = INK) -> None:
    ax.add_patch(Rectangle((x - 0.45, y - 0.4), 0.9, 0.8, facecolor=colour, edgecolor=GREY))
    ax.text(x, y, text, ha="center", va="center", color=ink, fontsize=13)


def _node(ax: Axes, x: float, y: float, text: str, colour: str = "white", ink: str = INK, size: float = 36) -> None:
    ax.plot(x, y, "o", markersize=size, markerfacecolor=colour, markeredgecolor=INK, zorder=3)
    ax.text(x, y, text, ha="center", va="center", fontsize=14, color=ink, zorder=4)


def _arrow(ax: Axes, a: tuple[float, float], b: tuple[float, float], colour: str = GREY, wide: float = 1.5) -> None:
    ax.add_patch(
        FancyArrowPatch(a, b, arrowstyle="-|>", mutation_scale=14, color=colour, lw=wide, shrinkA=19, shrinkB=19)
    )


def pivot() -> Figure:
    """One draw, and what is evaluated around it."""
    fig, (ax,) = _bare(9.0, 3.9, 1)
    draw = [1, 0, 0, 1, 1]
    for j, value in enumerate(draw):
        _cell(ax, j, 6.3, str(value), BLUE, "white")
        ax.text(j, 7.05, f"$z_{j + 1}$", ha="center", fontsize=13)
    ax.text(-0.75, 6.3, "the pivot: one draw of all", ha="right", va="center", fontsize=12)
    ax.text(5.0, 6.3, "$f(z)$", va="center", fontsize=13)
    for e in range(5):
        for j, value in enumerate(draw):
            changed = j == e
            _cell(
                ax,
                j,
                5 - e,
                str(1 - value if changed else value),
                RED if changed else PALE,
                "white" if changed else INK,
            )
        ax.text(-0.75, 5 - e, f"$z_{e + 1}$ takes its other value", ha="right", va="center", fontsize=12)
        ax.text(5.0, 5 - e, f"both values: the gradient of $q(z_{e + 1})$", va="center", fontsize=12, color=INK)
    ax.set(xlim=(-6.2, 10.6), ylim=(0.4, 7.5))
    return fig


def blanket() -> Figure:
    """A guide in which one site depends on another."""
    fig, (left, right) = _bare(9.0, 3.3, 2)
    for ax, chosen, title in (
        (left, "a", "a takes each value: b, which was drawn given a,\nsays how probable that value is"),
        (right, "c", "c takes each value: nothing depends on c,\nso only its own factor counts"),
    ):
        where = {"a": (0.0, 1.0), "b": (1.6, 1.0), "c": (3.2, 1.0), "d": (3.2, 0.0)}
        for name, xy in where.items():
            colour = RED if name == chosen else ("#f5b7b1" if (chosen, name) == ("a", "b") else "white")
            _node(ax, *xy, name, colour, "white" if name == chosen else INK)
        for one, other in (("a", "b"), ("b", "c"), ("b", "d")):
            inside = chosen in (one, other)
            _arrow(ax, where[one], where[other], RED if inside else GREY, 2.6 if inside else 1.5)
        weights = {"a": r"$w_k \propto q(a = k)\; q(b \mid a = k)$", "c": r"$w_k = q(c = k \mid b)$"}
        ax.text(1.6, -0.75, weights[chosen], ha="center", fontsize=14)
        ax.set_title(title, fontsize=11)
        ax.set(xlim=(-0.6, 3.8), ylim=(-1.1, 1.6))
    return fig


def summing() -> Figure:
    """A chain: the tree of all paths, and the recursion."""
    fig, (left, right) = _bare(9.0, 3.6, 2)
    before = [0.0]
    for t in range(1, 6):
        here = [y + s * 8.0 / 2**t for y in before for s in (-0.5, 0.5)]
        for i, y in enumerate(here):
            left.plot([t - 1, t], [before[i // 2], y], color=GREY, lw=0.8)
        left.plot([t] * len(here), here, "o", color=BLUE, markersize=max(2.0, 8.0 - 1.3 * t))
        before = here
    left.set_title("enumeration: $2^T$ paths", fontsize=12)
    left.set(ylim=(-5, 4.6))
    for t in range(1, 6):
        for k in (-1.5, 1.5):
            if t > 1:
                for j in (-1.5, 1.5):
                    right.plot([t - 1, t], [j, k], color=GREY, lw=1.2)
            right.plot(t, k, "o", color=RED, markersize=13, zorder=3)
    right.set_title("forward recursion: $4\\,T$ products", fontsize=12)
    for ax in (left, right):
        for t in range(1, 6):
            ax.text(t, -4.9, f"$z_{t}$", ha="center", fontsize=13)
        ax.set_xlim(-0.2, 5.4)
    right.set(xlim=(0.4, 5.4), ylim=(-5, 4.6))
    return fig


def main() -> None:
    """Draw them all."""
    for name, figure in {"pivot": pivot(), "blanket": blanket(), "summing": summing()}.items():
        figure.savefig(IMAGES / f"how_{name}.png", dpi=120)


if __name__ == "__main__":
    main()
