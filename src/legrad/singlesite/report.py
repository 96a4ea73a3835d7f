"""Report what became of the changes: which primitives kept their structure, which lost it, and the cost."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from legrad.singlesite.change import Change, Lazy
from legrad.singlesite.labelled import K
from legrad.singlesite.layout import Layout
from legrad.singlesite.plan import Plan
from legrad.singlesite.propagate import Visit
from legrad.singlesite.site import Site
from legrad.trace.program import Program


class _Local(threading.local):
    """The explanations that this thread is collecting."""

    def __init__(self) -> None:
        self.listeners: list[Explanation] = []


_LOCAL = _Local()


@dataclass(frozen=True)
class Row:
    """One primitive that a change reaches.

    Attributes:
        latent: the latent that changes.
        line: the user's line of code.
        primitive: JAX's name of the primitive.
        structure: "sparse" (few positions), "lazy" (a sum of products), "dense" or "scalar".
        touched: how many of the result's numbers one changed element touches.
        size: how many numbers the result has.
        numbers: how many numbers are computed for all elements and candidates.
        note: why structure was lost, and what to do about it.
    """

    latent: str
    line: str
    primitive: str
    structure: str
    touched: int
    size: int
    numbers: int
    note: str


@dataclass(frozen=True)
class Cost:
    """The estimated work of one latent's changes, in numbers computed.

    `evaluation` is the work of evaluating once the part of f that depends on the latent.
    """

    latent: str
    elements: int
    candidates: int
    work: int
    brute: int
    evaluation: int
    method: str

    def __str__(self) -> str:
        changes = f"{self.latent}: {self.elements:,} elements × {self.candidates} candidates"
        if not self.brute:
            return f"{changes}: f ignores it, no work."
        if self.method == "brute":
            return f"{changes}: brute force, as there is nothing to save."
        ratio = self.brute / max(1, self.work)
        evaluations = self.work / max(1, self.evaluation)
        part = f"about {evaluations:,.1f} evaluations of the part of f that sees it"
        return f"{changes}: {part}; brute force would take {ratio:,.1f}x as much."


class Explanation:
    """The findings of `legrad.explain`, which print as a table.

    Attributes:
        rows: one row for each primitive and latent.
        costs: one cost for each latent whose elements are changed one at a time.
        methods: how each latent of a guide is treated, in words.
        terms: what is known of the expectation of each term that sees independent latents of the guide.
        deterministic: whether the whole objective is a number without sampling noise.
    """

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.costs: list[Cost] = []
        self.methods: dict[str, str] = {}
        self.terms: dict[str, Any] = {}
        self.deterministic = False

    def of(self, primitive: str) -> list[Row]:
        """Return the rows of one primitive."""
        return [row for row in self.rows if row.primitive == primitive]

    @property
    def fallbacks(self) -> list[Row]:
        """Return the rows of primitives without a rule, which run in full for every element and candidate."""
        return [row for row in self.rows if row.note.startswith("no rule")]

    def __str__(self) -> str:
        methods = [f"{name}: {method}." for name, method in self.methods.items()]
        if not self.costs:
            return "\n".join(["No latent is changed one element at a time.", *methods])
        head = ("latent", "line", "primitive", "structure", "touched", "numbers", "note")
        body = [
            (r.latent, r.line, r.primitive, r.structure, f"{r.touched:,} of {r.size:,}", f"{r.numbers:,}", r.note)
            for r in self.rows
        ]
        widths = [max(len(line[i]) for line in (head, *body)) for i in range(len(head))]
        table = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in (head, *body)]
        return "\n".join([*table, "", *map(str, self.costs), *methods])


@contextmanager
def listening() -> Iterator[Explanation]:
    """Collect an explanation of the plans that are made inside the context."""
    _LOCAL.listeners.append(Explanation())
    try:
        yield _LOCAL.listeners[-1]
    finally:
        _LOCAL.listeners.pop()


def is_listening() -> bool:
    """Return whether an explanation is being collected."""
    return bool(_LOCAL.listeners)


def tell_methods(methods: dict[str, str]) -> None:
    """Add how each latent of a guide is treated to the explanations being collected."""
    for listener in _LOCAL.listeners:
        listener.methods.update(methods)


def tell_terms(terms: Mapping[str, Any], deterministic: bool) -> None:
    """Add which terms are exact to the explanations being collected."""
    for listener in _LOCAL.listeners:
        listener.terms.update(terms)
        listener.deterministic = deterministic


def tell(name: str, program: Program, input_id: int, count: int, plan: Plan | None) -> None:
    """Add the plan of one latent to the explanations being collected; None if nothing depends on the latent."""
    elements = math.prod(program.shapes[input_id])
    for listener in _LOCAL.listeners:
        if plan is None:
            listener.costs.append(Cost(name, elements, count, 0, 0, 0, "auto"))
            continue
        method, once = "brute" if plan.brute else "auto", plan.brute_work // max(1, count * elements)
        listener.costs.append(Cost(name, elements, count, plan.work, plan.brute_work, once, method))
        dense: set[int] = set()
        for met in plan.met:
            listener.rows.append(_row(program, name, plan, met, dense))
            if listener.rows[-1].structure == "dense":
                dense.update(met.op.outputs)


def _row(program: Program, name: str, plan: Plan, met: Visit, dense: set[int]) -> Row:
    """Describe one operation; `dense` holds the ids of values that are dense already."""
    shape = program.shapes[met.op.outputs[0]]
    size = math.prod(shape)
    change = next((c for c in met.changes if c is not None), None)
    touched = 0 if change is None else min(size, _touched(plan.site(), change, shape))
    structure = "constant" if change is None else _structure(change, touched, size)
    note = _note(program, met, structure, not dense.isdisjoint(met.op.inputs))
    return Row(name, met.op.line, met.op.name, structure, touched, size, met.numbers, note)


def _structure(change: Change, touched: int, size: int) -> str:
    """Name the structure of a change: "scalar", "sparse", "lazy" or "dense"."""
    if size == 1:
        return "scalar"
    if touched < size:
        return "sparse"
    if isinstance(change, Lazy):
        factors = [factor for piece in change.pieces for factor in piece.factors]
        if not any(K in factor.axes and factor.has("v") for factor in factors):
            return "lazy"
    return "dense"


def _touched(site: Site, change: Change, shape: tuple[int, ...]) -> int:
    """Count the places that all parts of a change touch."""
    return sum(_places(site, layout, shape) for layout in site.layouts(change))


def _places(site: Site, layout: Layout, shape: tuple[int, ...]) -> int:
    """Count the places that one element touches on a layout, on average."""
    free = math.prod(shape[a] for a in layout.free())
    if layout.entries is None:
        return free
    covered = math.prod(site.shape[j] for j in layout.entries.elements)
    return -(-layout.entries.size * free // max(1, covered))


def _note(program: Program, met: Visit, structure: str, already: bool) -> str:
    """Say why structure was lost at an operation; `already` says that it was lost before."""
    op = met.op
    if not met.rule:
        return "no rule: the whole primitive for every element and candidate"
    indexed = op.name in ("gather", "scatter") and structure != "sparse" and program.is_constant(op.inputs[1])
    if indexed and program.read(op.inputs[1]) is None:
        return "the index array is abstract inside jit: pass it concrete, or let fit plan it"
    return (
        "dense from here: not linear in a change that touches everything"
        if structure == "dense" and not already
        else ""
    )
