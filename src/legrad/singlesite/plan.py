"""Plan how one-element changes are run: lists of entries or not, the order of axes, blocks that fit the memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from legrad.singlesite.labelled import Axis, E, K, Order
from legrad.singlesite.propagate import Visit, depth, propagate
from legrad.singlesite.rules.elementwise import RULES as ELEMENTWISE
from legrad.singlesite.site import Site
from legrad.trace.devices import parts
from legrad.trace.program import Op, Program

LITTLE = 1 << 14  # numbers computed by brute force, below which planning does not pay
IN_PASSING_ONE_BY_ONE = {*ELEMENTWISE, "broadcast_in_dim", "reshape", "squeeze", "transpose", "gather"}
IN_PASSING = {
    *ELEMENTWISE,
    "reduce_sum",
    "reduce_max",
    "reduce_min",
    "reduce_prod",
    "broadcast_in_dim",
    "reshape",
    "squeeze",
}


@dataclass
class Plan:
    """The result of a dry run, and the decisions based on it.

    Attributes:
        site_shape: the latent's shape.
        candidates: the shape of the latent's candidates, 1 along axes where all elements share them.
        sizes: how many candidates and elements a block holds, by axis.
        blocked: the axes that are cut into blocks.
        sparse: whether lists of entries are used.
        values_first: the order of axes in memory.
        met: the operations that the change reaches.
        may_lose_digits: whether digits may be lost.
        found_lost: whether the changes that lose digits are known already, and are not followed.
        peak: roughly how many bytes one block holds at once.
        work: roughly how many multiplications and function values the changes take.
        brute_work: the same for evaluating the whole program for each change.
    """

    site_shape: tuple[int, ...]
    candidates: tuple[int, ...]
    sizes: dict[Axis, int]
    blocked: tuple[Axis, ...] = ()
    sparse: bool = True
    values_first: bool = False
    met: list[Visit] = field(default_factory=list)
    may_lose_digits: bool = False
    found_lost: bool = False
    peak: int = 0
    work: int = 0
    brute_work: int = 0

    @property
    def brute(self) -> bool:
        """Return whether following the changes saves nothing."""
        return self.work > 0.9 * self.brute_work

    @property
    def block(self) -> tuple[int, ...]:
        """Return the shape of one block's candidates."""
        axes = (K, *(E(j) for j in range(len(self.site_shape))))
        return tuple(self.sizes[axis] if n > 1 else n for axis, n in zip(axes, self.candidates, strict=True))

    def site(self, starts: dict[Axis, Any] | None = None) -> Site:
        """Return the site of one block."""
        return Site(self.site_shape, self.sizes, starts or {}, Order(self.values_first), self.sparse, self.found_lost)


def make_plan(
    program: Program,
    input_id: int,
    values: dict[int, Any],
    candidates: tuple[int, ...],
    memory: int,
    *,
    whole: bool = False,
) -> Plan:
    """Plan the changes of one input, given the shape of the input's candidates.

    If brute force takes little, tracing the changes would cost more than following them saves, and brute force is
    chosen without a dry run, unless the caller asks for the `whole` plan.
    """
    shape, count = program.shapes[input_id], candidates[0]
    full = {K: count} | {E(j): n for j, n in enumerate(shape)}
    brute_work = count * math.prod(shape) * work_of(program, program.reached(input_id))
    plan = Plan(shape, candidates, full, work=brute_work, brute_work=brute_work)
    if brute_work <= LITTLE and plan.brute and not whole:
        return plan
    plan = _dry_run(program, input_id, values, plan)
    plan.work = sum(m.work for m in plan.met)
    if plan.brute:
        return plan
    work = plan.work, plan.brute_work
    if plan.peak > memory:
        plan = _fit_memory(program, input_id, values, plan, memory)
    plan.work, plan.brute_work = work
    plan.values_first = sum(met.vote for met in plan.met) > 0
    return plan


