"""Counts without an upper end: which integers are summed, and how much is left out.

The sum runs over a window of integers around the largest term. The largest term is looked for on a grid whose points
are 20% apart, then on a fine one, so that the window is right whatever the data say (N ≥ y, or y far above the
prior). Small counts need no search: the integers from zero, whose terms are in part known before the program runs,
are tried first (`near`), and the window is moved only if they leave something out.

What a window leaves out is bounded by a geometric series: with terms v and ρ = v_last / v_before, the terms beyond
are at most v_last · ρ / (1 − ρ) together if they fall ever faster, as those of log-concave counts do.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient

from legrad.distributions.counts import COUNTS
from legrad.distributions.unwrap import unwrap
from legrad.marginal.evaluate import Support
from legrad.marginal.factors import Factors, accumulated
from legrad.singlesite.together import any_of

WINDOW = 128
_COARSE = np.unique(np.concatenate([np.arange(8), np.floor(8 * 1.2 ** np.arange(80)), [0]])).astype(int)
_FINE = 64
_NEAR = 64
ESCAPED = 1e-6  # a share of the sum that is worth a warning


def is_unbounded(site: Any) -> bool:
    """Whether a site is a count without an upper end."""
    return type(unwrap(site["fn"]).bare) in COUNTS


def located(
    factors: Callable[[dict[str, Support]], Factors], supports: Mapping[str, Support], sites: Mapping[str, Any]
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


def _largest(factors: Factors, supports: Mapping[str, Support], names: list[str]) -> dict[str, Any]:
    best = {}
    for name in names:
        u = profile(factors, name)
        every = supports[name].values.reshape(u.shape)
        place = jnp.argmax(jnp.where(jnp.isnan(u), -jnp.inf, u), axis=0)
        best[name] = every[place, jnp.arange(u.shape[1])]
    return best


def near(supports: Mapping[str, Support], sites: Mapping[str, Any]) -> dict[str, Support]:
    """Return the supports with windows that begin at zero, as numbers that are known when a program is traced."""
    found = dict(supports)
    for name, s in supports.items():
        if is_unbounded(sites[name]):
            values = np.arange(min(_NEAR, s.size), dtype=jax.dtypes.canonicalize_dtype(int))
            found[name] = Support(values.reshape(-1, *(1,) * len(s.shape)), s.shape, s.start)
    return found


def profile(factors: Factors, name: str) -> Any:
    """Return the largest term with each value of each element of a site: (candidates, elements)."""
    u = stop_gradient(factors.potentials[name])
    for group in factors.groups:
        for axis, site in enumerate(group.sites):
            if site == name:
                others = tuple(a for a in range(len(group.sites)) if a != axis)
                u = accumulated(u, jnp.max(stop_gradient(group.values), axis=others), group.scope[:, axis])
    return u


def escaped(factors: Factors, supports: Mapping[str, Support], name: str) -> Any:
    """Bound the share of the sum that the window of a site leaves out, of the element that loses most."""
    u, s = profile(factors, name), supports[name]
    u = jnp.where(jnp.isnan(u), -jnp.inf, u)
    top = jnp.max(u, axis=0)
    v = jnp.exp(u - jnp.where(jnp.isneginf(top), 0.0, top))
    first = jnp.broadcast_to(jnp.asarray(s.values)[0], s.shape).reshape(-1)

    def beyond(last: Any, before: Any) -> Any:
        ratio = last / jnp.where(before > 0, before, 1.0)
        return jnp.where(last > 0, jnp.where(ratio < 1, last * ratio / (1 - jnp.minimum(ratio, 0.999)), 1.0), 0.0)

    outside = beyond(v[-1], v[-2]) + jnp.where(first > 0, beyond(v[0], v[1]), 0.0)
    total = jnp.sum(v, axis=0)
    return jnp.max(jnp.where(total > 0, outside / jnp.where(total > 0, total, 1.0), 1.0))


def watch(share: Any, name: str, window: int, warned: set[str]) -> None:
    """Warn, once, while a program runs, if a window leaves a share of the sum out that matters."""

    def warn(share: Any) -> None:
        if name not in warned and share > ESCAPED:
            warned.add(name)
            warnings.warn(
                f"site '{name}' is a count, summed over a window of {window} values, which left out up to "
                f"{float(share):.1g} of the sum: pass window={4 * window} to legrad.marginalize",
                stacklevel=2,
            )

    jax.lax.cond(any_of(share > ESCAPED), lambda x: jax.debug.callback(warn, x), lambda x: None, share)
