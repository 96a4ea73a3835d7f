"""Draws which folders and modules at the top of src/legrad import which, once and now: images/imports.png.

    python docs/import_graph.py [--before REVISION]

The layers on the right are those of the contract in pyproject.toml. A revision without that contract is put in layers
such that few imports point up. The top of the package itself, which only gathers public names, is looked through:
`import legrad` and then `legrad.fit` is an import of the place that defines `fit`.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import tomllib
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path as Curve

ROOT = Path(__file__).parents[1]
BEFORE = "269f709"
PACKAGE = "src/legrad/"
Edges = Counter[tuple[str, str]]


def sources(revision: str | None) -> dict[str, str]:
    """Return the text of every module, by its path inside the package; None stands for the files as they are now."""
    if revision is None:
        top = ROOT / PACKAGE
        return {path.relative_to(top).as_posix(): path.read_text() for path in top.rglob("*.py")}
    names = _git("ls-tree", "-r", "--name-only", revision, PACKAGE).splitlines()
    return {n.removeprefix(PACKAGE): _git("show", f"{revision}:{n}") for n in names if n.endswith(".py")}


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def imports(files: dict[str, str]) -> tuple[set[str], Edges]:
    """Return the places at the top of the package, and how many import statements lead from one to another."""
    places = {_place(name) for name in files} - {"__init__"}
    public = {
        alias.asname or alias.name: _target(node.module, places)
        for node in ast.walk(ast.parse(files["__init__.py"]))
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    found: Edges = Counter()
    for name, text in files.items():
        here = _place(name)
        for there in _imported(ast.parse(text), places, public):
            if here != "__init__" and there not in (None, here):
                found[here, there] += 1
    return places, found


def _place(name: str) -> str:
    return name.split("/")[0].removesuffix(".py")


def _target(module: str, places: set[str]) -> str | None:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "legrad" and parts[1] in places else None


def _imported(tree: ast.Module, places: set[str], public: dict[str, str | None]) -> list[str | None]:
    found: list[str | None] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [_target(alias.name, places) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "legrad":
            names = [alias.name for alias in node.names]
            found += [name if name in places else public.get(name) for name in names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append(_target(node.module, places))
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "legrad"
    }
    return found + [public.get(name) for name in sorted(used)]


def contract() -> list[set[str]]:
    """Return the layers that pyproject.toml asks for, from the top."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    return [
        {name.strip().removeprefix("legrad.") for name in layer.split("|")}
        for layer in settings["contracts"][0]["layers"]
    ]


def layered(places: set[str], edges: Edges) -> list[set[str]]:
    """Return layers, from the top, in which few imports point up: those of a cycle that are outnumbered."""
    down = set(edges)
    while cycle := _cycle(places, down):
        down.remove(min(cycle, key=lambda edge: (edges[edge], edge)))
    height: dict[str, int] = {}
    while len(height) < len(places):
        for place in places - set(height):
            below = [there for here, there in down if here == place]
            if all(there in height for there in below):
                height[place] = 1 + max((height[there] for there in below), default=-1)
    return [{p for p in places if height[p] == h} for h in range(max(height.values()), -1, -1)]


