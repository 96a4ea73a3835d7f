"""From the distribution of a scalar element to its candidates v_k and weights w_k, with which

    Σ_k w_k g(v_k) ≈ E_q[g(x)]        and        Σ_k w_k g(v_k) ∇ log q(v_k) ≈ ∇ E_q[g(x)]

Finite supports are summed exactly, counts without an upper end over a window that follows the parameters, and
continuous distributions at quadrature nodes. A new distribution is a line in one of the tables.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array, lax
from jax.scipy.special import betainc, gammainc, gammaincc, xlog1py
from numpyro.distributions import Distribution, constraints
from numpyro.distributions import transforms as tr

from legrad.distributions.densities import CATEGORICAL, bernoulli_entropy, categories, log_prob
from legrad.distributions.quadrature import DEFAULT_NODES, MOVING_END, QUADRATURE, REFUSED, Nodes, Rule, floats

__all__ = [
    "COUNTS",
    "QUADRATURE",
    "REFUSED",
    "Candidates",
    "Rule",
    "Scalar",
    "candidates",
    "entropy",
    "escaped_mass",
    "is_admitted",
    "is_finite",
    "refusal",
    "scalar",
]

WRAPPERS = (dist.MaskedDistribution, dist.Independent, dist.ExpandedDistribution)


# ---------------------------------------------------------------------------------------------------------
# A site's value as independent scalar elements


class Scalar(NamedTuple):
    """A site's value as independent scalar elements, each a coordinate that parameter-free transforms map."""

    base: Distribution
    transforms: tuple[tr.Transform, ...]

    def value(self, coordinate: Array) -> Array:
        """The value at a coordinate."""
        return reduce(lambda x, t: t(x), self.transforms, coordinate)

    def log_abs_det(self, coordinate: Array) -> Array:
        """Sum of log |T'| over the transforms, element by element."""
        total = jnp.zeros(jnp.broadcast_shapes(jnp.shape(coordinate), self.base.batch_shape))
        for t in self.transforms:
            value = t(coordinate)
            total += t.log_abs_det_jacobian(coordinate, value)
            coordinate = value
        return total

    def log_prob(self, coordinate: Array) -> Array:
        """The bare `log q(value)`, element by element, computed without inverting a transform."""
        log_q = self.coordinate_log_prob(coordinate)
        return log_q - self.log_abs_det(coordinate) if self.transforms else log_q

    def coordinate_log_prob(self, coordinate: Array) -> Array:
        """The log-density of the coordinate itself: it differs from `log_prob` by no parameter."""
        shape = jnp.broadcast_shapes(jnp.shape(coordinate), self.base.batch_shape)
        return jnp.broadcast_to(log_prob(self.base, coordinate), shape)


def scalar(fn: Distribution) -> Scalar | None:
    """The elements of `fn` without its masks, plates and event dimensions; None if they are not scalar."""
    shape = fn.shape()
    while isinstance(fn, WRAPPERS):
        fn = fn.base_dist
    if isinstance(fn, dist.TransformedDistribution) and type(fn) not in QUADRATURE | REFUSED:
        inner, steps = scalar(fn.base_dist), _elementwise(fn.transforms)
        if inner is None or steps is None:
            return None
        continuous = not inner.base.support.is_discrete
        if continuous and all(map(_is_bijection, steps)) and not _has_parameters(steps):
            return Scalar(_expand(inner.base, shape), (*inner.transforms, *steps))
        if fn.event_dim:
            fn = dist.TransformedDistribution(inner.base, [*inner.transforms, *steps])
    return None if fn.event_dim else Scalar(_expand(fn, shape), ())


def _expand(base: Distribution, shape: tuple[int, ...]) -> Distribution:
    return base if base.batch_shape == shape else base.expand(shape)


def _bare(base: Distribution) -> Distribution:
    while isinstance(base, dist.ExpandedDistribution):
        base = base.base_dist
    return base


def _elementwise(steps: list[tr.Transform]) -> tuple[tr.Transform, ...] | None:
    """The transforms, compositions opened; None if one of them mixes elements."""
    flat: list[tr.Transform] = []
    for t in steps:
        if isinstance(t, tr.ComposeTransform | tr.IndependentTransform):
            parts = _elementwise(t.parts if isinstance(t, tr.ComposeTransform) else [t.base_transform])
            if parts is None:
                return None
            flat += parts
        elif t.domain.event_dim or t.codomain.event_dim:
            return None
        else:
            flat.append(t)
    return tuple(flat)


def _is_bijection(t: tr.Transform) -> bool:
    return not isinstance(t, tr.AbsTransform)


def _has_parameters(tree: Any) -> bool:
    # Any array counts, traced or not: the answer must be the same in every pass over the same program.
    return any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(tree))


