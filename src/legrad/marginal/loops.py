"""Loops whose steps are independent once the latents are given, as one batch of steps.

In `scan(step, init, xs)` with a latent inside, the state that one step hands to the next is a function of that step's
latent alone (a Markov chain), or does not depend on latents at all (a counter). Then all steps can run side by side:
each gets the state of the step before by a shift. The positions of each latent in the result are then known, which
a loop hides.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from legrad import _compat
from legrad.trace.interpreter import interpret
from legrad.trace.operations import run_equation, wrapped_program
from legrad.trace.primitives import ELEMENTWISE
from legrad.trace.program import Program


def rewrite(program: Program, eqn: Any, operands: list[int]) -> list[int]:
    """Append an equation to a program, a loop as a batch of steps if that can be done."""
    if eqn.primitive.name != "scan" or all(program.is_constant(i) for i in operands):
        return program.append(eqn, operands)
    parallel = _parallel(program, eqn, operands)
    if parallel is None:
        return program.append(eqn, operands)
    return program.inline(eqn, parallel, operands)


def unwrap(program: Program, eqn: Any, operands: list[int]) -> Any:
    """Return the nested program to inline, None for functions with derivative rules that can be kept."""
    custom = eqn.primitive.name in _compat.CUSTOM_CALLS
    if custom and (all(program.is_constant(i) for i in operands) or _is_elementwise(eqn)):
        return None
    return wrapped_program(eqn)


def _is_elementwise(eqn: Any) -> bool:
    shape = eqn.outvars[0].aval.shape
    jaxpr = eqn.params["call_jaxpr"]
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)

    def plain(jaxpr: Any) -> bool:
        for inner in jaxpr.eqns:
            name = inner.primitive.name
            if name in ("jit", "custom_jvp_call"):
                body = inner.params["jaxpr" if name == "jit" else "call_jaxpr"]
                if not plain(getattr(body, "jaxpr", body)):
                    return False
            elif name == "broadcast_in_dim":
                if inner.invars[0].aval.shape not in ((), shape):
                    return False
            elif name not in ELEMENTWISE:
                return False
        return True

    return all(v.aval.shape in ((), shape) for v in (*eqn.invars, *eqn.outvars)) and plain(jaxpr)


def _parallel(program: Program, eqn: Any, operands: list[int]) -> Any:
    """Return the program of all steps side by side, or None if a state depends on the states of earlier steps."""
    p = eqn.params
    (constants, carried), length, body = _compat.scan_counts(p), p["length"], p["jaxpr"]
    needs = _dependence(body)
    latent = {k for k, i in enumerate(operands) if not program.is_constant(i)}
    states = range(constants, constants + carried)
    free = _independent_states(needs, latent, constants, carried)
    order = _order(needs, free, constants, carried)
    if order is None or p["reverse"] or length == 0:
        return None
    known = _known_states(program, p, operands, free)

    def run(*given: Any) -> list[Any]:
        fixed, init, xs = given[:constants], given[constants : constants + carried], given[constants + carried :]
        # States that are not known yet may depend on known ones (a latent's value on the counter): run all together.
        before = (_sequence(p, given, free) if free - set(known) else {}) | known

        def step() -> list[Any]:
            def one(state: dict[int, Any], x: Any) -> list[Any]:
                return _evaluate(body, [*fixed, *(state.get(k, given[k]) for k in states), *x])

            return jax.vmap(one, axis_size=length)(before, xs)

        for k in order:
            after = step()[k - constants]
            before[k] = jnp.concatenate([jnp.asarray(init[k - constants])[None], after[:-1]])
        results = step()
        return [*(results[j][-1] for j in range(carried)), *results[carried:]]

    like = [jax.ShapeDtypeStruct(program.shapes[i], program.dtypes[i]) for i in operands]
    return jax.make_jaxpr(run)(*like)


def _evaluate(body: Any, inputs: list[Any]) -> list[Any]:
    return interpret(body.jaxpr, body.consts, inputs, lambda eqn, xs: run_equation(eqn, xs), lambda x: x)


def _dependence(body: Any) -> list[set[int]]:
    """Return for each result of a program the inputs that it depends on."""
    seen: dict[Any, set[int]] = {v: {k} for k, v in enumerate(body.jaxpr.invars)}
    for eqn in body.jaxpr.eqns:
        found = set().union(*(seen.get(v, set()) for v in eqn.invars if not isinstance(v, _compat.Literal)))
        for v in eqn.outvars:
            seen[v] = found
    return [set() if isinstance(v, _compat.Literal) else seen.get(v, set()) for v in body.jaxpr.outvars]


def _independent_states(needs: list[set[int]], latent: set[int], constants: int, carried: int) -> set[int]:
    """Find the states that depend on no latent, not even through other states."""
    states = set(range(constants, constants + carried))
    bound = set(latent)
    while True:
        more = {k for k in states - bound if needs[k - constants] & bound}
        if not more:
            return states - bound
        bound |= more


def _order(needs: list[set[int]], free: set[int], constants: int, carried: int) -> list[int] | None:
    """Order the other states so that each depends on earlier ones only; None if there is no such order."""
    left = [k for k in range(constants, constants + carried) if k not in free]
    done, order = set(free), list[int]()
    while left:
        ready = [k for k in left if not (needs[k - constants] & set(left))]
        if not ready:
            return None
        order += ready
        done |= set(ready)
        left = [k for k in left if k not in done]
    return order


def _known_states(program: Program, p: Any, operands: list[int], free: set[int]) -> dict[int, Any]:
    """Return the sequences of those states that can be computed now: counters."""
    (constants, carried), needs = _compat.scan_counts(p), _dependence(p["jaxpr"])
    readable = {k for k in range(len(operands)) if program.read(operands[k]) is not None}
    known = free & readable
    while True:
        fewer = {
            k
            for k in known
            if needs[k - constants] <= (readable - set(range(constants, constants + carried))) | known
        }
        if fewer == known:
            break
        known = fewer
    if not known:
        return {}
    with jax.ensure_compile_time_eval():
        numbers = [program.read(i) for i in operands]
        given = [
            jnp.zeros(program.shapes[i], program.dtypes[i] if x is None and _plain(program.dtypes[i]) else None)
            if x is None
            else jnp.asarray(x)
            for x, i in zip(numbers, operands, strict=True)
        ]
        found = _sequence(p, given, known)
        return {k: np.asarray(v) for k, v in found.items()}


def _plain(dtype: Any) -> bool:
    return not jax.dtypes.issubdtype(dtype, jax.dtypes.extended)


def _sequence(p: Any, given: Any, wanted: set[int]) -> dict[int, Any]:
    """Run the loop for some states that depend on no others; return their values before each step."""
    (constants, carried), body = _compat.scan_counts(p), p["jaxpr"]
    order = sorted(wanted)
    if not order:
        return {}
    jaxpr, used = _compat.only_for([k - constants for k in order], body)

    def step(state: list[Any], x: Any) -> tuple[list[Any], list[Any]]:
        now = dict(zip(order, state, strict=True))
        inputs = [*given[:constants], *(now.get(constants + j, given[constants + j]) for j in range(carried)), *x]
        kept = [value for value, use in zip(inputs, used, strict=True) if use]
        return interpret(jaxpr, body.consts, kept, lambda eqn, xs: run_equation(eqn, xs), lambda v: v), state

    start = [jnp.asarray(given[k]) if _plain(jnp.result_type(given[k])) else given[k] for k in order]
    _, found = jax.lax.scan(step, start, tuple(given[constants + carried :]), length=p["length"])
    return dict(zip(order, found, strict=True))
