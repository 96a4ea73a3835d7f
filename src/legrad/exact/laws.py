"""The law of a site's independent elements: candidates and weights, differentiable, and their mean and variance.

A finite support is summed, E[g] = Σ_k p_k g(v_k). A function of a Normal element that has no closed form is summed
over the nodes of `nodes.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from legrad.distributions import support
from legrad.distributions.elements import Scalar
from legrad.distributions.finite import enumerate_values, probability
from legrad.distributions.unwrap import unexpanded
from legrad.exact.nodes import plain

LARGEST = 256  # values of an element that is summed


@dataclass(frozen=True)
class Law:
    """The law of the elements of one site.

    Attributes:
        shape: the shape of the site.
        values: the candidates, (K, *shape) with axes of length 1 where all elements have the same ones; of Normal
            elements the equidistant nodes.
        weights: the weights of the candidates, of the same form; they sum to one.
        mean: the mean of each element.
        variance: the variance of each element.
        normal: whether the elements are Normal.
        dtype: the type of a value.
    """

    shape: tuple[int, ...]
    values: Any
    weights: Any
    mean: Any
    variance: Any
    normal: bool
    dtype: Any

    @property
    def size(self) -> int:
        """The number of candidates."""
        return int(self.values.shape[0])


def is_known(scalar: Scalar | None) -> bool:
    """Say whether a site's elements have a law, from types and shapes alone."""
    if scalar is None:
        return False
    base = unexpanded(scalar.base)
    if isinstance(base, dist.Normal):
        return True
    if not support.is_finite(scalar.base):
        return False
    values, _ = enumerate_values(base)
    return len(values) <= LARGEST


def law(scalar: Scalar, dtype: Any) -> Law:
    """Return the law of a site whose elements are known to have one.

    Args:
        scalar: the elements.
        dtype: the type of the site's coordinate.
    """
    base, shape = unexpanded(scalar.base), scalar.base.batch_shape
    if isinstance(base, dist.Normal):
        loc, scale = (jnp.broadcast_to(jnp.asarray(x, dtype), shape) for x in (base.loc, base.scale))
        z, unit = (x.reshape(-1, *(1,) * len(shape)).astype(dtype) for x in plain(dtype))
        return Law(shape, loc + scale * z, unit, loc, scale**2, True, dtype)
    found: Any
    inside: Any
    values: Any
    with jax.ensure_compile_time_eval():
        found, inside = enumerate_values(base)
    values = found if isinstance(found, jax.core.Tracer) else np.asarray(found)
    values, mass = (
        x.reshape(len(x), *(1,) * (len(shape) + 1 - x.ndim), *x.shape[1:]) for x in (values, probability(base, found))
    )
    inside = jnp.reshape(inside, (len(values), *(1,) * (len(shape) + 1 - inside.ndim), *inside.shape[1:]))
    weights = jnp.broadcast_to(jnp.where(inside, mass, 0), (len(values), *shape))
    numbers = values.astype(weights.dtype)
    mean = jnp.sum(weights * numbers, axis=0)
    variance = jnp.sum(weights * (numbers - mean) ** 2, axis=0)
    return Law(shape, values.astype(dtype), weights, mean, variance, False, dtype)
