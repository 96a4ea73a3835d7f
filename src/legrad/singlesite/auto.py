"""One-element changes at the cost of what they touch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from legrad.singlesite.brute import brute
from legrad.singlesite.follow import follow
from legrad.singlesite.labelled import E, K
from legrad.singlesite.plan import Plan, make_plan
from legrad.singlesite.program import Program
from legrad.singlesite.report import is_listening, tell

Tree = Any


def auto(f: Callable[[Tree], Tree], x: Tree, candidates: Tree, *, memory: int) -> tuple[Tree, Tree]:
    """f at the pivot and its differences, for each element and candidate.

    Returns:
        f(x), its arrays of terms summed, and the structure of `candidates`, each leaf holding f's own structure.
    """
    x = jax.tree.map(jnp.asarray, x)
    leaves, structure = jax.tree.flatten(x)
    program = Program(f, x)
    values = pivot(program, leaves)
    results = []
    names = [_name(path) for path, _ in jax.tree.leaves_with_path(x)]
    for at, (leaf, choices) in enumerate(zip(leaves, jax.tree.leaves(candidates), strict=True)):
        number = program.inputs[at]

        def one(moved: jax.Array, at: int = at) -> Tree:
            return f(jax.tree.unflatten(structure, [*leaves[:at], moved, *leaves[at + 1 :]]))

        choices = jnp.asarray(choices, leaf.dtype)
        results.append(_leaf(program, number, names[at], values, choices, memory, one))
    here = jax.tree.unflatten(program.structure, [jnp.sum(values[i]) for i in program.outputs])
    return here, jax.tree.unflatten(structure, results)


def pivot(program: Program, leaves: list[jax.Array]) -> dict[int, Any]:
    """Every value of a program, each computed once: XLA may not fold it into the loops that use it."""
    values = program.evaluate(leaves)
    made = {i for op in program.ops for i in op.outputs}
    return {i: jax.lax.optimization_barrier(v) if i in made else v for i, v in values.items()}


def _name(path: tuple[Any, ...]) -> str:
    first = "".join(str(getattr(part, "key", getattr(part, "idx", part))) for part in path[:1])
    return first + jax.tree_util.keystr(path[1:]) if path else "x"


def _leaf(
    program: Program, number: int, name: str, values: dict[int, Any], choices: jax.Array, memory: int, f: Any
) -> Tree:
    full = (len(choices), *program.shapes[number])
    if math.prod(full) == 0 or program.dependents(number).isdisjoint(program.outputs):
        tell(name, program, number, len(choices), None)
        totals = [jnp.zeros(full, jnp.sum(values[i]).dtype) for i in program.outputs]
        return jax.tree.unflatten(program.structure, totals)
    plan = make_plan(program, number, values, choices.shape, memory, whole=is_listening())
    tell(name, program, number, len(choices), plan)
    if plan.brute:
        here = jax.tree.unflatten(program.structure, [values[i] for i in program.outputs])
        return brute(f, values[number], choices, memory=memory, pivot=here)
    return jax.tree.unflatten(program.structure, run(program, number, values, choices, plan))


def run(program: Program, number: int, values: dict[int, Any], choices: jax.Array, plan: Plan) -> list[jax.Array]:
    """The differences of all outputs by a plan: at once, or block after block."""
    if not plan.blocked:
        return follow(program, number, values, plan.site(), choices)
    axes = [K, *(E(j) for j in range(choices.ndim - 1))]
    full = (len(choices), *plan.site_shape)
    sizes = [plan.sizes[axis] for axis in axes]
    # The last block of an axis is moved back so that it is full; what two blocks share is the same in both.
    firsts = [[min(i * size, n - size) for i in range(-(-n // size))] for size, n in zip(sizes, full, strict=True)]
    grid = jnp.asarray(np.array(list(itertools.product(*firsts)), np.int32))

    def block(i: jax.Array, totals: list[jax.Array]) -> list[jax.Array]:
        first = list(grid[i])
        starts = {axis: start for axis, start in zip(axes, first, strict=True) if axis in plan.blocked}
        part = jax.lax.dynamic_slice(choices, first, plan.block)  # from 0 where the candidates are those of all
        found = follow(program, number, values, plan.site(starts), part)
        return [jax.lax.dynamic_update_slice(t, d, first) for t, d in zip(totals, found, strict=True)]

    totals = [jnp.zeros(full, jnp.sum(values[i]).dtype) for i in program.outputs]
    return jax.lax.fori_loop(0, math.prod(map(len, firsts)), block, totals)
