"""What is known of the law of each number of a program: found when asked for, by rules for families of operations.

Three questions can be asked of a value: its mean; its moments given some discrete elements (`moments.py`); and its
table over all variables that it depends on, which may be standardized projections (`variables.py`). A rule answers a
question from answers for the operands. What no rule answers raises `Unknown`, with the line of the program.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from legrad.exact import affine, closed, linear, products
from legrad.exact.adding import sum_along
from legrad.exact.certain import Certain
from legrad.exact.families import Family, family
from legrad.exact.laws import Law
from legrad.exact.moments import Moments, combine, independent, known, marginal, moments, of_table
from legrad.exact.run import in_bounds, real, run_linear, squared
from legrad.exact.sight import Sight
from legrad.exact.smooth import Signs, obstacle
from legrad.exact.unknown import Unknown
from legrad.exact.variables import Variables
from legrad.marginal.context import Context
from legrad.marginal.rules import apply
from legrad.marginal.table import CannotSum, Table, align, constant
from legrad.trace.program import Op, Program

COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge", "is_finite"}
LIMIT = 1 << 13  # joint candidates in one table
NUMBERS = 1 << 24  # numbers in one table
_INDEXED = ("gather", "dynamic_slice", "select_n")  # their indices and conditions are no numbers to average


class Known:
    """What is known of a program's values.

    Args:
        program: the program.
        laws: the laws of its inputs, in their order.
    """

    def __init__(self, program: Program, laws: Mapping[str, Law]) -> None:
        self.program, self.laws = program, dict(laws)
        self.dtype = jnp.result_type(float)
        self.sight = Sight(program, {name: law.shape for name, law in laws.items()})
        self.variables = Variables(laws, self.sight, self.dtype)
        self.context, self.signs = Context(program, LIMIT), Signs(program)
        self.certain = Certain(program, self.signs)
        self.dropped = self._dropped() if self._uses_infinity() else set()
        self.site = dict(zip(program.inputs, laws, strict=True))
        self._constants = dict(program.constants)
        for i, truth in self.certain.truth.items():
            self._constants[i] = np.full(program.shapes[i], truth)
        self._answers: dict[tuple[str, int], Any] = {}
        self.aims: dict[int, affine.Aim] = {}  # where the nodes of a Normal number are dense
        self.rules: dict[int, str] = {}  # how the expectation of each value that is not linear was taken

    # --- the three questions -------------------------------------------------------------------------------------

    def mean(self, i: int) -> Any:
        """Return the means of a value."""
        return self._ask("mean", i, self._mean)

    def moments(self, i: int) -> Moments:
        """Return the moments of a value."""
        return self._ask("moments", i, self._moments)

    def table(self, i: int) -> Table:
        """Return the table of a value."""
        return self._ask("table", i, self._table)

    def pieces(self, i: int) -> list[linear.Piece]:
        """Return a value as a weighted sum of elements."""
        return self._ask("pieces", i, self._pieces)

    def _ask(self, question: str, i: int, answer: Callable[[int], Any]) -> Any:
        i = self.certain.resolve(i)
        if (question, i) not in self._answers:
            try:
                found = answer(i)
            except Unknown as error:
                found = error
            except CannotSum as error:
                size = f": a table of {error.values:,} values" if error.values else ""
                found = Unknown(f"{error.reason}{size}")
            op = self.program.maker(i)
            if isinstance(found, Unknown) and not found.line and op is not None:
                found.line = op.line
            self._answers[question, i] = found
        found = self._answers[question, i]
        if isinstance(found, Unknown):
            raise found
        return found

    def _uses_infinity(self) -> bool:
        """Say whether a known infinite number goes into a value, and not only into checks that are settled."""

        def infinite(i: int) -> bool:
            numbers = self.program.read(i) if self.program.is_constant(i) else None
            return numbers is not None and numbers.dtype.kind == "f" and bool(np.isinf(numbers).any())

        return any(
            any(map(infinite, op.inputs))
            for op in self.program.ops
            if op.name not in COMPARISONS
            and not all(i in self.certain.same or self.is_constant(i) for i in op.outputs)
        )

    def _dropped(self) -> set[int]:
        """List the values of which some positions may be left out further on."""
        found: set[int] = set()
        for op in reversed(self.program.ops):
            constant = [self.is_constant(i) for i in op.inputs]
            chooses = op.name in ("gather", "dynamic_slice") and all(constant[1:])
            chooses |= op.name in ("slice", "split") or (op.name == "select_n" and constant[0])
            if chooses or any(i in found for i in op.outputs):
                found.update(op.inputs)
        return found

    # --- constants and inputs ------------------------------------------------------------------------------------

    def constant(self, i: int) -> Any:
        """Return a value that sees no element."""
        i = self.certain.resolve(i)
        if i not in self._constants:
            op = self.program.maker(i)
            assert op is not None
            if op.name == "is_finite" and not self.is_constant(op.inputs[0]):
                return jnp.isfinite(self.mean(op.inputs[0]))
            results = op.run([self.constant(j) for j in op.inputs])
            self._constants.update(zip(op.outputs, results, strict=True))
        return self._constants[i]

    def is_constant(self, i: int) -> bool:
        """Say whether a value depends on no element."""
        return self.certain.is_constant(self.certain.resolve(i))

    def maker(self, i: int) -> Op:
        """Return the operation that makes a value that is neither an input nor a constant."""
        op = self.program.maker(i)
        assert op is not None
        return in_bounds(op)._replace(inputs=tuple(map(self.certain.resolve, op.inputs)))

    def averaged(self, table: Table, i: int) -> Any:
        """Return the mean of the table of a value at every position, as an array."""
        self.variables.infinite = i in self.dropped
        mean = self.variables.expectation(table)
        self.variables.infinite = False
        return jnp.broadcast_to(mean.values, mean.shape)

    # --- means ---------------------------------------------------------------------------------------------------

    def _mean(self, i: int) -> Any:
        if self.is_constant(i):
            return real(self.constant(i))
        if i in self.site:
            return self.laws[self.site[i]].mean
        op = self.maker(i)
        kind = family(self.program, op, self.is_constant)
        if kind in (Family.MOVE, Family.SCALE, Family.ADD, Family.MIX):
            return run_linear(op, [self.number(op, k) for k in range(len(op.inputs))])[op.outputs.index(i)]
        if kind is Family.PRODUCT:
            return products.mean(self, op)
        found: Unknown | None = None
        try:
            mean = closed.mean(self, op) if kind is Family.FUNCTION else self.direct_moments(i).mean
            if mean is not None:
                return self.averaged(mean, i)
        except (Unknown, CannotSum) as error:
            found = error if isinstance(error, Unknown) else None
        try:
            return self.averaged(self.of_table(i), i)
        except Unknown as error:
            raise error if found is None or error.line else found from None

    def of_table(self, i: int) -> Table:
        """Return the table of a value, of which the expectation is taken."""
        table = self.table(i)
        joint = math.prod(label.size for label in table.labels)
        continuous = sum(map(self.variables.is_continuous, table.labels))
        nodes = f", {len(self.variables.z)} nodes" if continuous else ""
        self.rules[i] = f"table of {joint:,}" if not continuous else f"projection{nodes}"
        return table

    def number(self, op: Op, k: int) -> Any:
        """Return the mean of an operand of a linear operation; indices and conditions as they are."""
        i = op.inputs[k]
        first = op.name == "select_n" and k == 0
        later = op.name in ("gather", "dynamic_slice") and k > 0
        return self.constant(i) if self.is_constant(i) and (first or later) else self.mean(i)

    # --- moments -------------------------------------------------------------------------------------------------

    def _moments(self, i: int) -> Moments:
        if self.is_constant(i):
            return known(self.constant(i))
        if i in self.site:
            law, sees = self.laws[self.site[i]], self.sight.of(i)
            if not law.normal:
                return moments(self.variables, self.table(i), None, True, sees)
            return Moments(constant(law.mean), constant(law.variance), True, sees, sees)
        try:
            return self.direct_moments(i)
        except (Unknown, CannotSum):
            return of_table(self.variables, self.table(i), self.sight.of(i))

    def direct_moments(self, i: int) -> Moments:
        """Return the moments of an operation's result from those of its operands."""
        return self._ask("direct", i, self._direct)

    def _direct(self, i: int) -> Moments:
        op, sees = self.maker(i), self.sight.of(i)
        kind = family(self.program, op, self.is_constant)
        if kind is Family.MOVE:
            return self._moved(op, op.outputs.index(i))
        if kind is Family.SCALE:
            return self._scaled(op, sees)
        if kind is Family.ADD:
            return self._added(op, sees)
        if kind is Family.MIX:
            return self._mixed(op, sees)
        if kind is Family.PRODUCT:
            return products.product(self, op, sees)
        if kind is Family.CHOICE:
            return products.choice(self, op, sees)
        if kind is Family.LOOK_UP:
            return products.look_up(self, op, sees)
        found = closed.moments_of(self, op, sees)
        if found is None:
            raise Unknown(f"`{op.name}` of a sum of dependent or of many elements")
        return found

    def _moved(self, op: Op, result: int) -> Moments:
        if op.name == "convert_element_type":
            found = self.moments(op.inputs[0])
            mean = Table(real(found.mean.values), found.mean.labels, found.mean.shape)
            return Moments(mean, found.variance, found.normal, found.sees, found.rest)
        fixed = [self.is_constant(i) for i in op.inputs]
        operands = [None if c else self.moments(i) for i, c in zip(op.inputs, fixed, strict=True)]
        parts = [m for m in operands if m is not None]

        def table(k: int, variance: bool) -> Table:
            m = operands[k]
            if m is not None:
                return m.spread if variance else Table(real(m.mean.values), m.mean.labels, m.mean.shape)
            value = self.constant(op.inputs[k])
            if op.name in _INDEXED and k == (0 if op.name == "select_n" else k):
                return constant(value)
            return constant(jnp.zeros_like(real(value)) if variance else real(value))

        mean = apply(op, [table(k, False) for k in range(len(operands))], self.context)[result]
        variance = None
        if any(m.variance is not None for m in parts):
            variance = apply(op, [table(k, True) for k in range(len(operands))], self.context)[result]
        normal = all(m.normal for m in parts)
        return moments(self.variables, mean, variance, normal, self.sight.of(op.outputs[result]))

    def _scaled(self, op: Op, sees: Any) -> Moments:
        shape = self.program.shapes[op.outputs[0]]
        k = next(k for k, i in enumerate(op.inputs) if not self.is_constant(i))
        found = self.moments(op.inputs[k])
        if op.name == "neg":
            factor: Any = -1.0
        else:
            other = real(self.constant(op.inputs[1 - k]))
            factor = other if op.name == "mul" else None
        given = constant(jnp.asarray(factor if factor is not None else other))

        def run(power: int) -> Callable[[Any, Any], Any]:
            if factor is None:
                return lambda x, c: x / c**power
            return lambda x, c: x * c**power

        mean = combine(run(1), [found.mean, given], shape)
        variance = None if found.variance is None else combine(run(2), [found.variance, given], shape)
        return moments(self.variables, mean, variance, found.normal, sees)

    def _added(self, op: Op, sees: Any) -> Moments:
        shape = self.program.shapes[op.outputs[0]]
        a, b = (self.moments(i) for i in op.inputs)
        add = jnp.subtract if op.name == "sub" else jnp.add
        if not independent(self.variables, a, b):
            return self._by_elements(op.outputs[0], a.normal and b.normal and not a.labels and not b.labels)
        try:
            mean = combine(add, [a.mean, b.mean], shape)
        except CannotSum:
            a, b = marginal(self.variables, a), marginal(self.variables, b)
            if not independent(self.variables, a, b):
                raise
            mean = combine(add, [a.mean, b.mean], shape)
        if a.variance is None or b.variance is None:
            one = a.variance if b.variance is None else b.variance
            variance = None if one is None else combine(lambda x: x, [one], shape)
        else:
            variance = combine(jnp.add, [a.variance, b.variance], shape)
        return moments(self.variables, mean, variance, a.normal and b.normal, sees)

    def _mixed(self, op: Op, sees: Any) -> Moments:
        k = next(k for k, i in enumerate(op.inputs) if not self.is_constant(i))
        found = self.moments(op.inputs[k])
        if not self.sight.distinct_along(found.sees, mixed_axes(op, k)):
            return self._by_elements(op.outputs[0], found.normal and not found.labels)
        labelled = bool(found.labels)
        found = marginal(self.variables, found)
        arrays = [None if j == k else self.constant(i) for j, i in enumerate(op.inputs)]
        mean = run_linear(op, [self._full(found.mean) if x is None else x for x in arrays])[0]
        variance = None
        if found.variance is not None:
            spread = self._full(found.variance)
            variance = constant(squared(op, [spread if x is None else x for x in arrays], k))
        return Moments(constant(mean), variance, found.normal and not labelled, sees, sees)

    @staticmethod
    def _full(table: Table) -> Any:
        return jnp.broadcast_to(real(table.values), table.shape)

    def _by_elements(self, i: int, normal: bool) -> Moments:
        """Return the moments of a sum in which elements may meet on several routes, by its coefficients."""
        pieces = self.pieces(i)
        variance = jnp.broadcast_to(linear.covariance(pieces, pieces, self.element_variances), self.program.shapes[i])
        self.rules[i] = "coefficients"
        sees = self.sight.of(i)
        return Moments(constant(self.mean(i)), constant(variance), normal, sees, sees)

    @property
    def element_variances(self) -> Any:
        """The variance of every element, by its number."""
        if ("variances", 0) not in self._answers:
            parts = [jnp.broadcast_to(law.variance, law.shape).ravel() for law in self.laws.values()]
            self._answers["variances", 0] = jnp.concatenate(parts)
        return self._answers["variances", 0]

    # --- tables --------------------------------------------------------------------------------------------------

    def _table(self, i: int) -> Table:
        if self.is_constant(i):
            return constant(self.constant(i))
        if i in self.site:
            law, label = self.laws[self.site[i]], self.variables.label(self.site[i])
            if not law.normal:
                return Table(law.values, (label,), law.shape)
            return affine.at_nodes(self, i, constant(law.mean), constant(law.variance), label)
        affine.aim(self, i)
        op = self.maker(i)
        kind = family(self.program, op, self.is_constant)
        projects = kind in (Family.MIX, Family.ADD, Family.PRODUCT, Family.LOOK_UP)
        if kind is Family.MIX and (found := self._projection(i)) is not None:
            return found
        try:
            tables = [self.table(j) for j in op.inputs]
            continuous = [any(map(self.variables.is_continuous, t.labels)) for t in tables]
            if any(continuous) and (why := obstacle(self.program, self.signs, op, continuous)) is not None:
                raise Unknown(why)
            self._require_small(op, tables)
            if op.name == "reduce_sum":
                table = sum_along(tables[0], op.eqn.params["axes"], LIMIT, NUMBERS)
            else:
                table = apply(op, tables, self.context)[op.outputs.index(i)]
            if math.prod(jnp.shape(table.values)) > NUMBERS:
                raise Unknown(f"a table of {math.prod(jnp.shape(table.values)):,} numbers")
        except (Unknown, CannotSum):
            if projects and (found := self._projection(i)) is not None:
                return found
            raise
        if projects and sum(map(self.variables.is_continuous, table.labels)) > 1:
            return self._projection(i) or table
        return table

    def _require_small(self, op: Op, tables: Sequence[Table]) -> None:
        """Raise if two tables together are too large, before they are computed."""
        same = [t for t in tables if t.labels and len(t.shape) == len(self.program.shapes[op.outputs[0]])]
        if len(same) > 1:
            flat = [
                Table(np.zeros((*(x.size for x in t.labels), *(1,) * len(t.shape)), bool), t.labels, t.shape)
                for t in same
            ]
            _, labels = align(flat, LIMIT, np)
            own = np.broadcast_shapes(*(t.own for t in same))
            if math.prod(label.size for label in labels) * math.prod(own) > NUMBERS:
                raise Unknown(f"{len(labels)} variables meet in a table that is too large")

    def _projection(self, i: int) -> Table | None:
        """Return a Normal number m + s·ξ at the nodes of ξ; None if the number is not known to be Normal."""
        try:
            found = self.direct_moments(i)
        except (Unknown, CannotSum):
            return None
        if not found.normal:
            return None
        if found.variance is None:
            return found.mean
        label = self.variables.projections(found.mean.shape, found.rest)
        return affine.at_nodes(self, i, found.mean, found.variance, label)

    # --- sums of elements ----------------------------------------------------------------------------------------

    def _pieces(self, i: int) -> list[linear.Piece]:
        if self.is_constant(i):
            return []
        if i in self.site:
            elements = self.variables.label(self.site[i]).elements
            return [linear.stored(elements[None], jnp.ones((1,) * (1 + elements.ndim), self.dtype))]
        op = self.maker(i)
        kind = family(self.program, op, self.is_constant)
        random = [k for k, j in enumerate(op.inputs) if not self.is_constant(j)]
        k = random[0]
        if kind is Family.ADD:
            shape = self.program.shapes[i]
            parts = [[linear.widened(piece, shape) for piece in self.pieces(j)] for j in op.inputs]
            second = parts[1] if op.name != "sub" else [linear.scaled(p, -1.0) for p in parts[1]]
            return [*parts[0], *second]
        inner = self.pieces(op.inputs[k])
        arrays = [None if j == k else self.constant(x) for j, x in enumerate(op.inputs)] if len(random) == 1 else []
        if kind is Family.SCALE and arrays:
            other = -1.0 if op.name == "neg" else real(arrays[1 - k])
            factor = 1 / other if op.name == "div" else other
            return [linear.scaled(linear.widened(piece, self.program.shapes[i]), factor) for piece in inner]
        if kind is Family.MOVE and arrays and op.name not in ("pad", "concatenate", "select_n", "split"):
            read = [self.program.read(j) for j in op.inputs]
            return [linear.moved(piece, op, read, k) for piece in inner]
        if op.name == "reduce_sum":
            return [linear.summed(piece, op.eqn.params["axes"]) for piece in inner]
        if op.name == "dot_general" and kind is Family.MIX:
            numbers = op.eqn.params["dimension_numbers"]
            return [linear.contracted(piece, real(arrays[1 - k]), numbers, k == 0) for piece in inner]
        raise Unknown(f"`{op.name}` of elements that meet on several routes")


def mixed_axes(op: Op, k: int) -> list[int]:
    """Return the axes of an operand that a linear operation sums over."""
    if op.name == "dot_general":
        return list(op.eqn.params["dimension_numbers"][0][k])
    if op.name == "reduce_sum":
        return list(op.eqn.params["axes"])
    if op.name == "cumsum":
        return [op.eqn.params["axis"]]
    rank = op.eqn.invars[k].aval.ndim
    return [rank - 2 if op.eqn.params["left_side"] else rank - 1]
