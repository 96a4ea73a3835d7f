"""The terms of a model at every candidate of its discrete latents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from legrad import _compat
from legrad.marginal.chosen import Chosen
from legrad.marginal.context import Context
from legrad.marginal.loops import rewrite, unwrap
from legrad.marginal.rules import apply
from legrad.marginal.table import CannotSum, Label, Table, constant
from legrad.trace.program import Op, Program


@dataclass(frozen=True)
class Support:
    """The candidates of one site: values on a leading axis (axes of length 1 hold for all elements)."""

    values: Any
    shape: tuple[int, ...]
    start: int  # the number of the first element among those of all sites

    @property
    def size(self) -> int:
        """The number of candidates."""
        return int(self.values.shape[0])

    @property
    def count(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape))

    def table(self) -> Table:
        """Return the site's value at its candidates."""
        elements = self.start + np.arange(self.count).reshape(self.shape)
        return Table(self.values, (Label(self.size, elements),), self.shape)


class Tables(NamedTuple):
    """What `tables` finds.

    Attributes:
        tables: tables whose numbers add up to all terms.
        names: the site of each table's term.
        given: the candidates of elements that were added, whose value is given, by name.
        potentials: the potentials of these: 0 at the given value, −∞ at others.
    """

    tables: list[Table]
    names: list[str]
    given: dict[str, Support]
    potentials: dict[str, np.ndarray]

    def meeting(self, elements: Sequence[int]) -> str:
        """Return the site in whose term two of some elements meet, the first one among them; "" if there is none."""
        for name, table in zip(self.names, self.tables, strict=True):
            seen = [np.isin(label.elements, elements) for label in table.labels]
            if len(seen) > 1 and np.any(sum(x.astype(int) for x in seen) > 1):
                return name
        return ""


def tables(
    terms: Callable[[dict[str, Any]], dict[str, Any]],
    supports: Mapping[str, Support],
    limit: int,
    share: bool = True,
) -> Tables:
    """Evaluate terms at every candidate.

    Args:
        terms: a function from the values of the sites to arrays of additive terms.
        supports: the candidates.
        limit: the largest number of joint values in one table.
        share: treat a state that a chain starts from as an element: one table of transitions then serves all steps.
    """
    like = {name: jnp.zeros(s.shape, s.values.dtype) for name, s in supports.items()}
    program = Program(terms, like, rewrite=rewrite, unwrap=unwrap)
    context = Context(program, limit, max(s.start + s.count for s in supports.values()) if share else None)
    values: dict[int, Table] = {i: constant(c) for i, c in program.constants.items()}
    values.update(zip(program.inputs, (supports[name].table() for name in sorted(supports)), strict=True))
    parts = {name: _parts(program, i) for name, i in zip(sorted(program.result), program.outputs, strict=True)}
    needed = _needed(program, {i for found in parts.values() for i, _, _ in found})
    for op in program.ops:
        if needed.isdisjoint(op.outputs):
            continue
        try:
            results = apply(op, [values[i] for i in op.inputs], context)
        except CannotSum as error:
            error.line, error.primitive = _users_line(op), op.name
            error.term = next(name for name, found in parts.items() if _leads_to(program, op, found))
            raise
        values.update(zip(op.outputs, results, strict=True))

    def total(i: int, sign: int, factors: list[int]) -> Table:
        def complete(numbers: Any) -> Any:
            numbers = numbers if sign > 0 else -numbers
            if not jnp.issubdtype(jnp.result_type(numbers), jnp.floating):
                numbers = numbers.astype(jnp.result_type(float))
            for factor in factors:
                numbers = numbers * jnp.reshape(values[factor].full().values, -1)[0]
            return numbers

        table = values[i]
        return (
            table.mapped(complete)
            if isinstance(table, Chosen)
            else Table(complete(table.values), table.labels, table.shape)
        )

    given, potentials = {}, {}
    for i, known in enumerate(context.given):
        name = f"(given) {i}"
        values_of = jnp.reshape(known.candidates, (-1, *(1,) * known.numbers.ndim))
        given[name] = Support(values_of, known.numbers.shape, known.start)
        match = known.candidates[:, None] == known.numbers.reshape(-1)
        potentials[name] = np.where(match, 0.0, -np.inf)
    every = [(name, total(*part)) for name, found in parts.items() for part in found]
    return Tables([table for _, table in every], [name for name, _ in every], given, potentials)


def _users_line(op: Op) -> str:
    """Return the line of the user's model that an operation comes from, "" if it belongs to a density."""
    lines = (_compat.source_line(eqn, inside="marginal/terms.py") for eqn in (op.eqn, *op.around))
    return next((line for line in lines if line), "")


def _leads_to(program: Program, op: Op, parts: list[tuple[int, int, list[int]]]) -> bool:
    return not _needed(program, {i for i, _, _ in parts}).isdisjoint(op.outputs)


def _needed(program: Program, wanted: set[int]) -> set[int]:
    """Return the values that lead to some values."""
    needed = set(wanted)
    for op in reversed(program.ops):
        if not needed.isdisjoint(op.outputs):
            needed.update(op.inputs)
    return needed


def _parts(program: Program, output: int) -> list[tuple[int, int, list[int]]]:
    """Find values whose numbers add up to those of an output, each with its sign and constant factors."""
    found, ahead = [], [(output, 1, list[int]())]
    while ahead:
        i, sign, factors = ahead.pop()
        op = program.maker(i)
        if op is None or not _adds(program.dtypes[i]) or program.is_constant(i):
            found.append((i, sign, factors))
        elif op.name == "convert_element_type" and _adds(program.dtypes[op.inputs[0]]):
            ahead.append((op.inputs[0], sign, factors))
        elif op.name in ("reduce_sum", "reshape", "squeeze", "transpose", "copy", "neg"):
            ahead.append((op.inputs[0], -sign if op.name == "neg" else sign, factors))
        elif op.name in ("add", "sub", "add_any") and _same_shape(program, op):
            ahead += [(op.inputs[0], sign, factors), (op.inputs[1], -sign if op.name == "sub" else sign, factors)]
        elif op.name == "mul" and any(_is_number(program, j) for j in op.inputs):
            number = next(j for j in op.inputs if _is_number(program, j))
            other = next(j for j in reversed(op.inputs) if j != number)
            if program.shapes[other] == program.shapes[i]:
                ahead.append((other, sign, [*factors, number]))
            else:
                found.append((i, sign, factors))
        else:
            found.append((i, sign, factors))
    return found


def _adds(dtype: Any) -> bool:
    """Whether sums of this type are those of its numbers: narrow integers wrap around."""
    whole = jnp.issubdtype(dtype, jnp.signedinteger) and dtype.itemsize >= 4
    return bool(whole or jnp.issubdtype(dtype, jnp.floating))


def _same_shape(program: Program, op: Any) -> bool:
    return all(program.shapes[j] == program.shapes[op.outputs[0]] for j in op.inputs)


def _is_number(program: Program, i: int) -> bool:
    return program.is_constant(i) and program.is_one_number(i)
