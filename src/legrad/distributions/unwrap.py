"""Takes a NumPyro distribution out of its wrappers: the bare elementwise distribution, and the mask around it."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from numpyro.distributions import Distribution
from numpyro.distributions.distribution import ExpandedDistribution, Independent, MaskedDistribution


class Stripped(NamedTuple):
    """`bare.log_prob(value)` is elementwise; `mask` broadcasts against it (None: nothing is masked)."""

    bare: Distribution
    mask: jax.Array | None


def strip(fn: Distribution) -> Stripped:
    """Remove Independent, Masked and Expanded, in whatever order they are nested.

    The bare distribution may have a smaller batch shape than `fn`: its log_prob broadcasts with the value.
    """
    mask, levels = None, []
    while isinstance(fn, Independent | MaskedDistribution | ExpandedDistribution):
        if isinstance(fn, MaskedDistribution):
            levels.append((jnp.asarray(fn._mask), fn.event_dim))
        fn = fn.base_dist
    for level, event_dim in levels:
        # A mask covers the batch axes of its own level; axes that were independent events below it follow.
        level = jnp.reshape(level, level.shape + (1,) * (event_dim - fn.event_dim if level.ndim else 0))
        mask = level if mask is None else mask & level
    return Stripped(fn, mask)
