"""Draws docs/images/single_site.png, what one changed element touches: `python docs/single_site_figure.py`.

Three programs, each drawn twice: as brute force runs it, and as `single_site` does. One square is one number.
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.patches import FancyArrowPatch, Rectangle

PICTURE = Path(__file__).parent / "images" / "single_site.png"

# Colours of Okabe and Ito; in grey, the hatching tells lazy from sparse.
CONSTANT, AGAIN, SPARSE, LAZY, DENSE = "#f1f1f1", "#a6a6a6", "#e69f00", "#56b4e9", "#0a3d62"
HATCH = "/////"
plt.rcParams.update({"hatch.linewidth": 0.7, "font.size": 9, "mathtext.fontset": "dejavusans"})


class Panel:
    """A program's arrays at a place of the page; `brute` draws every number as computed again."""

    def __init__(self, axes, left, top, brute):
        self.axes, self.left, self.top, self.brute = axes, left, top, brute

    def array(self, x, y, shape, name, colour=AGAIN, touched=lambda i, j: False, hatch=None, side="below"):
        """A matrix with its upper left corner at (x, y), downwards; `touched` squares take the colour."""
        rows, columns = shape
        for i in range(rows):
            for j in range(columns):
                hit = touched(i, j) and not self.brute
                face = AGAIN if self.brute else colour if hit else CONSTANT
                corner = (self.left + x + j, self.top - y - i - 1)
                pattern = hatch if hit else None
                self.axes.add_patch(Rectangle(corner, 1, 1, facecolor=face, edgecolor="white", lw=0.6))
                self.axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="#444444", lw=0.5, hatch=pattern))
        middle = x + columns / 2
        place = (middle, y + rows + 0.25) if side == "below" else (middle, y - 0.25)
        self.text(*place, name, va="top" if side == "below" else "bottom")

    def result(self, x, y):
        """The box of f, or of its difference."""
        corner, face = (self.left + x, self.top - y - 1.6), AGAIN if self.brute else "white"
        self.axes.add_patch(Rectangle(corner, 2.2, 1.6, facecolor=face, edgecolor="black", lw=1.2))
        self.text(x + 1.1, y + 0.8, "$f$" if self.brute else r"$\Delta f$", va="center", size=10)

    def arrow(self, x, y, to_x, to_y):
        ends = [(self.left + x, self.top - y), (self.left + to_x, self.top - to_y)]
        self.axes.add_patch(FancyArrowPatch(*ends, arrowstyle="-|>", mutation_scale=7, lw=0.9, color="#444444"))

    def text(self, x, y, text, **style):
        style = {"ha": "center", "size": 8.5} | style
        self.axes.text(self.left + x, self.top - y, text, **style)


def product(p):
    """f(w) = Σ softplus(X w), element w_2."""
    p.array(0, 0, (7, 4), "$X$", LAZY, lambda i, j: j == 2, HATCH)
    p.array(4.7, 1.5, (4, 1), "$w$", SPARSE, lambda i, j: i == 2)
    p.arrow(6.0, 3.5, 7.0, 3.5)
    p.array(7.2, 0, (7, 1), "$z=Xw$", LAZY, lambda i, j: True, HATCH)
    p.arrow(8.5, 3.5, 9.8, 3.5)
    p.array(10.2, 0, (7, 1), "softplus", DENSE, lambda i, j: True)
    p.arrow(11.5, 3.5, 12.5, 3.5)
    p.result(12.6, 2.7)


def chain(p):
    """f(z) = Σ J[z_t, z_t+1], element z_4."""
    p.array(0, 0.9, (1, 10), "$z$", SPARSE, lambda i, j: j == 4, side="above")
    p.array(0.5, 4.0, (1, 9), "", SPARSE, lambda i, j: j in (3, 4))
    for t in range(9):
        for end in (t, t + 1):
            hit = end == 4 and not p.brute
            line = {"color": "black", "lw": 1.5} if hit else {"color": "#888888", "lw": 0.6}
            p.axes.plot([p.left + end + 0.5, p.left + t + 1], [p.top - 1.95, p.top - 3.95], **line)
    p.text(10.0, 4.5, "$J$", ha="left", va="center")
    p.arrow(5, 5.1, 5, 6.1)
    p.result(3.9, 6.2)


def plate(p):
    """f(h) = Σ softplus(h W), element h_2,1."""
    p.array(3.6, 0, (3, 5), "$W$", SPARSE, lambda i, j: i == 1, HATCH, side="above")
    p.array(0, 3.6, (4, 3), "$h$", SPARSE, lambda i, j: (i, j) == (2, 1))
    p.array(3.6, 3.6, (4, 5), "$z=hW$", SPARSE, lambda i, j: i == 2, HATCH)
    p.arrow(8.8, 5.6, 9.8, 5.6)
    p.array(10.0, 3.6, (4, 5), "softplus", SPARSE, lambda i, j: i == 2)
    p.arrow(12.5, 3.4, 12.5, 2.2)
    p.result(11.4, 0.5)


PANELS = [
    (product, 4.0, 14.8, "A product, then a function", r"$f(w)=\sum\,\mathrm{softplus}(Xw)$",
     "28 products, 7 softplus", "7 products, 7 softplus"),
    (chain, 22.2, 10.8, "A chain of pairs", r"$f(z)=\sum_t\, J[z_t,\,z_{t+1}]$", "9 terms", "2 terms"),
    (plate, 36.2, 15.0, "A batch in a plate", r"$f(h)=\sum\,\mathrm{softplus}(hW)$",
     "60 products, 20 softplus", "5 products, 5 softplus"),
]  # fmt: skip
LEGEND = [
    (AGAIN, None, "read or computed again"),
    (CONSTANT, None, "constant"),
    (SPARSE, None, "sparse: few positions"),
    (LAZY, HATCH, "lazy (hatched): factors, not multiplied out"),
    (DENSE, None, "dense: all positions"),
]


def main():
    width, height = 52.5, 30.8
    figure = plt.figure(figsize=(8.8, 8.8 * height / width))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(0, height), aspect="equal")
    axes.axis("off")
    for brute, top, label in [(True, 26.2, "brute force"), (False, 13.6, "single_site")]:
        axes.text(1.3, top - 3.9, label, rotation=90, ha="center", va="center", weight="bold", size=9.5)
        for draw, left, wide, title, formula, every, little in PANELS:
            draw(Panel(axes, left, top, brute))
            middle = {"x": left + wide / 2, "ha": "center"}
            if brute:
                axes.text(y=height - 0.4, s=title, va="top", weight="bold", size=9.5, **middle)
                axes.text(y=height - 1.9, s=formula, va="top", size=9, **middle)
            count = f"one change: {every if brute else little}"
            axes.text(y=top - 9.9, s=count, va="center", style="italic", size=8.5, **middle)
    axes.plot([0.5, width - 0.5], [15.4, 15.4], color="#cccccc", lw=0.8)
    at = 0.7
    for colour, hatch, text in LEGEND:
        axes.add_patch(Rectangle((at, 0.6), 1.2, 1.2, facecolor=colour, edgecolor="#444444", lw=0.5, hatch=hatch))
        label = axes.text(at + 1.5, 1.2, text, va="center", size=8)
        box = label.get_window_extent(figure.canvas.get_renderer()).transformed(axes.transData.inverted())
        at = box.x1 + 0.9
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=180, facecolor="white")
    print(f"wrote {PICTURE}")


if __name__ == "__main__":
    main()
