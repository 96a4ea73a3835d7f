"""Follow the changes of one latent through a program."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import or_
from typing import Any

import jax
import jax.numpy as jnp

from legrad.singlesite.accuracy import Need, needs
from legrad.singlesite.change import Change, Lazy, New, Site
from legrad.singlesite.labelled import E, K, Labelled, spread
from legrad.singlesite.layout import Layout
from legrad.singlesite.rules import Operand, Step, fallback, rule_of
from legrad.singlesite.rules.reductions import sum_over
from legrad.trace.program import Op, Program


@dataclass(frozen=True, eq=False)
class Visit:
    """An operation as it was met: what became of the change, and how many numbers that took.

    Attributes:
        op: the operation.
        changes: of its results.
        rule: whether a rule was known.
        numbers: how many numbers the changes hold.
        bytes: how much memory they take.
        work: how many multiplications and function values, about.
        vote: the size of a constant matrix that holds an element's numbers far apart, or minus that of another.
    """

    op: Op
    changes: tuple[Change | None, ...]
    rule: bool
    numbers: int
    bytes: int
    work: int
    vote: int


def follow(
    program: Program,
    number: int,
    values: dict[int, Any],
    site: Site,
    candidates: jax.Array,
    met: Callable[[Visit], None] | None = None,
) -> tuple[dict[int, jax.Array], jax.Array | None]:
    """The difference of every touched output, summed over its numbers, for every candidate and element of a block.

    The second result says for which candidates and elements digits were lost on the way: their differences must be
    found in another way. It is None where nothing can be lost.

    Args:
        program: the traced function.
        number: which of its inputs changes.
        values: every value at the pivot.
        site: that input's elements, and how to lay out their changes.
        candidates: the block's candidates, (K, elements).
        met: told of every operation that the change reaches.
    """
    changes: dict[int, Change] = {number: _start(site, candidates)}
    reached, need = _reached(program, number)
    for op in reached:
        if not any(i in changes for i in op.inputs):
            continue
        operands = {i: Operand(values[i], changes.get(i), partial(program.read, i)) for i in op.inputs}
        here = [values[i] for i in op.outputs]
        summed = program.summed.get(op.outputs[0], frozenset()) if op.outputs else frozenset[int]()
        asked = reduce(or_, [need[i] for i in op.outputs])
        step = Step(site, op.eqn, [operands[i] for i in op.inputs], here, summed, need=asked)
        rule = rule_of(op.name)
        results = fallback(step) if rule is None else rule(step)
        for i, change in zip(op.outputs, results, strict=True):
            if change is not None:
                changes[i] = replace(change, need=need[i]) if isinstance(change, Lazy) else change
        if met is not None:
            met(_met(op, step, results, rule is not None))
    return {o: _total(site, changes.get(o), values[o]) for o in program.touched(number)}, _flags(site)


def _reached(program: Program, number: int) -> tuple[list[Op], dict[int, Need]]:
    """The operations that a change of one input reaches, and what each changing value is used for."""
    reached = program.reached(number)
    return reached, needs(program, reached, program.dependents(number))


def _flags(site: Site) -> jax.Array | None:
    """The elements and candidates for which digits were lost; None if nothing needed to be watched."""
    if not site.flags and not site.marked:
        return None
    axes = [K, *(E(j) for j in range(len(site.shape)))]
    flags = [spread(flag, axes, site.sizes) for flag in site.flags]
    return reduce(jnp.logical_or, flags) if flags else jnp.zeros([site.sizes[axis] for axis in axes], bool)


def _start(site: Site, candidates: jax.Array) -> Change:
    """The latent itself: an element touches its own position."""
    layout = Layout(tuple(None if n == 1 else j for j, n in enumerate(site.shape)))
    return New(layout, Labelled(candidates, (K, *(E(j) for j in range(len(site.shape))))).squeezed())


def _total(site: Site, change: Change | None, base: Any) -> jax.Array:
    full = [site.sizes[K], *(site.sizes[E(j)] for j in range(len(site.shape)))]
    dtype = jnp.sum(base).dtype
    if change is None:
        return jnp.zeros(full, dtype)
    if base.dtype != dtype:
        change, base = site.cast(change, base, dtype), base.astype(dtype)
    step = Step(site, None, [Operand(base, change, lambda: None)], [base])
    pieces = sum_over(step, site.as_lazy(change, base).pieces, range(base.ndim), tuple(base.shape))
    axes = [K, *(E(j) for j in range(len(site.shape)))]
    total = jnp.zeros(full, dtype)
    for piece in pieces:
        array = site.order.multiply(piece.factors)
        missing = [axis for axis in axes if axis not in array.axes]
        data = jnp.transpose(array.data, [array.axes.index(axis) for axis in axes if axis in array.axes])
        total = total + jnp.expand_dims(data, [axes.index(axis) for axis in missing]).astype(dtype)
    return total


def _met(op: Op, step: Step, results: list[Change | None], rule: bool) -> Visit:
    arrays: list[Labelled] = list(step.scratch)
    summed = depth(op, step)
    for change in results:
        if isinstance(change, New):
            arrays.append(change.value)
        elif isinstance(change, Lazy):
            factors = [factor for piece in change.pieces for factor in piece.factors]
            if op.name == "dot_general" and summed == 1:
                # A factor without candidates is the constant side, read where it is.
                factors = [factor for factor in factors if K in factor.axes]
            arrays += factors
    numbers = sum(array.data.size for array in arrays)
    total = sum(array.data.size * array.data.dtype.itemsize for array in arrays)
    return Visit(op, tuple(results), rule, numbers, total, numbers * summed, _vote(op, step))


def depth(op: Op, step: Step | None = None) -> int:
    """How many multiplications one number of a result takes; in a step, over the axes that are touched everywhere."""
    if op.name != "dot_general":
        return 1
    contract, _ = op.eqn.params["dimension_numbers"]
    shape = op.eqn.invars[0].aval.shape
    if step is None:
        return math.prod(shape[a] for a in contract[0])
    deepest = 1
    for side, x in enumerate(step.operands):
        for layout in [] if x.change is None else step.site.layouts(x.change):
            deepest = max(deepest, math.prod(x.shape[a] for a in contract[side] if layout.where[a] is None))
    return deepest


def _vote(op: Op, step: Step) -> int:
    """Columns of a row-major matrix are read best with the elements side by side, rows with the values so."""
    if op.name != "dot_general" or len(step.changing()) != 1:
        return 0
    side = 0 if step.operands[0].change is None else 1  # of the constant
    contract, _ = op.eqn.params["dimension_numbers"]
    shape = step.operands[side].shape
    if not contract[side] or len(shape) < 2:
        return 0
    return math.prod(shape) * (1 if contract[side][-1] == len(shape) - 1 else -1)
