"""A traced function as a flat list of operations: nested programs inlined, every value with a number of its own.

This is the one form in which the package reads a JAX program. The code that follows one-element changes
(`singlesite`) and the code that proves independence (`dependence`) walk the same list, and read the same constants.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from legrad import _compat
from legrad.trace.concrete import read
from legrad.trace.interpreter import interpret, unwrap_all
from legrad.trace.operations import name_of, run_equation
from legrad.trace.sums import only_summed


class Op(NamedTuple):
    """One equation, with its operands and results by number.

    A look-up in a constant table by several indices has each index as an operand of its own
    (`singlesite.rewrites`).
    """

    eqn: Any
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    around: tuple[Any, ...] = ()  # the equations of nested programs that it was found in, innermost first

    @property
    def line(self) -> str:
        """The line of code that the equation comes from."""
        return next((line for line in map(_compat.source_line, (self.eqn, *self.around)) if line), "")

    @property
    def name(self) -> str:
        """The primitive's name."""
        return name_of(self.eqn)

    def run(self, operands: Sequence[Any]) -> list[Any]:
        """Return the results for given operands."""
        if len(operands) > len(self.eqn.invars):
            table, *parts = operands
            operands = [table, jnp.concatenate(parts, axis=-1)]
        return run_equation(self.eqn, operands)


Rewrite = Callable[["Program", Any, list[int]], list[int]]
"""`rewrite(program, equation, operands)` appends an equation in any form, and returns the numbers of its results."""


