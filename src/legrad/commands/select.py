"""`legrad select`: which columns of a table explain another? Spike-and-slab regression, for people without a model.

    included_j ~ Bernoulli(prior),    slope_j ~ Normal(0, 1),    y ~ family(intercept + X (included · slope))

Columns are standardized, and so is the target of a Gaussian. `standard.spike_slab` fits it, as it does for
`legrad.sklearn.SpikeSlabRegressor`.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np

import legrad
from legrad.commands import page
from legrad.commands.fit import count, explained, table_of
from legrad.commands.output import DONE, DOUBTFUL, CommandError, as_json, common, folder, note, say
from legrad.commands.table import FORMATS, Table
from legrad.diagnostics.figure import new_figure
from legrad.standard.spike_slab import FAMILIES, SpikeSlabPosterior, fit_spike_slab

_SLAB = 1.0  # the standard deviation of a slope
_DRAWS = 4000
_BLUE, _INK = "#2471a3", "#2c3e50"


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "select",
        help="find the columns of a table that explain another",
        description="Spike-and-slab regression of one column of a table on the others: the probability that each "
        "column matters, and its slope. Exit codes as in `legrad fit`.",
    )
    parser.add_argument("table", type=Path, help=f"the table: {FORMATS}")
    parser.add_argument("--target", required=True, metavar="COLUMN", help="the column to explain")
    parser.add_argument(
        "--family",
        choices=("auto", *FAMILIES),
        default="auto",
        help="of the target; auto: bernoulli for two values, else gaussian",
    )
    parser.add_argument(
        "--prior", type=_share, default=0.2, metavar="P", help="that a column matters, before the data (%(default)s)"
    )
    parser.add_argument("--drop", action="append", default=[], metavar="COLUMN", help="leave a column out")
    parser.add_argument("--drop-missing", action="store_true", help="leave out rows that lack a value")
    parser.add_argument("--restarts", type=count, default=4, metavar="N", help="how many starts to fit (%(default)s)")
    common(parser, "out/select")
    parser.set_defaults(run=run)


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a probability: give a number between 0 and 1")
    return value


def target_of(table: Table, name: str, family: str) -> tuple[np.ndarray, str, str]:
    """Return the target as numbers, its family, and a sentence about it."""
    x = table.column(name, "--target")
    if x.dtype == object:
        values = sorted({value for value in x if value is not None})
        if len(values) != 2 or any(value is None for value in x) or family not in ("auto", "bernoulli"):
            raise CommandError(
                f"{table.path}, column '{name}' is text with {len(values)} values ({', '.join(map(str, values[:4]))})"
                ": a target is a number, or text with two values and none missing"
            )
        return (x == values[1]).astype(float), "bernoulli", f"'{name}' is 1 for {values[1]!r}, 0 for {values[0]!r}"
    y = table.matrix([name], "--target")[:, 0].astype(float)
    two = set(np.unique(y)) == {0.0, 1.0}
    chosen = ("bernoulli" if two else "gaussian") if family == "auto" else family
    if np.ptp(y) == 0:
        raise CommandError(f"{table.path}, column '{name}' is {y[0]:g} in every row: there is nothing to explain")
    bad = {
        "bernoulli": ~np.isin(y, (0, 1)),
        "poisson": (y < 0) | (y != np.round(y)),
        "gaussian": np.zeros(len(y), bool),
    }[chosen]
    if bad.any():
        row = int(np.argmax(bad))
        wanted = "0 or 1" if chosen == "bernoulli" else "a whole number from 0 on"
        raise CommandError(
            f"{table.path}, row {row + 1}, column '{name}': {y[row]:g} is not {wanted}, which --family {chosen} "
            "needs; choose --family gaussian, or correct it"
        )
    return y, chosen, f"'{name}' is {chosen}"


def features_of(table: Table, target: str) -> tuple[list[str], np.ndarray]:
    """Return the names of the columns that vary, and these columns standardized."""
    others = [name for name in table.columns if name != target]
    together = table.matrix(others, "a column to choose from").astype(float) if others else np.empty((0, 0))
    rows = len(table.columns[target])
    if others and len(together) != rows:
        raise CommandError(
            f"{table.path}: '{target}' has {rows} rows, '{others[0]}' has {len(together)}: give columns of one length"
        )
    names, columns = [], []
    for name, x in zip(others, together.T, strict=bool(others)):
        if np.ptp(x) == 0:
            note(f"column '{name}' is the same in every row and is left out")
            continue
        names.append(name)
        columns.append((x - x.mean()) / x.std())
    if not names:
        raise CommandError(f"{table.path} has no column besides '{target}' to explain it by")
    return names, np.stack(columns, axis=1)


def run(given: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    table = table_of(given, given.table)
    y, family, words = target_of(table, given.target, given.family)
    names, X = features_of(table, given.target)
    scale = y.std() if family == "gaussian" else 1.0
    y = (y - y.mean()) / scale if family == "gaussian" else y
    out = folder(given.out)
    if not given.json:
        say(f"{words}; {len(names)} columns, {len(y)} rows")
    found = explained(
        lambda: fit_spike_slab(
            X, y, family, rate=given.prior, slab=_SLAB, rng=np.random.default_rng(given.seed),
            restarts=given.restarts, draws=_DRAWS,
        ),
        str(given.table),
    )  # fmt: skip
    share, effect = found.inclusion, found.draws * scale
    mean = found.slopes * scale + 0.0  # no minus before zero
    rows = [
        {"column": name, "probability": float(share[j]), "effect": float(mean[j]),
         "5%": float(np.quantile(effect[:, j], 0.05)), "95%": float(np.quantile(effect[:, j], 0.95))}
        for j, name in enumerate(names)
    ]  # fmt: skip
    rows.sort(key=lambda row: -float(row["probability"]))  # type: ignore[arg-type]
    kept = {
        "command": "select", "data": str(given.table), "target": given.target, "family": family, "prior": given.prior,
        "status": found.status, "khat": found.khat, "ok": found.trusted, "columns": rows,
        "version": legrad.__version__,
    }  # fmt: skip
    _write(kept, rows, out, found)
    if given.json:
        print(as_json(kept))
    else:
        say(f"{found.status}\n")
        say(_text(rows))
        say(f"\npage: {(out / 'index.html').resolve()}")
    return DONE if found.trusted else DOUBTFUL


_HEAD = ["column", "probability", "effect of one sd", "5%", "95%"]


def _cells(rows: list[dict[str, Any]]) -> list[list[str]]:
    return [
        [row["column"], f"{row['probability']:.3f}", *(f"{row[k]:.3g}" for k in ("effect", "5%", "95%"))]
        for row in rows
    ]


def _text(rows: list[dict[str, Any]]) -> str:
    lines = [_HEAD, *_cells(rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(_HEAD))]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))])
        for line in lines
    )


def _write(kept: dict[str, Any], rows: list[dict[str, Any]], out: Path, found: SpikeSlabPosterior) -> None:
    page.write(out / "result.json", as_json(kept))
    page.write(
        out / "selection.csv",
        "\n".join([",".join(_HEAD), *(",".join(_quoted(cell) for cell in line) for line in _cells(rows))]) + "\n",
    )
    pictures = ""
    try:
        figure = _plot(rows, kept["target"])
        figure.savefig(out / "selection.png", dpi=130)
        pictures = page.picture(figure, "the probability that each column matters, and its effect")
    except ImportError as error:
        note(f"no plots: {error}")
    likely = [row["column"] for row in rows if row["probability"] > 0.5]
    lead = f"More likely than not, {kept['target']} depends on {', '.join(likely) or 'none of the columns'}."
    facts = [kept["data"], f"{kept['family']} target", f"prior probability {kept['prior']:g}", found.status]
    sections = {"Columns": pictures + page.table(_HEAD, _cells(rows))}
    html = page.page(f"What explains {kept['target']}?", lead, found.trusted, facts, sections)
    page.write(out / "index.html", html)


def _quoted(cell: str) -> str:
    return '"' + cell.replace('"', '""') + '"' if any(c in cell for c in ',"\n') else cell


def _plot(rows: list[dict[str, Any]], target: str, most: int = 30) -> Any:
    shown = rows[:most]
    figure = new_figure(figsize=(9, 1.2 + 0.27 * len(shown)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    places = np.arange(len(shown))
    left.barh(places, [row["probability"] for row in shown], color=_BLUE, height=0.6)
    for place, row in zip(places, shown, strict=True):
        left.text(row["probability"] + 0.015, place, f"{row['probability']:.2f}", va="center", fontsize=8, color=_INK)
    left.set_xlim(0, 1.15)
    left.set_xticks([0, 0.5, 1])
    left.set_yticks(places, [row["column"][:28] for row in shown])
    left.set_ylim(len(shown) - 0.4, -0.6)
    left.set_title("probability that it matters", loc="left", fontsize=10, color=_INK)
    right.hlines(places, [row["5%"] for row in shown], [row["95%"] for row in shown], color=_BLUE, linewidth=2)
    right.plot([row["effect"] for row in shown], places, "o", color="white", markeredgecolor=_BLUE, markersize=5)
    right.axvline(0, color="#7f8c8d", linewidth=0.8, linestyle=(0, (2, 3)), zorder=0)
    right.set_title(f"effect of one sd on {target} (mean, 90%)", loc="left", fontsize=10, color=_INK)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=_INK, labelsize=8)
    if len(rows) > most:
        left.set_xlabel(f"and {len(rows) - most} more columns", fontsize=8)
    return figure