def _traced(tree: Any) -> bool:
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))


# ---------------------------------------------------------------------------------------------------------
# Counts without an upper end: a window, and the mass outside it


def _poisson(d: Any, k: Array) -> tuple[Array, Array]:
    return gammaincc(k, d.rate), gammainc(k, d.rate)


def _negative_binomial(d: Any, k: Array) -> tuple[Array, Array]:
    a, rate, k = jnp.broadcast_arrays(*floats(d.concentration, d.rate, k))
    return betainc(a, k, 1 / (1 + 1 / rate)), betainc(k, a, 1 / (1 + rate))


def _geometric(d: Any, k: Array) -> tuple[Array, Array]:
    log_fail = -jax.nn.softplus(d.logits) if isinstance(d, dist.GeometricLogits) else jnp.log1p(-d.probs)
    return -jnp.expm1(k * log_fail), jnp.exp(k * log_fail)


# The masses below k and from k on, for k ≥ 1: each computed by itself, as one minus the other has no digits.
COUNTS: dict[type, Callable[[Any, Array], tuple[Array, Array]]] = {
    dist.Poisson: _poisson,
    dist.GeometricProbs: _geometric,
    dist.GeometricLogits: _geometric,
    dist.GammaPoisson: _negative_binomial,
    dist.NegativeBinomialProbs: _negative_binomial,
    dist.NegativeBinomialLogits: _negative_binomial,
    dist.NegativeBinomial2: _negative_binomial,
}


def _window_start(base: Any, window: int) -> Array:
    """Centred on the mean; a geometric is highest at zero whatever its mean."""
    falling = isinstance(base, dist.GeometricProbs | dist.GeometricLogits)
    start = jnp.zeros(base.batch_shape) if falling else jnp.floor(base.mean) - window // 2
    return jnp.clip(start, 0, 2**30)


def escaped_mass(base: Distribution, window: int = 64) -> Array:
    """The probability that a count falls outside its window (element by element); constant under differentiation."""
    base, shape = jax.tree.map(_stopped, _bare(base)), base.batch_shape
    start = _window_start(base, window)
    below, _ = COUNTS[type(base)](base, jnp.maximum(start, 1))
    _, above = COUNTS[type(base)](base, start + window)
    return jnp.broadcast_to(jnp.where(start > 0, below, 0) + above, shape)


# ---------------------------------------------------------------------------------------------------------
# Finite supports


def _enumerate(d: Any) -> tuple[Any, Any]:
    """The values of a finite support along a new leading axis, and which of them an element really has.

    Those of a categorical are constants, so that `log_prob` knows that it is asked for all of them. Elements with
    fewer values repeat their last one, so that no density is asked for outside its support.
    """
    if isinstance(d, CATEGORICAL):
        return categories(d), np.ones(categories(d).shape, bool)
    if hasattr(d, "total_count"):
        low, size = 0, _static(d, "total_count")
    elif isinstance(d, dist.DiscreteUniform):
        low, size = d.low, _static(d, "high") - _static(d, "low")
    else:
        try:
            values = jnp.asarray(d.enumerate_support(expand=False))
        except (NotImplementedError, TypeError) as error:  # jax's errors on traced shapes are TypeErrors
            raise ValueError(
                f"the support of {type(d).__name__} cannot be enumerated ({error}): make the parameters that "
                "decide its size Python or NumPy constants, the same for every element"
            ) from error
        return values, jnp.ones(values.shape, bool)
    k = np.arange(np.max(size, initial=0) + 1).reshape((-1,) + (1,) * len(d.batch_shape))
    return low + jnp.minimum(k, size), jnp.asarray(k <= size)


def _static(d: Any, name: str) -> np.ndarray:
    value = getattr(d, name)
    if isinstance(value, jax.core.Tracer):
        raise ValueError(
            f"{type(d).__name__} has a traced `{name}`, so the size of its support is not known when the "
            f"program is compiled: give `{name}` to the model as a constant (a Python int, or a NumPy array that it "
            "closes over), not as an array among its arguments"
        )
    return np.asarray(value).astype(int)


def _bernoulli_pmf(d: Any, value: Array) -> Array:
    return jnp.where(value == 1, d.probs, 1 - d.probs)


def _binomial_pmf(d: Any, value: Array) -> Array:
    certain = jnp.where(d.probs <= 0, value == 0, value == d.total_count)
    return jnp.where((d.probs > 0) & (d.probs < 1), jnp.exp(d.log_prob(value)), certain)


