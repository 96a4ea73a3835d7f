"""The factors of a sum over discrete elements: tables in the order of their scopes.

    log Σ_z exp(Σ_r φ_r(z at the scope of r))

A factor of one element is added to the potentials of its site, an array (candidates, elements). Factors of several
elements are collected in groups, an array (candidates..., rows), with the sites of their axes and the scope of each
row. A group whose rows are all alike is stored with one row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from legrad.marginal.chosen import Chosen, total
from legrad.marginal.evaluate import Support
from legrad.marginal.table import Label, Table


@dataclass(frozen=True)
class Group:
    """Factors of several elements.

    Attributes:
        sites: the site of each axis of candidates.
        scope: the elements of each row, numbered within their sites: (rows, axes).
        values: the tables: (candidates..., rows), or one row for all.
        origin: the table that the group is a part of, and the table's axes in the group's order; None if unknown.
    """

    sites: tuple[str, ...]
    scope: np.ndarray
    values: Any
    origin: tuple[int, ...] | None = None

    def rows(self, chosen: np.ndarray) -> Any:
        """Return the tables of some rows, or the one table that holds for all."""
        return self.values if self.values.shape[-1] == 1 else self.values[..., chosen]


@dataclass
class Factors:
    """All factors: a constant, potentials by site, and groups."""

    constant: Any
    potentials: dict[str, Any]
    groups: list[Group]

    def copy(self) -> Factors:
        """Return factors that can be consumed without these."""
        return Factors(self.constant, dict(self.potentials), list(self.groups))


def collect(parts: Sequence[Table], supports: Mapping[str, Support], given: Mapping[str, Any], dtype: Any) -> Factors:
    """Sort tables into factors.

    Args:
        parts: the tables.
        supports: the candidates of all sites.
        given: potentials that some sites begin with.
        dtype: the type of the factors.
    """
    names = sorted(supports, key=lambda name: supports[name].start)
    found = Factors(
        jnp.zeros((), dtype),
        {
            name: jnp.asarray(given[name], dtype)
            if name in given
            else jnp.zeros((supports[name].size, supports[name].count), dtype)
            for name in names
        },
        [],
    )
    for number, table in enumerate(parts):
        _add(found, table, supports, names, number)
    found.groups = joined(found.groups)
    return found


def _add(found: Factors, table: Table, supports: Mapping[str, Support], names: list[str], number: int) -> None:
    lead, rank = len(table.labels), len(table.shape)
    # Along axes where no element changes, factors of the same elements are added up.
    alone = [a for a in range(rank) if not any(label.varies(a) for label in table.labels)]
    if isinstance(table, Chosen) and len(alone) == rank and (summed := total(table)) is not None:
        labels = tuple(Label(label.size, label.elements.reshape(())) for label in table.labels)
        table, alone, rank = Table(summed, labels, ()), [], 0
    values = table.values
    if alone:  # numbers that are known are added up now
        values = (np if isinstance(values, np.ndarray) else jnp).sum(values, axis=tuple(lead + a for a in alone))
    times = int(np.prod([table.shape[a] for a in alone if table.own[a] == 1], initial=1))
    values = values * times if times != 1 else values
    if not lead:
        found.constant += jnp.sum(values)
        return
    rest = [a for a in range(rank) if a not in alone]
    shape = tuple(table.shape[a] for a in rest)
    scope = np.stack(
        [
            np.broadcast_to(label.elements.reshape([label.elements.shape[a] for a in rest]), shape).ravel()
            for label in table.labels
        ],
        axis=1,
    )
    sizes = values.shape[:lead]
    same = all(n == 1 for n in values.shape[lead:])
    values = values.reshape(*sizes, 1) if same else jnp.broadcast_to(values, (*sizes, *shape)).reshape(*sizes, -1)
    _add_rows(found, scope, values, supports, names, number)


def _add_rows(
    found: Factors, scope: np.ndarray, values: Any, supports: Mapping[str, Support], names: list[str], number: int
) -> None:
    """Add rows by the sites of their scopes; an axis without an element, or with one twice, is removed first."""
    starts = np.array([supports[name].start for name in names])
    which = np.where(scope >= 0, np.searchsorted(starts, scope, side="right") - 1, -1)
    patterns = np.concatenate([which, _first_equal(scope)], axis=1)
    if np.all(patterns == patterns[:1]):  # a million rows take seconds to sort
        kinds, kind_of = patterns[:1], np.zeros(len(patterns), int)
    else:
        kinds, kind_of = np.unique(patterns, axis=0, return_inverse=True)
    axes = scope.shape[1]
    for k, kind in enumerate(kinds):
        chosen = np.flatnonzero(np.ravel(kind_of) == k)
        part = values if values.shape[-1] == 1 or len(chosen) == len(scope) else values[..., chosen]
        mine = scope[chosen]
        part, mine, sites = _simplified(part, mine, kind[:axes], kind[axes:])
        local = mine - starts[list(sites)]
        if len(sites) == 1:
            name = names[sites[0]]
            found.potentials[name] = accumulated(found.potentials[name], part, local[:, 0])
        elif not sites:
            found.constant += jnp.sum(part) * (len(chosen) if part.shape[-1] == 1 else 1)
        else:
            origin = (number, *range(axes)) if len(sites) == axes else None
            found.groups.append(ordered(Group(tuple(names[s] for s in sites), local, part, origin)))


def _first_equal(scope: np.ndarray) -> np.ndarray:
    """Return for each axis of a scope the first axis with the same element."""
    same = (scope[:, :, None] == scope[:, None, :]) & (scope[:, :, None] >= 0)
    same |= np.eye(scope.shape[1], dtype=bool)
    first: np.ndarray = np.argmax(same, axis=2)
    return first


def _simplified(values: Any, scope: np.ndarray, sites: np.ndarray, first: np.ndarray) -> tuple[Any, Any, list[int]]:
    """Remove axes that have no element, and take the diagonal of axes that have the same one."""
    keep: list[int] = []
    for axis in range(scope.shape[1]):
        place = len(keep)
        if sites[axis] < 0:
            values = jnp.take(values, 0, axis=place)
        elif first[axis] != axis:
            other = keep.index(int(first[axis]))
            values = jnp.moveaxis(jnp.diagonal(values, axis1=other, axis2=place), -1, other)
        else:
            keep.append(axis)
    return values, scope[:, keep], [int(sites[a]) for a in keep]


def accumulated(potentials: Any, values: Any, elements: np.ndarray) -> Any:
    """Add tables of single elements to the potentials of their site."""
    count = potentials.shape[1]
    if len(elements) == count and np.array_equal(elements, np.arange(count)):
        return potentials + values
    if len(elements) % count == 0 and values.shape[-1] > 1:
        runs = np.repeat(np.arange(count), len(elements) // count)
        if np.array_equal(elements, runs):
            return potentials + values.reshape(len(values), count, -1).sum(axis=-1)
    if values.shape[-1] == 1:
        return potentials + repeated(values, np.bincount(elements, minlength=count))
    return potentials.at[:, elements].add(values)


def repeated(values: Any, counts: np.ndarray) -> Any:
    """Return tables taken a number of times each, with 0 · (−∞) = 0."""
    return jnp.where(counts > 0, values * np.maximum(counts, 1), 0.0)


def ordered(group: Group) -> Group:
    """Order the axes of a group by site, so that equal scopes can be found."""
    order = sorted(range(len(group.sites)), key=lambda i: group.sites[i])
    if order == list(range(len(order))):
        return group
    values = group.values.transpose(*order, len(order))
    origin = group.origin and (group.origin[0], *(group.origin[1 + i] for i in order))
    return Group(tuple(group.sites[i] for i in order), group.scope[:, order], values, origin)


def joined(groups: list[Group]) -> list[Group]:
    """Add up groups that have the same scopes."""
    joined: list[Group] = []
    for group in groups:
        for i, other in enumerate(joined):
            if other.sites == group.sites and np.array_equal(other.scope, group.scope):
                joined[i] = Group(group.sites, group.scope, other.values + group.values)
                break
        else:
            joined.append(group)
    return joined
