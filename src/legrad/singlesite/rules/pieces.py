"""Multiply the pieces of changes, and sum products of factors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from legrad.singlesite.change import Piece
from legrad.singlesite.labelled import Axis, E, Labelled, V
from legrad.singlesite.layout import Layout
from legrad.singlesite.site import Site


def restrict(site: Site, array: Labelled, axis: Axis, j: int) -> Labelled:
    """Read an array at the element's own index along one axis of the value."""
    if axis not in array.axes:
        return array
    at = array.axes.index(axis)
    data = array.data
    if E(j) in site.starts:
        data = jax.lax.dynamic_slice_in_dim(data, site.starts[E(j)], site.sizes[E(j)], axis=at)
    if E(j) not in array.axes:
        return Labelled(data, tuple(E(j) if a == axis else a for a in array.axes))
    other = array.axes.index(E(j))
    rest = tuple(a for a in array.axes if a not in (axis, E(j)))
    return Labelled(jnp.diagonal(data, axis1=at, axis2=other), (*rest, E(j)))


def meet(
    site: Site, p: Piece, q: Piece, pairs: Sequence[tuple[int, int]]
) -> tuple[tuple[Labelled, ...], tuple[Labelled, ...], dict[int, Any]] | None:
    """Restrict two pieces, along each pair of axes that meet, to the places that both touch.

    Returns the factors of both pieces, and what is touched along each pair, by the first piece's axis. Returns None
    if a piece has entries, or if the pieces are at different indices of the element.
    """
    if p.layout.entries is not None or q.layout.entries is not None:
        return None
    first, second, where = list(p.factors), list(q.factors), {}
    for a, b in pairs:
        w, u = p.layout.where[a], q.layout.where[b]
        if w is not None and u is not None and w != u:
            return None
        if w is None and isinstance(u, int):
            first = [restrict(site, f, V(a), u) for f in first]
        if u is None and isinstance(w, int):
            second = [restrict(site, f, V(b), w) for f in second]
        where[a] = u if w is None else w
    return tuple(first), tuple(second), where


def multiply_pieces(site: Site, p: Piece, q: Piece, shape: tuple[int, ...]) -> Piece | None:
    """Multiply two pieces elementwise; return None if the product has no simple form."""
    if p.layout.entries is not None and p.layout.same_as(q.layout):
        return Piece(p.layout, (*p.factors, *q.factors))
    axes = [(a, a) for a in range(len(shape))]
    met = meet(site, p, q, axes)
    if met is None:
        return None
    first, second, where = met
    return Piece(Layout(tuple(where[a] for a in range(len(shape)))), (*first, *second))


def sum_product(site: Site, factors: Sequence[Labelled], free: dict[Axis, int]) -> list[Labelled]:
    """Sum a product over axes of given sizes: contract the factors that have them, and scale for the other axes."""
    over = [axis for axis in free if any(axis in f.axes for f in factors)]
    summed = [f for f in factors if any(axis in f.axes for axis in over)]
    done = [f for f in factors if not any(axis in f.axes for axis in over)]
    if over:
        done.append(site.order.contract(summed, over))
    times = math.prod(size for axis, size in free.items() if axis not in over)
    if times != 1:
        done.append(Labelled(jnp.asarray(times, done[0].data.dtype), ()))
    return done
