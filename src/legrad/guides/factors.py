"""The factors of a mean field: a Bernoulli, a categorical, or a Normal through the bijection to the support."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike
from numpyro.distributions import constraints
from numpyro.distributions.transforms import IdentityTransform, Transform

from legrad._compiled import jit
from legrad.distributions.offset_categorical import OffsetCategorical
from legrad.guides.latents import Latent
from legrad.guides.possible import possible_values
from legrad.guides.windows import window_of

_IMPOSSIBLE = -1e4  # the logit of a value that the data rule out
_LABELS = ("Bernoulli", "Categorical")  # beginnings of the names of distributions
_INIT_PROBABILITY = 0.9  # initial probability of a discrete value named in `init`


@dataclass(frozen=True)
class DiscreteFactor:
    """The factor of a discrete site, over the integers low, ..., high - 1."""

    latent: Latent
    low: int
    high: int
    logits: jax.Array
    possible: np.ndarray | None = None  # which values the data allow, for each element; None for all

    parameters = ("logits",)

    def distribution(self, logits: jax.Array) -> Any:
        """Return the distribution of the factors at given logits."""
        if self.latent.support == constraints.boolean:
            return dist.Bernoulli(logits=logits)
        if self.low == 0 and isinstance(self.latent.support, constraints.integer_interval):
            return dist.Categorical(logits=logits)
        return OffsetCategorical(logits, self.low)

    def sample(self, prefix: str, h: jax.Array | None = None, most: int = 0) -> jax.Array:
        """Sample the site; `prefix` comes before the names of its parameters.

        Args:
            prefix: comes before the names of the parameters.
            h: a vector of other latents on which the logits depend linearly, if that takes at most `most` slopes.
            most: the largest number of slopes.
        """
        name, event_dim = self.latent.name, self.latent.event_dim
        axes = self.logits.ndim - len(self.latent.shape)
        logits = numpyro.param(f"{prefix}{name}_logits", self.logits, event_dim=event_dim + axes)
        if h is not None and self.logits.size * h.size <= most:
            slopes = jnp.zeros((*self.logits.shape, h.size), self.logits.dtype)
            logits = logits + numpyro.param(f"{prefix}{name}_slopes", slopes, event_dim=event_dim + axes + 1) @ h
        if self.possible is not None:
            logits = self._inside(logits)
        return numpyro.sample(name, self.latent.wrap(self.distribution(logits)))

    def _inside(self, logits: jax.Array) -> jax.Array:
        """Give values that the data rule out a probability of zero; their logarithm stays finite."""
        possible = np.asarray(self.possible)
        if self.latent.support != constraints.boolean:
            return jnp.where(possible, logits, _IMPOSSIBLE)
        certain = np.where(possible[..., 1], -_IMPOSSIBLE, _IMPOSSIBLE)
        return jnp.where(possible.all(-1), logits, certain)


@dataclass(frozen=True)
class ContinuousFactor:
    """The factor of a continuous site: a Normal through the bijection to the support."""

    latent: Latent
    transform: Transform
    loc: jax.Array
    log_scale: jax.Array

    @property
    def parameters(self) -> tuple[str, ...]:
        """The suffixes of the factor's own parameters and sites."""
        return ("loc", "log_scale", "base") if self.latent.support.event_dim else ("loc", "log_scale")

    def sample(self, prefix: str) -> jax.Array:
        """Sample the site; `prefix` comes before the names of its parameters."""
        latent, transform = self.latent, self.transform
        name, base = latent.name, f"{prefix}{latent.name}"
        block_in, block_out = transform.domain.event_dim, latent.support.event_dim
        event_dim = latent.event_dim - block_out + block_in
        loc = numpyro.param(f"{base}_loc", self.loc, event_dim=event_dim)
        log_scale = numpyro.param(f"{base}_log_scale", self.log_scale, event_dim=event_dim)
        normal = dist.Normal(loc, jnp.exp(log_scale))
        if isinstance(transform, IdentityTransform):
            return numpyro.sample(name, latent.wrap(normal))
        if block_out == 0:
            return numpyro.sample(name, latent.wrap(dist.TransformedDistribution(normal, transform)))
        # The bijection mixes elements: sample a Normal site without the bijection, and its image as a Delta.
        x = numpyro.sample(f"{base}_base", latent.wrap(normal.to_event(block_in)), infer={"is_auxiliary": True})
        z = transform(x)
        log_density = -transform.log_abs_det_jacobian(x, z)
        return numpyro.sample(name, latent.wrap(dist.Delta(z, log_density, event_dim=block_out)))


