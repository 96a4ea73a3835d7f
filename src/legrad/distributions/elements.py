"""A site's value as independent scalar elements."""

from __future__ import annotations

from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array, lax
from numpyro.distributions import Distribution
from numpyro.distributions import transforms as tr

from legrad.distributions.densities import log_prob
from legrad.distributions.quadrature import QUADRATURE, REFUSED
from legrad.distributions.unwrap import unwrap


class Scalar(NamedTuple):
    """A site's value as independent scalar elements, each a coordinate that parameter-free transforms map."""

    base: Distribution
    transforms: tuple[tr.Transform, ...]

    def value(self, coordinate: Array) -> Array:
        """Return the value at a coordinate."""
        return reduce(lambda x, t: t(x), self.transforms, coordinate)

    def log_abs_det(self, coordinate: Array) -> Array:
        """Return the sum of log |T'| over the transforms, element by element."""
        total = jnp.zeros(jnp.broadcast_shapes(jnp.shape(coordinate), self.base.batch_shape))
        for t in self.transforms:
            value = t(coordinate)
            total += t.log_abs_det_jacobian(coordinate, value)
            coordinate = value
        return total

    def log_prob(self, coordinate: Array) -> Array:
        """Return the bare `log q(value)`, element by element, computed without inverting a transform."""
        log_q = self.coordinate_log_prob(coordinate)
        return log_q - self.log_abs_det(coordinate) if self.transforms else log_q

    def coordinate_log_prob(self, coordinate: Array) -> Array:
        """Return the log-density of the coordinate itself; its difference from `log_prob` depends on no parameter."""
        shape = jnp.broadcast_shapes(jnp.shape(coordinate), self.base.batch_shape)
        return jnp.broadcast_to(log_prob(self.base, coordinate), shape)


def scalar(fn: Distribution) -> Scalar | None:
    """Return the elements of `fn` without its masks, plates and event dimensions; None if they are not scalar."""
    shape, fn = fn.shape(), unwrap(fn).bare
    if isinstance(fn, dist.TransformedDistribution) and type(fn) not in QUADRATURE | REFUSED:
        inner, steps = scalar(fn.base_dist), elementwise(fn.transforms)
        if inner is None or steps is None:
            return None
        continuous = not inner.base.support.is_discrete
        if continuous and all(map(is_bijection, steps)) and not _has_parameters(steps):
            return Scalar(_expand(inner.base, shape), (*inner.transforms, *steps))
        if fn.event_dim:
            fn = dist.TransformedDistribution(inner.base, [*inner.transforms, *steps])
    return None if fn.event_dim else Scalar(_expand(fn, shape), ())


def _expand(base: Distribution, shape: tuple[int, ...]) -> Distribution:
    return base if base.batch_shape == shape else base.expand(shape)


def elementwise(steps: list[tr.Transform]) -> tuple[tr.Transform, ...] | None:
    """Return the transforms with compositions flattened; None if one of them mixes elements."""
    flat: list[tr.Transform] = []
    for t in steps:
        if isinstance(t, tr.ComposeTransform | tr.IndependentTransform):
            parts = elementwise(t.parts if isinstance(t, tr.ComposeTransform) else [t.base_transform])
            if parts is None:
                return None
            flat += parts
        elif t.domain.event_dim or t.codomain.event_dim:
            return None
        else:
            flat.append(t)
    return tuple(flat)


def is_bijection(t: tr.Transform) -> bool:
    """Say whether a transform is one-to-one."""
    return not isinstance(t, tr.AbsTransform)


def _has_parameters(tree: Any) -> bool:
    # Any array counts, traced or not: the answer must be the same in every pass over the same program.
    return any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(tree))


def stopped(base: Distribution) -> Distribution:
    """Return a distribution whose parameters are constants under differentiation.

    Quantile functions and incomplete betas have no reverse derivative, not even one that is multiplied by zero.
    """

    def stop(leaf: Any) -> Any:
        return lax.stop_gradient(leaf) if isinstance(leaf, jax.core.Tracer) else leaf

    return jax.tree.map(stop, base)
