"""The mean and variance of a number, given the discrete elements that its labels name.

A number is `Moments` with an axis of candidates for each label: given these elements, it has the mean and variance
stored there, over all other elements that it sees (the rest). If it is marked normal, it is given them an affine
function of Normal elements. A variance of None is zero: the labels determine the number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from legrad.exact.sight import Seen
from legrad.exact.variables import Variables
from legrad.marginal.table import Label, Table, align, constant, raised

TOGETHER = 256  # joint candidates of the labels of one mean; what has more is averaged over its labels first


@dataclass(frozen=True)
class Moments:
    """What is known of an array of numbers.

    Attributes:
        mean: the means.
        variance: the variances, None if they are zero.
        normal: whether the numbers are Normal given the labels.
        sees: the elements that each number sees.
        rest: those of them that no label names.
    """

    mean: Table
    variance: Table | None
    normal: bool
    sees: Seen
    rest: Seen

    @property
    def labels(self) -> tuple[Label, ...]:
        """All labels."""
        return self.mean.labels + (self.variance.labels if self.variance is not None else ())

    @property
    def spread(self) -> Table:
        """The variances, as a table also where they are zero."""
        return self.variance if self.variance is not None else zeros(self.mean)


def zeros(like: Table) -> Table:
    """Return a table of zeros without labels, stored once."""
    return Table(jnp.zeros((1,) * len(like.shape), jnp.result_type(like.values, float)), (), like.shape)


def moments(
    variables: Variables, mean: Table, variance: Table | None, normal: bool, sees: Seen, rest: Seen | None = None
) -> Moments:
    """Return moments, with the rest that their labels leave."""
    left = sees if rest is None else rest
    for table in (mean, *(() if variance is None else (variance,))):
        for label in table.labels:
            left = variables.sight.without(left, variables.hidden(label))
    return Moments(mean, variance, normal, sees, left)


def combine(f: Callable[..., Any], tables: Sequence[Table], shape: tuple[int, ...], limit: int = TOGETHER) -> Table:
    """Apply an elementwise function at every joint candidate of the labels."""
    values, labels = align([raised(t, len(shape)) for t in tables], limit, position_wise=True)
    return Table(f(*values), labels, shape)


def marginal(variables: Variables, found: Moments) -> Moments:
    """Average over the labels: the variance of the means adds to the mean of the variances."""
    if not found.labels:
        return found
    mean = variables.expectation(found.mean)
    apart = combine(lambda m, c: (m - c) ** 2, [found.mean, mean], mean.shape)
    variance = variables.expectation(apart)
    if found.variance is not None:
        inner = variables.expectation(found.variance)
        variance = combine(jnp.add, [variance, inner], mean.shape)
    return Moments(mean, variance, False, found.sees, found.sees)


def of_table(variables: Variables, table: Table, sees: Seen) -> Moments:
    """Return the moments of a table: labels of discrete elements stay, nodes are summed over."""
    drop = [label for label in table.labels if variables.is_continuous(label)]
    if not drop and len(table.labels) <= 2:
        return moments(variables, table, None, True, sees)
    mean = variables.expectation(table, drop)
    shifted = combine(lambda x, m: (x - m) ** 2, [table, mean], table.shape, limit=1 << 20)
    # the labels of the mean are found among those of the table again, in the same order
    drop = [label for label in shifted.labels if variables.is_continuous(label)]
    variance = variables.expectation(shifted, drop)
    found = moments(variables, mean, variance, False, sees)
    return found if len(found.mean.labels) <= 2 else marginal(variables, found)


def independent(variables: Variables, a: Moments, b: Moments) -> bool:
    """Say whether two arrays are known to be independent, position by position, given the labels of both."""
    disjoint = variables.sight.disjoint
    return bool(disjoint(a.rest, b.sees).all() and disjoint(a.sees, b.rest).all())


def known(value: Any) -> Moments:
    """Return a constant."""
    return Moments(constant(value), None, True, None, None)
