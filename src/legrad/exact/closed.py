"""Functions with closed forms: squares, exponentials, and the log-likelihoods of Bernoulli and Poisson data.

For a Normal u with mean m and variance v (given discrete elements):

    E[u²] = m² + v            E[exp(u)] = exp(m + v/2)            E[log(1 + exp(u))]: `softplus.py`

Kinks and waves (abs, max, sin) are in `bent.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax.scipy.special import gammaln

from legrad.exact import bent
from legrad.exact.moments import Moments, combine, moments
from legrad.exact.products import SquareOnly, square
from legrad.exact.run import real
from legrad.exact.sight import Seen
from legrad.exact.smooth import whole_power
from legrad.exact.softplus import expected_softplus
from legrad.exact.unknown import Unknown
from legrad.marginal.table import CannotSum, Table, constant
from legrad.trace.program import Op

if TYPE_CHECKING:
    from legrad.exact.known import Known


def mean(known: Known, op: Op) -> Table | None:
    """Return the mean of a function with a closed form, given labels; None for a function without."""
    shape = known.program.shapes[op.outputs[0]]
    if _is_square(known, op):
        try:
            return known.direct_moments(op.outputs[0]).mean
        except SquareOnly as error:
            return error.mean
    if op.name == "exp" or bent.is_bent(op):
        return known.direct_moments(op.outputs[0]).mean
    if op.name in _LIKELIHOODS:
        return _likelihood(known, op, shape)
    return None


def moments_of(known: Known, op: Op, sees: Seen) -> Moments | None:
    """Return the moments of a function with a closed form; None for a function without."""
    shape = known.program.shapes[op.outputs[0]]
    if _is_square(known, op):
        return square(known, known.moments(op.inputs[0]), shape, sees)
    if op.name == "exp":
        found = known.moments(op.inputs[0])
        if not found.normal:
            return None
        if found.variance is None:
            return moments(known.variables, combine(jnp.exp, [found.mean], shape), None, True, sees)
        mean = combine(lambda m, v: jnp.exp(m + 0.5 * v), [found.mean, found.variance], shape)
        variance = combine(lambda m, v: jnp.expm1(v) * jnp.exp(2 * m + v), [found.mean, found.variance], shape)
        return moments(known.variables, mean, variance, False, sees)
    return _bent(known, op, sees) if bent.is_bent(op) else None


def _bent(known: Known, op: Op, sees: Seen) -> Moments | None:
    shape = known.program.shapes[op.outputs[0]]
    random = [k for k, i in enumerate(op.inputs) if not known.is_constant(i)]
    if len(random) != 1:
        return None
    found = known.moments(op.inputs[random[0]])
    if not found.normal or found.variance is None:
        return None
    c = constant(real(known.constant(op.inputs[1 - random[0]])) if len(op.inputs) == 2 else jnp.zeros(()))
    operands = [found.mean, found.variance, c]
    mean, variance = (
        combine(lambda m, v, c, k=k: bent.mean_and_variance(op, m, v, c)[k], operands, shape) for k in (0, 1)
    )
    known.rules[op.outputs[0]] = "projection, closed form"
    return moments(known.variables, mean, variance, False, sees)


def _is_square(known: Known, op: Op) -> bool:
    return op.name == "square" or whole_power(known.program, op) == 2


def _likelihood(known: Known, op: Op, shape: tuple[int, ...]) -> Table | None:
    """Return the mean of a likelihood whose logit, or log-rate, is Normal; None if another rule must be tried."""
    parameter, data = op.inputs
    try:
        u = known.moments(parameter)
    except (Unknown, CannotSum):
        return None
    if not u.normal or u.variance is None or not known.is_constant(data):
        return None
    value = Table(known.constant(data), (), known.program.shapes[data])
    known.rules[op.outputs[0]] = "projection, closed form"
    return combine(_LIKELIHOODS[op.name], [u.mean, u.variance, value], shape)


def _hard_bernoulli(m: Any, v: Any, y: Any) -> Any:
    sign = 1 - 2 * y
    return -expected_softplus(*jnp.broadcast_arrays(sign * m, sign**2 * v))


def _bernoulli(m: Any, v: Any, y: Any) -> Any:
    return y * m - expected_softplus(*jnp.broadcast_arrays(m, v))


def _poisson(m: Any, v: Any, y: Any) -> Any:
    return jnp.where(y == 0, 0.0, y * m) - gammaln(y + 1) - jnp.exp(m + 0.5 * v)


_LIKELIHOODS = {
    "legrad_hard_bernoulli_logits": _hard_bernoulli,
    "legrad_bernoulli_logits": _bernoulli,
    "legrad_poisson_log": _poisson,
}
