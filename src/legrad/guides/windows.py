"""The integers that the factor of a discrete latent covers: its support, or, for a count, a window."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from numpyro.distributions import constraints

from legrad._compiled import jit
from legrad.guides.latents import Latent

_UNCOVERED = 1e-6  # prior mass that the window of a count may leave out
_MAX_WINDOW = 256


def _support_window(site: Latent) -> tuple[int, int | None]:
    """Return (low, high) for the integers low <= z < high of a discrete support, with high=None for a count."""
    if site.support == constraints.boolean:
        return 0, 2
    if isinstance(site.support, constraints.integer_interval):
        low, high = np.unique(site.support.lower_bound), np.unique(site.support.upper_bound)
        if low.size > 1 or high.size > 1:
            raise site.error("has elements with different supports: give each support a site of its own")
        return int(low[0]), int(high[0]) + 1
    if isinstance(site.support, constraints.integer_greater_than):
        return int(np.min(site.support.lower_bound)), None
    raise site.error(
        f"is discrete with support {site.support}, not scalar integers: write the guide by hand, "
        "or change the model to scalar latents"
    )


def window_of(draws: Sequence[Latent], given: tuple[int, int] | None) -> tuple[int, int]:
    """Return the window that the user gave, else the support, else a window from the prior."""
    site = draws[0]
    smallest, end = _support_window(site)
    if given is None:
        return (smallest, end) if end is not None else _prior_window(draws, smallest)
    low, high = (int(bound) for bound in given)
    if site.support == constraints.boolean:
        raise site.error("takes no window: remove it from window=")
    if not (smallest <= low < high and (end is None or high <= end)):
        bounds = f"{smallest} <= low < high" + ("" if end is None else f" <= {end}")
        raise site.error(f"needs window['{site.name}'] = (low, high) with {bounds}, got {given}")
    return low, high


def _prior_window(draws: Sequence[Latent], smallest: int) -> tuple[int, int]:
    """Return the narrowest window with all but `_UNCOVERED` of each element's prior, averaged over the draws."""
    site = draws[0]
    site.concrete("prior", site.prior, site.value)
    remedy = f"pass {site.owner}(window={{'{site.name}': (low, high)}})"
    too_wide = site.error(f"has a prior that no window of {_MAX_WINDOW} integers covers: {remedy}")
    prior_shape = (1,) * len(site.shape) + site.prior.batch_shape
    if any(p.subsample_size < p.size and prior_shape[p.dim - site.event_dim] > 1 for p in site.plates):
        raise site.error(f"has a prior that varies inside a subsampled plate: {remedy}")
    first = int(min(np.min(draw.value) for draw in draws))
    last = int(max(np.max(draw.value) for draw in draws))
    if last - first >= _MAX_WINDOW:
        raise too_wide
    grid = np.arange(max(smallest, first - _MAX_WINDOW), last + _MAX_WINDOW + 1)
    z = jnp.asarray(grid).reshape(-1, *[1] * len(site.prior.batch_shape))
    log_prob = jit(lambda prior: prior.log_prob(z))
    pmf = sum(np.exp(np.asarray(log_prob(draw.prior), np.float64)) for draw in draws) / len(draws)
    pmf = np.reshape(pmf, (len(grid), -1))
    below, above = pmf.cumsum(0), pmf[::-1].cumsum(0)[::-1]
    inside = grid[((below > _UNCOVERED / 2) & (above > _UNCOVERED / 2)).any(1)]
    if inside[-1] - inside[0] >= _MAX_WINDOW:
        raise too_wide
    return int(inside[0]), int(inside[-1]) + 1