# Where NumPyro's log-density clamps its probabilities away from zero and one, or is wrong there.
PMF: dict[type, Callable[[Any, Array], Array]] = {
    dist.BernoulliProbs: _bernoulli_pmf,
    dist.BinomialProbs: _binomial_pmf,
    dist.GeometricProbs: lambda d, value: d.probs * jnp.exp(xlog1py(value, -d.probs)),
}


def _pmf(d: Any, value: Array) -> Array:
    return PMF.get(type(d), lambda d, value: jnp.exp(log_prob(d, value)))(d, value)


# ---------------------------------------------------------------------------------------------------------
# The interface


class Candidates(NamedTuple):
    """Candidates and weights, each (K, *shape) and constant under differentiation."""

    values: Array
    weights: Array
    kind: str


def is_finite(base: Distribution) -> bool:
    """Whether the support is finite."""
    return bool(_bare(base).has_enumerate_support)


def is_quadrature(base: Distribution) -> bool:
    """Whether `candidates` are the nodes of a quadrature."""
    return is_admitted(base) and not is_finite(base) and type(_bare(base)) not in COUNTS


def is_admitted(base: Distribution) -> bool:
    """Whether `candidates` has an answer. Looks at types, and at which parameters are traced."""
    return refusal(base) is None


def refusal(base: Distribution) -> str | None:
    """Why a distribution has no candidates; None if it has."""
    base = _bare(base)
    if is_finite(base) or type(base) in COUNTS:
        return None
    if type(base) in REFUSED:
        return REFUSED[type(base)]
    if rule := QUADRATURE.get(type(base)):
        if not rule.when(base):
            return "only a truncated Normal has a rule"
        return MOVING_END if _traced([getattr(base, name) for name in rule.fixed]) else None
    if isinstance(base, dist.TransformedDistribution):
        if not all(map(_is_bijection, _elementwise(base.transforms) or (tr.AbsTransform(),))):
            return "its transform is not one-to-one"
        return refusal(base.base_dist) if base.base_dist.support is constraints.real else MOVING_END
    return "it has no rule"


def candidates(base: Distribution, nodes: int = DEFAULT_NODES, window: int = 64) -> Candidates | None:
    """Candidates and weights of every element of a scalar distribution; None if it is not admitted."""
    if not is_admitted(base):
        return None
    shape = base.batch_shape
    values, weights, kind = _candidates(jax.tree.map(_stopped, _bare(base)), nodes, window)
    continuous = kind == "quadrature"
    dtype = jnp.result_type(float) if continuous else jax.eval_shape(base.sample, jax.random.key(0)).dtype

    def spread(x: Array) -> Array:
        x = jnp.reshape(x, x.shape[:1] + (1,) * (1 + len(shape) - x.ndim) + x.shape[1:])
        return lax.stop_gradient(jnp.broadcast_to(x, x.shape[:1] + shape))

    return Candidates(spread(values.astype(dtype)), spread(weights), kind)


def common_values(base: Distribution) -> np.ndarray | None:
    """The values of a finite support where they are constants that all elements share, (K, 1, ...); else None."""
    bare = _bare(base)
    if not isinstance(bare, CATEGORICAL):
        return None
    values = categories(bare)
    return values.reshape(-1, *(1,) * len(base.batch_shape))


def must_have_candidates(base: Distribution, nodes: int = DEFAULT_NODES, window: int = 64) -> Candidates:
    """As `candidates`, for a distribution that is known to be admitted."""
    found = candidates(base, nodes, window)
    assert found is not None
    return found


def _stopped(leaf: Any) -> Any:
    """Constant inputs, not only outputs: quantile functions and incomplete betas have no reverse derivative."""
    return lax.stop_gradient(leaf) if isinstance(leaf, jax.core.Tracer) else leaf


def _candidates(base: Any, nodes: int, window: int) -> tuple[Array, Array, str]:
    if is_finite(base):
        values, inside = _enumerate(base)
        return values, jnp.where(inside, _pmf(base, values), 0), "finite"
    if type(base) in COUNTS:
        offsets = np.arange(window).reshape((-1,) + (1,) * len(base.batch_shape))
        values = (_window_start(base, window) + offsets).astype(int)
        return values, _pmf(base, values), "window"
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
    shape, base = base.batch_shape, _bare(base)
    if isinstance(base, dist.BernoulliLogits):
        total = bernoulli_entropy(jnp.asarray(base.logits, jnp.result_type(base.logits, float)))
    elif is_finite(base):
        values, inside = _enumerate(base)
        present = inside & (_pmf(base, values) > 0)
        log_p = jnp.where(present, log_prob(base, values), 0)
        total = -jnp.sum(jnp.where(present, jnp.exp(log_p) * log_p, 0), 0)
    else:
        try:
            total = base.entropy()
        except NotImplementedError:
            return None
    return jnp.broadcast_to(total, shape)
