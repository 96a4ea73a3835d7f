"""Run one-element changes: evaluate the pivot once, then follow the changes of each leaf by a plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from legrad.singlesite.latent_changes import LatentChanges, at_pivot, is_pivot
from legrad.singlesite.plan import evaluation_work, make_plan
from legrad.singlesite.recompute import recompute
from legrad.singlesite.report import is_listening, tell
from legrad.singlesite.rewrites import rewrite
from legrad.trace.devices import devices
from legrad.trace.program import Program

Tree = Any
Found = dict[int, jax.Array]


def differences_or_values(
    f: Callable[[Tree], Tree], x: Tree, candidates: Tree, *, memory: int, differences: bool
) -> Tree:
    """Return the differences of f from the pivot, or the values of f, for each element and candidate.

    Returns:
        A pytree with the structure of `candidates`, each leaf holding f's own structure; arrays of terms are summed.
    """

    def whole(program: Program, here: dict[int, jax.Array], found: Found, shape: tuple[int, ...]) -> Tree:
        rest = {o: jnp.full(shape, 0 if differences else h, h.dtype) for o, h in here.items() if o not in found}
        return jax.tree.unflatten(program.structure, [(found | rest)[o] for o in program.outputs])

    return _each_leaf(f, x, candidates, memory, differences, whole)


def total_differences(f: Callable[[Tree], tuple[Tree, ...]], x: Tree, candidates: Tree, *, memory: int) -> Tree:
    """Return the differences of f from the pivot, each part of f's result added up; untouched parts cost nothing.

    The result is not made to be differentiated, which saves tracing: estimators treat it as a constant.

    Returns:
        A pytree with the structure of `candidates`, each leaf holding a tuple.
    """

    def totals(program: Program, here: dict[int, jax.Array], found: Found, shape: tuple[int, ...]) -> Tree:
        parts, rest = [], list(program.outputs)
        children: list[Any] = list(jax.tree_util.treedef_children(program.structure))
        for part in children:
            mine, rest = rest[: part.num_leaves], rest[part.num_leaves :]
            touched = [found[o] for o in mine if o in found]
            dtype = jnp.result_type(*(here[o] for o in mine)) if mine else jnp.result_type(float)
            parts.append(sum(touched) if touched else jnp.zeros(shape, dtype))
        return tuple(parts)

    return _each_leaf(f, x, candidates, memory, True, totals, derivatives=False)


def estimated_work(
    f: Callable[[Tree], Tree], x: dict[str, Any], count: int, memory: int
) -> dict[str, tuple[int, int]]:
    """Estimate for each leaf the work of its changes with `count` candidates, and that of one evaluation of f."""
    program = Program(f, x, rewrite)
    leaves = jax.tree.leaves(x)
    values, whole = program.evaluate(leaves), evaluation_work(program)
    found = {}
    for name, input_id, leaf in zip(sorted(x), program.inputs, leaves, strict=True):
        plan = make_plan(program, input_id, values, (count, *leaf.shape), memory)
        found[name] = min(plan.work, plan.brute_work), whole
    return found


def _each_leaf(
    f: Callable[[Tree], Tree],
    x: Tree,
    candidates: Tree,
    memory: int,
    differences: bool,
    assemble: Callable[..., Tree],
    derivatives: bool = True,
) -> Tree:
    """Run the changes of the leaves of x one after the other, and assemble the result of each."""
    x = jax.tree.map(jnp.asarray, x)
    leaves, structure = jax.tree.flatten(x)
    program, memory = Program(f, x, rewrite), memory * devices()
    values = _at_pivot(program, leaves)
    here = {o: jnp.sum(values[o]) for o in program.outputs}
    names = [_name(path) for path, _ in jax.tree.leaves_with_path(x)]
    results = []
    for input_id, name, leaf, choices in zip(program.inputs, names, leaves, jax.tree.leaves(candidates), strict=True):
        choices = jnp.asarray(choices, leaf.dtype)
        found = _run_leaf(program, input_id, name, values, choices, memory, differences, derivatives)
        results.append(assemble(program, here, found, (len(choices), *leaf.shape)))
    return jax.tree.unflatten(structure, results)


def _at_pivot(program: Program, leaves: list[jax.Array]) -> dict[int, Any]:
    """Evaluate every value of a program once, and keep XLA from repeating that in the loops that use the value."""
    values = program.evaluate(leaves)
    made = {i for op in program.ops for i in op.outputs}
    return {i: jax.lax.optimization_barrier(v) if i in made else v for i, v in values.items()}


def _name(path: tuple[Any, ...]) -> str:
    """Return the name of a leaf of x: a key or place, and the path below it."""
    first = "".join(str(getattr(part, "key", getattr(part, "idx", part))) for part in path[:1])
    return first + jax.tree_util.keystr(path[1:]) if path else "x"


def _run_leaf(
    program: Program,
    input_id: int,
    name: str,
    values: dict[int, Any],
    choices: jax.Array,
    memory: int,
    differences: bool,
    derivatives: bool,
) -> Found:
    """Return the differences or values of the outputs that one leaf touches, by id.

    Follow the changes by a plan, or run brute force if the plan says so. Changes that have lost digits run again.
    """
    if 0 in (len(choices), *program.shapes[input_id]) or not program.touched(input_id):
        tell(name, program, input_id, len(choices), None)
        return {}
    plan = make_plan(program, input_id, values, choices.shape, memory, whole=is_listening())
    tell(name, program, input_id, len(choices), plan)
    if plan.brute:
        found = recompute(program, input_id, values, choices, memory, differences)
        return at_pivot(found, values, is_pivot(choices, values[input_id]), differences)
    changes = LatentChanges(program, input_id, plan, memory, differences)
    return changes.follow_differentiably(values, choices) if derivatives else changes.follow(values, choices)
