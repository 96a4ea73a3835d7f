"""Bernoulli likelihoods: sums of logarithms as logarithms of products.

When the logits z of data y change by Δ, log p changes by

    y Δ − log( (1 + e^(z + Δ)) / (1 + e^z) )  =  y Δ − log( σ(−z) + σ(z) e^Δ )

The first part is linear. If only the sum over the data matters, the second is the logarithm of a product: one
logarithm for `_FACTORS` data. If Δ = ±w, as for latents with two values, e^w and e^−w are known beforehand, and each
datum takes a choice, a multiplication with addition, and a multiplication. A product of factors between 1 and e^Δ
stays in range if the |Δ| add up to less than `_room`. If they do not, or if the changes are of any size, so that each
would need its own exponential, log p itself is evaluated: with large weights the two parts would cancel.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from legrad.singlesite.change import Change, Lazy, Piece
from legrad.singlesite.labelled import Axis, Labelled, V, spread
from legrad.singlesite.rules.elementwise import nonlinear
from legrad.singlesite.rules.operand import Rule, Step
from legrad.singlesite.together import all_of
from legrad.trace.devices import parts
from legrad.trace.operations import run_equation

_FACTORS = 16


def _room(dtype: Any) -> float:
    """Return how large changes may be: e^Δ must not matter where σ(z) underflows to zero."""
    return 0.75 * math.log(float(jnp.finfo(dtype).max))


def bernoulli(step: Step) -> list[Change | None]:
    """Compute log p(value | logits), elementwise."""
    logits, value = step.operands
    change = logits.change
    if value.change is not None or not isinstance(change, Lazy) or len(change.pieces) != 1 or step.need.value:
        return nonlinear(step)
    if change.direct is not None and not change.values_known:
        return nonlinear(step)
    (piece,) = change.pieces
    if not change.values_known:
        step.site.digits.flag_lost(change, logits.base)
    if piece.layout.entries is not None:
        return [_at_entries(step, piece)]
    over = [V(a) for a in piece.layout.free() if a in step.summed and piece.has(V(a))]
    sizes = {axis: step.shape[axis[1]] for axis in over}
    if max(sizes.values(), default=0) < 2 * _FACTORS:
        return nonlinear(step)
    total = _Total(step, piece, max(over, key=sizes.__getitem__), over)
    step.scratch.append(total.logarithms_alike())
    # Only the sum matters, so that the mean can stand for each number.
    mean = Labelled(total.sum() / math.prod(sizes.values()), total.kept)
    return [Lazy((Piece(piece.layout, (mean,)),))]


def _at_entries(step: Step, piece: Piece) -> Change:
    """Return the difference at a list of places, computed from the logits there.

    If log p at the pivot were looked up instead, XLA would move its computation into the gather, and run it once for
    each place, without SIMD.
    """
    site, (logits, value) = step.site, step.operands
    assert logits.change is not None
    z, y = (site.take(x.base, piece.layout) for x in (logits, value))
    new = site.as_new(logits.change, logits.base, piece.layout)

    def difference(z: Any, y: Any, new: Any) -> Any:
        return run_equation(step.eqn, (new, y))[0] - run_equation(step.eqn, (z, y))[0]

    found = site.order.combine(difference, z, y, new)
    return Lazy((Piece(piece.layout, (found,)),))


class _Total:
    """The change of log p, summed over the data, for each element and candidate.

    Args:
        step: log p of the data y at the logits z.
        piece: Δ = δ w, with δ for each element and candidate, and w for each datum.
        along: the axis along which factors are multiplied.
        over: all axes of the sum.
    """

    def __init__(self, step: Step, piece: Piece, along: Axis, over: list[Axis]) -> None:
        self.step, self.order, self.along, self.over = step, step.site.order, along, over
        self.layout = piece.layout
        logits, value = (x.base for x in step.operands)
        self.z, self.y, self.here = (step.site.take(x, piece.layout) for x in (logits, value, step.results[0]))
        order = self.order
        small = [factor for factor in piece.factors if not factor.has("v")]
        self.delta = order.multiply([Labelled(jnp.ones((), logits.dtype), ()), *small])
        self.w = order.multiply([factor for factor in piece.factors if factor.has("v")])
        self.axes = order.sort({*self.z.axes, *self.y.axes, *self.delta.axes, *self.w.axes})
        self.sizes = {axis: max(a.size_of(axis) for a in (self.z, self.y, self.delta, self.w)) for axis in self.axes}
        self.kept = tuple(axis for axis in self.axes if axis not in over)
        self.parts = parts(self.w.size_of(along))  # each device multiplies the data that it holds
        self.rows = self.parts * -(-self.w.size_of(along) // (_FACTORS * self.parts))

    def sum(self) -> jax.Array:
        """Return the sum by products if all changes are ±w or zero and the products stay in range, else plainly."""
        parts = self._split(jnp.abs(self.w.data), self.w.axes, 0.0)
        most = jnp.max(sum(part.data for part in parts))
        size = jnp.abs(self.delta.data)
        unit = jnp.max(size)
        fast = (most * unit <= _room(self.w.data.dtype)) & jnp.all((size == unit) | (size == 0.0))
        return jax.lax.cond(all_of(fast), lambda: self._products(unit), self._plain)

    def logarithms_alike(self) -> Labelled:
        """Return an array as large as the logarithms that are held at one time."""
        return Labelled(jnp.zeros([self.rows if a == self.along else n for a, n in self.sizes.items()]), self.axes)

    def _products(self, unit: jax.Array) -> jax.Array:
        """Return the sum with one logarithm for each product of `_FACTORS` data; δ is ±unit or zero."""
        p = self._split(jax.nn.sigmoid(self.z.data), self.z.axes, 0.0)
        q = self._split(jax.nn.sigmoid(-self.z.data), self.z.axes, 1.0)
        up, down = (self._split(jnp.exp(s * self.w.data), self.w.axes, 1.0) for s in (unit, -unit))
        order, delta = self.order, self.delta
        factors = [
            order.combine(lambda q, p, d, u, v: q + p * jnp.where(d > 0, u, v), *given)
            for given in zip(q, p, [delta] * _FACTORS, up, down, strict=True)
        ]
        product = order.multiply(factors)
        logarithms = Labelled(jnp.log(product.data), product.axes)
        # Sum by a product with ones: XLA's CPU code for a sum of function values is many times slower.
        ones = Labelled(jnp.ones(self.rows, product.data.dtype), (self.along,))
        total = order.contract([logarithms, ones], self.over)
        linear = order.contract([self.w, self.y], self.over)
        change = order.combine(  # a candidate may be the pivot
            lambda d, linear, total: jnp.where(d == 0.0, 0.0, d * linear - total), delta, linear, total
        )
        return self._spread(change)

    def _plain(self) -> jax.Array:
        """Return the sum of log p minus log p at the pivot: with large weights the two parts would cancel."""
        site, logits = self.step.site, self.step.operands[0]
        with site.apart():
            new = site.as_new(logits.change, logits.base, self.layout)  # type: ignore[arg-type]

        def difference(new: Any, y: Any, here: Any) -> Any:
            return run_equation(self.step.eqn, (new, y))[0] - here

        change = self.order.combine(difference, new, self.y, self.here)
        return self._spread(self.order.contract([change], self.over))

    def _spread(self, array: Labelled) -> jax.Array:
        """Return an array with all axes that are kept, at full size."""
        return spread(array, self.kept, self.sizes)

    def _split(self, data: jax.Array, axes: tuple[Axis, ...], neutral: float) -> list[Labelled]:
        """Split an array into parts along the axis of the products, the last filled up with a neutral number."""
        if self.along not in axes:
            return [Labelled(data, axes)] * _FACTORS
        at = axes.index(self.along)
        before, after = data.shape[:at], data.shape[at + 1 :]
        if self.parts > 1:
            data, at = data.reshape(*before, self.parts, -1, *after), at + 1
        widths = [(0, 0)] * data.ndim
        widths[at] = (0, self.rows * _FACTORS // self.parts - data.shape[at])
        data = jnp.pad(data, widths, constant_values=neutral)
        split = jnp.split(data, _FACTORS, axis=at)
        return [Labelled(part.reshape(*before, self.rows, *after), axes) for part in split]


RULES: dict[str, Rule] = {
    "legrad_bernoulli_logits": bernoulli,
    "legrad_hard_bernoulli_logits": bernoulli,
}