def _fit_memory(program: Program, input_id: int, values: dict[int, Any], plan: Plan, memory: int) -> Plan:
    """Cut the elements into blocks, the longest axis first, and then the candidates, until a block fits.

    An axis that is cut across devices comes last: a block of it is on few devices.
    """
    free = _regular(plan)
    if not free and plan.site_shape:
        # Lists of entries cover every axis, and a covered axis cannot be cut: plan without lists.
        plan = _dry_run(program, input_id, values, Plan(plan.site_shape, plan.candidates, plan.sizes, sparse=False))
        free = _regular(plan)
    free = sorted(free, key=lambda axis: -plan.sizes[axis])
    shared = [axis for axis in free if parts(plan.sizes[axis]) > 1]
    for axis in [*(axis for axis in free if axis not in shared), K, *shared]:
        if plan.peak <= memory:
            break
        whole = plan.sizes[axis]
        blocks = -(-whole // max(1, int(whole * memory / plan.peak)))
        size = -(-whole // blocks)  # blocks of about the same size, so that the last one overlaps little
        if size < whole:
            sizes = plan.sizes | {axis: size}
            # A list covers whole axes of the latent, and any rule may make one: with a cut axis, allow none.
            plan = Plan(plan.site_shape, plan.candidates, sizes, (*plan.blocked, axis), plan.sparse and axis == K)
            plan = _dry_run(program, input_id, values, plan)
    return plan


def _regular(plan: Plan) -> list[Axis]:
    """Return the latent's axes that no list of entries covers."""
    site = plan.site()
    listed = set()
    for met in plan.met:
        for change in met.changes:
            for layout in [] if change is None else site.layouts(change):
                listed.update(layout.covered())
    return [E(j) for j, n in enumerate(plan.site_shape) if j not in listed and n > 1]


def _dry_run(program: Program, input_id: int, values: dict[int, Any], plan: Plan) -> Plan:
    """Trace the changes without computing them, to find what they would hold in all and at one time."""
    met: list[Visit] = []
    starts = [jax.ShapeDtypeStruct((), jnp.int32) for _ in plan.blocked]

    def trace(candidates: Any, starts: Any) -> Any:
        site = plan.site(dict(zip(plan.blocked, starts, strict=True)))
        return propagate(program, input_id, values, site, candidates, met.append)

    _, lost = jax.eval_shape(trace, jax.ShapeDtypeStruct(plan.block, program.dtypes[input_id]), starts)
    plan.may_lose_digits = lost is not None
    plan.met, plan.peak = met, _peak(met)
    return plan


def _peak(met: list[Visit]) -> int:
    """Return the most bytes that the changes take at one time.

    XLA computes in passing what only elementwise functions and sums use: allow for two such arrays. Every other
    array is held until its last use.
    """
    last: dict[int, int] = {}
    passing = {i for m in met for i in m.op.outputs}  # outputs are summed at once
    ops = [m.op for m in met]
    for at, op in enumerate(ops):
        last.update(dict.fromkeys(op.inputs, at))
        if op.name not in IN_PASSING:
            passing.difference_update(op.inputs)
    held: dict[int, int] = {}
    peak = largest = 0
    for at, m in enumerate(met):
        size = m.bytes // len(m.op.outputs)
        for i in m.op.outputs:
            if i in passing:
                largest = max(largest, size)
            else:
                held[i] = size
        peak = max(peak, sum(held.values()))
        held = {i: size for i, size in held.items() if last.get(i, -1) > at}
    return peak + 2 * largest


def work_of(program: Program, ops: Sequence[Op]) -> int:
    """Return roughly how many multiplications and function values some operations take."""
    return sum(depth(op) * sum(math.prod(program.shapes[i]) for i in op.outputs) for op in ops)


def evaluation_work(program: Program) -> int:
    """Return roughly what one evaluation takes once XLA has fused it.

    A function that only look-ups read is computed where they read it: of log(p)[z], as many numbers as z has.
    """
    size = {i: math.prod(shape) for i, shape in enumerate(program.shapes)}
    wanted: dict[int, int] = {o: size[o] for o in program.outputs}
    total = 0
    for op in reversed(program.ops):
        made = max((min(size[i], wanted.get(i, 0)) for i in op.outputs), default=0)
        total += depth(op) * made
        for place, i in enumerate(op.inputs):
            reads = made if (op.name == "gather" and place == 0) or op.name in IN_PASSING_ONE_BY_ONE else size[i]
            wanted[i] = max(wanted.get(i, 0), reads)
    return total
