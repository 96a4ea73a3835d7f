"""NumPyro's wrappers around a distribution, removed: the bare elementwise distribution, and the mask around it."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from numpyro.distributions import Distribution
from numpyro.distributions.distribution import ExpandedDistribution, Independent, MaskedDistribution


class Unwrapped(NamedTuple):
    """`bare.log_prob(value)` is elementwise; `mask` broadcasts against it (None: nothing is masked)."""

    bare: Distribution
    mask: jax.Array | None


def unwrap(fn: Distribution) -> Unwrapped:
    """Remove Independent, Masked and Expanded, in whatever order they are nested.

    The bare distribution may have a smaller batch shape than `fn`: its log_prob broadcasts with the value.
    """
    bare, wrappers = _peel(fn, (Independent, MaskedDistribution, ExpandedDistribution))
    mask = None
    for wrapper in wrappers:
        if isinstance(wrapper, MaskedDistribution):
            level = jnp.asarray(wrapper._mask)
            # A mask covers the batch axes of its own level; axes that were independent events below it follow.
            level = jnp.reshape(level, level.shape + (1,) * (wrapper.event_dim - bare.event_dim if level.ndim else 0))
            mask = level if mask is None else mask & level
    return Unwrapped(bare, mask)


def unexpanded(fn: Distribution) -> Distribution:
    """Remove only Expanded, which changes nothing about a log-density but its shape."""
    return _peel(fn, (ExpandedDistribution,))[0]


def _peel(fn: Any, kinds: tuple[type, ...]) -> tuple[Distribution, list[Distribution]]:
    """Remove wrappers of some kinds from the outside in; return the inner distribution, and the wrappers."""
    wrappers: list[Any] = []
    inside: Any = fn
    while isinstance(inside, kinds):
        wrappers.append(inside)
        inside = inside.base_dist  # type: ignore[attr-defined]
    return inside, wrappers
