"""The Fisher metric of a guide in its unconstrained parameters: F = Σ (R J)ᵀ (R J), block by block.

J, the derivative of the distributions' parameters, comes from one forward derivative for each number of a block, for
all blocks together. A block is solved by its pseudo-inverse after scaling to a unit diagonal, so that a softmax,
which has one number too many, and saturated probabilities are solved as well as anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from legrad.natural.guide_map import GuideMap
from legrad.natural.ownership import Cluster, Ownership, owners

Tree = dict[str, Any]
_LARGE = 10_000  # numbers


class Natural(NamedTuple):
    """A natural gradient.

    Attributes:
        step: F⁻¹ times the gradient; the gradient itself where a parameter belongs to no factor.
        length: for each cluster, the Fisher length of the step of each block before it was limited: how far the
            factor would move, in its standard deviations.
    """

    step: Tree
    length: tuple[Array, ...]


class Metric:
    """The Fisher metric of a guide.

    Args:
        guide: the guide as a map of parameters.
        unconstrained: the parameters, for their shapes; those of a model are left alone.
        shared: parameters of the guide that the model has, too, and that are left alone like the model's.
    """

    def __init__(self, guide: GuideMap, unconstrained: Mapping[str, Any], shared: Collection[str] = ()) -> None:
        self.guide = guide
        self.ownership: Ownership = owners(guide, unconstrained, shared)
        self.structure: Any = jax.tree.structure({name: unconstrained[name] for name in guide.transforms})
        clusters = self.ownership.clusters
        self._natural = {i for cluster in clusters for i in cluster.leaves}
        self._discrete = {i for c in clusters for i in c.leaves if any(guide.sites[s].discrete for s in c.sites)}

    def has_factor(self, unconstrained: Mapping[str, Any], discrete: bool = False) -> Tree:
        """Return for each array of parameters whether it belongs to factors, in the structure of the parameters.

        Args:
            unconstrained: the parameters.
            discrete: whether only discrete factors count.
        """
        mine = self._discrete if discrete else self._natural
        flags = [i in mine for i in range(self.structure.num_leaves)]
        mine = jax.tree.unflatten(self.structure, flags)
        return {n: mine[n] if n in mine else jax.tree.map(lambda _: False, x) for n, x in unconstrained.items()}

    def solve(self, unconstrained: Tree, gradient: Tree, limit: Array | float | None = None) -> Natural:
        """Return the natural gradient.

        Args:
            unconstrained: the parameters.
            gradient: the gradient.
            limit: the largest Fisher length of the step of a block, which is shortened to it; None for none.
        """
        leaves, ascent = self._leaves(unconstrained), self._leaves(gradient)
        values, push = jax.linearize(self._values, leaves)
        steps, lengths = list(ascent), []
        colors = {c.blocks.shape[1] for c in self.ownership.clusters if c.kind == "blocks"}
        roots = {m: self._roots(leaves, values, push, m) for m in sorted(colors)}
        for cluster in self.ownership.clusters:
            mine = [leaves[i] for i in cluster.leaves]
            g = [ascent[i] for i in cluster.leaves]
            if cluster.kind == "gaussian":
                found, length = self._gaussian(cluster, mine, g, limit)
            else:
                flat = jnp.concatenate([x.ravel() for x in g] + [jnp.zeros(1, g[0].dtype)])
                picked = flat[cluster.blocks]
                if cluster.kind == "softmax":
                    x = self._softmax(cluster, leaves, values, push, picked)
                else:
                    x = _solve(_fisher(cluster, roots[cluster.blocks.shape[1]]), picked)
                length = jnp.sqrt(jnp.maximum(jnp.sum(picked * x, axis=-1), 0.0))
                x = x * _shorten(length, limit)[:, None]
                flat = flat.at[cluster.blocks].set(x)[:-1]
                cuts = np.cumsum([leaf.size for leaf in mine])[:-1]
                found = [part.reshape(leaf.shape) for part, leaf in zip(jnp.split(flat, cuts), mine, strict=True)]
            for i, step in zip(cluster.leaves, found, strict=True):
                steps[i] = step.astype(leaves[i].dtype)
            lengths.append(length)
        return Natural(self._put(gradient, steps), tuple(lengths))

    def lengths(self, unconstrained: Tree, step: Tree) -> dict[str, Array]:
        """Return the Fisher length of a step for each element of each site."""
        leaves = self._leaves(unconstrained)
        values, change = jax.jvp(self._values, (leaves,), (self._leaves(step),))
        return {
            site: jnp.linalg.norm(known.family.root(values[site], change[site]), axis=-1)
            for site, known in self.guide.sites.items()
        }

    def coordinates(self, unconstrained: Tree, steps: Tree) -> list[Array]:
        """Return the Fisher coordinates of steps (on a leading axis) for each site: (steps, numbers)."""
        values, push = jax.linearize(self._values, self._leaves(unconstrained))

        def one(step: Tree) -> list[Array]:
            change = push(self._leaves(step))
            return [k.family.root(values[s], change[s]).ravel() for s, k in self.guide.sites.items()]

        # XLA's code for a softmax of all steps together is thirty times as slow as that for one after another.
        large = sum(x.size for x in self._leaves(unconstrained)) > _LARGE
        return jax.lax.map(one, steps) if large else jax.vmap(one)(steps)

    def draw(self, unconstrained: Tree, key: Array, length: float) -> Tree:
        """Draw a random step of about this Fisher length in each Fisher coordinate, from N(0, length² F⁻¹).

        The Fisher information is local: of a logit of 30, a twentieth of a standard deviation is 160,000. So numbers
        of discrete factors move by no more than four times the length, and so does the logarithm of a scale.
        """
        leaves = self._leaves(unconstrained)

        def coordinates(step: list[Array]) -> list[Array]:
            values, change = jax.jvp(self._values, (leaves,), (step,))
            return [k.family.root(values[s], change[s]) for s, k in self.guide.sites.items()]

        roots, back = jax.vjp(coordinates, [jnp.zeros_like(x) for x in leaves])
        keys = jax.random.split(key, max(1, len(roots)))
        noise = [jax.random.normal(k, x.shape, x.dtype) for k, x in zip(keys, roots, strict=False)]
        natural = self.has_factor(unconstrained)
        zeros = jax.tree.map(jnp.zeros_like, dict(unconstrained))
        step = self.solve(unconstrained, self._put(zeros, back(noise)[0]), 10.0).step
        most = 4 * length

        def short(mine: bool, discrete: bool, x: Array) -> Array:
            x = length * x if mine else jnp.zeros_like(x)
            return jnp.clip(x, -most, most) if discrete else x

        step = jax.tree.map(short, natural, self.has_factor(unconstrained, discrete=True), step)
        return self.tamed(unconstrained, step, most)[0]

    def awake(self, unconstrained: Tree, far: float) -> Tree:
        """Return parameters with no logit of a discrete factor further than `far` from that of its likeliest value.

        The probability of a saturated factor has no digits left, and the gradient of its logit none either.
        """
        leaves = self._leaves(unconstrained)
        for cluster in self.ownership.clusters:
            size = cluster.blocks.shape[1]
            if not all(self.guide.sites[site].discrete for site in cluster.sites):
                continue
            if cluster.kind != "softmax" and size != 1:
                continue
            mine = [leaves[i] for i in cluster.leaves]
            flat = jnp.concatenate([x.ravel() for x in mine] + [jnp.zeros(1, mine[0].dtype)])
            u = flat[cluster.blocks]
            near = jnp.clip(u, -far, far) if size == 1 else jnp.maximum(u, jnp.max(u, -1, keepdims=True) - far)
            flat = flat.at[cluster.blocks].set(near)[:-1]
            cuts = np.cumsum([x.size for x in mine])[:-1]
            for i, part in zip(cluster.leaves, jnp.split(flat, cuts), strict=True):
                leaves[i] = part.reshape(leaves[i].shape)
        return self._put(unconstrained, leaves)

    def tamed(self, unconstrained: Tree, step: Tree, fold: float) -> tuple[Tree, Array]:
        """Shorten a step, factor by factor, until no positive parameter of a distribution leaves its neighbourhood.

        A natural step is a straight line in the parameters, and a scale that should shrink to nothing would pass it.

        Args:
            unconstrained: the parameters.
            step: the step.
            fold: the most that the logarithm of a scale, a rate or a concentration may change.

        Returns:
            The step, and the largest Fisher length of an element's.
        """
        leaves, steps = self._leaves(unconstrained), self._leaves(step)
        values, change = jax.jvp(self._values, (leaves,), (steps,))
        lengths, shares = [jnp.zeros(())], {}
        for site, known in self.guide.sites.items():
            length = jnp.linalg.norm(known.family.root(values[site], change[site]), axis=-1)
            fast = known.family.fold(values[site], change[site])
            shares[site] = _shorten(jnp.broadcast_to(fast, known.shape).ravel(), fold)
            lengths.append(jnp.max(length * shares[site].reshape(length.shape), initial=0.0))
        for cluster in self.ownership.clusters:
            if cluster.kind == "softmax":
                continue
            if cluster.kind == "gaussian":
                for i in cluster.leaves:
                    steps[i] = steps[i] * jnp.min(shares[cluster.sites[0]], initial=1.0)
                continue
            block = jnp.ones(len(cluster.blocks), steps[0].dtype)
            for site in cluster.sites:
                block = block.at[cluster.block_of[site]].min(shares[site])
            flat = jnp.ones(sum(leaves[i].size for i in cluster.leaves) + 1, block.dtype)
            flat = flat.at[cluster.blocks].set(block[:, None])[:-1]
            cuts = np.cumsum([leaves[i].size for i in cluster.leaves])[:-1]
            for i, part in zip(cluster.leaves, jnp.split(flat, cuts), strict=True):
                steps[i] = steps[i] * part.reshape(steps[i].shape).astype(steps[i].dtype)
        return self._put(step, steps), jnp.max(jnp.stack(lengths))

    # --- the parts ----------------------------------------------------------------------------------------------

    def _leaves(self, tree: Mapping[str, Any]) -> list[Array]:
        return [jnp.asarray(x) for x in jax.tree.leaves({name: tree[name] for name in self.guide.transforms})]

    def _put(self, tree: Tree, leaves: list[Array]) -> Tree:
        return dict(tree) | jax.tree.unflatten(self.structure, leaves)

    def _values(self, leaves: list[Array]) -> Any:
        return self.guide.values(self.guide.constrain(jax.tree.unflatten(self.structure, leaves)))

    def _roots(self, leaves: list[Array], values: Any, push: Callable[..., Any], size: int) -> dict[str, Array]:
        """Return R J of the blocks of one size, by site: (numbers of a block, elements, Fisher coordinates)."""
        mine = [c for c in self.ownership.clusters if c.kind == "blocks" and c.blocks.shape[1] == size]
        colors = [np.full(leaf.size, -1) for leaf in leaves]
        for cluster in mine:
            flat = np.full(sum(leaves[i].size for i in cluster.leaves) + 1, -1)
            flat[cluster.blocks] = np.arange(size)
            at = 0
            for i in cluster.leaves:
                colors[i] = flat[at : at + leaves[i].size]
                at += leaves[i].size
        sites = [site for cluster in mine for site in cluster.sites]

        def one(color: Array) -> dict[str, Array]:
            change = push(
                [(c == color).astype(x.dtype).reshape(x.shape) for c, x in zip(colors, leaves, strict=True)]
            )
            found = {s: self.guide.sites[s].family.root(values[s], change[s]) for s in sites}
            return {s: root.reshape(-1, root.shape[-1]) for s, root in found.items()}

        colors = [jnp.asarray(c) for c in colors]  # type: ignore[misc]
        return jax.vmap(one)(jnp.arange(size))

    def _softmax(
        self, cluster: Cluster, leaves: list[Array], values: Any, push: Callable[..., Any], g: Array
    ) -> Array:
        """Solve for logits that are functions of one number each: g_k / p_k, less that of the likeliest value."""
        (site,), (leaf,) = cluster.sites, cluster.leaves
        ones = [jnp.ones_like(x) if i == leaf else jnp.zeros_like(x) for i, x in enumerate(leaves)]
        logits, slope = (x[site]["logits"].reshape(g.shape) for x in (values, push(ones)))
        p = jax.nn.softmax(logits, axis=-1)
        x = _ratio(_ratio(g, slope), p)
        x = x - jnp.take_along_axis(x, jnp.argmax(p, axis=-1, keepdims=True), axis=-1)
        return _ratio(x, slope)

    def _gaussian(
        self, cluster: Cluster, leaves: list[Array], gradient: list[Array], limit: Array | float | None
    ) -> tuple[list[Array], Array]:
        """Solve for a mean and a Cholesky factor: with dL = L A, the metric is |L⁻¹dμ|² + Σ A_ij² + Σ A_ii²."""
        names = list(self.guide.transforms)
        paths = [self.ownership.paths[i] for i in cluster.leaves]
        transforms = [self.guide.transforms[next(n for n in names if n == path)] for path in paths]
        loc, tril = (t(x) for t, x in zip(transforms, leaves, strict=True))
        back = [jax.vjp(t.inv, y)[1] for t, y in zip(transforms, (loc, tril), strict=True)]
        (g_loc,), (g_tril,) = (b(g) for b, g in zip(back, gradient, strict=True))
        upper = jnp.swapaxes(tril, -1, -2)
        white = upper @ g_loc[..., None]
        a = jnp.tril(upper @ jnp.tril(g_tril))
        half = a - 0.5 * a * jnp.eye(tril.shape[-1], dtype=tril.dtype)
        squared = jnp.sum(white**2, axis=(-2, -1)) + jnp.sum(a * half, axis=(-2, -1))
        length = jnp.sqrt(jnp.maximum(squared, 0.0))
        short = _shorten(length, limit)
        changes = (short[..., None] * (tril @ white)[..., 0], short[..., None, None] * jnp.tril(tril @ half))
        ends = zip(transforms, (loc, tril), changes, strict=True)
        return [jax.jvp(t.inv, (y,), (dy.astype(y.dtype),))[1] for t, y, dy in ends], length.ravel()


def _shorten(length: Array, limit: Array | float | None) -> Array:
    if limit is None:
        return jnp.ones_like(length)
    return jnp.where(length > limit, limit / jnp.where(length > limit, length, 1.0), 1.0)


def _ratio(a: Array, b: Array) -> Array:
    """Return a / b, zero where b is too small to divide by."""
    good = jnp.abs(b) > jnp.finfo(b.dtype).tiny
    return jnp.where(good, a / jnp.where(good, b, 1.0), 0.0)


def _fisher(cluster: Cluster, roots: Mapping[str, Array]) -> Array:
    """Return the Fisher information of each block, (blocks, numbers, numbers)."""
    number, size = cluster.blocks.shape
    total: Any = 0.0
    for site in cluster.sites:
        one = jnp.einsum("inr,jnr->nij", roots[site], roots[site])
        if np.array_equal(cluster.block_of[site], np.arange(number)):
            total = total + one
        else:
            total = total + jnp.zeros((number, size, size), one.dtype).at[cluster.block_of[site]].add(one)
    return total


def _solve(fisher: Array, gradient: Array) -> Array:
    """Apply the inverse of each block, scaled to a unit diagonal, with one in the place of a zero eigenvalue.

    Along such a direction the guide stays the same; the gradient is zero there, but for parameters of the model.
    """
    size = fisher.shape[-1]
    if size == 1:
        return _ratio(gradient, fisher[..., 0])
    diagonal = jnp.diagonal(fisher, axis1=-2, axis2=-1)
    scale = _ratio(jnp.ones_like(diagonal), jnp.sqrt(diagonal))
    y, small = scale * gradient, 10 * size * jnp.finfo(fisher.dtype).eps
    if size == 2:
        r = jnp.clip(scale[:, 0] * fisher[:, 0, 1] * scale[:, 1], -1.0, 1.0)
        parts = [(y[:, 0] + s * y[:, 1]) / 2 * _above(1 + s * r, small) for s in (1, -1)]
        return scale * jnp.stack([parts[0] + parts[1], parts[0] - parts[1]], axis=-1)
    values, vectors = jnp.linalg.eigh(scale[..., :, None] * fisher * scale[..., None, :])
    along = jnp.einsum("nij,ni->nj", vectors, y) * _above(values, small * jnp.max(values, axis=-1, keepdims=True))
    return scale * jnp.einsum("nij,nj->ni", vectors, along)


def _above(x: Array, small: Any) -> Array:
    """Return 1 / x, one where x is not above a limit."""
    return jnp.where(x > small, 1.0 / jnp.where(x > small, x, 1.0), 1.0)
