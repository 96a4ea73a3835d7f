"""Normal numbers at nodes, which are dense where the function that they go into changes most: at its argument's zero.

The argument may be an affine function of the number, as in `log_ndtr((y - X @ w) / 0.3)`. It is the argument that is
aimed at, and the number itself that gets the nodes, so that further functions of it share them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp

from legrad.exact.families import Family, family
from legrad.exact.moments import combine
from legrad.exact.run import real
from legrad.exact.unknown import Unknown
from legrad.marginal.table import CannotSum, Label, Table

if TYPE_CHECKING:
    from legrad.exact.known import Known

_LARGE = 1 << 13


class Aim(NamedTuple):
    """The argument that a number goes into, and the sign of its slope."""

    argument: int
    sign: Any


def aim(known: Known, i: int) -> None:
    """Note for a value that is affine in one number, position by position, that it is what the nodes aim at."""
    shape, sign, j = known.program.shapes[i], jnp.asarray(1.0), i
    while j not in known.site:
        op = known.maker(j)
        random = [k for k, x in enumerate(op.inputs) if not known.is_constant(x)]
        if len(random) != 1 or known.program.shapes[op.inputs[random[0]]] != shape:
            break
        (k,) = random
        kind = family(known.program, op, known.is_constant)
        if kind is Family.SCALE:
            sign = -sign if op.name == "neg" else sign * jnp.sign(real(known.constant(op.inputs[1 - k])))
        elif kind is Family.ADD:
            sign = -sign if op.name == "sub" and k == 1 else sign
        elif op.name not in ("convert_element_type", "copy") or kind is not Family.MOVE:
            break
        j = op.inputs[k]
    if j != i:
        known.aims.setdefault(j, Aim(i, sign))


def at_nodes(known: Known, i: int, mean: Table, variance: Table, label: Label) -> Table:
    """Return a Normal number m + s·ξ at the nodes of ξ, a variable with a label.

    Args:
        known: what is known of the program.
        i: the number.
        mean: its means.
        variance: its variances.
        label: the label of ξ.
    """
    shape = mean.shape
    sd = Table(_root(variance.values), variance.labels, shape)
    nodes = known.variables.z.reshape(-1, *(1,) * len(shape))
    if not mean.labels and not variance.labels:
        m, s, sign = mean.values, sd.values, jnp.asarray(1.0)
        if i in known.aims:
            argument, sign = known.aims[i]
            try:
                found = known.direct_moments(argument)
                if found.normal and found.variance is not None and not found.labels:
                    m, s = found.mean.values, _root(found.variance.values)
            except (Unknown, CannotSum):
                sign = jnp.asarray(1.0)
        slope, m = (jnp.broadcast_to(x, label.elements.shape) for x in (s * sign, m))
        flat = slope == 0
        slope = jnp.where(flat, 1.0, slope)
        nodes = known.variables.place(label, jnp.where(flat, 1e6, -m / slope), 1 / jnp.abs(slope))
    unit = Table(nodes, (label,), shape)
    return combine(lambda m, s, z: m + s * z, [mean, sd, unit], shape, _LARGE)


def _root(variance: Any) -> Any:
    safe = jnp.where(variance > 0, variance, 1)
    return jnp.where(variance > 0, jnp.sqrt(safe), 0)
