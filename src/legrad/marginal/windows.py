"""Counts without an upper end: which integers are summed.

The sum runs over a window of integers around the largest term. The largest term is looked for on a grid whose points
are 20% apart, then on a fine one, so that the window is right whatever the data say (N ≥ y, or y far above the
prior).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient

from legrad.distributions.counts import COUNTS
from legrad.distributions.unwrap import unwrap
from legrad.marginal.evaluate import Support

WINDOW = 128
_COARSE = np.unique(np.concatenate([np.arange(8), np.floor(8 * 1.2 ** np.arange(80)), [0]])).astype(int)
_FINE = 64


def is_unbounded(site: Any) -> bool:
    """Whether a site is a count without an upper end."""
    return type(unwrap(site["fn"]).bare) in COUNTS


def located(
    factors: Callable[[dict[str, Support]], Any], supports: Mapping[str, Support], sites: Mapping[str, Any]
) -> dict[str, Support]:
    """Return the supports with the windows of counts put around the largest terms.

    Args:
        factors: a function from supports to factors.
        supports: the supports; windows begin at zero.
        sites: the sites by name.
    """
    counts = [name for name in supports if is_unbounded(sites[name])]
    found = dict(supports)
    for name in counts:
        found[name] = _at(supports[name], jnp.asarray(_COARSE)[:, None])
    centre = _largest(factors(found), found, counts)
    for name in counts:
        width = jnp.maximum(centre[name] // 4, 1)
        low = jnp.maximum(centre[name] - width, 0)
        step = jnp.maximum((2 * width + _FINE - 1) // _FINE, 1)
        found[name] = _at(supports[name], low + step * jnp.arange(_FINE)[:, None])
    centre = _largest(factors(found), found, counts)
    for name in counts:
        window = supports[name].size
        start = jnp.maximum(centre[name] - window // 2, 0)
        found[name] = _at(supports[name], start + jnp.arange(window)[:, None])
    return found


def _at(support: Support, values: Any) -> Support:
    values = jnp.broadcast_to(stop_gradient(values), (len(values), support.count))
    return Support(values.reshape(len(values), *support.shape).astype(int), support.shape, support.start)


def _largest(factors: Any, supports: Mapping[str, Support], names: list[str]) -> dict[str, Any]:
    best = {}
    for name in names:
        u = stop_gradient(factors.potentials[name])
        every = supports[name].values.reshape(u.shape)
        place = jnp.argmax(jnp.where(jnp.isnan(u), -jnp.inf, u), axis=0)
        best[name] = every[place, jnp.arange(u.shape[1])]
    return best
