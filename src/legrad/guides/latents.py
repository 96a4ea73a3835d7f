"""The latent sites of a model, found by drawing from the prior: shape at full plate size, support, mask, value."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.typing import ArrayLike
from numpyro import handlers
from numpyro.distributions import constraints

from legrad._compiled import outcome
from legrad.distributions.unwrap import unwrap
from legrad.model.prior_draw import prior_draw

_PRIOR_DRAWS = 32


class Plate(NamedTuple):
    """A plate around a latent site."""

    name: str
    dim: int
    size: int
    subsample_size: int


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["value", "support", "mask", "prior", "median"],
    meta_fields=["name", "family", "shape", "event_dim", "plates", "owner"],
)
@dataclass(frozen=True)
class Latent:
    """A latent site in a draw from the prior."""

    name: str
    family: str
    shape: tuple[int, ...]  # of a value, with all plates at full size
    event_dim: int
    plates: tuple[Plate, ...]
    value: Any
    support: Any  # of one factor: to_event removed
    mask: Any  # None, or broadcastable to the shape of the factors
    prior: Any  # of a count, else None: the distribution without expand, to_event, mask
    median: Any  # of the prior given this draw of its parents; the value itself where NumPyro has no quantiles
    owner: str = "MeanField"  # the guide, for messages

    def static(self) -> Latent:
        """Return the properties that hold for all draws."""
        return replace(self, value=None, prior=None, median=None)

    def error(self, problem: str) -> ValueError:
        """Make an error that names the site."""
        return ValueError(f"{self.owner}: latent site '{self.name}' ({self.family}) {problem}")

    def concrete(self, what: str, *arrays: Any) -> None:
        """Raise if something that must be known at the first call is traced."""
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(arrays)):
            raise RuntimeError(
                f"{self.owner}: the {what} of latent site '{self.name}' depends on traced arguments, and the "
                "guide's first call is inside jit. Call the guide once outside of jit, "
                "`numpyro.handlers.seed(guide, 0)(*args)`, or use `legrad.fit`."
            )

    def full(self, value: ArrayLike) -> jax.Array:
        """Return the user's initial value, broadcast to the shape of the site."""
        try:
            return jnp.broadcast_to(jnp.asarray(value), self.shape)
        except ValueError:
            raise self.error(
                f"has shape {self.shape} (plates at full size), "
                f"to which init['{self.name}'] of shape {np.shape(value)} does not broadcast"
            ) from None

    def wrap(self, factors: Any) -> Any:
        """Give the distribution of independent factors the mask and the event axes of the site."""
        if self.mask is not None:
            factors = factors.mask(self.mask)
        return factors.to_event(self.event_dim - self.support.event_dim)


def prior_draws(
    model: Callable[..., Any], args: tuple, kwargs: dict, compiled: bool, owner: str = "MeanField"
) -> tuple[list[tuple[Latent, ...]], Collection[str]]:
    """Draw all latent sites from the prior; also return the names that the model uses."""

    def draw(key: jax.Array) -> tuple[tuple[Latent, ...], dict[str, tuple]]:
        # The strategy samples with the key that the seed gives, and can draw for an improper prior, too.
        seeded = handlers.substitute(handlers.seed(model, key), substitute_fn=prior_draw)
        trace = handlers.trace(seeded).get_trace(*args, **kwargs)
        latent = [s for s in trace.values() if s["type"] == "sample" and not s["is_observed"]]
        return tuple(_latent(site, trace, owner) for site in latent), dict.fromkeys(trace, ())

    # With traced arguments a compiled draw would be traced as a whole; op by op, only what depends on them is.
    if compiled:
        found, names = jax.device_get(outcome(lambda seed: _all_draws(draw, seed), 0))
        return [jax.tree.map(lambda x, i=i: x[i], found) for i in range(_PRIOR_DRAWS)], names
    draws, names = zip(*(draw(key) for key in jax.random.split(jax.random.key(0), _PRIOR_DRAWS)), strict=True)
    if len({tuple(site.name for site in draw) for draw in draws}) > 1:
        raise ValueError(
            f"{owner}: the latent sites of the model differ between draws of its prior: write the guide by hand."
        )
    return list(draws), names[0]


