"""Follow the changes of one latent by a plan, and compute again the changes that have lost digits.

A number that lost its digits is discarded, but zero times its derivative is NaN if the derivative is infinite. So the
result is differentiated along another path, on which the lost changes are followed as no changes at all.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from legrad.singlesite.accuracy import far_off
from legrad.singlesite.labelled import E, K
from legrad.singlesite.plan import Plan, make_plan
from legrad.singlesite.propagate import propagate
from legrad.singlesite.recompute import Found, recompute
from legrad.singlesite.together import any_of
from legrad.trace.program import Program

Values = dict[int, Any]


@dataclass(frozen=True, eq=False)
class LatentChanges:
    """The changes of one latent, followed by a plan.

    Attributes:
        program: the traced function.
        input_id: which of the program's inputs changes.
        plan: how the changes are run.
        memory: bytes that one block may take.
        differences: whether differences from the pivot are returned, or values.
    """

    program: Program
    input_id: int
    plan: Plan
    memory: int
    differences: bool

    def follow(self, values: Values, choices: jax.Array) -> Found:
        """Return the differences or values of the touched outputs, by id.

        Args:
            values: every value of the program at the pivot.
            choices: the candidates.
        """
        return self._run(values, self._given(values), choices)[0]

    def follow_differentiably(self, values: Values, choices: jax.Array) -> Found:
        """Return the same, with derivatives that are finite wherever those of brute force are."""
        if not self.plan.may_lose_digits and self.differences:
            return self.follow(values, choices)
        run: Any = jax.custom_jvp(self._run)

        @run.defjvp
        def derivative(primals: Any, tangents: Any) -> Any:
            found, lost = run(*primals)

            def safely(values: Values, given: Values, choices: jax.Array) -> Found:
                return self._run_safely(values, given, choices, lost)

            _, change = jax.jvp(safely, primals, tangents)
            return (found, lost), (change, np.zeros(lost.shape, jax.dtypes.float0))

        used = {i for op in self.program.reached(self.input_id) for i in (*op.inputs, *op.outputs)}
        used |= {self.input_id, *self.program.touched(self.input_id)}
        found: Found = run({i: values[i] for i in sorted(used)}, self._given(values), choices)[0]
        return found

    def _given(self, values: Values) -> Values:
        """Return the inputs and constants of the program."""
        return {i: values[i] for i in [*self.program.inputs, *self.program.constants]}

    def _run(self, values: Values, given: Values, choices: jax.Array) -> tuple[Found, jax.Array]:
        """Return the differences or values, and which of them were computed again because digits were lost."""
        found, lost = run_plan(self.program, self.input_id, values, choices, self.plan)
        if lost is not None:
            lost = reduce(jnp.logical_or, map(jnp.isnan, found.values()), lost)
        if not self.differences:
            here = {o: jnp.sum(values[o]) for o in found}
            found = {o: here[o] + d for o, d in found.items()}
            for o in found:
                if jnp.issubdtype(here[o].dtype, jnp.floating):
                    gone = far_off(here[o].dtype, found[o], jnp.abs(here[o]))
                    lost = gone if lost is None else lost | gone
        same = is_pivot(choices, values[self.input_id])
        if lost is None:
            return at_pivot(found, values, same, self.differences), jnp.zeros(same.shape, bool)
        lost &= ~same
        again = lambda: self._again(given, choices, lost, found)  # noqa: E731
        # If nothing is lost, this costs nothing.
        found = jax.lax.cond(any_of(jnp.any(lost)), again, lambda: found)
        return at_pivot(found, values, same, self.differences), lost

    def _run_safely(self, values: Values, given: Values, choices: jax.Array, lost: jax.Array) -> Found:
        """Return the differences or values, if it is known which have lost digits: these are not followed."""
        pivot = values[self.input_id]
        same = is_pivot(choices, pivot)
        safe = jnp.where(lost, pivot, choices)
        plan = self.plan
        if choices.shape != safe.shape:
            plan = make_plan(self.program, self.input_id, values, safe.shape, self.memory)
        if plan.brute:
            found = recompute(self.program, self.input_id, values, choices, self.memory, self.differences)
            return at_pivot(found, values, same, self.differences)
        plan = replace(plan, may_lose_digits=False, found_lost=True)
        found, _ = run_plan(self.program, self.input_id, values, safe, plan)
        if not self.differences:
            found = {o: jnp.sum(values[o]) + d for o, d in found.items()}
        nothing = {o: jnp.zeros_like(d) for o, d in found.items()}
        again = jax.checkpoint(lambda given: self._again(given, choices, lost, nothing))
        mended = jax.lax.cond(any_of(jnp.any(lost)), again, lambda given: nothing, given)
        found = {o: jnp.where(lost, mended[o], found[o]) for o in found}
        return at_pivot(found, values, same, self.differences)

    def _again(self, given: Values, choices: jax.Array, lost: jax.Array, others: Found) -> Found:
        """Compute the lost changes by running the program; the others are given."""
        # This seldom runs: evaluate the pivot anew rather than hold its values in memory.
        values = self.program.evaluate_from(given, self.program.reached(self.input_id))
        again = recompute(self.program, self.input_id, values, choices, self.memory, self.differences, lost)
        return {o: jnp.where(lost, r, others[o]) for o, r in again.items()}


def run_plan(
    program: Program, input_id: int, values: dict[int, Any], choices: jax.Array, plan: Plan
) -> tuple[Found, jax.Array | None]:
    """Return the differences of the touched outputs, by a plan, and where the differences have lost digits."""
    if not plan.blocked:
        return propagate(program, input_id, values, plan.site(), choices)
    axes = [K, *(E(j) for j in range(choices.ndim - 1))]
    full = (len(choices), *plan.site_shape)
    sizes = [plan.sizes[axis] for axis in axes]
    # The last block of an axis is moved back so that it is full; where two blocks overlap, their results are equal.
    firsts = [[min(i * size, n - size) for i in range(-(-n // size))] for size, n in zip(sizes, full, strict=True)]
    grid = jnp.asarray(np.array(list(itertools.product(*firsts)), np.int32))

    def block(i: jax.Array, totals: Any) -> Any:
        first = list(grid[i])
        starts = {axis: start for axis, start in zip(axes, first, strict=True) if axis in plan.blocked}
        part = jax.lax.dynamic_slice(choices, first, plan.block)  # starts at 0 along axes with shared candidates
        found = propagate(program, input_id, values, plan.site(starts), part)
        return jax.tree.map(lambda t, d: jax.lax.dynamic_update_slice(t, d, first), totals, found)

    totals = {o: jnp.zeros(full, jnp.sum(values[o]).dtype) for o in program.touched(input_id)}
    lost = jnp.zeros(full, bool) if plan.may_lose_digits else None
    return jax.lax.fori_loop(0, math.prod(map(len, firsts)), block, (totals, lost))


def is_pivot(choices: jax.Array, pivot: jax.Array) -> jax.Array:
    """Return which candidates are the element's own value at the pivot."""
    return jnp.broadcast_to(choices == pivot[None], (len(choices), *pivot.shape))


def at_pivot(found: Found, values: Values, same: jax.Array, differences: bool) -> Found:
    """Make what is found for the pivot's own values exact: no difference, or f at the pivot."""
    here = {o: jnp.zeros((), d.dtype) if differences else jnp.sum(values[o]) for o, d in found.items()}
    return {o: jnp.where(same, here[o], d) for o, d in found.items()}
