"""A table of the latents of a fitted guide: mean, sd and quantiles of numbers, probabilities of labels.

Everything is computed from draws. A latent whose values are labels (Bernoulli, Categorical) is described by the share
of the draws in each category, any other by its moments. Elements are named by the coordinates of their axes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import islice, product
from typing import Any

import jax
import numpy as np

from legrad.diagnostics.replay import Trace, Whole, axis_names, full_shape, latent_sites, replay, user_model
from legrad.diagnostics.weights import categories
from legrad.model.frames import Names, names_by_size
from legrad.model.log_density import LogDensity
from legrad.model.problem import Problem

_SHOWN = 20  # elements of a latent that are printed
_SHOWN_CATEGORIES = 8
Cells = list[str]


@dataclass(frozen=True)
class LatentSummary:
    """The summary of one latent.

    Attributes:
        name: the site.
        labels: the names of the members along each axis.
        mean: the mean of each element; for a label, the mean of its number.
        sd: the standard deviation of each element.
        quantiles: the quantiles of each element, on a leading axis.
        probabilities: for a label, the probability of each category, on a last axis; None for a number.
    """

    name: str
    labels: tuple[tuple[str, ...], ...]
    mean: np.ndarray
    sd: np.ndarray
    quantiles: np.ndarray
    probabilities: np.ndarray | None

    def elements(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield the name and the index of each element: "slope[age]", (0,)."""
        for index in product(*(range(n) for n in self.mean.shape)):
            inside = ", ".join(labels[i] for labels, i in zip(self.labels, index, strict=True))
            yield (f"{self.name}[{inside}]" if index else self.name), index


@dataclass(frozen=True)
class Summary:
    """A table of all latents: print it, or take `to_pandas`, `to_markdown`; `summary["slope"]` is one latent.

    Attributes:
        latents: the summary of each latent, by name.
        levels: the levels of the quantiles.
        draws: the number of draws that the table is computed from.
        corrected: whether the draws were resampled by their importance weights.
    """

    latents: dict[str, LatentSummary] = field(repr=False)
    levels: tuple[float, ...]
    draws: int
    corrected: bool = False

    def __getitem__(self, name: str) -> LatentSummary:
        if name not in self.latents:
            raise KeyError(f"'{name}' is not a latent of the fit, which has: {', '.join(self.latents)}")
        return self.latents[name]

    def to_pandas(self) -> Any:
        """Return a DataFrame with a row for each element; numbers have no probabilities, labels no moments.

        Needs pandas.
        """
        try:
            from pandas import DataFrame  # type: ignore[import-untyped,unused-ignore]
        except ImportError as error:
            raise ImportError("a DataFrame needs pandas: pip install pandas") from error
        rows = self.rows()
        columns = ["mean", "sd", *map(_percent, self.levels)]
        present = [c for c in columns if any(c in row for row in rows)]
        shares = sorted({c for row in rows for c in row if c.startswith("P(")}, key=lambda c: int(c[2:-1]))
        return DataFrame(rows, columns=["latent", "site", *present, *shares]).set_index("latent")

    def rows(self) -> list[dict[str, Any]]:
        """Return a dictionary for each element: latent, site, and its numbers by the names of the columns."""
        found = []
        for one in self.latents.values():
            for name, index in one.elements():
                row: dict[str, Any] = {"latent": name, "site": one.name}
                if one.probabilities is None:
                    row |= {"mean": float(one.mean[index]), "sd": float(one.sd[index])}
                    row |= {_percent(p): float(q[index]) for p, q in zip(self.levels, one.quantiles, strict=True)}
                else:
                    row |= {f"P({k})": float(p) for k, p in enumerate(one.probabilities[index])}
                found.append(row)
        return found

    def to_markdown(self, limit: int | None = None) -> str:
        """Return the table in Markdown; `limit` is the largest number of elements of a latent, None for all."""
        parts = []
        for head, rows in self._tables(limit):
            lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
            parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
        return "\n\n".join(parts)

    def _repr_html_(self) -> str:
        """Return the table in HTML, for notebooks."""
        parts = [f"<p>{self.draws:,} draws of the fitted guide{', corrected' if self.corrected else ''}</p>"]
        for head, rows in self._tables(_SHOWN):
            cells = "".join(f"<th>{escape(cell)}</th>" for cell in head)
            lines = "".join(
                f"<tr><th scope='row'>{escape(row[0])}</th>"
                + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
                + "</tr>"
                for row in rows
            )
            parts.append(
                f"<table class='legrad-summary'><thead><tr>{cells}</tr></thead><tbody>{lines}</tbody></table>"
            )
        return "\n".join(parts)

    def __str__(self) -> str:
        parts = []
        for head, rows in self._tables(_SHOWN):
            lines = [head, *rows]
            widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
            parts.append(
                "\n".join(
                    "  ".join(
                        cell.ljust(width) if i == 0 else cell.rjust(width)
                        for i, (cell, width) in enumerate(zip(line, widths, strict=True))
                    ).rstrip()
                    for line in lines
                )
            )
        return "\n\n".join(parts)

    def _tables(self, limit: int | None) -> Iterator[tuple[Cells, list[Cells]]]:
        """Yield the head and the rows of the table of numbers, and of that of labels."""
        numbers = [one for one in self.latents.values() if one.probabilities is None]
        labels = [one for one in self.latents.values() if one.probabilities is not None]
        if numbers:
            head = ["latent", "mean", "sd", *map(_percent, self.levels)]
            yield head, [row for one in numbers for row in self._limited(one, limit, len(head))]
        if labels:
            shown = min(max(one.probabilities.shape[-1] for one in labels), _SHOWN_CATEGORIES)  # type: ignore[union-attr]
            head = ["latent", "most likely", *(f"P({k})" for k in range(shown))]
            yield head, [row for one in labels for row in self._limited(one, limit, len(head))]

    def _limited(self, one: LatentSummary, limit: int | None, width: int) -> Iterator[Cells]:
        for name, index in islice(one.elements(), limit):
            yield self._row(one, name, index, width)
        if limit is not None and one.mean.size > limit:
            yield [f"{one.name}: {one.mean.size - limit:,} more", *[""] * (width - 1)]

    def _row(self, one: LatentSummary, name: str, index: tuple[int, ...], width: int) -> Cells:
        if one.probabilities is None:
            values = [one.mean[index], one.sd[index], *(float(q[index]) for q in one.quantiles)]
            return [name, *_formatted(values, float(one.sd[index]))]
        p = one.probabilities[index]
        cells = [name, str(int(np.argmax(p))), *(f"{x:.3f}" for x in p[: width - 2])]
        return cells + [""] * (width - len(cells))


