"""From the distribution of a scalar element to its candidates v_k and weights w_k, with which

    Σ_k w_k g(v_k) ≈ E_q[g(x)]        and        Σ_k w_k g(v_k) ∇ log q(v_k) ≈ ∇ E_q[g(x)]

Finite supports are summed exactly, counts without an upper end over a window that follows the parameters, and
continuous distributions at quadrature nodes. A new distribution is a line in one of the tables.
"""

from __future__ import annotations

from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array, lax
from numpyro.distributions import Distribution, constraints
from numpyro.distributions import transforms as tr

from legrad.distributions.counts import COUNTS, window_start
from legrad.distributions.densities import CATEGORICAL, bernoulli_entropy, categories, log_prob
from legrad.distributions.elements import elementwise, is_bijection, stopped
from legrad.distributions.finite import enumerate_values, probability
from legrad.distributions.quadrature import DEFAULT_NODES, MOVING_END, QUADRATURE, REFUSED, Nodes
from legrad.distributions.unwrap import unexpanded


class Candidates(NamedTuple):
    """Candidates and weights, each (K, *shape) and constant under differentiation."""

    values: Array
    weights: Array
    kind: str


def is_finite(base: Distribution) -> bool:
    """Whether the support is finite."""
    return bool(unexpanded(base).has_enumerate_support)


def is_quadrature(base: Distribution) -> bool:
    """Whether `candidates` are the nodes of a quadrature."""
    return is_admitted(base) and not is_finite(base) and type(unexpanded(base)) not in COUNTS


def is_admitted(base: Distribution) -> bool:
    """Whether `candidates` has an answer. Looks at types, and at which parameters are traced."""
    return refusal(base) is None


def refusal(base: Distribution) -> str | None:
    """Why a distribution has no candidates; None if it has."""
    base = unexpanded(base)
    if is_finite(base) or type(base) in COUNTS:
        return None
    if type(base) in REFUSED:
        return REFUSED[type(base)]
    if rule := QUADRATURE.get(type(base)):
        if not rule.when(base):
            return "only a truncated Normal has a rule"
        return MOVING_END if _traced([getattr(base, name) for name in rule.fixed]) else None
    if isinstance(base, dist.TransformedDistribution):
        if not all(map(is_bijection, elementwise(base.transforms) or (tr.AbsTransform(),))):
            return "its transform is not one-to-one"
        return refusal(base.base_dist) if base.base_dist.support is constraints.real else MOVING_END
    return "it has no rule"


def candidates(base: Distribution, nodes: int = DEFAULT_NODES, window: int = 64) -> Candidates | None:
    """Candidates and weights of every element of a scalar distribution; None if it is not admitted."""
    if not is_admitted(base):
        return None
    shape = base.batch_shape
    values, weights, kind = _candidates(stopped(unexpanded(base)), nodes, window)
    continuous = kind == "quadrature"
    dtype = jnp.result_type(float) if continuous else jax.eval_shape(base.sample, jax.random.key(0)).dtype

    def spread(x: Array) -> Array:
        x = jnp.reshape(x, x.shape[:1] + (1,) * (1 + len(shape) - x.ndim) + x.shape[1:])
        return lax.stop_gradient(jnp.broadcast_to(x, x.shape[:1] + shape))

    return Candidates(spread(values.astype(dtype)), spread(weights), kind)


def common_values(base: Distribution) -> np.ndarray | None:
    """The values of a finite support where they are constants that all elements share, (K, 1, ...); else None."""
    bare = unexpanded(base)
    if not isinstance(bare, CATEGORICAL):
        return None
    values = categories(bare)
    return values.reshape(-1, *(1,) * len(base.batch_shape))


def must_have_candidates(base: Distribution, nodes: int = DEFAULT_NODES, window: int = 64) -> Candidates:
    """As `candidates`, for a distribution that is known to be admitted."""
    found = candidates(base, nodes, window)
    assert found is not None
    return found


def _candidates(base: Any, nodes: int, window: int) -> tuple[Array, Array, str]:
    if is_finite(base):
        values, inside = enumerate_values(base)
        return values, jnp.where(inside, probability(base, values), 0), "finite"
    if type(base) in COUNTS:
        offsets = np.arange(window).reshape((-1,) + (1,) * len(base.batch_shape))
        values = (window_start(base, window) + offsets).astype(int)
        return values, probability(base, values), "window"
    if rule := QUADRATURE.get(type(base)):
        z, weights = rule.grid(nodes + rule.nodes - DEFAULT_NODES)
        at = Nodes(z, len(base.batch_shape))
        values = jnp.asarray(rule.quantile(base, at))
        return values, jnp.asarray(weights, values.dtype).reshape(at.z.shape), "quadrature"
    inner = candidates(base.base_dist, nodes, window)
    assert inner is not None  # is_admitted looked
    return reduce(lambda x, t: t(x), base.transforms, inner.values), inner.weights, inner.kind


def entropy(base: Distribution) -> Array | None:
    """The entropy of every element, differentiable, where it has a formula or a finite sum; else None."""
    shape, base = base.batch_shape, unexpanded(base)
    if isinstance(base, dist.BernoulliLogits):
        total = bernoulli_entropy(jnp.asarray(base.logits, jnp.result_type(base.logits, float)))
    elif is_finite(base):
        values, inside = enumerate_values(base)
        present = inside & (probability(base, values) > 0)
        log_p = jnp.where(present, log_prob(base, values), 0)
        total = -jnp.sum(jnp.where(present, jnp.exp(log_p) * log_p, 0), 0)
    else:
        try:
            total = base.entropy()
        except NotImplementedError:
            return None
    return jnp.broadcast_to(total, shape)


def _traced(tree: Any) -> bool:
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))
