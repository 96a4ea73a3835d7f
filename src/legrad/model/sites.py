"""The sample statements of a NumPyro trace: latents as factors, and the terms that a statement adds to log p."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from numpyro.distributions import Delta, Distribution

from legrad.distributions import elements
from legrad.distributions.densities import log_prob
from legrad.distributions.support import entropy
from legrad.distributions.unwrap import unwrap


@dataclass(frozen=True)
class Factor:
    """One latent site of the guide: its distribution given the parents, and how elements make up its value."""

    name: str
    fn: Distribution
    coordinate: jax.Array
    scale: Any  # the factor of log q in f: plate and handler scales; scores never use it
    mask: jax.Array | None  # where log q counts in f
    in_scan: bool = False

    @property
    def scalar(self) -> elements.Scalar | None:
        """The scalar elements of the site; None if it has none (a MultivariateNormal, a Dirichlet)."""
        return elements.scalar(self.fn)

    @property
    def elements(self) -> elements.Scalar:
        """The scalar elements of a site that is known to have them."""
        scalar = self.scalar
        assert scalar is not None
        return scalar

    @property
    def family(self) -> str:
        """The name of the distribution, for messages."""
        return type(unwrap(self.fn).bare).__name__

    def counted(self, term: jax.Array) -> jax.Array:
        """Return a term of this factor as f counts it: scaled and masked."""
        return self.counts(self.scale * term)

    def counts(self, term: jax.Array) -> jax.Array:
        """Return a term of this factor, zero where it is masked."""
        return term if self.mask is None else jnp.where(self.mask, term, 0.0)

    @property
    def value(self) -> jax.Array:
        """The site's value: its coordinate through the transforms."""
        scalar = self.scalar
        return self.coordinate if scalar is None else scalar.value(self.coordinate)

    def log_prob(self, coordinate: jax.Array | None = None) -> jax.Array:
        """Return the bare log q of each element: no scale, no mask."""
        z = self.coordinate if coordinate is None else coordinate
        scalar = self.scalar
        return log_prob(unwrap(self.fn).bare, z) if scalar is None else scalar.log_prob(z)


class Draw(dict[str, Factor]):
    """A draw from the guide: a factor for each latent, in ancestral order, with the draw as its coordinate.

    Attributes:
        trace: the guide as it ran.
    """

    def __init__(self, trace: dict[str, Any]) -> None:
        super().__init__(factors_of(trace))
        self.trace = trace

    def moved(self, values: Mapping[str, jax.Array]) -> Draw:
        """Return the draw with other values of some discrete sites, on which no other latent of the guide depends."""
        return Draw(self.trace | {name: self.trace[name] | {"value": value} for name, value in values.items()})


def sample_sites(trace: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """List the sample statements, each with a distribution of its full shape."""
    return [(name, _expanded(site)) for name, site in trace.items() if site["type"] == "sample"]


def _expanded(site: Any) -> Any:
    """Return the distribution expanded by a `sample_shape` outside plates, which NumPyro keeps separately."""
    shape = site["kwargs"].get("sample_shape", ())
    return site | {"fn": site["fn"].expand(shape + site["fn"].batch_shape)} if shape else site


def _is_delta(site: Any) -> bool:
    return isinstance(unwrap(site["fn"]).bare, Delta)


def delta_sites(trace: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """List the latents that are functions of their parents."""
    return [(name, site) for name, site in sample_sites(trace) if not site["is_observed"] and _is_delta(site)]


def factors_of(trace: Mapping[str, Any]) -> dict[str, Factor]:
    """Return the random latents of the guide; a Delta is a function of its parents, not a latent of its own."""
    factors = {}
    for name, site in sample_sites(trace):
        if site["is_observed"] or _is_delta(site):
            continue
        scalar = elements.scalar(site["fn"])
        value = site["value"]
        if scalar is not None and scalar.transforms:
            # The value before the transforms: exact if NumPyro kept it, else inverted.
            value = site["intermediates"][0][0] if site["intermediates"] else _invert(scalar, value)
        in_scan = "_scan_current_index" in site["infer"]
        factors[name] = Factor(name, site["fn"], value, _scale(site), unwrap(site["fn"]).mask, in_scan)
    return factors


def _invert(scalar: elements.Scalar, value: jax.Array) -> jax.Array:
    for transform in reversed(scalar.transforms):
        value = transform.inv(value)
    return value


def log_q_terms(factor: Factor, exact: bool) -> list[tuple[str, jax.Array]]:
    """Return the terms of -log q of a factor, by name; `exact` replaces -log q by the entropy."""
    scalar = factor.scalar
    if not exact or scalar is None:
        return [(factor.name, -factor.log_prob())]
    known = entropy(scalar.base)
    assert known is not None
    terms = [(f"entropy of {factor.name}", known)]
    if scalar.transforms:
        terms.append((factor.name, scalar.log_abs_det(factor.coordinate)))
    return terms


def site_log_prob(site: Any) -> jax.Array:
    """Return the terms that a sample statement adds to the log-density: elementwise, scaled and masked."""
    _require_fit(site)
    bare, mask = unwrap(site["fn"])
    value = site["value"]
    if mask is not None:
        value = jnp.where(over_events(mask, bare), value, _feasible(bare, value))
    shape = site["fn"].shape()[: len(site["fn"].shape()) - bare.event_dim]
    terms = log_prob(bare, value)
    terms = jnp.broadcast_to(terms, jnp.broadcast_shapes(terms.shape, shape))  # one datum for all of a plate
    terms = _scale(site) * terms
    return terms if mask is None else jnp.where(mask, terms, 0.0)


def _require_fit(site: Any) -> None:
    shape, expected = jnp.shape(site["value"]), site["fn"].shape()
    try:
        jnp.broadcast_shapes(shape, expected)
    except ValueError:
        what = "data" if site["is_observed"] else "value"
        raise ValueError(
            f"the {what} of site '{site['name']}' has shape {shape}, which does not fit the shape {expected} of its "
            "distribution: compare the sizes of plates, data and latents; members of a plate at dim=-2 need an axis: "
            "x[:, None]"
        ) from None


def _scale(site: Any) -> Any:
    """Return the site's scale, aligned with its elementwise log-density: event axes follow the batch axes."""
    if site["scale"] is None:
        return 1.0
    events = site["fn"].event_dim - unwrap(site["fn"]).bare.event_dim
    return (
        jnp.reshape(site["scale"], jnp.shape(site["scale"]) + (1,) * events)
        if jnp.ndim(site["scale"])
        else site["scale"]
    )


def observation(site: Any) -> jax.Array:
    """Return the data of an observed site, zero where masked."""
    bare, mask = unwrap(site["fn"])
    return site["value"] if mask is None else jnp.where(over_events(mask, bare), site["value"], 0)


def over_events(mask: jax.Array, bare: Distribution) -> jax.Array:
    """Give a mask of batch axes the event axes of a distribution."""
    return jnp.reshape(mask, jnp.shape(mask) + (1,) * bare.event_dim)


def _feasible(bare: Distribution, value: jax.Array) -> jax.Array:
    try:
        return bare.support.feasible_like(value)
    except NotImplementedError:
        return value
