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
from legrad.singlesite.change import Change, Lazy, New
from legrad.singlesite.labelled import E, K, Labelled, spread
from legrad.singlesite.layout import Layout
from legrad.singlesite.rules import Operand, Step, fallback, rule_of
from legrad.singlesite.rules.reductions import sum_over
from legrad.singlesite.site import Site
from legrad.trace.program import Op, Program


@dataclass(frozen=True, eq=False)
class Visit:
    """An operation as it was met: what became of the change, and what that cost.

    Attributes:
        op: the operation.
        changes: the changes of the operation's results.
        rule: whether the operation has a rule.
        numbers: how many numbers the changes hold.
        bytes: how much memory the changes take.
        work: roughly how many multiplications and function values the changes take.
        vote: the size of a constant matrix, positive if an element's numbers lie far apart in it, negative if not.
    """

    op: Op
    changes: tuple[Change | None, ...]
    rule: bool
    numbers: int
    bytes: int
    work: int
    vote: int


def propagate(
    program: Program,
    input_id: int,
    values: dict[int, Any],
    site: Site,
    candidates: jax.Array,
    met: Callable[[Visit], None] | None = None,
) -> tuple[dict[int, jax.Array], jax.Array | None]:
    """Return the difference of every touched output, summed, for every candidate and element of a block.

    The second result says for which candidates and elements digits were lost, so that their differences must be
    computed in another way; it is None if no digits can be lost.

    Args:
        program: the traced function.
        input_id: which of the program's inputs changes.
        values: every value at the pivot.
        site: the elements of that input, and how their changes are laid out.
        candidates: the block's candidates, (K, elements).
        met: a function to call with every operation that the change reaches.
    """
    changes: dict[int, Change] = {input_id: _start(site, candidates)}
    reached = program.reached(input_id)
    need = needs(program, reached, program.dependents(input_id))
    for op in reached:
        if not any(i in changes for i in op.inputs) or not any(math.prod(program.shapes[i]) for i in op.outputs):
            continue  # what has no numbers does not change
        step = _step(program, op, values, changes, site, reduce(or_, [need[i] for i in op.outputs]))
        rule = rule_of(op.name)
        results = fallback(step) if rule is None else rule(step)
        for i, change in zip(op.outputs, results, strict=True):
            if change is not None:
                changes[i] = replace(change, need=need[i]) if isinstance(change, Lazy) else change
        if met is not None:
            met(_visit(op, step, results, rule is not None))
    return {o: _total(site, changes.get(o), values[o]) for o in program.touched(input_id)}, _flags(site)


def _step(
    program: Program, op: Op, values: dict[int, Any], changes: dict[int, Change], site: Site, need: Need
) -> Step:
    """Collect what the rule of an operation is given."""
    operands = {i: Operand(values[i], changes.get(i), partial(program.read, i)) for i in op.inputs}
    here = [values[i] for i in op.outputs]
    summed = program.summed.get(op.outputs[0], frozenset()) if op.outputs else frozenset[int]()
    return Step(site, op.eqn, [operands[i] for i in op.inputs], here, summed, need=need)


def _flags(site: Site) -> jax.Array | None:
    """Return for which candidates and elements digits were lost; None if none can be lost."""
    if not site.digits.flags and not site.digits.marked:
        return None
    axes = [K, *(E(j) for j in range(len(site.shape)))]
    flags = [spread(flag, axes, site.sizes) for flag in site.digits.flags]
    return reduce(jnp.logical_or, flags) if flags else jnp.zeros([site.sizes[axis] for axis in axes], bool)


def _start(site: Site, candidates: jax.Array) -> Change:
    """Return the change of the latent itself: an element touches its own position."""
    layout = Layout(tuple(None if n == 1 else j for j, n in enumerate(site.shape)))
    return New(layout, Labelled(candidates, (K, *(E(j) for j in range(len(site.shape))))).squeezed())


def _total(site: Site, change: Change | None, base: Any) -> jax.Array:
    """Sum the difference of an output over its numbers, for every candidate and element."""
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


def _visit(op: Op, step: Step, results: list[Change | None], rule: bool) -> Visit:
    """Describe what became of a change at an operation."""
    arrays: list[Labelled] = list(step.scratch)
    summed = depth(op, step)
    for change in results:
        if isinstance(change, New):
            arrays.append(change.value)
        elif isinstance(change, Lazy):
            factors = [factor for piece in change.pieces for factor in piece.factors]
            if op.name == "dot_general" and summed == 1:
                # A factor without candidates is the constant side, which is read in place.
                factors = [factor for factor in factors if K in factor.axes]
            arrays += factors
    numbers = sum(array.data.size for array in arrays)
    total = sum(array.data.size * array.data.dtype.itemsize for array in arrays)
    return Visit(op, tuple(results), rule, numbers, total, numbers * summed, _vote(op, step))


def depth(op: Op, step: Step | None = None) -> int:
    """Return how many multiplications one number of a result takes; in a step, along axes touched everywhere."""
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
    """Return the vote of a product with a constant matrix on the order of axes in memory.

    Columns of a row-major matrix are read fastest with the elements side by side, rows with the values side by side.
    """
    if op.name != "dot_general" or len(step.changing()) != 1:
        return 0
    side = 0 if step.operands[0].change is None else 1  # the constant one
    contract, _ = op.eqn.params["dimension_numbers"]
    shape = step.operands[side].shape
    if not contract[side] or len(shape) < 2:
        return 0
    return math.prod(shape) * (1 if contract[side][-1] == len(shape) - 1 else -1)
