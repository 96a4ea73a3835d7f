"""The parts of an experiment's report: claims, pictures, tables and the settings behind them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Claim:
    """One claim of the paper beside what was measured.

    Args:
        id: short and unique in the whole report, as "G1".
        claim: what the paper says, in its words.
        measured: what this run found, as a sentence with numbers.
        holds: the verdict; None if this size of run does not measure it. A NumPy or JAX boolean will do.
        command: the command that measures it again.
        criterion: when it counts as holding, where that is a choice; it is added to `measured`.
        ours: whether it is a question of ours, which the paper does not raise; `claim` then says so, and the verdict
            is its answer.
        short: the claim in a few words, for the table.
        number: what was measured in a few words, for the table.
    """

    id: str
    claim: str
    measured: str
    holds: bool | None
    command: str
    criterion: str = ""
    ours: bool = False
    short: str = ""
    number: str = ""

    def __post_init__(self) -> None:
        if self.criterion:
            counts = "The answer is yes" if self.ours else "Counts as holding"
            object.__setattr__(self, "measured", f"{self.measured}. ({counts} if {self.criterion}.)")
        if self.ours:
            object.__setattr__(self, "claim", f"Not in the paper: {self.claim}")
        for name in ("claim", "measured", "short", "number"):  # written over several lines of code, read as one
            object.__setattr__(self, name, " ".join(getattr(self, name).split()))
        if self.holds is None:
            return
        verdict = np.asarray(self.holds)
        if verdict.ndim or verdict.dtype != bool:
            raise TypeError(f"claim {self.id}: `holds` is {self.holds!r}; give True, False or None")
        # np.True_ is not True, and JSON does not know it.
        object.__setattr__(self, "holds", bool(verdict))


@dataclass(frozen=True)
class Picture:
    """One figure of the report.

    Args:
        name: the name of its file, without an ending: letters, digits, "_", "-" and ".".
        caption: what it shows; also read to those who do not see it.
        draw: makes the figure. It is called twice, once in the light style and once in the dark, so it must not
            compute anything long, nor use `pyplot`, nor name black or white: `matplotlib.rcParams["text.color"]` is
            the ink of the style.
    """

    name: str
    caption: str
    draw: Callable[[], Figure]

    def __post_init__(self) -> None:
        object.__setattr__(self, "caption", " ".join(self.caption.split()))
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", self.name):
            raise ValueError(f"picture {self.name!r}: its name becomes a file; use letters, digits, '_', '-' and '.'")


@dataclass(frozen=True)
class Table:
    """A table of results, already in words: the report does not round.

    Args:
        caption: what it shows.
        header: the names of the columns; the first column names the row.
        rows: as many cells in each as in the header.
        note: a remark below the table.
    """

    caption: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]
    note: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "note", " ".join(self.note.split()))
        for row in self.rows:
            if len(row) != len(self.header):
                raise ValueError(
                    f"table {self.caption!r}: a row has {len(row)} cells, the header {len(self.header)}: {row}"
                )


@dataclass(frozen=True)
class Section:
    """One experiment.

    Args:
        name: as in `legrad reproduce NAME`; unique in the report.
        title: its heading.
        text: plain paragraphs, separated by blank lines.
        claims: what of the paper it checks.
        headline: what it shows, in a sentence for a first reader.
        pictures: its figures, in order; the first one leads the page.
        tables: its tables, in order.
        settings: whatever one needs to know to run it again.
        data: where the data come from.
    """

    name: str
    title: str
    text: str
    claims: Sequence[Claim] = ()
    headline: str = ""
    pictures: Sequence[Picture] = ()
    tables: Sequence[Table] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    data: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "headline", " ".join(self.headline.split()))
