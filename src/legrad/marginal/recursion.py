"""Sums over chains: the forward recursion, backward sampling, and Viterbi's algorithm.

With potentials u_t of the states of level t, and links M_t between levels t-1 and t,

    α_0 = u_0,        α_t[j] = u_t[j] + log Σ_i exp(α_{t-1}[i] + M_t[i, j]),        log Z = log Σ_j exp(α_T[j])

As probabilities, a_t ∝ exp(α_t), a step is a product with the matrix exp(M_t), many times faster than the sum of
exponentials. A probability below e^-87 is lost in float32. That is harmless if no link is impossible: with links that
differ by at most R within a column, whatever state i leads to has at most e^R times the mass of what the likeliest
state leads to, so a lost state has at most a share e^(R - 87) of the sum. The links decide while the program runs,
one table for all chains of a `vmap`; beyond R the recursion is that of the logarithms.

Arrays: potentials (levels, chains, states), links (levels - 1 or 1, chains or 1, states, states).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from legrad.marginal.log_sum_exp import log_sum_exp
from legrad.singlesite.together import all_of

if TYPE_CHECKING:
    from legrad.marginal.eliminate import Elimination

_RANGE = 0.7  # of the exponents that a float can hold: R


def log_partition(potentials: Any, links: Any) -> Any:
    """Return log Z of each chain."""
    column = lax.stop_gradient(jnp.max(links, axis=-2, keepdims=True))
    column = jnp.where(jnp.isneginf(column), 0.0, column)
    exponents = links - column
    largest = float(np.log(np.finfo(links.dtype).max))
    mild = all_of(lax.stop_gradient(jnp.all(exponents >= -_RANGE * largest)))
    return lax.cond(mild, _of_probabilities, jax.checkpoint(_of_logarithms), potentials, exponents, column[..., 0, :])


def _of_probabilities(potentials: Any, exponents: Any, column: Any) -> Any:
    u = potentials.at[1:].add(column)
    top = lax.stop_gradient(jnp.max(u, axis=-1, keepdims=True))
    top = jnp.where(jnp.isneginf(top), 0.0, top)
    likelihood = jnp.exp(u - top)
    matrices = jnp.exp(exponents)

    def normalized(a: Any) -> tuple[Any, Any]:
        total = jnp.sum(a, axis=-1, keepdims=True)
        safe = jnp.where(total > 0, total, 1.0)
        return a / safe, jnp.where(total > 0, safe, 0.0)[:, 0]

    def step(a: Any, given: Any) -> tuple[Any, Any]:
        now, matrix = given if len(matrices) > 1 else (given, matrices[0])
        ahead = a @ matrix[0] if len(matrix) == 1 else jnp.einsum("ci,cij->cj", a, matrix)
        return normalized(ahead * now)

    first, total = normalized(likelihood[0])
    _, totals = lax.scan(step, first, (likelihood[1:], matrices) if len(matrices) > 1 else likelihood[1:])
    every = jnp.concatenate([total[None], totals])
    none = every == 0
    logs = jnp.where(none, -jnp.inf, jnp.log(jnp.where(none, 1.0, every)))
    return jnp.sum(logs + top[..., 0], axis=0)


def _of_logarithms(potentials: Any, exponents: Any, column: Any) -> Any:
    links = exponents + column[..., None, :]
    alpha, _ = _forward(potentials, links, log_sum_exp)
    return log_sum_exp(alpha, axis=-1)


def best_path(potentials: Any, links: Any) -> Any:
    """Return the log-probability of the most likely states of each chain, with a maximum for each sum."""
    alpha, _ = _forward(potentials, links, jnp.max)
    return jnp.max(alpha, axis=-1)


def _forward(potentials: Any, links: Any, reduce: Any) -> tuple[Any, Any]:
    """Return α at the last level, and at those before it."""
    alike = len(links) == 1

    @jax.checkpoint  # keeps α of each level, not the sums of all pairs of states
    def step(alpha: Any, given: Any) -> tuple[Any, Any]:
        u, m = given if not alike else (given, links[0])
        return reduce(alpha[:, :, None] + m, axis=1) + u, alpha

    return lax.scan(step, potentials[0], potentials[1:] if alike else (potentials[1:], links))


def backward(graph: Elimination, key: Any, potentials: Any, links: Any) -> Any:
    """Draw the states of all levels from the last to the first, or take the best ones: (chains, levels)."""
    length, count, states = potentials.shape
    last, before = _forward(potentials, links, graph.reduce)
    keys = jax.random.split(key, length)
    final = graph.choose(keys[0], last, axis=1)

    def step(state: Any, given: Any) -> tuple[Any, Any]:
        key, alpha, *m = given
        table = jnp.broadcast_to(m[0] if m else links[0], (count, states, states))
        logits = alpha + jnp.take_along_axis(table, state[:, None, None], axis=2)[:, :, 0]
        chosen = graph.choose(key, logits, axis=1)
        return chosen, chosen

    _, earlier = lax.scan(
        step, final, (keys[1:], before) if len(links) == 1 else (keys[1:], before, links), reverse=True
    )
    return jnp.concatenate([earlier, final[None]]).T
