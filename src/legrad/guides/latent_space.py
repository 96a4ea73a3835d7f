"""The continuous latents of a model as one real vector: each site through the bijection to its support.

    z = z(x),    log p(x) = log p(z, data) + log |dz/dx|

A site in `noncentered` is a location-scale site, written as z = loc + scale · x with the loc and scale that the model
gives it at the other latents: a funnel in z need not be one in x. A site whose support depends on other latents, such
as b ~ Uniform(0, 1 - a), has the bijection to its support at their values. Elements that the model masks are not in
the vector.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.distributions.transforms import Transform

from legrad._compiled import jit
from legrad.distributions.unwrap import unwrap
from legrad.guides.latents import Latent, check_static, factor_support, moves
from legrad.model.sites import sample_sites, site_log_prob
from legrad.model.threads import one_at_a_time

_SEEDS = 4  # draws of the latents outside of a space
_INTERIOR = 10.0  # a start is at most this far from the origin if the bijection is not the identity


@dataclass(frozen=True)
class Part:
    """The part of the vector that belongs to one site."""

    latent: Latent
    transform: Transform
    shape: tuple[int, ...]  # of the site before the bijection
    free: np.ndarray | None  # positions, in the flat site, of elements that are not masked; None for all
    start: int
    size: int
    moving: bool = False  # whether the support depends on other latents: `transform` has its shape alone

    def before_bijection(self, x: jax.Array) -> jax.Array:
        """Return this site's part of the vector in the site's shape, zero where masked."""
        mine = x[self.start : self.start + self.size]
        if self.free is not None:
            mine = jnp.zeros(int(np.prod(self.shape)), mine.dtype).at[self.free].set(mine)
        return jnp.reshape(mine, self.shape)

    def counted(self, log_density: jax.Array) -> jax.Array:
        """Return the log-density of each factor, zero where masked."""
        return log_density if self.latent.mask is None else jnp.where(self.latent.mask, log_density, 0.0)


class LatentSpace:
    """The vector space of a model's continuous latents.

    Args:
        model: a NumPyro model.
        draws: for each continuous site, its draws from the prior.
        noncentered: the sites to write as loc + scale · x.
    """

    def __init__(
        self, model: Callable[..., Any], draws: Sequence[Sequence[Latent]], noncentered: Sequence[str] = ()
    ) -> None:
        self.model, self.noncentered = model, tuple(noncentered)
        self.parts: dict[str, Part] = {}
        places, end = [], 0
        for draw in draws:
            part = _part(draw, end)
            self.parts[part.latent.name] = part
            end += part.size
        known = _before_bijections({n: (part, d) for (n, part), d in zip(self.parts.items(), draws, strict=True)})
        for (name, part), draw in zip(self.parts.items(), draws, strict=True):
            here = known.get(name, np.zeros((1 + len(draw), *part.shape)))
            here = np.nan_to_num(here, posinf=_INTERIOR, neginf=-_INTERIOR)
            if part.latent.support is not constraints.real:
                here = np.clip(here, -_INTERIOR, _INTERIOR)
            here = here.reshape(len(here), -1)
            here = here if part.free is None else here[:, part.free]
            places.append(np.zeros_like(here) if name in self.noncentered else here)
        self.size = end
        self.moving = tuple(name for name, part in self.parts.items() if part.moving)
        rows = [np.asarray(p, np.float64) for p in places]
        found = np.concatenate(rows, axis=1) if rows else np.zeros((1, 0))
        self.start, self._prior = found[0], found[1:]

    def other_start(self, rng: np.random.Generator) -> np.ndarray:
        """Return another place to start from: a draw of the prior; up to 2 from zero where the prior is flat."""
        if not self.size:
            return self.start  # no continuous latents
        place = self._prior[rng.integers(len(self._prior))]
        return np.where(place == 0.0, rng.uniform(-2, 2, self.size), place)

    def place(
        self, x: jax.Array, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> dict[str, tuple[jax.Array, jax.Array]]:
        """Return for each site its value, and the log of |dz/dx| of each factor."""
        if self.noncentered or self.moving:
            return self._place_in_order(x, args, kwargs)
        found = {}
        for name, part in self.parts.items():
            u = part.before_bijection(x)
            z = part.transform(u)
            found[name] = z, part.counted(part.transform.log_abs_det_jacobian(u, z))
        return found

    def log_density(
        self, x: jax.Array, args: tuple[Any, ...], kwargs: Mapping[str, Any], given: Mapping[str, Any] | None = None
    ) -> jax.Array:
        """Return the log-density of the vector x, up to a constant, at given values of all discrete latents."""
        placed = self.place(x, args, kwargs)
        values = {name: z for name, (z, _) in placed.items()} | dict(given or {})
        with one_at_a_time, handlers.trace() as trace, handlers.seed(rng_seed=0), handlers.substitute(data=values):
            self.model(*args, **kwargs)
        terms = [site_log_prob(site) for _, site in sample_sites(trace)] + [stretch for _, stretch in placed.values()]
        return sum((jnp.sum(term) for term in terms), start=jnp.zeros(()))

    def draw_discrete(
        self, key: jax.Array, x: jax.Array, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> dict[str, jax.Array]:
        """Draw the discrete latents from the prior, given the vector x."""
        values = {name: z for name, (z, _) in self.place(x, args, kwargs).items()}
        with one_at_a_time, handlers.trace() as trace, handlers.seed(rng_seed=key), handlers.substitute(data=values):
            self.model(*args, **kwargs)
        latents = {name: site for name, site in sample_sites(trace) if not site["is_observed"]}
        return {name: jnp.asarray(site["value"]) for name, site in latents.items() if name not in self.parts}

    def funnels(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the location-scale sites of the model whose scale depends on other latents."""
        at_start, elsewhere = (self._scales(x, args, kwargs) for x in (self.start, self.start + 0.5))
        real = [name for name, part in self.parts.items() if part.latent.support is constraints.real]
        return tuple(n for n in real if n in at_start and not np.array_equal(at_start[n], elsewhere[n]))

    def funnel_scales(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> np.ndarray:
        """Return the positions of the latents on which the scales of funnels depend, but for funnels themselves."""
        funnels = self.funnels(args, kwargs)
        at_start = self._scales(self.start, args, kwargs)
        found = [np.zeros(0, int)]
        for name, part in self.parts.items():
            if name in funnels:
                continue
            moved = self.start.copy()
            moved[part.start : part.start + part.size] += 0.5
            there = self._scales(moved, args, kwargs)
            if any(not np.array_equal(at_start[n], there[n]) for n in funnels):
                found.append(np.arange(part.start, part.start + part.size))
        return np.concatenate(found)

    def _scales(self, x: np.ndarray, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the scales of all location-scale sites at a place."""
        values = {name: z for name, (z, _) in self.place(jnp.asarray(x), args, kwargs).items()}
        given, anywhere = handlers.substitute(data=values), numpyro.validation_enabled(False)
        with one_at_a_time, anywhere, handlers.trace() as trace, handlers.seed(rng_seed=0), given:
            self.model(*args, **kwargs)
        fns = {name: unwrap(trace[name]["fn"]).bare for name in self.parts}
        return {n: fn.scale for n, fn in fns.items() if {"loc", "scale"} <= set(fn.arg_constraints)}

    def check_moving(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raise for a support that depends on latents outside of the space: its bijection would not be known."""
        if not self.moving:
            return
        drawn = [self._place_in_order(jnp.asarray(self.start), args, kwargs, seed) for seed in range(_SEEDS)]
        for name in self.moving:
            if any(not np.array_equal(drawn[0][name][0], other[name][0]) for other in drawn[1:]):
                raise self.parts[name].latent.error(
                    "has a support that depends on discrete latents, or on latents of plate members: write the guide "
                    "by hand, or scale the site in the model"
                )

    @one_at_a_time
    def _place_in_order(
        self, x: jax.Array, args: tuple[Any, ...], kwargs: Mapping[str, Any], seed: int = 0
    ) -> dict[str, tuple[jax.Array, jax.Array]]:
        """Run the model, and give each site its value when its distribution is known."""
        found: dict[str, tuple[jax.Array, jax.Array]] = {}

        def value(site: Mapping[str, Any]) -> jax.Array | None:
            part = self.parts.get(site["name"])
            if part is None or site["type"] != "sample":
                return None
            u = part.before_bijection(x)
            if site["name"] in self.noncentered:
                bare = unwrap(site["fn"]).bare
                z = bare.loc + bare.scale * u
                stretch = jnp.broadcast_to(jnp.log(bare.scale), u.shape)
            else:
                transform = dist.biject_to(factor_support(site["fn"])) if part.moving else part.transform
                z = transform(u)
                stretch = transform.log_abs_det_jacobian(u, z)
            found[site["name"]] = z, part.counted(stretch)
            return z

        with handlers.block(), handlers.seed(rng_seed=seed), handlers.substitute(substitute_fn=value):
            self.model(*args, **kwargs)
        return found


def _part(draws: Sequence[Latent], start: int) -> Part:
    """Return the part of a site."""
    site, moving = draws[0], moves(draws)
    check_static(draws, moving)
    try:
        # Constants of the transform become NumPy arrays: they are not parameters.
        transform = jax.tree.map(np.asarray, dist.biject_to(site.support))
    except NotImplementedError:
        raise site.error(
            f"has support {site.support}, to which no bijection is known: write the guide by hand"
        ) from None
    shape = tuple(transform.inverse_shape(site.shape))
    free = None
    if site.mask is not None:
        factors = site.shape[: len(site.shape) - site.support.event_dim]
        mask = np.broadcast_to(np.asarray(site.mask), factors)
        mask = np.broadcast_to(mask.reshape(factors + (1,) * (len(shape) - len(factors))), shape)
        free = np.flatnonzero(mask).astype(np.int32)  # one type in either precision: JAX keeps constants
    size = int(np.prod(shape)) if free is None else len(free)
    return Part(site.static(), transform, shape, free, start, size, moving)


def _before_bijections(parts: Mapping[str, tuple[Part, Sequence[Latent]]]) -> dict[str, np.ndarray]:
    """Return for each site the prior's median, and draws of the prior, before the bijection; not for flat priors."""
    given, inverses = {}, {}
    for name, (part, draws) in parts.items():
        site = draws[0]
        if site.family == "ImproperUniform" or site.value.shape != site.shape:
            continue
        site.concrete("prior", site.value)
        given[name] = [(draw.median, draw.value, draw.support if part.moving else None) for draw in draws]
        inverses[name] = part.transform.inv

    def inverse(name: str, values: jax.Array, supports: Any) -> jax.Array:
        if supports is None:
            return inverses[name](values)
        return jax.vmap(lambda value, support: dist.biject_to(support).inv(value))(values, supports)

    def before(given: Mapping[str, Any]) -> dict[str, jax.Array]:
        found = {}
        for name, draws in given.items():
            medians, values, supports = jax.tree.map(lambda *leaves: jnp.stack(leaves), *draws)
            median = jnp.median(inverse(name, medians, supports), axis=0)
            found[name] = jnp.concatenate([median[None], inverse(name, values, supports)])
        return found

    return {name: np.asarray(place) for name, place in jit(before)(given).items()} if given else {}