def _all_draws(draw: Callable[[jax.Array], Any], seed: Any) -> Any:
    """Return all draws, on a leading axis."""
    return jax.lax.map(draw, jax.random.split(jax.random.key(seed), _PRIOR_DRAWS))


def _median(prior: Any, value: jax.Array) -> jax.Array:
    """Return the median of a prior, where NumPyro has it; else its draw."""
    if not isinstance(prior.support, constraints.Constraint) or prior.support.is_discrete or prior.event_dim:
        return value
    try:
        return jnp.broadcast_to(prior.icdf(jnp.full((), 0.5, value.dtype)), value.shape)
    except (NotImplementedError, ImportError, ValueError):
        return value


def factor_support(fn: Any) -> Any:
    """Return the support of one factor of a distribution: to_event removed."""
    support = fn.support
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support


def _latent(site: Mapping[str, Any], trace: Mapping[str, Any], owner: str) -> Latent:
    name, fn, value = site["name"], site["fn"], jnp.asarray(site["value"])
    # Plates inside a `scan` are not in the trace: unless the plates subsample, their axes are ordinary axes.
    plates = tuple(
        Plate(f.name, f.dim, trace[f.name]["args"][0], f.size) for f in site["cond_indep_stack"] if f.name in trace
    )
    shape = list(value.shape)
    for plate in plates:
        shape[plate.dim - fn.event_dim] = plate.size
    support = factor_support(fn)
    base, mask = unwrap(fn)
    prior = base if isinstance(support, constraints.integer_greater_than) else None
    median = _median(base, value)
    if owner == "MeanField" and not support.is_discrete:
        value = median  # which asks for no draw, where NumPyro has the quantiles
    latent = Latent(
        name, type(base).__name__, tuple(shape), fn.event_dim, plates, value, support, mask, prior, median, owner
    )
    if len(plates) < len(site["cond_indep_stack"]) and site["scale"] not in (None, 1, 1.0):
        raise latent.error("is scaled in a plate inside scan, which cannot be subsampled: use the full plate")
    if isinstance(base, dist.Delta):
        raise latent.error("is not random: use numpyro.deterministic in the model")
    if latent.shape != value.shape:
        if any(np.size(bound) > 1 for bound in jax.tree.leaves(support)):
            raise latent.error("has a support that varies inside a subsampled plate: rescale it in the model")
        if mask is not None and mask.ndim:
            raise latent.error("is masked inside a subsampled plate: write the guide by hand")
    return latent


def moves(draws: Sequence[Latent]) -> bool:
    """Whether a site's support is not the same in all draws, as it depends on other latents."""
    draws[0].concrete("support or mask", draws[0].support, draws[0].mask)
    return _differ([jax.tree.leaves(draw.support) for draw in draws])


def check_static(draws: Sequence[Latent], may_move: bool = False) -> None:
    """Raise for a site whose shape, support or mask is not the same in all draws; its support may move if told so."""
    site, moving = draws[0], moves(draws)
    if len({jax.tree.structure(other) for other in draws}) > 1:
        raise site.error("changes its shape or distribution with other latents: write the guide by hand")
    if moving and not may_move:
        remedy = "write the guide by hand" if site.support.is_discrete else "use legrad.Structured"
        raise site.error(f"has a support that depends on other latents: {remedy}")
    if _differ([jax.tree.leaves(draw.mask) for draw in draws]):
        raise site.error("has a mask that depends on other latents: write the guide by hand")


def _differ(leaves: Sequence[Sequence[Any]]) -> bool:
    return not all(map(np.array_equal, list(leaves[0]) * (len(leaves) - 1), chain(*leaves[1:])))
