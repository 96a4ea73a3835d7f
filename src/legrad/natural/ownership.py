"""Which numbers of a guide's parameters belong to which of its factors: proved from the program, never assumed.

Every parameter of a distribution carries the boxes of the parameters that it can see (`trace/dependence.py`). Two
numbers are in one block if a factor sees both. The Fisher information is zero between blocks, so each block is solved
by itself; a number that several factors share makes one block of all of them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from legrad.natural.guide_map import GuideMap
from legrad.trace.dependence import EMPTY, join, join_over, nothing, own_boxes, reach
from legrad.trace.program import Program

LARGEST = 128  # numbers in a block
_FEW = 8  # numbers that elements may share without being called an inference network's
_SEEN = 5_000_000  # pairs of a number and a factor that sees it
_COPIES = frozenset(["reshape", "squeeze", "broadcast_in_dim", "slice", "copy", "copy_p", "expand_dims"])


@dataclass(frozen=True)
class Cluster:
    """Parameters and sites that have to do with each other.

    Attributes:
        leaves: the arrays of parameters, by their numbers among all arrays of the guide's parameters.
        sites: the sites.
        blocks: for each block the positions of its numbers in the concatenated arrays, as (blocks, size); the
            length of the concatenated arrays where a block has fewer.
        block_of: for each site the block of each of its elements.
        kind: "blocks"; "softmax" if each logit of a categorical is a function of one number, so that a block is
            known in closed form; "gaussian" if the arrays are the mean and Cholesky factor of a Gaussian.
    """

    leaves: tuple[int, ...]
    sites: tuple[str, ...]
    blocks: np.ndarray
    block_of: dict[str, np.ndarray]
    kind: str = "blocks"


@dataclass(frozen=True)
class Ownership:
    """The clusters of a guide, and why the other arrays of parameters have none.

    Attributes:
        clusters: what has a natural gradient.
        plain: what has none: paths of parameters, each with the reason.
        paths: the path of each array of parameters: its name, and where it is in it.
        amortized: whether elements of a site share many numbers, as the latents of an inference network do.
    """

    clusters: tuple[Cluster, ...]
    plain: dict[str, str] = field(default_factory=dict)
    paths: tuple[str, ...] = ()
    amortized: bool = False


def owners(guide: GuideMap, unconstrained: Mapping[str, Any], shared: Collection[str] = ()) -> Ownership:
    """Find the blocks of a guide's parameters; the values of the parameters do not matter, only their shapes.

    Args:
        guide: the guide.
        unconstrained: its parameters.
        shared: parameters that are in no block, because the model has them, too: what they do there is no matter of
            the guide's distributions, and along a direction in which these stay the same F knows nothing of it.
    """
    mine = {name: unconstrained[name] for name in guide.transforms}
    found, structure = jax.tree_util.tree_flatten_with_path(mine)
    leaves = [leaf for _, leaf in found]
    paths = tuple(path[0].key + jax.tree_util.keystr(path[1:]) for path, _ in found)
    shapes = [np.shape(leaf) for leaf in leaves]

    def program(leaves: list[Any]) -> Any:
        params = guide.constrain(jax.tree.unflatten(structure, leaves))
        return guide.values(params), guide.of_refused(params)

    starts = np.cumsum([0, *(2 * max(len(shape), 1) for shape in shapes)])
    names = [path[0].key for path, _ in found]
    boxes = _boxes(shapes, starts)
    for box, name in zip(boxes, names, strict=True):
        if name in shared:
            box[:] = EMPTY
    known, refused = reach(Program(program, leaves), boxes)
    seen = {site: _by_element(guide, site, known[site]) for site in guide.sites}
    sees: dict[str, set[int]] = {s: _touched(b, starts) for s, b in seen.items()}
    for site, arrays in refused.items():
        sees[site] = set().union(*(_touched(box, starts) for box in arrays))
    clusters: list[Cluster] = []
    plain: dict[str, str] = {}
    amortized = False
    for group_leaves, group_sites in _groups(sees, len(leaves)):
        names = [paths[i] for i in group_leaves]
        bad = [site for site in group_sites if site in guide.refused]
        if not group_sites:
            ours = {n: any(n.startswith(s) for s in shared) for n in names}
            why = {True: "the model has it, too", False: "no random site of the guide depends on it"}
            plain |= {n: why[ours[n]] for n in names}
        elif bad:
            plain |= dict.fromkeys(names, guide.refused[bad[0]])
        elif (pair := _mean_and_tril(guide, mine, structure, group_leaves, group_sites)) is not None:
            clusters.append(Cluster(pair, group_sites, np.zeros((0, 0), int), {}, "gaussian"))
        elif (cluster := _cluster(guide, seen, known, starts, shapes, group_leaves, group_sites)) is not None:
            clusters.append(cluster)
        else:
            amortized = True
            words = f"more than {LARGEST} numbers would have to be solved for together"
            plain |= dict.fromkeys(names, f"it is shared by factors of '{group_sites[0]}': {words}")
    amortized |= any(_shared(cluster) for cluster in clusters)
    return Ownership(tuple(clusters), plain, paths, amortized)


def _shared(cluster: Cluster) -> bool:
    """Whether a block of many numbers has several elements of a site."""
    many = cluster.kind == "blocks" and cluster.blocks.shape[1] > _FEW
    return many and any(len(np.unique(blocks)) < len(blocks) for blocks in cluster.block_of.values())


def _boxes(shapes: list[tuple[int, ...]], starts: np.ndarray) -> list[np.ndarray]:
    """Return boxes in which each number sees itself, with places for the axes of all arrays one after another."""
    boxes = []
    for shape, start, stop in zip(shapes, starts, starts[1:], strict=False):
        box = np.full((starts[-1], *shape), EMPTY, np.int32)
        box[start:stop] = own_boxes(shape)
        boxes.append(box)
    return boxes


def _touched(box: np.ndarray | None, starts: np.ndarray) -> set[int]:
    if box is None or not box[0].size:
        return set()
    least = box.reshape(len(box), -1).min(axis=1)
    return {i for i, start in enumerate(starts[:-1]) if least[start] != EMPTY}


def _by_element(guide: GuideMap, site: str, values: Mapping[str, np.ndarray | None]) -> np.ndarray | None:
    """Join what the parameters of each element of a site see: (places, *batch)."""
    family, shape, _ = guide.sites[site]
    found = [box for box in values.values() if box is not None]
    if not found:
        return None
    parts = [nothing(found[0], shape)]
    for name, axes in family.parameters.items():
        box = values[name]
        if box is not None:
            parts.append(join_over(box, tuple(range(-axes, 0))) if axes else box)
    return join(*parts)


def _groups(sees: Mapping[str, set[int]], number: int) -> list[tuple[tuple[int, ...], tuple[str, ...]]]:
    """Return the arrays and the sites that are connected."""
    sites = list(sees)
    pairs = [(leaf, number + j) for j, site in enumerate(sites) for leaf in sees[site]]
    labels = _connected(np.asarray(pairs, int).reshape(-1, 2), number + len(sites))
    groups = []
    for label in dict.fromkeys(labels[:number].tolist()):
        inside = np.flatnonzero(labels == label)
        leaves = tuple(int(i) for i in inside if i < number)
        groups.append((leaves, tuple(sites[i - number] for i in inside if i >= number)))
    return groups


def _connected(pairs: np.ndarray, size: int) -> np.ndarray:
    graph = coo_matrix((np.ones(len(pairs), np.int8), (pairs[:, 0], pairs[:, 1])), shape=(size, size))
    return connected_components(graph, directed=False)[1]


def _cluster(
    guide: GuideMap,
    seen: Mapping[str, np.ndarray | None],
    known: Mapping[str, Mapping[str, np.ndarray | None]],
    starts: np.ndarray,
    shapes: list[tuple[int, ...]],
    leaves: tuple[int, ...],
    sites: tuple[str, ...],
) -> Cluster | None:
    """Return the blocks of some arrays; None if a block is too large."""
    sizes = [math.prod(shapes[i]) for i in leaves]
    offsets, total = np.cumsum([0, *sizes]), sum(sizes)
    counts = [math.prod(guide.sites[site].shape) for site in sites]
    firsts = total + np.cumsum([0, *counts])
    pairs: list[np.ndarray] = []
    for site, first in zip(sites, firsts, strict=False):
        box = seen[site]
        assert box is not None  # the site is in the cluster
        for leaf, offset in zip(leaves, offsets, strict=False):
            found = _pairs(box[starts[leaf] : starts[leaf + 1]], shapes[leaf], _SEEN)
            if found is None or sum(map(len, pairs)) + len(found) > _SEEN:
                return None
            pairs.append(found + np.array([first, offset]))
    labels = _connected(np.concatenate(pairs), int(firsts[-1]))
    used = np.unique(labels[total:])  # numbers that no factor sees are in no block
    number = np.full(labels.max() + 1, -1)
    number[used] = np.arange(len(used))
    mine = number[labels[:total]]
    order = np.argsort(mine, kind="stable")
    order = order[mine[order] >= 0]
    lengths = np.bincount(mine[order], minlength=len(used))
    block_of = {s: number[labels[a:b]] for s, a, b in zip(sites, firsts, firsts[1:], strict=False)}
    blocks = np.full((len(used), int(lengths.max())), total)
    within = np.arange(len(order)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    blocks[mine[order], within] = order
    table = _one_each(guide, sites, known, starts, shapes, leaves)
    if table is not None:
        return Cluster(leaves, sites, table, {sites[0]: np.arange(len(table))}, "softmax")
    return None if blocks.shape[1] > LARGEST else Cluster(leaves, sites, blocks, block_of)


def _pairs(box: np.ndarray, shape: tuple[int, ...], most: int) -> np.ndarray | None:
    """Return the pairs (element, number) of all numbers of an array that the elements of a site see."""
    axes = len(box) // 2
    flat = box.reshape(len(box), -1)
    sees = np.flatnonzero(flat[0] != EMPTY)
    low, high = flat[:axes, sees].T.astype(int), -flat[axes:, sees].T.astype(int)
    extents = high - low + 1
    if np.prod(extents.astype(float), axis=1).sum() > most:
        return None
    pairs = [np.zeros((0, 2), int)]
    for extent in np.unique(extents, axis=0):
        rows = np.flatnonzero((extents == extent).all(axis=1))
        grid = np.indices(extent).reshape(axes, -1)
        index = low[rows][:, :, None] + grid[None]  # (rows, axes, numbers)
        numbers = np.ravel_multi_index(tuple(np.moveaxis(index, 1, 0)), shape or (1,))
        element = np.broadcast_to(sees[rows][:, None], numbers.shape)
        pairs.append(np.stack([element.ravel(), numbers.ravel()], axis=1))
    return np.concatenate(pairs)


def _one_each(
    guide: GuideMap,
    sites: tuple[str, ...],
    known: Mapping[str, Mapping[str, np.ndarray | None]],
    starts: np.ndarray,
    shapes: list[tuple[int, ...]],
    leaves: tuple[int, ...],
) -> np.ndarray | None:
    """Return the number that each logit of a categorical is a function of, (elements, K), if each has its own."""
    if len(sites) != 1 or len(leaves) != 1 or not guide.sites[sites[0]].family.softmax:
        return None
    (leaf,), box = leaves, known[sites[0]]["logits"]
    assert box is not None
    count = math.prod(box.shape[1:])
    found = _pairs(box[starts[leaf] : starts[leaf + 1]], shapes[leaf], count)
    if found is None or len(found) != count or len(np.unique(found[:, 1])) != count:
        return None
    if len(np.unique(found[:, 0])) != count:
        return None
    numbers = np.empty(count, int)
    numbers[found[:, 0]] = found[:, 1]
    return numbers.reshape(-1, box.shape[-1])


def _mean_and_tril(
    guide: GuideMap, mine: Mapping[str, Any], structure: Any, leaves: tuple[int, ...], sites: tuple[str, ...]
) -> tuple[int, int] | None:
    """Return the arrays that are, unchanged, the mean and the Cholesky factor of a multivariate Normal site."""
    if len(sites) != 1 or len(leaves) != 2 or set(guide.sites[sites[0]].family.parameters) != {"loc", "scale_tril"}:
        return None
    given, there = jax.tree.flatten(jax.eval_shape(guide.constrain, dict(mine)))
    if there != structure:
        return None
    program = Program(lambda leaves: guide.values(jax.tree.unflatten(structure, leaves))[sites[0]], given)
    made = {o: op for op in program.ops for o in op.outputs}
    found: dict[str, int] = {}
    for name, output in zip(sorted(program.result), program.outputs, strict=True):
        at = output
        while at in made and made[at].name in _COPIES and _size(program, made[at].inputs[0]) == _size(program, at):
            at = made[at].inputs[0]
        if at not in program.inputs or program.shapes[at] != program.shapes[output]:
            return None
        found[name] = program.inputs.index(at)
    pair = found["loc"], found["scale_tril"]
    return pair if set(pair) == set(leaves) else None


def _size(program: Program, value: int) -> int:
    return math.prod(program.shapes[value])
