"""Which terms of f weigh the score of which elements, derived from what each term sees; plain NumPy, while tracing.

    a number that sees several elements   weighs the scores of these elements
    a number that sees element j alone    weighs the scores of j, and of the elements that cover j's company

The *company* of j is all the numbers that see j together with other elements. An element covers the company of j if
all these numbers see that element, too. Numbers that weigh the scores of the same elements form a *group*: only their
sum matters.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import sparse

from legrad.trace.dependence import EMPTY, members

PAIRS = 1 << 22  # the most pairs of a number (or kind) and an element to list; beyond that, answers are coarser

Shape = tuple[int, ...]


class Groups(NamedTuple):
    """Numbers that weigh the same scores.

    Attributes:
        labels: for each term an array of its shape with the group of each number; -1 for a number in no group.
        members: (groups, elements), true where the numbers of a group weigh the score of an element.
    """

    labels: dict[str, np.ndarray]
    members: sparse.csr_array


def groups(
    seen: Mapping[str, np.ndarray],
    sites: Sequence[tuple[slice, Shape]],
    fillers: Collection[str] = (),
    company: bool = True,
) -> Groups:
    """Return the groups of all terms.

    Args:
        seen: what each number of a term sees: boxes or sets, (rows, *shape of the term).
        sites: for each site whose elements matter, its rows and the shape of its elements; elements count in order.
        fillers: terms that are not part of f. A filler's number that sees one element alone is grouped like others
            if that element has company; a filler's other numbers are in no group.
        company: whether numbers that see one element alone weigh the scores of those that cover its company, too.
    """
    tables = {n: found.reshape(len(found), math.prod(found.shape[1:])).T for n, found in seen.items()}
    table = np.concatenate([np.concatenate([t[:, rows] for rows, _ in sites], axis=1) for t in tables.values()])
    sees, label = _alike(table, [shape for _, shape in sites])
    sets = dict(zip(seen, np.split(label, np.cumsum([len(t) for t in tables.values()])[:-1]), strict=True))
    counted = np.zeros(sees.shape[0], bool)
    for name in sets.keys() - set(fillers):
        counted[sets[name]] = True
    weighed, of_set, filling = _weighed(sees, counted if company else np.zeros_like(counted), counted)
    labels = {n: (filling if n in fillers else of_set)[s].reshape(seen[n].shape[1:]) for n, s in sets.items()}
    return Groups(labels, weighed)


def distinct_rows(flags: sparse.csr_array) -> tuple[np.ndarray, np.ndarray]:
    """Return where each distinct row of a sparse matrix occurs first, and which distinct row each row equals."""
    first, label = _by_code(flags.astype(np.uint64) @ _codes(flags.shape[1]))
    if (flags[first[label]] != flags).nnz:  # a collision of codes: more rows than necessary, but none confused
        return np.arange(flags.shape[0]), np.arange(flags.shape[0])
    return first, label


# --- which numbers see the same elements ----------------------------------------------------------------------


def _alike(table: np.ndarray, shapes: Sequence[Shape]) -> tuple[sparse.csr_array, np.ndarray]:
    """Return the distinct sets of elements that numbers see, (sets, elements), and the set of each number.

    If there are too many pairs to list, a box that is wider than one position along an axis counts as the whole axis;
    if there are still too many, a number that sees any element of a site counts as seeing all of them.
    """
    widths = [_width(table, shape) for shape in shapes]
    parts = np.split(table, np.cumsum(widths)[:-1], axis=1)
    for coarser in (None, _whole_axes, _whole_site):
        if coarser is not None:
            parts = [coarser(part, shape) for part, shape in zip(parts, shapes, strict=True)]
        first, label = _distinct(np.concatenate(parts, axis=1))
        found = [part[first] for part in parts]
        if sum(map(_pairs, found)) <= PAIRS:
            break
    return sparse.csr_array(sparse.hstack([_listed(p, s) for p, s in zip(found, shapes, strict=True)])), label


def _width(table: np.ndarray, shape: Shape) -> int:
    return -(-max(math.prod(shape), 1) // 64) if table.dtype == np.uint64 else 2 * max(len(shape), 1)


def _ends(boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first index along each axis, and one past the last; the two are equal where nothing is seen."""
    rank = boxes.shape[1] // 2
    seen = boxes[:, :rank] != EMPTY
    return np.where(seen, boxes[:, :rank], 0).astype(np.int64), np.where(seen, 1 - boxes[:, rank:], 0).astype(
        np.int64
    )


def _pairs(part: np.ndarray) -> float:
    if part.dtype == np.uint64:
        return float(members(part.T).sum())
    lo, hi = _ends(part)
    return float(np.prod(hi - lo, axis=1, dtype=float).sum())


