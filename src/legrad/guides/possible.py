"""Which values of each count the data allow: N of `N ~ Poisson, y ~ Binomial(N, p)` is at least y.

Looked for only where the model has no density with all counts at their smallest values, or at their largest. From a
place that has one, every element takes every value in turn while all others stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers

from legrad._compiled import jit
from legrad.guides.latents import Latent
from legrad.model.arrays import split_arrays
from legrad.model.sites import sample_sites, site_log_prob
from legrad.model.threads import one_at_a_time
from legrad.singlesite import single_site_differences

_PRIOR = 4  # draws of the prior to look from
_BEYOND = 256  # how far above a window to look for a value that the data allow
_WORK = 50_000_000  # discrete values times elements, above which nothing is looked for
Draws = Sequence[Sequence[Latent]]


@one_at_a_time
def possible_values(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    draws: Draws,
    windows: Mapping[str, tuple[int, int]],
) -> dict[str, np.ndarray]:
    """Return for each count which values its elements can take, (*shape, K); nothing if all can be taken.

    Args:
        model: a NumPyro model.
        args: positional arguments of the model.
        kwargs: keyword arguments of the model.
        draws: for each latent site, its draws from the prior.
        windows: for each count, the integers low <= z < high of its factor.

    Raises:
        ValueError: if the data allow only values above the window of a site.
    """
    sites = {draw[0].name: draw for draw in draws}
    subsampled = any(plate.subsample_size < plate.size for draw in draws for plate in draw[0].plates)
    work = sum(np.prod(sites[n][0].shape) ** 2 * (high - low) for n, (low, high) in windows.items())
    if not windows or subsampled or work > _WORK:
        return {}
    arrays, rebuild = split_arrays((args, dict(kwargs)))

    def f(z: Mapping[str, Any], x: Mapping[str, Any], arrays: Any) -> jax.Array:
        args, kwargs = rebuild(arrays)
        with handlers.trace() as trace, handlers.seed(rng_seed=0), handlers.substitute(data={**x, **z}):
            model(*args, **kwargs)
        return jnp.asarray(sum(jnp.sum(site_log_prob(site)) for _, site in sample_sites(trace)))

    value = jit(f)

    def is_possible(z: Mapping[str, Any], x: Mapping[str, Any]) -> bool:
        return bool(np.isfinite(value(z, x, arrays)))

    lowest, highest = ({n: _filled(sites[n], w[i] - i) for n, w in windows.items()} for i in (0, 1))
    others = [{n: d[i].value for n, d in sites.items() if n not in windows} for i in range(_PRIOR)]
    if all(is_possible(z, others[0]) for z in (lowest, highest)):
        return {}
    pivots = ((z, x) for z in _places(sites, windows, lowest, highest) for x in others)
    pivot = next((p for p in pivots if is_possible(*p)), None)
    ends = dict(windows)
    if pivot is None:
        beyond = {n: _filled(sites[n], high + _BEYOND) if _has_no_end(sites[n]) else highest[n]
                  for n, (_, high) in windows.items()}  # fmt: skip
        pivot = next(((beyond, x) for x in others if is_possible(beyond, x)), None)
        if pivot is None:
            return {}  # what is wrong shows where the fit starts
        ends = {n: (low, int(beyond[n].max()) + 1) for n, (low, _) in windows.items()}
    z, x = pivot
    candidates = {n: jnp.arange(*w).reshape(-1, *(1,) * np.ndim(z[n])) for n, w in ends.items()}
    changes = jit(lambda z, x, arrays: single_site_differences(lambda z: f(z, x, arrays), z, candidates))
    found = {n: np.moveaxis(np.isfinite(np.asarray(c)), 0, -1) for n, c in changes(z, x, arrays).items()}
    for n, (low, high) in windows.items():
        inside = found[n][..., : high - low]
        if not inside.any(-1).all():
            least = low + int(found[n].argmax(-1).max())
            raise sites[n][0].error(
                f"has elements that the data allow only from {least} on, but its window, which covers the prior, "
                f"ends at {high - 1}: pass {sites[n][0].owner}(window={{'{n}': ({low}, {2 * least})}}), or widen "
                "the prior"
            )
        found[n] = inside
    return {n: inside for n, inside in found.items() if not inside.all()}


def _filled(draw: Sequence[Latent], number: int) -> jax.Array:
    return jnp.full(draw[0].shape, number, jnp.asarray(draw[0].value).dtype)


def _has_no_end(draw: Sequence[Latent]) -> bool:
    return draw[0].prior is not None


def _places(
    sites: Mapping[str, Sequence[Latent]],
    windows: Mapping[str, tuple[int, int]],
    lowest: dict[str, jax.Array],
    highest: dict[str, jax.Array],
) -> Iterator[dict[str, jax.Array]]:
    """Yield places of the discrete latents to look from."""
    yield highest
    yield lowest
    for i in range(_PRIOR):
        yield {n: jnp.clip(sites[n][i].value, low, high - 1) for n, (low, high) in windows.items()}
