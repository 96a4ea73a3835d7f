"""Categorical likelihoods: the change of log p when the logit of one class changes alone, and when all change.

Write a_c for the log of the sum of e^z over the classes other than c. Whether a datum is of class c is a Bernoulli
with the logit t = z_c − a_c. If z_c changes alone, t changes by as much, and the change of log p is that of the
Bernoulli: one exponential and one logarithm, for any number of classes.
"""

from __future__ import annotations

import math
from functools import partial, reduce

import jax
import jax.numpy as jnp

from legrad.distributions.densities import softplus
from legrad.singlesite.change import Change, Lazy, New, Piece
from legrad.singlesite.labelled import K, Labelled, Order, V, arrange
from legrad.singlesite.layout import Layout
from legrad.singlesite.rules.operand import Rule, Step

_UNROLLED = 32  # classes
_ORDER = Order()  # the classes are few, so the data lie side by side


def categorical(step: Step) -> list[Change | None]:
    """Compute log p(value | logits) of a constant value, with the classes on the last axis of the logits."""
    logits, value = step.operands
    assert logits.change is not None
    assert value.change is None
    layout = step.site.union(step.site.layouts(logits.change), logits.shape)
    alone = isinstance(layout.where[-1], int)
    return [_alone(step, layout) if alone else _together(step, layout)]


def _alone(step: Step, layout: Layout) -> Change:
    """Return the change of log p if each element changes the logits of one class."""
    (logits, value), site = step.operands, step.site
    assert logits.change is not None
    hit = value.base[..., None] == jnp.arange(logits.shape[-1])
    sign = jnp.where(hit, -1, 1).astype(logits.base.dtype)
    others = _of_others(logits.base)
    t = logits.base - others
    known = step.values_known()
    read = [_side_by_side(site.take(x, layout)) for x in (others if known else t, sign, softplus(sign * t))]
    if known:
        factors = [_side_by_side(site.as_new(logits.change, logits.base, layout))]
        found = _ORDER.combine(lambda a, s, here, z: here - softplus(s * (z - a)), *read, *factors)
    else:
        factors = _factors(step, layout)
        found = _ORDER.combine(lambda t, s, here, *d: here - softplus(s * (t + math.prod(d))), *read, *factors)
    over = [axis for axis in found.axes if axis[0] == "v" and axis[1] in step.summed]
    if over:  # only the sum matters, so that the mean can stand for each number
        total = _ORDER.contract([found], over)
        found = Labelled(total.data / math.prod(map(found.size_of, over)), total.axes)
    return Lazy((Piece(_rows(layout), (found,)),))


def _factors(step: Step, layout: Layout) -> list[Labelled]:
    """Return the change of the logits as factors."""
    site, logits = step.site, step.operands[0]
    assert isinstance(logits.change, Lazy)
    site.digits.flag_lost(logits.change, logits.base)
    pieces = logits.change.pieces
    if len(pieces) == 1 and pieces[0].layout.same_as(layout):
        return [_side_by_side(factor) for factor in pieces[0].factors]
    parts = [site.product(piece, layout, logits.shape) for piece in pieces]
    return [reduce(partial(site.order.combine, jnp.add), parts)]


def _side_by_side(array: Labelled) -> Labelled:
    """Lay an array out in the order in which it is read: otherwise a long loop takes several times as long."""
    axes = _ORDER.sort(array.axes)
    data = arrange(array, axes)
    return Labelled(jax.lax.optimization_barrier(data) if K not in axes else data, axes)


def _of_others(z: jax.Array) -> jax.Array:
    """Return for each class the log of the sum of e^z over all others."""
    nothing = jnp.full((*z.shape[:-1], 1), -jnp.inf, z.dtype)
    axis = z.ndim - 1
    before = jnp.concatenate([nothing, jax.lax.cumlogsumexp(z, axis)[..., :-1]], axis)
    after = jnp.concatenate([jax.lax.cumlogsumexp(z, axis, reverse=True)[..., 1:], nothing], axis)
    return jnp.logaddexp(before, after)


def _together(step: Step, layout: Layout) -> Change:
    """Return the change of log p if each element may change the logits of all classes."""
    (logits, value), site = step.operands, step.site
    assert logits.change is not None
    last, size = len(logits.shape) - 1, logits.shape[-1]
    layout = site.union([layout], logits.shape, [last])
    form = _one_by_one if size <= _UNROLLED else _at_once
    y, here = (site.take(x, _rows(layout)) for x in (value.base, form(value.base, logits.base)))
    z = site.as_new(logits.change, logits.base, layout)
    axes = step.site.order.sort({axis for x in (y, z) for axis in x.axes if axis != V(last)})
    new = form(arrange(y, axes), arrange(z, [*axes, V(last)]))
    if step.need.value:
        return New(_rows(layout), Labelled(new, axes))
    return Lazy((Piece(_rows(layout), (site.order.combine(jnp.subtract, Labelled(new, axes), here),)),))


def _one_by_one(y: jax.Array, z: jax.Array) -> jax.Array:
    """Compute log p of data with the classes one after the other, in one loop of XLA."""
    each = [z[..., c] for c in range(z.shape[-1])]
    most = reduce(jnp.maximum, each)
    total = reduce(jnp.add, [jnp.exp(x - most) for x in each])
    picked = reduce(lambda found, c: jnp.where(y == c, each[c], found), range(len(each)), jnp.zeros_like(most))
    return (picked - most) - jnp.log(total)


def _at_once(y: jax.Array, z: jax.Array) -> jax.Array:
    """Compute log p of data with many classes."""
    picked = jnp.sum(jnp.where(y[..., None] == jnp.arange(z.shape[-1]), z, 0.0), axis=-1)
    return picked - jax.nn.logsumexp(z, axis=-1)


def _rows(layout: Layout) -> Layout:
    """Return the layout without the axis of the classes."""
    kept = range(len(layout.where) - 1)
    return layout.rename([layout.where[a] for a in kept], {a: a for a in kept})


RULES: dict[str, Rule] = {"legrad_categorical_logits": categorical}