def _whole_axes(part: np.ndarray, shape: Shape) -> np.ndarray:
    if part.dtype == np.uint64:
        return part
    lo, hi = _ends(part)
    wide = hi - lo > 1
    box = np.concatenate([np.where(wide, 0, lo), 1 - np.where(wide, shape or (1,), hi)], axis=1)
    return np.where(part == EMPTY, EMPTY, box).astype(np.int32)


def _whole_site(part: np.ndarray, shape: Shape) -> np.ndarray:
    size = np.asarray(shape or (1,))
    if part.dtype == np.uint64:
        every = np.packbits(np.arange(64 * part.shape[1]) < math.prod(size), bitorder="little").view("<u8")
        return np.where(part.any(axis=1, keepdims=True), every, np.uint64(0))
    return np.where(part == EMPTY, EMPTY, np.concatenate([0 * size, 1 - size])).astype(np.int32)


def _listed(part: np.ndarray, shape: Shape) -> sparse.csr_array:
    """Return boxes or sets, one per row, as flags of shape (rows, elements)."""
    shape = shape or (1,)
    if part.dtype == np.uint64:
        return sparse.csr_array(members(part.T)[:, : math.prod(shape)])
    lo, hi = _ends(part)
    width = hi - lo
    ends = np.concatenate([[0], np.cumsum(np.prod(width, axis=1))])
    row = np.repeat(np.arange(len(part)), np.diff(ends))
    rest, element = np.arange(len(row)) - ends[row], np.zeros(len(row), np.int64)
    for axis, size in enumerate(shape):
        below = np.prod(width[:, axis + 1 :], axis=1)[row]
        element = element * size + lo[row, axis] + rest // below
        rest = rest % below
    return sparse.csr_array((np.ones(len(row), bool), element, ends), (len(part), math.prod(shape)))


def _distinct(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where each distinct row occurs first, and which distinct row each row equals."""
    first, label = _by_code((table.astype(np.int64).view(np.uint64) * _codes(table.shape[1])).sum(axis=1))
    if not np.array_equal(table[first[label]], table):  # a collision of codes
        _, first, label = np.unique(table, axis=0, return_index=True, return_inverse=True)
    return first, label.ravel()


def _codes(number: int) -> np.ndarray:
    return np.random.default_rng(0).integers(1, 1 << 63, number, np.uint64)


def _by_code(code: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Group rows with the same code, in the order of their first occurrence: sorting numbers is fast."""
    _, first, label = np.unique(code, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return first[order], np.argsort(order)[label]


# --- which numbers weigh which scores -------------------------------------------------------------------------


def _weighed(
    sees: sparse.csr_array, befriends: np.ndarray, counted: np.ndarray
) -> tuple[sparse.csr_array, np.ndarray, np.ndarray]:
    """Return the members of each group, and the group of each set for the numbers of f and for fillers.

    Sets that no number of f has are not `counted`; sets that do not `befriend` belong to no element's company.
    """
    size = np.diff(sees.indptr)
    alone, shared = np.flatnonzero(size == 1), np.flatnonzero((size > 1) & counted)
    company = sparse.csr_array(sees[np.flatnonzero((size > 1) & befriends)].T)  # (elements, sets)
    owner = sees[alone].indices
    first, kind = distinct_rows(company)  # elements of one kind have the same company
    covering = _covering(company[first], kind)
    has_company = np.diff(company.indptr)[owner] > 0
    candidates = sparse.csr_array(sparse.vstack([sees[alone], covering, sees[shared]]))
    group = np.full(len(size), -1)
    group[alone] = np.where(has_company, len(alone) + kind[owner], np.arange(len(alone)))
    group[shared] = len(alone) + covering.shape[0] + np.arange(len(shared))
    first, same = distinct_rows(candidates)
    group = np.where(group < 0, -1, same[group])
    used, place = np.unique(group[group >= 0], return_inverse=True)
    group[group >= 0] = place
    filling = np.full(len(size), -1)
    filling[alone] = np.where(has_company, group[alone], -1)
    return candidates[first[used]], group, filling


def _covering(company: sparse.csr_array, kind: np.ndarray) -> sparse.csr_array:
    """Return the elements that cover the company of each kind, (kinds, elements); if too many, the kind's own."""
    kinds, number = company.shape[0], np.bincount(kind, minlength=company.shape[0])
    of_kind = sparse.csr_array((np.ones(len(kind), bool), (kind, np.arange(len(kind)))), (kinds, len(kind)))
    if float((np.bincount(company.indices).astype(float) ** 2).sum()) > PAIRS:
        return of_kind
    common = sparse.coo_array(company.astype(np.int64) @ company.T.astype(np.int64))
    all_of = common.data == np.diff(company.indptr)[common.row]
    if float(number[common.col[all_of]].sum()) > PAIRS:
        return of_kind
    kept = (np.ones(all_of.sum(), bool), (common.row[all_of], common.col[all_of]))
    return sparse.csr_array(sparse.csr_array(kept, (kinds, kinds)) @ of_kind)
