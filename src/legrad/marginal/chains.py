"""Find the chains of a factor graph, and sum them (`recursion.py`).

The elements of a component are put into levels, by their distance from one end; a factor then sees one level, or two
that follow each other. A plain chain has one element a level; coupled chains, and links over two steps, have a few.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import breadth_first_order, connected_components

from legrad.marginal.recursion import backward, best_path, log_partition
from legrad.marginal.table import CannotSum

if TYPE_CHECKING:
    from legrad.marginal.eliminate import Elimination, Indices

_STATES = 256  # joint states of one level
_SHORTEST = 3  # levels


class _Levels(NamedTuple):
    """Components of one form: elements (components, levels, slots), -1 where there is none; sizes of the slots."""

    elements: np.ndarray
    sizes: tuple[int, ...]


def sum_chains(graph: Elimination) -> bool:
    """Sum all components that are chains; return whether there were any."""
    found = _find(graph)
    for levels in found:
        _sum(graph, levels)
    return bool(found)


def _links(graph: Elimination) -> np.ndarray:
    pairs = []
    for group in graph.groups:
        whole = group.scope + np.array([graph.supports[name].start for name in group.sites])
        for a in range(whole.shape[1]):
            for b in range(a + 1, whole.shape[1]):
                pairs.append(whole[:, [a, b]])
    return np.unique(np.sort(np.concatenate(pairs), axis=1), axis=0)


def _distances(links: np.ndarray, nodes: int, starts: np.ndarray) -> np.ndarray:
    """Return the distance of each node from the start of its component."""
    source = np.full(len(starts), nodes)
    a = np.concatenate([links[:, 0], source])
    b = np.concatenate([links[:, 1], starts])
    matrix = coo_matrix((np.ones(len(a), np.int8), (a, b)), shape=(nodes + 1, nodes + 1)).tocsr()
    _, before = breadth_first_order(matrix, nodes, directed=False)
    parent = np.where(before < 0, nodes, before)
    distance = (np.arange(nodes + 1) != nodes).astype(int)
    while True:  # each round doubles the number of links that are counted
        further = distance + distance[parent]
        parent = parent[parent]
        if np.array_equal(further, distance):
            return distance[:nodes] - 1
        distance = further


def _in_order(
    graph: Elimination, present: np.ndarray, component: np.ndarray, level: np.ndarray, length: np.ndarray
) -> np.ndarray:
    """Turn components round whose levels run against the order of their elements, so that arrays stay as they are."""
    real = max(s.start + s.count for name, s in graph.supports.items() if name in graph.scales)
    place = np.where(present < real, present, -1.0)  # a given first state comes before all others
    centre = np.bincount(component, level, len(length)) / np.bincount(component, minlength=len(length))
    trend = np.bincount(component, (level - centre[component]) * place, len(length))
    return np.where(trend[component] < 0, length[component] - 1 - level, level)


def _find(graph: Elimination) -> list[_Levels]:
    links = _links(graph)
    present, links = np.unique(links, return_inverse=True)
    links = links.reshape(-1, 2)
    nodes = len(present)
    matrix = coo_matrix((np.ones(len(links), np.int8), (links[:, 0], links[:, 1])), shape=(nodes, nodes))
    count, component = connected_components(matrix, directed=False)
    start = np.full(count, nodes)
    np.minimum.at(start, component, np.arange(nodes))
    level = _distances(links, nodes, start)
    furthest = np.lexsort((level, component))  # the last node of each component is the furthest from its start
    ends = furthest[np.flatnonzero(np.append(np.diff(component[furthest]), 1))]
    level = _distances(links, nodes, ends)
    length = np.zeros(count, int)
    np.maximum.at(length, component, level + 1)
    level = _in_order(graph, present, component, level, length)
    order = np.lexsort((present, level, component))
    step = np.stack([component[order], level[order]], axis=1)
    new = np.append(True, np.any(np.diff(step, axis=0) != 0, axis=1))
    begin = np.maximum.accumulate(np.where(new, np.arange(nodes), 0))
    slot = np.arange(nodes) - begin
    width = np.zeros(count, int)
    np.maximum.at(width, component[order], slot + 1)
    size_of = np.concatenate(
        [np.full(s.count, s.size) for _, s in sorted(graph.supports.items(), key=lambda item: item[1].start)]
    )
    found = []
    for kind in np.unique(np.stack([length, width], axis=1), axis=0):
        members = np.flatnonzero((length == kind[0]) & (width == kind[1]))
        if kind[0] < _SHORTEST or kind[1] > 8:
            continue
        place = np.full(count, -1)
        place[members] = np.arange(len(members))
        elements = np.full((len(members), kind[0], kind[1]), -1)
        mine = place[component[order]] >= 0
        elements[place[component[order][mine]], level[order][mine], slot[mine]] = present[order][mine]
        sizes = np.where(elements >= 0, size_of[elements], 0)
        largest = sizes.max(axis=(0, 1))
        if np.all((sizes == largest) | (elements < 0)) and math.prod(largest) <= min(_STATES, graph.limit):
            found.append(_Levels(elements, tuple(int(n) for n in largest)))
    return found


def _sum(graph: Elimination, levels: _Levels) -> None:
    states = math.prod(levels.sizes)
    unary = _unary(graph, levels)
    within, between = _factors(graph, levels)
    unary = (unary + within).reshape(*unary.shape[:2], states)  # (levels, components, states)
    scale = _scale(graph, levels)
    if scale is None:
        graph.total += jnp.sum(best_path(unary, between) if graph.best else log_partition(unary, between))
    else:
        unary, between = unary / scale[:, None], between / scale[:, None, None]
        graph.total += jnp.sum(scale * (best_path if graph.best else log_partition)(unary, between))

    def step(found: Indices, key: Any) -> None:
        path = backward(graph, key, unary, between)
        for slot, chosen in enumerate(jnp.unravel_index(path, levels.sizes)):
            _place(graph, found, levels.elements[:, :, slot].ravel(), chosen.ravel())

    from legrad.marginal.eliminate import Work

    count, length, _ = levels.elements.shape
    sites = []
    for name, s in graph.supports.items():
        inside = levels.elements[(levels.elements >= s.start) & (levels.elements < s.start + s.count)] - s.start
        if len(inside):
            graph.take(name, inside)
            sites.append(name)
    named = tuple(name for name in sites if name in graph.scales)
    how = f"in {'one chain' if count == 1 else f'{count:,} chains'} of {length:,} steps and {states:,} states"
    graph.work.append(Work(named, int(np.sum(levels.elements >= 0)), how, length * count * states**2))
    graph.steps.append(step)


def _place(graph: Elimination, found: Indices, elements: np.ndarray, chosen: Any) -> None:
    for name, s in graph.supports.items():
        mine = np.flatnonzero((elements >= s.start) & (elements < s.start + s.count))
        if len(mine):
            found[name] = found[name].at[elements[mine] - s.start].set(chosen[mine].astype(jnp.int32))


def _unary(graph: Elimination, levels: _Levels) -> Any:
    """Return the potentials of all levels: (levels, components, candidates of each slot...)."""
    count, length, width = levels.elements.shape
    total: Any = 0.0
    for slot, size in enumerate(levels.sizes):
        elements = levels.elements[:, :, slot].T.ravel()
        columns, places = [], []
        for name, s in graph.supports.items():
            mine = np.flatnonzero((elements >= s.start) & (elements < s.start + s.count))
            if len(mine):
                columns.append(_columns(graph.factors.potentials[name], elements[mine] - s.start, count))
                places.append(mine)
        absent = np.flatnonzero(elements < 0)
        if len(absent):
            rest = jnp.full((size, 1), -jnp.inf, columns[0].dtype).at[0].set(0.0)
            columns.append(jnp.broadcast_to(rest, (size, len(absent))))
            places.append(absent)
        order = sorted(range(len(places)), key=lambda i: int(places[i][0]))
        whole = jnp.concatenate([columns[i] for i in order], axis=1) if len(order) > 1 else columns[0]
        place = np.concatenate([places[i] for i in order])
        if np.any(np.diff(place) < 0):
            whole = whole[:, np.argsort(place)]
        shape = [length, count] + [size if i == slot else 1 for i in range(width)]
        total = total + whole.T.reshape(shape)
    return total


def _columns(u: Any, index: np.ndarray, count: int) -> Any:
    """Return columns of an array: as a transposition where they are one, which costs less than a look-up."""
    every = np.arange(u.shape[1])
    if np.array_equal(index, every):
        return u
    if len(index) == len(every) and np.array_equal(index, every.reshape(count, -1).T.ravel()):
        return u.reshape(len(u), count, -1).swapaxes(1, 2).reshape(u.shape)
    return u[:, index]


def _factors(graph: Elimination, levels: _Levels) -> tuple[Any, Any]:
    """Return the factors within a level, and those between levels: (levels - 1 or 1, components or 1, S, S)."""
    count, length, width = levels.elements.shape
    total = int(max(s.start + s.count for s in graph.supports.values()))
    where = np.full((total, 3), -1)
    spots = np.argwhere(levels.elements >= 0)
    where[levels.elements[tuple(spots.T)]] = spots
    dtype = next(iter(graph.factors.potentials.values())).dtype
    within: Any = jnp.zeros((1, 1, *levels.sizes), dtype)
    between: Any = jnp.zeros((1, 1, *levels.sizes, *levels.sizes), dtype)
    left = []
    shared: dict[Any, tuple[Any, list[np.ndarray]]] = {}  # one table for many links: it, and where they are
    for group in graph.groups:
        whole = group.scope + np.array([graph.supports[name].start for name in group.sites])
        spot = where[whole]  # (rows, axes, [component, level, slot])
        inside = spot[:, 0, 0] >= 0
        base = spot[:, :, 1].min(axis=1)
        patterns = np.concatenate([spot[:, :, 1] - base[:, None], spot[:, :, 2]], axis=1)
        patterns[~inside] = -1
        kinds, kind_of = np.unique(patterns, axis=0, return_inverse=True)
        axes = whole.shape[1]
        for k, kind in enumerate(kinds):
            rows = np.flatnonzero(np.ravel(kind_of) == k)
            if kind[0] < 0:
                left.append(type(group)(group.sites, group.scope[rows], group.rows(rows)))
                continue
            places = kind[:axes] * width + kind[axes:]
            span = int(kind[:axes].max()) + 1
            order = np.argsort(places)
            tables = group.rows(rows).transpose(*order, axes)
            shape = [1] * (span * width)
            for place in places:
                shape[place] = levels.sizes[place % width]
            tables = jnp.moveaxis(tables.reshape(*shape, tables.shape[-1]), -1, 0)
            at = base[rows], spot[rows, 0, 0]
            if span == 1:
                within = _added(within, tables, at, (length, count))
            elif len(tables) == 1 and group.origin is not None:
                key = (group.origin[0], *(group.origin[1 + i] for i in order), *places)
                shared.setdefault(key, (tables, []))[1].append(np.stack(at))
            else:
                between = _added(between, tables, at, (length - 1, count))
    for tables, links in shared.values():
        where_linked = np.concatenate(links, axis=1)
        between = _added(between, tables, (where_linked[0], where_linked[1]), (length - 1, count))
    graph.factors.groups = left
    states = math.prod(levels.sizes)
    return within, between.reshape(*between.shape[:2], states, states)


def _added(total: Any, tables: Any, at: tuple[np.ndarray, np.ndarray], shape: tuple[int, int]) -> Any:
    """Add tables at (level, component); one table that holds everywhere once stays one."""
    count = shape[0] * shape[1]
    place = at[0] * shape[1] + at[1]
    if len(tables) == 1:
        times = np.bincount(place, minlength=count)
        if np.all(times == times[0]):
            return total + tables[None] * int(times[0])
        tables = jnp.broadcast_to(tables, (len(place), *tables.shape[1:]))
    sizes = jnp.broadcast_shapes(total.shape[2:], tables.shape[1:])
    if len(place) == count and np.array_equal(place, np.arange(count)):
        added = tables
    elif len(np.unique(place)) == count == len(place):
        added = tables[np.argsort(place)]
    else:
        added = jnp.zeros((count, *tables.shape[1:]), tables.dtype).at[place].add(tables)
    whole = jnp.broadcast_to(total, (*total.shape[:2], *sizes))
    return whole + added.reshape(*shape, *added.shape[1:])


def _scale(graph: Elimination, levels: _Levels) -> Any:
    """Return the scale of each component, None if it is one; all elements of a component must have the same."""
    if all(_is_one(scale) for scale in graph.scales.values()):
        return None
    scales = []
    for name, scale in graph.scales.items():
        s = graph.supports[name]
        inside = (levels.elements >= s.start) & (levels.elements < s.start + s.count)
        if not inside.any():
            continue
        if np.ndim(scale) == 0:
            scales.append(jnp.broadcast_to(scale, len(levels.elements)))
        else:
            component, first = np.unique(np.argwhere(inside)[:, 0], return_index=True)
            if len(component) < len(levels.elements):
                raise CannotSum(levels.elements[inside][:2].tolist(), "elements of a chain have different scales")
            scales.append(scale[levels.elements[inside][first] - s.start])
    return scales[0]


def _is_one(scale: Any) -> bool:
    return isinstance(scale, float | int) and scale == 1
