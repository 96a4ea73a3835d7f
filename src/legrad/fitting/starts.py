"""Several starts of one fit: the first where model and guide initialize it, the others elsewhere.

Parameters whose initial values depend on the random key (a network's weights) are drawn anew, and so are locations
for which the guide has a method `other_start` (MeanField draws them from the prior). All other parameters are moved
by up to 2 in the unconstrained space, as Stan starts its chains.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_RADIUS = 2.0


def scattered(first: dict[str, Any], own: dict[str, Any], key: jax.Array) -> dict[str, Any]:
    """Return the unconstrained parameters of another start.

    Args:
        first: the unconstrained parameters of the first start.
        own: the unconstrained parameters as model and guide initialize them with this start's key.
        key: the random key that moves the parameters whose initial values do not depend on a key.
    """
    leaves, structure = jax.tree.flatten(own)
    moved = []
    for i, (x, at_first) in enumerate(zip(leaves, jax.tree.leaves(first), strict=True)):
        if np.array_equal(x, at_first):
            x = x + jax.random.uniform(jax.random.fold_in(key, i), jnp.shape(x), x.dtype, -_RADIUS, _RADIUS)
        moved.append(x)
    return jax.tree.unflatten(structure, moved)
