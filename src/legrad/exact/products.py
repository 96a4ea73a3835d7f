"""Products, random choices and look-ups by a random index.

    E[ab] = E[a] E[b]                     for independent a and b
    E[ab] = E[a] E[b] + Cov(a, b)         for sums of the same elements, by their coefficients
    Var(ab) = Var a Var b + Var a E[b]² + Var b E[a]²
    E[(Σ c_i x_i)²] = E[Σ]² + Var(Σ)

A look-up `mu[z]` has the moments of mu's entries for each value of z.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from legrad.exact import linear
from legrad.exact.moments import Moments, combine, independent, marginal, moments, of_table
from legrad.exact.run import real, run_linear
from legrad.exact.sight import Seen, seen_along
from legrad.exact.smooth import Sign
from legrad.exact.unknown import Unknown
from legrad.marginal.rules import apply
from legrad.marginal.table import CannotSum, Table, constant
from legrad.trace.program import Op

if TYPE_CHECKING:
    from legrad.exact.known import Known


def mean(known: Known, op: Op) -> Any:
    """Return the mean of a product of two random operands; of a quotient with a random divisor."""
    out = op.outputs[0]
    if op.name == "dot_general":
        return _mean_of_dot(known, op)
    if op.name == "mul" and op.inputs[0] != op.inputs[1]:
        a, b = op.inputs
        if known.sight.disjoint(known.sight.of(a), known.sight.of(b)).all():
            try:
                return run_linear(op, [known.mean(a), known.mean(b)])[0]
            except Unknown:
                pass
    first: Unknown | None = None
    try:
        found = known.direct_moments(out).mean
        known.rules.setdefault(out, "moments")
        return known.averaged(found, out)
    except SquareOnly as error:
        known.rules.setdefault(out, "moments")
        return known.averaged(error.mean, out)
    except (Unknown, CannotSum) as error:
        first = error if isinstance(error, Unknown) else None
    if op.name == "mul":
        try:
            a, b = op.inputs
            both = linear.covariance(known.pieces(a), known.pieces(b), known.element_variances)
            known.rules[out] = "coefficients"
            return known.mean(a) * known.mean(b) + both
        except Unknown:
            pass
    try:
        return known.averaged(known.of_table(out), out)
    except Unknown as error:
        raise error if first is None or error.line else first from None


def _mean_of_dot(known: Known, op: Op) -> Any:
    (contract, batch), (a, b) = op.eqn.params["dimension_numbers"], op.inputs
    means = run_linear(op, [known.mean(a), known.mean(b)])[0]
    seen = [_for_dot(known.sight.of(i), contract[k], batch[k]) for k, i in enumerate(op.inputs)]
    # positions on the result's axes and the contracted ones: (batch, free of a, free of b, contracted)
    nb, nc = len(batch[0]), len(contract[0])
    free = [x.ndim - 1 - nb - nc for x in seen]
    left = seen[0].reshape(*seen[0].shape[: 1 + nb + free[0]], *(1,) * free[1], *seen[0].shape[1 + nb + free[0] :])
    right = seen[1].reshape(*seen[1].shape[: 1 + nb], *(1,) * free[0], *seen[1].shape[1 + nb :])
    size = len(left) * np.prod(np.broadcast_shapes(left.shape, right.shape)[1:])
    if size <= 1 << 27 and known.sight.disjoint(left, right).all():
        known.rules.setdefault(op.outputs[0], "moments")
        return means
    if any(free):
        raise Unknown("a matrix product of two arrays that share latents")
    order = [[*batch[k], *contract[k]] for k in (0, 1)]
    pieces = []
    for i, axes in zip(op.inputs, order, strict=True):
        if axes != list(range(len(axes))):
            raise Unknown("a product of two arrays that share latents, with transposed axes")
        pieces.append(known.pieces(i))
    both = linear.covariance(pieces[0], pieces[1], known.element_variances)
    shape = known.program.shapes[a]
    summed = tuple(range(nb, nb + nc))
    known.rules[op.outputs[0]] = "quadratic form"
    return means + jnp.sum(jnp.broadcast_to(both, shape), axis=summed)


def _for_dot(seen: Seen, contract: Any, batch: Any) -> np.ndarray:
    assert seen is not None
    rank = seen.ndim - 1
    free = [a for a in range(rank) if a not in contract and a not in batch]
    return seen.transpose(0, *(1 + a for a in (*batch, *free, *contract)))


def product(known: Known, op: Op, sees: Seen) -> Moments:
    """Return the moments of a product or quotient."""
    out, shape = op.outputs[0], known.program.shapes[op.outputs[0]]
    if op.name == "dot_general":
        raise Unknown("the variance of a product of two arrays of latents")
    if op.name == "mul" and op.inputs[0] == op.inputs[1]:
        return square(known, known.moments(op.inputs[0]), shape, sees)
    a = known.moments(op.inputs[0])
    b = known.moments(op.inputs[1]) if op.name == "mul" else _reciprocal(known, op.inputs[1])
    if not independent(known.variables, a, b):
        raise Unknown(f"a {'product' if op.name == 'mul' else 'quotient'} of two dependent numbers")
    try:
        return _times(known, a, b, shape, sees)
    except CannotSum:
        a, b = marginal(known.variables, a), marginal(known.variables, b)
        if not independent(known.variables, a, b):
            raise
        known.rules.setdefault(out, "moments")
        return _times(known, a, b, shape, sees)


def _times(known: Known, a: Moments, b: Moments, shape: tuple[int, ...], sees: Seen) -> Moments:
    means = [Table(real(m.mean.values), m.mean.labels, m.mean.shape) for m in (a, b)]
    mean = combine(jnp.multiply, means, shape)
    variance = None
    if a.variance is not None and b.variance is not None:
        tables = [means[0], means[1], a.variance, b.variance]
        variance = combine(lambda m, n, v, w: v * w + v * n**2 + w * m**2, tables, shape)
    elif a.variance is not None:
        variance = combine(lambda v, n: v * n**2, [a.variance, means[1]], shape)
    elif b.variance is not None:
        variance = combine(lambda w, m: w * m**2, [b.variance, means[0]], shape)
    normal = a.normal and b.normal and (a.variance is None or b.variance is None)
    return moments(known.variables, mean, variance, normal, sees)


def _reciprocal(known: Known, i: int) -> Moments:
    """Return the moments of one over a number; a Normal one may be zero, and then there are none."""
    table = known.table(i)
    if any(map(known.variables.is_continuous, table.labels)) and known.signs.of(i) not in (Sign.FIXED, Sign.POSITIVE):
        raise Unknown("a quotient by a number that may be zero")
    inverse = Table(1 / real(table.values), table.labels, table.shape)
    return of_table(known.variables, inverse, known.sight.of(i))


def square(known: Known, found: Moments, shape: tuple[int, ...], sees: Seen) -> Moments:
    """Return the moments of a square; its variance only for Normal numbers."""
    mean = Table(real(found.mean.values), found.mean.labels, found.mean.shape)
    if found.variance is None:
        return moments(known.variables, combine(jnp.square, [mean], shape), None, found.normal, sees)
    total = combine(lambda m, v: m**2 + v, [mean, found.variance], shape)
    if not found.normal:
        raise SquareOnly(total)
    variance = combine(lambda m, v: 2 * v**2 + 4 * m**2 * v, [mean, found.variance], shape)
    return moments(known.variables, total, variance, False, sees)


class SquareOnly(Unknown):
    """The variance of a square that is not known, while its mean is.

    Attributes:
        mean: the mean, given the labels.
    """

    def __init__(self, mean: Table) -> None:
        super().__init__("the variance of a square of a sum of many elements")
        self.mean = mean


def choice(known: Known, op: Op, sees: Seen) -> Moments:
    """Return the moments of `where(condition, a, b)` given the elements that the condition depends on."""
    condition = known.table(op.inputs[0])
    if any(map(known.variables.is_continuous, condition.labels)):
        raise Unknown("a condition on a continuous latent: a jump, which no quadrature sees")
    cases = [known.moments(i) for i in op.inputs[1:]]
    chooses = known.sight.of(op.inputs[0])
    if not all(known.sight.disjoint(chooses, case.rest).all() for case in cases):
        raise Unknown("a choice between numbers that the condition depends on")
    means = [Table(real(m.mean.values), m.mean.labels, m.mean.shape) for m in cases]
    (mean,) = apply(op, [condition, *means], known.context)
    variance = None
    if any(case.variance is not None for case in cases):
        (variance,) = apply(op, [condition, *(case.spread for case in cases)], known.context)
    return moments(known.variables, _plain(mean), variance, all(m.normal for m in cases), sees)


def _plain(table: Table) -> Table:
    return Table(table.values, table.labels, table.shape)


def look_up(known: Known, op: Op, sees: Seen) -> Moments:
    """Return the moments of numbers that are looked up by an index, given the elements of the index."""
    index = known.table(op.inputs[1])
    if any(map(known.variables.is_continuous, index.labels)):
        raise Unknown("an index that depends on a continuous latent: a jump, which no quadrature sees")
    operand = marginal(known.variables, known.moments(op.inputs[0]))
    every = [
        seen_along(s, range(s.ndim - 1)) if s is not None else None
        for s in (known.sight.of(i) for i in op.inputs[:2])
    ]
    if not known.sight.disjoint(every[0], every[1]).all():
        raise Unknown("an index that depends on what is looked up")
    (mean,) = apply(op, [constant(_full(operand.mean)), index], known.context)
    variance = None
    if operand.variance is not None:
        (variance,) = apply(op, [constant(_full(operand.variance)), index], known.context)
    labelled = bool(known.moments(op.inputs[0]).labels)
    return moments(known.variables, mean, variance, operand.normal and not labelled, sees)


def _full(table: Table) -> Any:
    return jnp.broadcast_to(real(table.values), table.shape)
