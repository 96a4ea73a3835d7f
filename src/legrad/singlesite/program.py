"""A traced function as a flat list of operations: nested programs inlined, every value with a number of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from legrad import _compat
from legrad.densities import poisson_log
from legrad.interpreter import interpret
from legrad.known import read
from legrad.operations import name_of


class Op(NamedTuple):
    """One equation; its operands and results by number.

    A look-up in a constant table by several indices has each index as an operand of its own: see `Program._parts`.
    """

    eqn: Any
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    around: tuple[Any, ...] = ()  # the equations of nested programs that it was found in, innermost first

    @property
    def line(self) -> str:
        """The line of code that it comes from."""
        return next((line for line in map(_compat.source_line, (self.eqn, *self.around)) if line), "")

    @property
    def name(self) -> str:
        """The primitive's name."""
        return name_of(self.eqn)

    def run(self, operands: Sequence[Any]) -> list[Any]:
        """The results for some operands."""
        if len(operands) > len(self.eqn.invars):
            table, *parts = operands
            operands = [table, jnp.concatenate(parts, axis=-1)]
        return _compat.run(self.eqn, operands)


class Program:
    """`f` traced once at `x`.

    Args:
        f: a function of a pytree of arrays that returns a pytree of arrays.
        x: its argument.
    """

    def __init__(self, f: Callable[[Any], Any], x: Any) -> None:
        closed, shapes = jax.make_jaxpr(f, return_shape=True)(x)
        self.structure = jax.tree.structure(shapes)
        self.ops: list[Op] = []
        self.shapes: list[tuple[int, ...]] = []
        self.dtypes: list[Any] = []
        self.constants: dict[int, Any] = {}
        self._made: dict[int, Op] = {}
        self._read: dict[int, Any] = {}
        self._reached: dict[int, list[Op]] = {}
        self.inputs = [self._number(v.aval) for v in closed.jaxpr.invars]
        self._varying = set(self.inputs)
        self._around: tuple[Any, ...] = ()
        self.outputs = interpret(closed.jaxpr, closed.consts, self.inputs, self._append, self._constant, self._enter)
        self._drop_dead()
        self.summed = self._only_sums()

    def _drop_dead(self) -> None:
        """Keep the operations that an output needs."""
        needed, kept = set(self.outputs), []
        for op in reversed(self.ops):
            if op.eqn.effects or not needed.isdisjoint(op.outputs):
                kept.append(op)
                needed.update(op.inputs)
        self.ops = kept[::-1]

    def _only_sums(self) -> dict[int, frozenset[int]]:
        """For each value the axes along which nothing but its sum matters. Outputs are summed over all of theirs."""
        axes: dict[int, frozenset[int]] = {i: frozenset(range(len(self.shapes[i]))) for i in self.outputs}
        for op in reversed(self.ops):
            for i in op.inputs:
                one = len(op.outputs) == 1
                before = self._before(op, i, axes.get(op.outputs[0], frozenset())) if one else frozenset[int]()
                axes[i] = axes.get(i, before) & before
        return axes

    def _before(self, op: Op, i: int, after: frozenset[int]) -> frozenset[int]:
        """The same for an operand, given that of the result."""
        if op.name == "reduce_sum":
            gone = op.eqn.params["axes"]
            kept = [a for a in range(len(self.shapes[i])) if a not in gone]
            return frozenset(gone) | {kept[a] for a in after}
        (out,) = op.outputs
        floating = all(jnp.issubdtype(self.dtypes[j], jnp.floating) for j in (i, out))
        if self.shapes[i] != self.shapes[out] or not floating:  # integers are rounded
            return frozenset()
        if op.name in ("neg", "convert_element_type", "copy", "stop_gradient", "add", "sub", "add_any"):
            return after
        others = [j for j in op.inputs if j != i]
        if op.name == "mul" and all(j not in self._varying and self.is_one_number(j) for j in others) and others:
            return after
        return frozenset()

    def is_one_number(self, i: int) -> bool:
        """Whether an array is known to hold the same number everywhere."""
        op = self._made.get(i)
        if op is not None and op.name in ("broadcast_in_dim", "convert_element_type"):
            return self.is_one_number(op.inputs[0])
        return math.prod(self.shapes[i]) == 1

    def _number(self, aval: Any) -> int:
        self.shapes.append(tuple(aval.shape))
        self.dtypes.append(aval.dtype)
        return len(self.shapes) - 1

    def _constant(self, value: Any) -> int:
        number = self._number(jax.typeof(value))
        self.constants[number] = value
        return number

    @contextmanager
    def _enter(self, eqn: Any) -> Iterator[None]:
        before, self._around = self._around, (eqn, *self._around)
        yield
        self._around = before

    def _append(self, eqn: Any, operands: list[int]) -> list[int]:
        if self._never_nan(eqn, operands):
            return [operands[1]]
        other = self._other_form(eqn, operands)
        if other is not None:
            program, inputs = other
            with self._enter(eqn):
                return interpret(program.jaxpr, program.consts, inputs, self._append, self._constant, self._enter)
        operands = self._parts(eqn, operands)
        op = Op(eqn, tuple(operands), tuple(self._number(v.aval) for v in eqn.outvars), self._around)
        if not self._varying.isdisjoint(operands):
            self._varying.update(op.outputs)
        self.ops.append(op)
        self._made.update(dict.fromkeys(op.outputs, op))
        return list(op.outputs)

    def _other_form(self, eqn: Any, operands: list[int]) -> tuple[Any, list[int]] | None:
        """What an operation is better made of here, and the operands of that."""
        name = name_of(eqn)
        if name == "legrad_categorical_logits" and operands[1] in self._varying:
            return eqn.params["jaxpr"], operands  # a class that changes is a look-up
        rate = self._made.get(operands[0]) if name == "legrad_poisson" else None
        if rate is not None and rate.name == "exp":
            log_rate = rate.inputs[0]
            given = [jax.ShapeDtypeStruct(self.shapes[i], self.dtypes[i]) for i in (log_rate, operands[1])]
            return jax.make_jaxpr(poisson_log)(*given), [log_rate, operands[1]]
        return None

    def _parts(self, eqn: Any, operands: list[int]) -> list[int]:
        """The indices of a look-up J[a, b] one by one, where the table is a constant.

        JAX glues them together first, and a change of one would have to be followed as a change of pairs.
        """
        glue = self._made.get(operands[1]) if eqn.primitive.name == "gather" else None
        if glue is None or glue.name != "concatenate" or operands[0] in self._varying:
            return operands
        last = len(self.shapes[operands[1]]) - 1
        if glue.eqn.params["dimension"] != last or any(self.shapes[i][last] != 1 for i in glue.inputs):
            return operands
        return [operands[0], *glue.inputs]

    def _never_nan(self, eqn: Any, operands: list[int]) -> bool:
        """Whether this is the test for NaN in `logaddexp` where one side is a finite constant, as in `softplus`.

        There the tested difference is NaN only where the untested result is NaN too. XLA does not see that, and
        keeps the test inside the innermost loop, which costs several times the rest.
        """
        test = self._made.get(operands[0]) if eqn.primitive.name == "select_n" else None
        if test is None or test.name != "ne" or test.inputs[0] != test.inputs[1] or len(operands) != 3:
            return False
        difference, other, result = (self._made.get(i) for i in (test.inputs[0], operands[2], operands[1]))
        if difference is None or difference.name != "sub" or other is None or other.name != "add":
            return False
        sides = set(difference.inputs)
        if set(other.inputs) != sides or result is None or result.name != "add":
            return False
        larger = [self._made.get(i) for i in result.inputs]
        if not any(op is not None and op.name == "max" and set(op.inputs) == sides for op in larger):
            return False
        finite = [self.constants[i] for i in sides if i in self.constants]
        return any(np.size(c) == 1 and _compat.is_concrete(c) and bool(np.isfinite(c)) for c in finite)

    def evaluate(self, x: list[Any], around: Sequence[Op] | None = None) -> dict[int, Any]:
        """Evaluate the program at `x`: every value, or those that some operations take and give."""
        values = dict(self.constants) | dict(zip(self.inputs, x, strict=True))
        for op in self.ops if around is None else self._leading_to(around):
            values.update(zip(op.outputs, op.run([values[i] for i in op.inputs]), strict=True))
        return values

    def _leading_to(self, ops: Sequence[Op]) -> list[Op]:
        """Return the operations that lead to some, and these, in order."""
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
        """The operations that depend on one input, in order."""
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
        """The values that depend on one input."""
        return {number}.union(*(op.outputs for op in self.reached(number)))

    def touched(self, number: int) -> list[int]:
        """The outputs that depend on one input."""
        dependents = self.dependents(number)
        return [o for o in dict.fromkeys(self.outputs) if o in dependents]

    def addends(self, number: int) -> list[tuple[int, int]]:
        """Values whose sums over all their numbers add up to that of a value, each with its sign."""
        found, ahead = [], [(number, 1)]
        while ahead:
            i, sign = ahead.pop()
            op = self._made.get(i)
            same = op is not None and all(self.dtypes[j] == self.dtypes[i] for j in op.inputs)
            if op is None or not same or not jnp.issubdtype(self.dtypes[i], jnp.floating):
                found.append((i, sign))
            elif op.name in ("reduce_sum", "reshape", "squeeze", "transpose", "neg", "copy"):
                ahead.append((op.inputs[0], -sign if op.name == "neg" else sign))
            elif op.name in ("add", "sub", "add_any") and all(self.shapes[j] == self.shapes[i] for j in op.inputs):
                ahead += [(op.inputs[0], sign), (op.inputs[1], -sign if op.name == "sub" else sign)]
            else:
                found.append((i, sign))
        return found

    def is_constant(self, number: int) -> bool:
        """Whether a value depends on no input."""
        return number not in self._varying

    def read(self, number: int) -> np.ndarray | None:
        """What a constant holds, where that can be read while tracing; None otherwise."""
        if number in self._varying:
            return None
        if number not in self._read:
            self._evaluate_now(number)
        value = self._read[number]
        return value if value is None else np.asarray(value)

    def _evaluate_now(self, number: int) -> None:
        """Evaluate what leads to a constant, in order."""
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