class Program:
    """A function traced once.

    Args:
        f: a function of a pytree of arrays that returns a pytree of arrays.
        x: the argument of `f`, needed for shapes and types only.
        rewrite: how an equation is appended; if None, unchanged, by `Program.append`.
        unwrap: `unwrap(program, equation, operands)` returns the nested program to inline in an equation's place, or
            None to keep the equation; if None, all that can be inlined is.

    Attributes:
        result: the shapes and types of what `f` returns, in its structure.
        ops: the operations, in order.
        shapes: the shape of each value, by number.
        dtypes: the type of each value.
        constants: the arrays that `f` closes over, and literals, by number.
        inputs: the numbers of the leaves of `x`.
        outputs: the numbers of the leaves of the result.
    """

    def __init__(
        self,
        f: Callable[[Any], Any],
        x: Any,
        rewrite: Rewrite | None = None,
        unwrap: Callable[[Program, Any, list[int]], Any] | None = None,
    ) -> None:
        closed, self.result = jax.make_jaxpr(f, return_shape=True)(x)
        self.structure = jax.tree.structure(self.result)
        self.ops: list[Op] = []
        self.shapes: list[tuple[int, ...]] = []
        self.dtypes: list[Any] = []
        self.constants: dict[int, Any] = {}
        self._rewrite = rewrite or Program.append
        self._unwrap = unwrap_all if unwrap is None else partial(unwrap, self)
        self._made: dict[int, Op] = {}
        self._read: dict[int, Any] = {}
        self._reached: dict[int, list[Op]] = {}
        self.inputs = [self._number(v.aval) for v in closed.jaxpr.invars]
        self._varying = set(self.inputs)
        self._around: tuple[Any, ...] = ()
        self.outputs = self._walk(closed, self.inputs)
        self._drop_dead()

    # --- building it --------------------------------------------------------------------------------------------

    def append(self, eqn: Any, operands: list[int]) -> list[int]:
        """Append an equation unchanged; return the numbers of its results."""
        op = Op(eqn, tuple(operands), tuple(self._number(v.aval) for v in eqn.outvars), self._around)
        if not self._varying.isdisjoint(operands):
            self._varying.update(op.outputs)
        self.ops.append(op)
        self._made.update(dict.fromkeys(op.outputs, op))
        return list(op.outputs)

    def inline(self, eqn: Any, closed: Any, operands: list[int]) -> list[int]:
        """Append the equations of a closed jaxpr instead of one equation."""
        with self._enter(eqn):
            return self._walk(closed, operands)

    def _walk(self, closed: Any, inputs: list[int]) -> list[int]:
        def rule(eqn: Any, operands: list[int]) -> list[int]:
            return self._rewrite(self, eqn, operands)

        return interpret(closed.jaxpr, closed.consts, inputs, rule, self._constant, self._enter, self._unwrap)

    @contextmanager
    def _enter(self, eqn: Any) -> Iterator[None]:
        before, self._around = self._around, (eqn, *self._around)
        yield
        self._around = before

    def _number(self, aval: Any) -> int:
        self.shapes.append(tuple(aval.shape))
        self.dtypes.append(aval.dtype)
        return len(self.shapes) - 1

    def _constant(self, value: Any) -> int:
        number = self._number(jax.typeof(value))
        self.constants[number] = value
        return number

    def _drop_dead(self) -> None:
        """Keep the operations that an output needs."""
        needed, kept = set(self.outputs), []
        for op in reversed(self.ops):
            if op.eqn.effects or not needed.isdisjoint(op.outputs):
                kept.append(op)
                needed.update(op.inputs)
        self.ops = kept[::-1]

    # --- what is known of its values -----------------------------------------------------------------------------

    def maker(self, number: int) -> Op | None:
        """Return the operation that makes a value; None for an input or a constant of the program."""
        return self._made.get(number)

    @cached_property
    def summed(self) -> dict[int, frozenset[int]]:
        """For each value the axes along which nothing but its sum matters."""
        return only_summed(self)

    def is_one_number(self, i: int) -> bool:
        """Say whether an array is known to hold the same number everywhere."""
        op = self._made.get(i)
        if op is not None and op.name in ("broadcast_in_dim", "convert_element_type"):
            return self.is_one_number(op.inputs[0])
        return math.prod(self.shapes[i]) == 1

    def largest(self) -> int:
        """Return how many numbers the largest value has."""
        return max(map(math.prod, self.shapes), default=0)

    def evaluate(self, x: list[Any], around: Sequence[Op] | None = None) -> dict[int, Any]:
        """Evaluate the program at `x`: every value, or those that some operations take and give."""
        return self.evaluate_from(dict(self.constants) | dict(zip(self.inputs, x, strict=True)), around)

    def evaluate_from(self, given: dict[int, Any], around: Sequence[Op] | None = None) -> dict[int, Any]:
        """Evaluate the program from its inputs and constants: every value, or those that operations take and give."""
        values = dict(given)
        for op in self.ops if around is None else self._leading_to(around):
            values.update(zip(op.outputs, op.run([values[i] for i in op.inputs]), strict=True))
        return values

    def _leading_to(self, ops: Sequence[Op]) -> list[Op]:
        """Return some operations together with those that lead to them, in order."""
        places, ahead = set[int](), [self._place[op.outputs[0]] for op in ops]
        while ahead:
            place = ahead.pop()
            if place not in places:
                places.add(place)
                ahead += [self._place[i] for i in self.ops[place].inputs if i in self._place]
        return [self.ops[place] for place in sorted(places)]

    @cached_property
    def _place(self) -> dict[int, int]:
        """The place of the operation that makes a value."""
        return {i: place for place, op in enumerate(self.ops) for i in op.outputs}

    @cached_property
    def _users(self) -> dict[int, list[int]]:
        """The places of the operations that take a value."""
        users: dict[int, list[int]] = {}
        for place, op in enumerate(self.ops):
            for i in set(op.inputs):
                users.setdefault(i, []).append(place)
        return users

    def reached(self, number: int) -> list[Op]:
        """Return the operations that depend on one input, in order."""
        if number not in self._reached:
            places, ahead = set[int](), [number]
            while ahead:
                for place in self._users.get(ahead.pop(), ()):
                    if place not in places:
                        places.add(place)
                        ahead += self.ops[place].outputs
            self._reached[number] = [self.ops[place] for place in sorted(places)]
        return self._reached[number]

    def dependents(self, number: int) -> set[int]:
        """Return the values that depend on one input."""
        return {number}.union(*(op.outputs for op in self.reached(number)))

    def touched(self, number: int) -> list[int]:
        """Return the outputs that depend on one input."""
        dependents = self.dependents(number)
        return [o for o in dict.fromkeys(self.outputs) if o in dependents]

    def is_constant(self, number: int) -> bool:
        """Whether a value depends on no input."""
        return number not in self._varying

    def read(self, number: int) -> np.ndarray | None:
        """Return the numbers of a constant if they can be read while tracing; else None."""
        if number in self._varying:
            return None
        if number not in self._read:
            self._evaluate_now(number)
        value = self._read[number]
        return None if value is None or jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended) else np.asarray(value)

    def _evaluate_now(self, number: int) -> None:
        """Evaluate the operations that lead to a constant, in order."""
        needed, ahead = set(), [number]
        while ahead:
            i = ahead.pop()
            if i not in needed and i not in self._read:
                needed.add(i)
                ahead += self._made[i].inputs if i in self._made else ()
        for i in sorted(needed):  # operands are numbered before results
            if i in self._read:
                continue
            op = self._made.get(i)
            if op is None:
                self._read[i] = read(self.constants[i])
                continue
            operands = [self._read[j] for j in op.inputs]
            if op.eqn.effects or any(x is None for x in operands):
                self._read.update(dict.fromkeys(op.outputs))
                continue
            with jax.ensure_compile_time_eval():
                self._read.update(zip(op.outputs, op.run(operands), strict=True))