def _cycle(places: set[str], edges: set[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the edges of one cycle, or none."""
    done: set[str] = set()

    def search(place: str, trail: list[str]) -> list[str]:
        if place in trail:
            return [*trail[trail.index(place) :], place]
        if place not in done:
            for there in sorted(t for h, t in edges if h == place):
                if found := search(there, [*trail, place]):
                    return found
            done.add(place)
        return []

    found = next((trail for place in sorted(places) if (trail := search(place, []))), [])
    return list(pairwise(found))


# --- drawing: boxes in layers, and lines that go around them -----------------------------------------------------

Node = tuple[str, ...]  # (place,) for a box; (from, to, layer) for a line that passes a layer
HEIGHT, GAP, PAD, LANE = 0.5, 0.75, 0.22, 0.17
INK, PAPER, DOWN, UP = "#1c2833", "#eaf2f8", "#5d7f9c", "#c0392b"


class Drawing:
    """A graph in layers.

    Attributes:
        rows: the nodes of each layer from left to right, boxes and passing lines.
        chains: for each edge its nodes, from the layer above to the layer below.
        x: where each node is.
    """

    def __init__(self, layers: list[set[str]], edges: Edges) -> None:
        level = {place: i for i, layer in enumerate(layers) for place in layer}
        self.edges, self.level = edges, level
        self.rows: list[list[Node]] = [[(place,) for place in sorted(layer)] for layer in layers]
        self.chains: dict[tuple[str, str], list[Node]] = {}
        for here, there in sorted(edges):
            first, last = sorted((here, there), key=level.__getitem__)
            between: list[Node] = [(here, there, str(i)) for i in range(level[first] + 1, level[last])]
            for i, node in enumerate(between, level[first] + 1):
                self.rows[i].append(node)
            self.chains[here, there] = [(first,), *between, (last,)]
        self.links = [pair for chain in self.chains.values() for pair in pairwise(chain)]
        self._order()
        self.x = self._places()

    def up(self, edge: tuple[str, str]) -> bool:
        """Say whether an import points up, or to its own layer."""
        return self.level[edge[0]] >= self.level[edge[1]]

    def half(self, node: Node) -> float:
        """Return half the width of a node."""
        return (0.105 * len(node[0]) + 0.34) / 2 if len(node) == 1 else LANE / 2

    def _order(self) -> None:
        """Order each layer so that few lines cross: by the mean place of neighbours, from several beginnings."""
        beside = {n: self._near(n) for row in self.rows for n in row}
        rng, best, fewest = np.random.default_rng(0), self.rows, np.inf
        for _ in range(40):
            rows = [[row[i] for i in rng.permutation(len(row))] for row in self.rows]
            for sweep in range(12):
                downwards = sweep % 2 == 0
                for i in range(1, len(rows)) if downwards else range(len(rows) - 2, -1, -1):
                    near = {n: k for k, n in enumerate(rows[i - 1 if downwards else i + 1])}
                    rows[i].sort(
                        key=lambda n, near=near: np.mean([near[m] for m in beside[n] if m in near] or [len(near) / 2])
                    )
            if (crossings := self._crossings(rows)) < fewest:
                best, fewest = rows, crossings
        self.rows = best

    def _near(self, node: Node) -> list[Node]:
        return [b if a == node else a for a, b in self.links if node in (a, b)]

    def _crossings(self, rows: list[list[Node]]) -> int:
        at = {n: (i, k) for i, row in enumerate(rows) for k, n in enumerate(row)}
        total = 0
        for i in range(len(rows) - 1):
            ends = np.array([(at[a][1], at[b][1]) for a, b in self.links if at[a][0] == i]).reshape(-1, 2)
            apart = ends[:, None] - ends
            total += int(np.sum(apart[..., 0] * apart[..., 1] < 0)) // 2
        return total

    def _places(self) -> dict[Node, float]:
        """Move every node towards its neighbours, in the order of its layer and without touching the next."""
        x = {n: float(k) for row in self.rows for k, n in enumerate(row)}
        near = {n: self._near(n) for row in self.rows for n in row}
        for _ in range(200):
            for row in self.rows:
                want = np.array([np.mean([x[m] for m in near[n]] or [x[n]]) for n in row])
                halves = np.array([self.half(n) for n in row])
                boxes = np.array([len(n) == 1 for n in row])
                room = halves[1:] + halves[:-1] + LANE * (boxes[1:] | boxes[:-1])
                steps = np.concatenate([[0.0], np.cumsum(room)])
                x |= dict(zip(row, _increasing(want - steps) + steps, strict=True))
        return x

    def draw(self, axes, title: str) -> None:
        """Draw boxes and arrows."""
        y = {n: -i * (HEIGHT + GAP) for i, row in enumerate(self.rows) for n in row}
        ports = self._ports()
        for edge, chain in self.chains.items():
            points = []
            for k, node in enumerate(chain):
                x = ports.get((edge, k), self.x[node])
                ends = [(x, y[node] + HEIGHT / 2), (x, y[node] - HEIGHT / 2)]
                points += ends[1:] if k == 0 else ends[:1] if node == chain[-1] else ends
            if self.up(edge):
                points.reverse()
            vertices, codes = [points[0]], [Curve.MOVETO]
            for (x0, y0), (x1, y1) in pairwise(points):
                middle = (y0 + y1) / 2
                vertices += [(x0, middle), (x1, middle), (x1, y1)]
                codes += [Curve.CURVE4] * 3
            width = _width(self.edges[edge])
            axes.add_patch(
                FancyArrowPatch(
                    path=Curve(vertices, codes),
                    arrowstyle=f"-|>,head_length={2.5 + width},head_width={1.2 + 0.7 * width}",
                    color=UP if self.up(edge) else DOWN,
                    alpha=1.0 if self.up(edge) else 0.75,
                    linewidth=width,
                    capstyle="butt",
                    shrinkA=0,
                    shrinkB=0,
                    zorder=2 if self.up(edge) else 1,
                )
            )
        for row in self.rows:
            for node in row:
                if len(node) == 1:
                    half = self.half(node)
                    box = FancyBboxPatch(
                        (self.x[node] - half, y[node] - HEIGHT / 2),
                        2 * half,
                        HEIGHT,
                        boxstyle="round,pad=0,rounding_size=0.1",
                        facecolor=PAPER,
                        edgecolor=INK,
                        linewidth=0.9,
                        zorder=3,
                    )
                    axes.add_patch(box)
                    axes.text(
                        self.x[node], y[node], node[0], ha="center", va="center", color=INK, fontsize=10, zorder=4
                    )
        axes.set_xlim(*self.span())
        axes.set_ylim(min(y.values()) - HEIGHT, HEIGHT)
        axes.set_aspect("equal")
        axes.axis("off")
        axes.set_title(title, fontsize=12, color=INK)

    def span(self) -> tuple[float, float]:
        """Return where the drawing begins and ends."""
        ends = [self.x[n] + side * self.half(n) for row in self.rows for n in row for side in (-1, 1)]
        return min(ends) - PAD, max(ends) + PAD

    def _ports(self) -> dict[tuple[tuple[str, str], int], float]:
        """Return where each edge leaves and enters its boxes: side by side, in the order of where it goes."""
        sides: dict[tuple[Node, bool], list[tuple[float, tuple[str, str], int]]] = {}
        for edge, chain in self.chains.items():
            sides.setdefault((chain[0], False), []).append((self.x[chain[1]], edge, 0))
            sides.setdefault((chain[-1], True), []).append((self.x[chain[-2]], edge, len(chain) - 1))
        ports = {}
        for (node, _), ends in sides.items():
            reach = min(self.half(node) - 0.12, 0.11 * (len(ends) - 1))
            shifts = np.linspace(-reach, reach, len(ends)) if len(ends) > 1 else [0.0]
            for (_, edge, k), shift in zip(sorted(ends), shifts, strict=True):
                ports[edge, k] = self.x[node] + shift
        return ports


def _increasing(wanted: np.ndarray) -> np.ndarray:
    """Return the non-decreasing numbers nearest to those wanted."""
    pools: list[tuple[float, int]] = []
    for value in wanted:
        mean, size = float(value), 1
        while pools and pools[-1][0] > mean:
            other, more = pools.pop()
            mean, size = (mean * size + other * more) / (size + more), size + more
        pools.append((mean, size))
    return np.repeat([mean for mean, _ in pools], [size for _, size in pools])


def _width(number: int) -> float:
    return 0.7 * number**0.5


def figure(drawn: list[tuple[str, Drawing]]) -> Figure:
    """Draw graphs side by side."""
    wide = [np.diff(d.span())[0] for _, d in drawn]
    tall = max(len(d.rows) for _, d in drawn) * (HEIGHT + GAP)
    page = Figure(figsize=(0.78 * sum(wide) + 0.4, 0.78 * tall + 1.0), layout="constrained")
    for axes, (title, d) in zip(
        page.subplots(1, len(drawn), width_ratios=wide, squeeze=False)[0], drawn, strict=True
    ):
        d.draw(axes, title)
        axes.set_anchor("N")
    key = [(DOWN, 1, "1 import"), (DOWN, 5, "5"), (DOWN, 20, "20"), (UP, 5, "points up: closes a cycle")]
    lines = [Line2D([], [], color=colour, linewidth=_width(n), label=label) for colour, n, label in key]
    page.legend(handles=lines, loc="outside lower center", ncols=4, frameon=False, fontsize=10)
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", default=BEFORE, metavar="REVISION")
    before = parser.parse_args().before
    drawn = []
    try:
        places, edges = imports(sources(before))
        drawn.append((f"before ({before}): {len(places)} files and folders", Drawing(layered(places, edges), edges)))
    except (subprocess.CalledProcessError, FileNotFoundError):
        print(f"revision {before} is not in this clone: only the present is drawn")
    places, edges = imports(sources(None))
    layers = contract()
    if missing := places - set().union(*layers):
        parser.error(f"not in a layer of pyproject.toml: {', '.join(sorted(missing))}")
    drawn.append((f"now: {len(places)} files and folders in {len(layers)} layers", Drawing(layers, edges)))
    for title, d in drawn:
        print(
            f"{title}; up: {', '.join(f'{a} → {b} ({n})' for (a, b), n in d.edges.items() if d.up((a, b))) or 'none'}"
        )
    figure(drawn).savefig(ROOT / "docs" / "images" / "imports.png", dpi=110)


if __name__ == "__main__":
    main()
