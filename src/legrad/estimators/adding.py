"""Sums of numbers by a plan made while tracing: whole axes are reduced, and only the remaining numbers looked up."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from scipy import sparse

from legrad.estimators.signals import Groups, distinct_rows


def add_up(terms: Mapping[str, jax.Array], groups: Groups, elements: slice, shape: tuple[int, ...]) -> jax.Array:
    """Return for each element the sum of all groups that the element is a member of.

    Args:
        terms: the numbers to add up.
        groups: the groups of these numbers.
        elements: the elements wanted, by their position in the order of the groups.
        shape: the shape of the result.
    """
    member_of = sparse.csr_array(groups.members[:, elements].T)  # (elements, groups)
    alike = distinct_rows(member_of)[1].reshape(shape)
    kept = _kept(alike)
    member_of = member_of[np.arange(alike.size).reshape(shape)[kept].ravel()]
    total = jnp.zeros(member_of.shape[0])
    for label, values in _reduced(terms, groups.labels):  # one by one: a look-up in joined arrays is slow
        inside = np.flatnonzero(label >= 0)
        where = (np.ones(len(inside), bool), (label[inside], inside))
        holds = sparse.csr_array(where, (member_of.shape[1], len(label)))  # (groups, numbers)
        if np.diff(holds.indptr).max(initial=0) > 1:
            total = total + _sums(_sums(values, holds), member_of)
        else:
            total = total + _sums(values, sparse.csr_array(member_of @ holds))
    return jnp.broadcast_to(total.reshape(alike[kept].shape), shape)


def _reduced(terms: Mapping[str, jax.Array], labels: Mapping[str, np.ndarray]) -> list[tuple[np.ndarray, jax.Array]]:
    """Return pairs of groups and numbers, summed where a group fills an axis and where terms have the same layout."""
    found: dict[bytes, tuple[np.ndarray, jax.Array]] = {}
    for name, label in labels.items():
        if (label >= 0).any():
            kept = _kept(label)
            axes = tuple(a for a, cut in enumerate(kept) if cut != slice(None))
            label, values = label[kept].ravel(), jnp.sum(terms[name], axis=axes).ravel()
            key = label.tobytes()
            found[key] = (label, found[key][1] + values if key in found else values)
    return list(found.values())


def _kept(label: np.ndarray) -> tuple[slice, ...]:
    """Return a slice that keeps one position of each axis along which the label is constant."""
    constant = [label.size > 0 and bool((label == label.take([0], axis)).all()) for axis in range(label.ndim)]
    return tuple(slice(1) if c else slice(None) for c in constant)


def _sums(values: jax.Array, flags: sparse.csr_array) -> jax.Array:
    """Return flags @ values, for flags of shape (sums, numbers)."""
    flags.sort_indices()
    sums, counts, places = flags.shape[0], np.diff(flags.indptr), flags.indices
    if (counts == 1).all() and np.array_equal(places, np.arange(len(values))):
        return values
    if sums == 1 and len(places) == len(values):
        return jnp.sum(values, keepdims=True)
    if (counts == counts[:1]).all():
        return jnp.sum(values[places.reshape(sums, counts.max(initial=0))], axis=1)
    rows = np.repeat(np.arange(sums), counts)
    return jax.ops.segment_sum(values[places], rows, sums, indices_are_sorted=True)
