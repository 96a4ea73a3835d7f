"""The error of a quadrature: the gradient with the estimator's nodes against one with many more, at the same pivots.

For a component j of the gradient and node k of the finer rule, with F the function that is integrated,

    c_jk = Σ_e w_k (F_k − mean of F) ∂_j log q(v_k),        error_j = | Σ_k c_jk − the same of fewer nodes |
    relative error_j = error_j / Σ_k |c_jk|

The sum of |c_jk| is as large as the gradient where the c_jk do not cancel, and does not vanish at an optimum, where
they do. log p and −log q count separately in that sum: at an exact guide, log p − log q is constant.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient

from legrad.distributions import support
from legrad.estimators.local_expectation import Arranged, Differences, LocalExpectation, SiteCandidates
from legrad.model.problem import Noise, Problem
from legrad.model.sites import Factor

LIMIT = 0.02  # relative error above which to report
NODES = "nodes"  # in the words about a term that is summed over nodes
TERM_LIMIT = 1e-3  # the same for the expectation of a whole term
_NEGLIGIBLE = 1e-10  # weight below which a node is so far out that f may overflow there
_INFINITE = 1e-4  # mass of the nodes where f may be infinite, which are then left out
_MOST = 95  # the most nodes that NumPy computes accurately
_ROUNDING = 64  # units of rounding: a function that varies by less counts as constant


class Error(NamedTuple):
    """The quadrature error of one parameter, at its worst component.

    Attributes:
        change: the change of the gradient, in its own unit.
        relative: the change relative to the sum of the nodes' contributions.
    """

    change: float
    relative: float


def finer(estimator: LocalExpectation) -> int:
    """Return the number of nodes to compare with; only a few more would err alike where the rule converges slowly."""
    return min(6 * estimator.nodes + 3, max(_MOST, estimator.nodes + 2))


def sums_over_nodes(
    estimator: LocalExpectation, problem: Callable[[Any, Any], Problem], at: dict[str, Any], key: jax.Array
) -> tuple[list[str], bool]:
    """Return the latents that are integrated one by one, and whether exact terms are sums over nodes.

    Latents on which other fixed sites depend are checked in every step instead.
    """
    found: list[Arranged] = []

    def look(at: dict[str, Any], key: jax.Array) -> None:
        found.append(estimator.arrange(problem(at, 0), Noise(*jax.random.split(key))))

    jax.eval_shape(look, at, key)
    return _sites(found[0]), any(term.is_exact and NODES in term.how for term in found[0].split.terms.values())


def errors(
    estimator: LocalExpectation, problem: Callable[[Any, Any], Problem], at: dict[str, Any], keys: jax.Array
) -> tuple[Any, Any]:
    """Return the error of each component of the gradient, and the scale of that error, both as means over pivots.

    Args:
        estimator: the estimator whose nodes are checked.
        problem: a function that returns model and guide at unconstrained parameters, with the data of the i-th pivot.
        at: the unconstrained parameters.
        keys: one random key for each pivot.
    """

    def one(given: tuple[jax.Array, jax.Array]) -> tuple[Any, Any]:
        key, i = given
        rows, pull = jax.vjp(lambda u: _rows(estimator, problem(u, i), Noise(*jax.random.split(key))), at)

        def add(k: jax.Array, total: Any) -> Any:
            (row,) = pull(jnp.zeros_like(rows).at[k].set(1.0))
            return jax.tree.map(lambda t, r: t + jnp.abs(r), total, row)

        (change,) = pull(jnp.zeros_like(rows).at[0].set(1.0))
        scale = jax.lax.fori_loop(1, len(rows), add, jax.tree.map(jnp.zeros_like, change))
        return change, scale

    change, scale = jax.lax.map(one, (keys, jnp.arange(len(keys))))
    mean = partial(jax.tree.map, partial(jnp.mean, axis=0))
    return jax.tree.map(jnp.abs, mean(change)), mean(scale)


def worst(change: dict[str, Any], scale: dict[str, Any]) -> dict[str, Error]:
    """Return the error of the worst component of each parameter."""

    def largest(leaves: list[np.ndarray]) -> float:
        return max((float(np.max(leaf, initial=0.0)) for leaf in leaves), default=0.0)

    found = {}
    for name in change:
        changes, scales = ([np.asarray(leaf) for leaf in jax.tree.leaves(tree[name])] for tree in (change, scale))
        ratios = [np.where(s > 0, c / np.where(s > 0, s, 1.0), 0.0) for c, s in zip(changes, scales, strict=True)]
        found[name] = Error(largest(changes), largest(ratios))
    return found


def concern(estimator: LocalExpectation, found: dict[str, Error]) -> str:
    """Return a sentence if the quadrature is off by more than 2%; else nothing."""
    name = max(found, key=lambda name: found[name].relative, default="")
    if not name or not found[name].relative > LIMIT:
        return ""
    return (
        f"the quadrature is not accurate at these parameters: with more nodes the gradient of '{name}' changes by "
        f"{found[name].relative:.0%} of its size. Try more nodes, LocalExpectation(nodes={2 * estimator.nodes + 1}), "
        'or LocalExpectation(continuous="reparam")'
    )


def concern_of_terms(found: dict[str, Any]) -> str:
    """Return a sentence if an expectation over nodes is off by more than a thousandth; else nothing.

    Args:
        found: the result of `LocalExpectation.term_errors`, as numbers.
    """
    name = max(found, key=lambda name: float(found[name]), default="")
    if not name or not float(found[name]) > TERM_LIMIT:
        return ""
    return (
        f"the expectation of {name} is off by about {float(found[name]):.1g} of its size at these parameters: the "
        "term changes too fast within a standard deviation of the guide. Try LocalExpectation(exact_terms=False)"
    )


def _sites(arranged: Arranged) -> list[str]:
    bases = {n: scalar.base for n, scalar in arranged.local.items() if not arranged.children[n]}
    return [n for n, base in bases.items() if support.is_quadrature(base)]


def _rows(estimator: LocalExpectation, problem: Problem, noise: Noise) -> jax.Array:
    """Return numbers whose gradients are the change from few nodes to many, then the contribution of each of many."""
    arranged = estimator.arrange(problem, noise)
    run: dict[str, Any] = {"noise": noise, "pivot": arranged.pivot, "exact_entropy": arranged.exact}
    here, moving = problem.evaluate(arranged.x, **run), partial(problem.stopped().evaluate, **run)
    cuts = {n: _cut(estimator, here.factors[n]) for n in _sites(arranged)}
    changes: dict[str, Differences] = {}
    for fixed, childless in ((arranged.x, True), (arranged.held, False)):
        some = {n: cut for n, cut in cuts.items() if (n in arranged.childless) == childless}
        changes |= estimator.changes(here, moving, fixed, some, False)
    size = jnp.sqrt(sum(jnp.sum(stop_gradient(term) ** 2) for term in here.terms().values()))
    change, groups = jnp.zeros(()), dict[tuple[int, int], jax.Array]()
    for n, cut in cuts.items():
        factor, f = here.factors[n], changes[n].f
        log_q = factor.elements.coordinate_log_prob(cut.moved)
        own = jnp.zeros_like(f)
        if problem.entropy and n not in arranged.exact:
            own = factor.counted(-factor.elements.log_prob(cut.moved))
        parts = [_pulls(cut, stop_gradient(part), size) for part in (f - own, own)]
        few = len(cut.weights)
        rows = [jnp.sum(pull * log_q, axis=tuple(range(1, log_q.ndim))) for pull in parts]
        for kind, row in enumerate(rows):
            change += jnp.sum(row[few:]) - jnp.sum(row[:few])
            group = (kind, len(row))  # sites that take the same number of nodes
            groups[group] = groups.get(group, 0.0) + row[few:]
    return jnp.concatenate([change[None], *groups.values()])


def _cut(estimator: LocalExpectation, factor: Factor) -> SiteCandidates:
    """Return the nodes of a site, and the many nodes to compare with."""
    values, weights, kind = support.must_have_candidates(factor.elements.base, estimator.nodes)
    return SiteCandidates(values, weights, kind, support.must_have_candidates(factor.elements.base, finer(estimator)))


def _pulls(cut: SiteCandidates, f: jax.Array, size: jax.Array) -> jax.Array:
    """Return w_k (F_k − mean of F) for few nodes and for many.

    It is zero for an element where F is constant up to rounding, or infinite or NaN at nodes that matter: a finer
    rule cannot judge those.
    """
    assert cut.check is not None
    few, many = cut.weights, cut.check.weights
    weights = jnp.concatenate([few, jnp.where(many > _NEGLIGIBLE, many, 0.0)])
    counts = (weights > 0) & jnp.isfinite(f)
    infinite = jnp.sum(jnp.where(jnp.isfinite(f), 0.0, weights)[len(few) :], axis=0)
    f = jnp.where(counts, f, 0.0)
    mean = jnp.sum(many * f[len(few) :], axis=0)
    apart = jnp.where(counts, f - mean, 0.0)
    varies = jnp.max(jnp.abs(apart), axis=0) > _ROUNDING * jnp.finfo(f.dtype).eps * size
    return jnp.where(varies & (infinite < _INFINITE), weights * apart, 0.0)
