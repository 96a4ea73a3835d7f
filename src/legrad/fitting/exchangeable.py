"""Which components of a model can be relabelled: mixtures, states, topics, blocks.

A density that does not change when two labels are swapped, in every axis and every discrete value that they number,
has a mode for each order of the labels. It is found by trying: swap the first two entries of all axes of one length,
near draws of the prior, and compare. Noise makes the entries differ, which a prior that is nearly improper may draw
equal; and where its terms are so large that rounding hides what the data say, the comparison does not count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers

from legrad._compiled import jit
from legrad.guides.latent_space import LatentSpace
from legrad.model.sites import sample_sites, site_log_prob
from legrad.model.threads import one_at_a_time

_DRAWS = 4
_LARGE = 1e7  # terms of this size hide what the data say


def exchangeable_sites(
    space: LatentSpace,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    categories: Mapping[str, int] | None = None,
    density: Callable[[np.ndarray], float] | None = None,
) -> tuple[str, ...]:
    """Return the sites whose components can be relabelled together; none if no relabelling keeps the density.

    Args:
        space: the continuous latents of the model.
        args: positional arguments of the model.
        kwargs: keyword arguments of the model.
        categories: for each categorical latent that is sampled, the number of its values.
        density: the log-density of the vector, if it is compiled already; it saves compiling
            the model once more.
    """
    labels = dict(categories or {})
    shapes = {name: part.latent.shape for name, part in space.parts.items()}
    lengths = sorted({n for shape in shapes.values() for n in shape if n > 1} | {n for n in labels.values() if n > 1})
    for length in lengths:
        axes = {name: [i for i, n in enumerate(shape) if n == length] for name, shape in shapes.items()}
        axes = {name: found for name, found in axes.items() if found}
        renamed = [name for name, n in labels.items() if n == length]
        if any(space.parts[name].moving for name in axes):
            continue  # a support that depends on the order
        if not axes:
            continue
        plain = not renamed and all(space.parts[name].free is None for name in axes)
        if (
            _keeps_vector(space, density, axes)
            if density is not None and plain and not space.noncentered
            else _keeps(space, args, kwargs, axes, renamed)
        ):
            return tuple(axes)
    return ()


def _keeps_vector(space: LatentSpace, density: Callable[[np.ndarray], float], axes: Mapping[str, list[int]]) -> bool:
    """As `_keeps`, by the density of the vector: log p(z) = log p(x) - log |dz/dx|."""

    def swap(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return the swapped vector, how much more log |dz/dx| is there, and whether it is inside the support."""
        moved, more, inside = x, jnp.zeros(()), jnp.asarray(True)
        for name, found in axes.items():
            part = space.parts[name]
            u = part.before_bijection(x)
            z = swapped = part.transform(u)
            for axis in found:
                swapped = jnp.take(swapped, np.array([1, 0, *range(2, z.shape[axis])]), axis)
            inside &= jnp.all(part.latent.support(swapped))
            new = part.transform.inv(swapped)
            stretch = part.transform.log_abs_det_jacobian
            more += jnp.sum(stretch(new, swapped)) - jnp.sum(stretch(u, z))
            moved = moved.at[part.start : part.start + part.size].set(new.ravel())
        return moved, more, inside

    compiled, rng = jit(swap), np.random.default_rng(0)
    rounding, told = 1000 * float(jnp.finfo(jnp.result_type(float)).eps), False
    for i in range(_DRAWS):
        x = (space.start if i % 2 else space.other_start(rng)) + rng.normal(size=space.size)
        moved, more, inside = jax.device_get(compiled(jnp.asarray(x)))
        plain = density(x)
        swapped = density(np.asarray(moved)) - float(more)
        if not inside or (math.isfinite(plain) and abs(plain - swapped) > rounding * (1 + abs(plain))):
            return False
        told |= abs(plain) < _LARGE
    return told


@one_at_a_time
def _keeps(space: LatentSpace, args: Any, kwargs: Any, axes: Mapping[str, list[int]], renamed: list[str]) -> bool:
    """Whether swapping the first two entries of axes, and the values 0 and 1 of sites, keeps the density."""
    rng = np.random.default_rng(0)

    def run(values: Mapping[str, Any]) -> tuple[dict[str, Any], jax.Array, jax.Array]:
        """Return the discrete latents, the log-density, and the sum of the sizes of its terms."""
        with handlers.trace() as trace, handlers.seed(rng_seed=0), handlers.substitute(data=dict(values)):
            space.model(*args, **kwargs)
        sites = dict(sample_sites(trace))
        terms = [jnp.sum(site_log_prob(site)) for site in sites.values()]
        discrete = {n: s["value"] for n, s in sites.items() if not s["is_observed"] and n not in space.parts}
        return discrete, jnp.asarray(sum(terms)), jnp.asarray(sum(jnp.abs(term) for term in terms))

    def both(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        values = {name: z for name, (z, _) in space.place(x, args, kwargs).items()}
        discrete, plain, size = run(values)
        inside = jnp.asarray(True)
        for name, found in axes.items():
            z = values[name]
            for axis in found:
                z = jnp.take(z, np.array([1, 0, *range(2, z.shape[axis])]), axis)
            inside &= jnp.all(space.parts[name].latent.support(z))
            values[name] = z
        for name in renamed:
            z = discrete[name]
            discrete[name] = jnp.where(z == 0, 1, jnp.where(z == 1, 0, z))
        return plain, run({**values, **discrete})[1], size, inside

    compiled, rounding = jit(both), 100 * float(jnp.finfo(jnp.result_type(float)).eps)
    told = False
    for i in range(_DRAWS):
        x = (space.start if i % 2 else space.other_start(rng)) + rng.normal(size=space.size)
        plain, swapped, size, inside = jax.device_get(compiled(jnp.asarray(x)))
        if not inside or (math.isfinite(size) and abs(plain - swapped) > rounding * (1 + size)):
            return False
        told |= bool(size < _LARGE)
    return told