def discrete_factor(
    draws: Sequence[Latent], init: ArrayLike | None, window: tuple[int, int] | None
) -> DiscreteFactor:
    """Make the factor of a discrete site, uniform or at the user's initial values."""
    site = draws[0]
    low, high = window_of(draws, window)
    K = high - low
    logits = jnp.asarray(np.zeros((*site.shape, K), jnp.result_type(float)))
    if init is not None and np.shape(init) == logits.shape:
        if not np.all(np.asarray(init) > 0) or not np.allclose(np.sum(init, axis=-1), 1.0, atol=1e-4):
            raise site.error(f"has probabilities in init['{site.name}'] that are not positive or do not sum to 1")
        logits = jnp.log(jnp.asarray(init, logits.dtype))
    elif init is not None:
        value = site.full(init)
        if not np.all((value >= low) & (value < high) & (value == jnp.round(value))):
            raise site.error(f"takes the integers {low} to {high - 1}, but init['{site.name}'] has other values")
        likely = jax.nn.one_hot(value.astype(int) - low, K, dtype=logits.dtype)
        logits = likely * math.log(max(K - 1, 1) * _INIT_PROBABILITY / (1 - _INIT_PROBABILITY))
    if site.support == constraints.boolean:
        logits = jnp.asarray(np.asarray(logits)[..., 1] - np.asarray(logits)[..., 0])
    return DiscreteFactor(site.static(), low, high, logits)


def inside_the_data(
    factors: Sequence[DiscreteFactor],
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    draws: Mapping[str, Sequence[Latent]],
) -> list[DiscreteFactor]:
    """Return the factors without the values that the data rule out.

    Args:
        factors: the factors of all discrete sites.
        model: the model.
        args: its positional arguments.
        kwargs: its keyword arguments.
        draws: for each latent site, its draws from the prior.
    """
    # Labels are left out: looking costs a compilation, and it is counts whose data bound them.
    windows = {f.latent.name: (f.low, f.high) for f in factors if not f.latent.family.startswith(_LABELS)}
    found = possible_values(model, args, kwargs, list(draws.values()), windows)
    return [replace(f, possible=found.get(f.latent.name)) for f in factors]


def all_members(site: Latent, transform: Transform, loc: jax.Array) -> jax.Array:
    """Return the locations of all members of plates, repeated from those of a subsample."""
    for plate in site.plates:
        if plate.size == plate.subsample_size:
            continue
        axis = plate.dim - (site.event_dim - site.support.event_dim + transform.domain.event_dim)
        loc = jnp.take(loc, np.arange(plate.size) % plate.subsample_size, axis)
    return loc


def continuous_factor(draws: Sequence[Latent], init: ArrayLike | None, scale: float) -> ContinuousFactor:
    """Make the factor of a continuous site, at the prior's median or at the user's initial value."""
    site = draws[0]
    try:
        # Constants of the transform become NumPy arrays: they are not parameters.
        transform = jax.tree.map(np.asarray, dist.biject_to(site.support))
    except NotImplementedError:
        raise site.error(
            f"has support {site.support}, to which no bijection is known: write the guide by hand"
        ) from None
    if init is None:
        site.concrete("prior", site.value)
        values = np.stack([draw.median for draw in draws])
        if isinstance(transform, IdentityTransform):
            loc = jnp.asarray(np.median(np.asarray(values), axis=0).astype(values.dtype))
        else:
            loc = jit(lambda values: jnp.median(transform.inv(values), axis=0))(values)
        loc = all_members(site, transform, loc)
    else:
        value = site.full(init).astype(site.value.dtype)
        if not np.all(site.support(value)):
            raise site.error(f"has support {site.support}, but init['{site.name}'] has values outside of it")
        loc = transform.inv(value)
    if not np.all(np.isfinite(np.asarray(loc))):
        raise site.error(f"starts at the edge of its support: pass an interior point, init={{'{site.name}': ...}}")
    loc = loc.astype(jnp.result_type(float))
    return ContinuousFactor(
        site.static(), transform, loc, jnp.asarray(np.full(loc.shape, math.log(scale), loc.dtype))
    )