def summarize(
    problem: Problem,
    draws: Mapping[str, Any],
    levels: Sequence[float],
    coords: Mapping[str, Sequence[Any]] | None,
    names: Sequence[Names],
) -> Summary:
    """Summarize draws of a guide.

    Args:
        problem: model, guide, fitted parameters and data, whose plates name the axes.
        draws: draws of each latent, with a leading axis.
        levels: the levels of the quantiles, between 0 and 1.
        coords: names of the members of an axis, by the name of the plate, or "site_dim_0" for an axis without one.
        names: the names that frames among the arguments had, for axes of their size.

    Raises:
        ValueError: if a level is not a probability, or if `coords` names no axis or has the wrong length.
    """
    if not all(0 <= level <= 1 for level in levels):
        raise ValueError(f"quantiles={tuple(levels)}: give levels between 0 and 1, such as (0.05, 0.5, 0.95)")
    sites = _sites(problem)
    order = [*(name for name in sites if name in draws), *(name for name in draws if name not in sites)]
    arrays = {name: np.asarray(draws[name]) for name in order}
    axes = {
        name: (axis_names(sites[name]) if name in sites else None)
        or [f"{name}_dim_{i}" for i in range(value.ndim - 1)]
        for name, value in arrays.items()
    }
    known = {axis for found in axes.values() for axis in found}
    if unknown := sorted(set(coords or {}) - known):
        raise ValueError(
            f"coords names '{unknown[0]}', which is not an axis of a latent: the axes are "
            f"{', '.join(sorted(known)) or 'none'}"
        )
    by_size = names_by_size(names)
    found = {}
    for name, x in arrays.items():
        labels = tuple(
            _labels(axis, size, coords or {}, by_size) for axis, size in zip(axes[name], x.shape[1:], strict=True)
        )
        k = categories(sites[name]) if name in sites else 0
        found[name] = _latent(name, x, labels, k, levels)
    number = len(next(iter(arrays.values()))) if arrays else 0
    return Summary(found, tuple(float(level) for level in levels), number)


def _sites(problem: Problem) -> Trace:
    """Return the latent sites of the model, or of the guide of a plain log-density; traced, with plates in full."""
    model = user_model(problem.model)
    program = problem.guide if isinstance(model, LogDensity) else model
    found: Trace = {}

    def look(key: jax.Array, *layers: Any) -> None:
        trace = replay(program, problem.args, problem.kwargs, key, problem.params, *layers)
        # Read inside: values of a trace that is over cannot be used.
        found.update({name: site for name, site in latent_sites(trace).items() if full_shape(site) is not None})

    for layers in ((Whole(),), ()):
        try:
            jax.eval_shape(lambda key, layers=layers: look(key, *layers), jax.random.key(0))
            break
        except (TypeError, ValueError, AssertionError):  # a minibatch, where plates cannot run in full
            found.clear()
    return found


def _labels(
    axis: str, size: int, coords: Mapping[str, Sequence[Any]], by_size: Mapping[int, tuple[str, ...]]
) -> tuple[str, ...]:
    if axis in coords:
        given = tuple(str(label) for label in coords[axis])
        if len(given) != size:
            raise ValueError(
                f"coords['{axis}'] has {len(given)} names, and the axis has {size} members: give as many"
            )
        return given
    return by_size.get(size) or tuple(str(i) for i in range(size))


def _latent(
    name: str, x: np.ndarray, labels: tuple[tuple[str, ...], ...], k: int, levels: Sequence[float]
) -> LatentSummary:
    values = x.astype(np.float64)
    shares = np.stack([np.mean(x == c, axis=0) for c in range(k)], axis=-1) if k else None
    return LatentSummary(
        name, labels, values.mean(0), values.std(0), np.quantile(values, np.asarray(levels), axis=0), shares
    )


def _percent(level: float) -> str:
    return f"{100 * level:g}%"


def _formatted(values: Sequence[float], sd: float) -> Cells:
    """Format numbers to two digits of their standard deviation."""
    if not (sd > 0 and math.isfinite(sd)):
        return [f"{value:.4g}" for value in values]
    digits = 1 - math.floor(math.log10(sd))
    if digits > 6 or max(abs(value) for value in values) >= 1e7:
        return [f"{value:.4g}" for value in values]
    return [f"{round(value, max(0, digits)) + 0.0:.{max(0, digits)}f}" for value in values]  # no minus before zero
