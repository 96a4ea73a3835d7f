"""Sum the elements of a factor graph out, many at a time, and draw them back in the opposite order.

An element e with potentials u_e and factors φ_r is replaced by a factor of its neighbours N(e):

    μ(z_N) = s · log Σ_k exp((u_e[k] + Σ_r φ_r(k, z_N)) / s),        s = the scale of e's plate

Elements that share no factor are eliminated together, as arrays. Chains are summed by the forward recursion
(`chains.py`). Potentials and factors contain their scale already: a member that counts s times has s times its sum,
and is summed before the elements above its plate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from legrad.marginal.evaluate import Support
from legrad.marginal.factors import Factors, Group, accumulated, joined, ordered, repeated
from legrad.marginal.log_sum_exp import log_sum_exp
from legrad.marginal.table import CannotSum

Indices = dict[str, Any]
"""The candidate of each element, by site: integers, (elements,)."""


class Work(NamedTuple):
    """A part of a sum: its sites, how many of their elements, how they are summed, and how many numbers it takes."""

    sites: tuple[str, ...]
    elements: int
    how: str
    numbers: int


@dataclass
class Elimination:
    """A sum over all elements.

    Args:
        factors: the factors; consumed.
        supports: the candidates of the sites.
        scales: the scale of each site's elements: a number, or an array (elements,).
        limit: the largest number of joint values in one table.
        best: take maxima instead of sums, for the most likely values.

    Attributes:
        total: the logarithm of the sum.
        steps: what was done, for `draw`: functions of the candidates chosen so far, and a key.
        work: what was done, in words and numbers.
    """

    factors: Factors
    supports: Mapping[str, Support]
    scales: Mapping[str, Any]
    limit: int
    best: bool = False
    total: Any = field(init=False)
    steps: list[Callable[[Indices, Any], None]] = field(init=False, default_factory=list)
    work: list[Work] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        from legrad.marginal.chains import sum_chains

        self.total = self.factors.constant
        while self.groups:
            leaves = self._leaves()
            involved = sum(map(len, self.elements_in_groups().values()))
            if 5 * sum(map(len, leaves.values())) < involved and sum_chains(self):
                continue
            if leaves:
                self._eliminate_leaves(leaves)
            else:
                self._eliminate_one()
        for name in self.factors.potentials:
            self._sum_alone(name)

    @property
    def groups(self) -> list[Group]:
        """The factors of several elements that are left."""
        return self.factors.groups

    def reduce(self, x: Any, axis: int = 0) -> Any:
        """Return the log-sum, or the maximum, along an axis."""
        return jnp.max(x, axis=axis) if self.best else log_sum_exp(x, axis)

    def choose(self, key: Any, logits: Any, axis: int = 0) -> Any:
        """Draw an index along an axis, or take the best."""
        if not self.best:
            logits = logits + jax.random.gumbel(key, logits.shape, logits.dtype)
        return jnp.argmax(logits, axis=axis)

    def draw(self, key: Any) -> Indices:
        """Draw all elements together given the factors, exactly; the best values if `best`."""
        found: Indices = {name: jnp.zeros(s.count, jnp.int32) for name, s in self.supports.items()}
        for i, step in enumerate(reversed(self.steps)):
            step(found, jax.random.fold_in(key, i))
        return found

    def scale_of(self, name: str, elements: np.ndarray | None = None) -> Any:
        """Return the scale of some elements of a site: a number, or an array."""
        scale = self.scales.get(name, 1.0)
        return scale if np.ndim(scale) == 0 or elements is None else scale[elements]

    def elements_in_groups(self) -> dict[str, np.ndarray]:
        """Return the elements of each site that a group sees."""
        seen: dict[str, list[np.ndarray]] = {}
        for group in self.groups:
            for axis, name in enumerate(group.sites):
                seen.setdefault(name, []).append(group.scope[:, axis])
        return {name: np.unique(np.concatenate(parts)) for name, parts in seen.items()}

    def clear(self, name: str, elements: np.ndarray) -> None:
        """Take elements out of the potentials: what is left of them sums to one, and is chosen freely."""
        rest = jnp.full(self.supports[name].size, -jnp.inf).at[0].set(0.0)
        u = self.factors.potentials[name]
        if len(elements) == u.shape[1]:
            self.factors.potentials[name] = jnp.broadcast_to(rest[:, None].astype(u.dtype), u.shape)
        else:
            self.factors.potentials[name] = u.at[:, elements].set(rest[:, None].astype(u.dtype))

    # --- elements that share no factor with any other ------------------------------------------------------------

    def _sum_alone(self, name: str) -> None:
        u, scale = self.factors.potentials[name], self.scale_of(name)
        self.total += jnp.sum(scale * self.reduce(u / scale)) if _scaled(scale) else jnp.sum(self.reduce(u))
        taken = self._taken.get(name)
        alone = u.shape[1] if taken is None else int(np.sum(~taken))
        if alone:
            self.work.append(Work((name,), alone, "each alone", alone * len(u)))

        def step(found: Indices, key: Any) -> None:
            drawn = self.choose(key, u / scale)
            found[name] = drawn if taken is None else jnp.where(taken, found[name], drawn)

        self.steps.append(step)

    @property
    def _taken(self) -> dict[str, np.ndarray]:
        """Elements that were eliminated before, by site."""
        return self.__dict__.setdefault("_taken_elements", {})

    def take(self, name: str, elements: np.ndarray) -> None:
        """Note that elements are eliminated, and clear their potentials."""
        mask = self._taken.setdefault(name, np.zeros(self.supports[name].count, bool))
        mask[elements] = True
        self.clear(name, elements)

    # --- leaves: elements whose factors all have the same other elements --------------------------------------------

    def _leaves(self) -> dict[str, np.ndarray]:
        """Find elements that have one set of neighbours, none of them chosen too, by site."""
        starts = {name: s.start for name, s in self.supports.items()}
        width = max(g.scope.shape[1] for g in self.groups)
        rows = []
        for group in self.groups:
            whole = group.scope + np.array([starts[name] for name in group.sites])
            for axis in range(whole.shape[1]):
                others = np.sort(np.delete(whole, axis, axis=1), axis=1)
                pad = np.full((len(whole), width - 1 - others.shape[1]), -1)
                rows.append(np.concatenate([whole[:, [axis]], pad, others], axis=1))
        pairs = np.unique(np.concatenate(rows), axis=0)
        element, counts = np.unique(pairs[:, 0], return_counts=True)
        single = element[counts == 1]
        pairs = pairs[np.isin(pairs[:, 0], single)]
        rank = self._rank()
        # Of leaves that are neighbours of each other the one with the larger scale goes first, then the later one.
        others = np.where(pairs[:, 1:] >= 0, rank[pairs[:, 1:]], -1)
        leaf = np.zeros(len(rank), bool)
        leaf[single] = True
        rivals = np.where((pairs[:, 1:] >= 0) & leaf[pairs[:, 1:]], others, -1).max(axis=1, initial=-1)
        chosen = pairs[rank[pairs[:, 0]] > rivals, 0]
        found: dict[str, np.ndarray] = {}
        for name, s in self.supports.items():
            mine = chosen[(chosen >= s.start) & (chosen < s.start + s.count)] - s.start
            if len(mine):
                found[name] = mine
        return found

    def _rank(self) -> np.ndarray:
        """Return the order of elimination: larger scales first."""
        scale = np.concatenate(
            [
                np.broadcast_to(_number(self.scales.get(name, 1.0)), s.count)
                for name, s in sorted(self.supports.items(), key=lambda item: item[1].start)
            ]
        )
        order = np.lexsort((np.arange(len(scale)), scale))
        rank = np.empty(len(scale), int)
        rank[order] = np.arange(len(scale))
        return rank

    def _eliminate_leaves(self, leaves: dict[str, np.ndarray]) -> None:
        for name, elements in leaves.items():
            # Leaves of one site may have neighbours at different sites: a batch for each kind.
            kinds: dict[tuple[str, ...], np.ndarray] = {}
            for group in self.groups:
                for axis, site in enumerate(group.sites):
                    if site == name:
                        here = np.intersect1d(group.scope[:, axis], elements)
                        others = tuple(s for i, s in enumerate(group.sites) if i != axis)
                        kinds[others] = np.union1d(kinds.get(others, np.zeros(0, int)), here).astype(int)
            for others, batch in kinds.items():
                if len(batch):
                    self._eliminate_batch(name, batch, others)

    def _eliminate_batch(self, name: str, batch: np.ndarray, others: tuple[str, ...]) -> None:
        u = self.factors.potentials[name]
        joint = u[:, batch] if len(batch) < u.shape[1] else u
        joint = joint.reshape(len(u), *(1,) * len(others), len(batch))
        neighbours = np.full((len(batch), len(others)), -1)
        left: list[Group] = []
        for group in self.groups:
            mask = np.zeros(len(group.scope), bool)
            for axis, site in enumerate(group.sites):
                rest = tuple(s for i, s in enumerate(group.sites) if i != axis)
                if site != name or rest != others:
                    continue
                rows = np.flatnonzero(np.isin(group.scope[:, axis], batch) & ~mask)
                if not len(rows):
                    continue
                mask[rows] = True
                place = np.searchsorted(batch, group.scope[rows, axis])
                scope = np.delete(group.scope[rows], axis, axis=1)
                tables = jnp.moveaxis(group.rows(rows), axis, 0)
                neighbours, tables = _same_order(neighbours, scope, place, tables, others)
                joint = _added(joint, tables, place)
            if not mask.all():
                kept = np.flatnonzero(~mask)
                left.append(Group(group.sites, group.scope[kept], group.rows(kept)) if mask.any() else group)
        scale = self.scale_of(name, batch)
        message = scale * self.reduce(joint / scale) if _scaled(scale) else self.reduce(joint)
        self.factors.groups = left
        self._pass_on(others, neighbours, message)
        self.take(name, batch)
        above = " and ".join(dict.fromkeys(others))
        self.work.append(Work((name,), len(batch), f"for each value of {above}", math.prod(jnp.shape(joint))))

        def step(found: Indices, key: Any) -> None:
            at = tuple(found[site][neighbours[:, i]] for i, site in enumerate(others))
            given = (joint / scale)[(slice(None), *at, np.arange(len(batch)))]
            found[name] = found[name].at[batch].set(self.choose(key, given).astype(jnp.int32))

        self.steps.append(step)

    def _pass_on(self, sites: tuple[str, ...], scope: np.ndarray, message: Any) -> None:
        """Add what a sum leaves behind to the factors of its neighbours."""
        if len(sites) == 1:
            name = sites[0]
            self.factors.potentials[name] = accumulated(self.factors.potentials[name], message, scope[:, 0])
            return
        unique, inverse = np.unique(scope, axis=0, return_inverse=True)
        inverse = np.ravel(inverse)
        if len(unique) < len(scope):
            message = jnp.zeros((*message.shape[:-1], len(unique)), message.dtype).at[..., inverse].add(message)
            scope = unique
        self.factors.groups = joined([*self.groups, ordered(Group(sites, scope, message))])

    # --- any element: a factor of all its neighbours --------------------------------------------------------

    def _eliminate_one(self) -> None:
        """Eliminate the element with the smallest table of neighbours."""
        near: dict[tuple[str, int], set[tuple[str, int]]] = {}
        if sum(len(g.scope) for g in self.groups) > 20_000:
            first = self.groups[0]
            elements = [self.supports[s].start + int(e) for s, e in zip(first.sites, first.scope[0], strict=True)]
            raise CannotSum(elements, "too many elements depend on each other in more than one way")
        for group in self.groups:
            for row in group.scope:
                members = set(zip(group.sites, map(int, row), strict=True))
                for member in members:
                    near.setdefault(member, set()).update(members - {member})
        rank = self._rank()

        def cost(member: tuple[str, int]) -> tuple[float, int]:
            size = math.prod(self.supports[site].size for site, _ in near[member])
            return size, -int(rank[self.supports[member[0]].start + member[1]])

        member = min(near, key=cost)
        around = sorted(near[member])
        size = self.supports[member[0]].size * math.prod(self.supports[site].size for site, _ in around)
        if size > self.limit:
            elements = [self.supports[s].start + e for s, e in (member, *around)]
            raise CannotSum(elements, f"{len(elements)} elements depend on each other", size)
        name, element = member
        sizes = [self.supports[site].size for site, _ in around]
        joint = self.factors.potentials[name][:, element].reshape(-1, *(1,) * len(around))
        left: list[Group] = []
        for group in self.groups:
            rows = [
                r for r, row in enumerate(group.scope) if member in set(zip(group.sites, map(int, row), strict=True))
            ]
            for r in rows:
                scope = list(zip(group.sites, map(int, group.scope[r]), strict=True))
                table = group.rows(np.array([r]))[..., 0]
                order = list(np.argsort([-1 if m == member else around.index(m) for m in scope]))
                shape = [1 if m not in scope else self.supports[m[0]].size for m in around]
                joint = joint + table.transpose(order).reshape(len(joint), *shape)
            kept = np.setdiff1d(np.arange(len(group.scope)), rows)
            if len(kept):
                left.append(Group(group.sites, group.scope[kept], group.rows(kept)))
        joint = jnp.broadcast_to(joint, (len(joint), *sizes))
        scale = self.scale_of(name, np.array([element]))
        scale = scale if np.ndim(scale) == 0 else scale[0]
        self.factors.groups = left
        message = scale * self.reduce(joint / scale)
        self._pass_on(tuple(s for s, _ in around), np.array([[e for _, e in around]]), message[..., None])
        self.take(name, np.array([element]))
        together = f"together with {len(around)} neighbours"
        self.work.append(Work((name,), 1, together, math.prod(jnp.shape(joint))))

        def step(found: Indices, key: Any) -> None:
            at = tuple(found[site][e] for site, e in around)
            drawn = self.choose(key, (joint / scale)[(slice(None), *at)])
            found[name] = found[name].at[element].set(drawn.astype(jnp.int32))

        self.steps.append(step)


def _scaled(scale: Any) -> bool:
    return not (isinstance(scale, float | int) and scale == 1)


def _number(scale: Any) -> np.ndarray:
    from legrad.trace.concrete import read

    found = read(scale) if isinstance(scale, jax.Array) else np.asarray(scale, float)
    return np.ones(()) if found is None else np.asarray(found, float)


def _same_order(
    neighbours: np.ndarray, scope: np.ndarray, place: np.ndarray, tables: Any, others: tuple[str, ...]
) -> tuple[np.ndarray, Any]:
    """Note the neighbours of a batch; rows that name them in another order are turned."""
    fresh = neighbours[place, 0] < 0
    neighbours = neighbours.copy()
    neighbours[place[fresh]] = scope[fresh]
    if np.array_equal(neighbours[place], scope):
        return neighbours, tables
    if len(others) == 2 and others[0] == others[1]:
        turned = neighbours[place, 0] != scope[:, 0]
        swapped = jnp.swapaxes(tables, 1, 2)
        return neighbours, jnp.where(turned, swapped, tables)
    raise CannotSum([], "neighbours in different orders")


def _added(joint: Any, tables: Any, place: np.ndarray) -> Any:
    """Add tables, one for each row, to the joint tables of a batch at some places."""
    count = joint.shape[-1]
    if np.array_equal(place, np.arange(count)):
        return joint + tables
    sizes = jnp.broadcast_shapes(joint.shape[:-1], tables.shape[:-1])
    if tables.shape[-1] == 1:
        return joint + repeated(tables, np.bincount(place, minlength=count))
    return jnp.broadcast_to(joint, (*sizes, count)).at[..., place].add(tables)
