"""Model and guide as a problem: latent sites, additive terms of `log p` and `log q`, and the parents of each latent.

The guide is read as a program with two kinds of input: the *coordinates* of the sites that an estimator holds
fixed (x), and the noise. Every other latent is recomputed from these inputs, so one program gives every quantity that
an estimator needs, at the pivot and at any candidate:

    evaluate(coordinates, noise)  →  the terms of log p, the factors of log q, the distributions
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jax.scipy.linalg import solve_triangular
from numpyro import handlers
from numpyro.distributions import LowRankMultivariateNormal, MultivariateNormal
from numpyro.ops.provenance import eval_provenance
from numpyro.primitives import Messenger

from legrad import _compat
from legrad.distributions import support
from legrad.distributions.unwrap import unwrap
from legrad.model.log_density import LogDensity
from legrad.model.matching import check_match, reject_mutable
from legrad.model.sites import (
    Draw,
    Factor,
    delta_sites,
    factors_of,
    log_q_terms,
    observation,
    over_events,
    sample_sites,
    site_log_prob,
)
from legrad.model.threads import one_at_a_time
from legrad.trace.concrete import same_numbers

Coordinates = dict[str, jax.Array]


class Noise(NamedTuple):
    """The randomness of one pivot. Pivots of one step differ in `sites` and share `plates`: one subsample."""

    sites: jax.Array
    plates: jax.Array


class _Keys(Messenger):
    """A messenger that gives each statement a key by its position, whether the statement needs one or not.

    NumPyro's `seed` skips statements that already have a value, so fixing one site would change the noise of
    later sites.
    """

    def __init__(self, noise: Noise, offset: int = 0) -> None:
        super().__init__(None)
        self.noise, self.count = noise, offset

    def process_message(self, msg: dict[str, Any]) -> None:
        kind = msg["type"]
        if kind not in ("sample", "plate", "prng_key", "control_flow"):
            return
        key = self.noise.plates if kind in ("plate", "prng_key") else self.noise.sites
        if msg["kwargs"].get("rng_key") is None:
            msg["kwargs"]["rng_key"] = jax.random.fold_in(key, self.count)
        self.count += 1


class Evaluation(NamedTuple):
    """The program at one point: terms of log p, terms of -log q, and the guide's factors."""

    log_p: dict[str, jax.Array]
    minus_log_q: dict[str, jax.Array]
    factors: dict[str, Factor]
    observed: dict[str, jax.Array]  # the data of the model's observed sites, zero where masked

    def terms(self) -> dict[str, jax.Array]:
        """Return all additive terms of f."""
        return {f"log p({k})": v for k, v in self.log_p.items()} | {
            f"-log q({k})": v for k, v in self.minus_log_q.items()
        }

    def total(self, stop: Collection[str] = ()) -> jax.Array:
        """Return f with no gradient through log q of the sites in `stop`, whose expected score is zero."""
        parts = [*self.log_p.values()]
        parts += [stop_gradient(v) if k in stop else v for k, v in self.minus_log_q.items()]
        return sum((jnp.sum(part) for part in parts), start=jnp.zeros(()))


@dataclass(frozen=True)
class Problem:
    """A model and a guide at given parameters and data.

    Attributes:
        entropy: whether f contains -log q (the ELBO) or only log p (the expectation of a function).
    """

    model: Callable[..., Any]
    guide: Callable[..., Any]
    params: Mapping[str, Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    entropy: bool = True

    def stopped(self) -> Problem:
        """Return the same problem with no gradient path, for values that only weigh a score."""
        params, args, kwargs = jax.tree.map(_stop, (dict(self.params), self.args, dict(self.kwargs)))
        return Problem(self.model, self.guide, params, args, kwargs, self.entropy)

    def draw(self, noise: Noise, *layers: Messenger) -> Draw:
        """Sample the guide."""
        return Draw(self._run_guide({}, noise, *layers))

    def evaluate(
        self,
        coordinates: Coordinates,
        noise: Noise,
        *,
        pivot: Mapping[str, Factor],
        exact_entropy: Collection[str] = (),
    ) -> Evaluation:
        """Run guide and model with some sites fixed; the others are recomputed from the noise.

        Args:
            coordinates: the fixed sites.
            noise: the noise of the pivot.
            pivot: the result of `draw`, for the transforms from coordinate to value.
            exact_entropy: sites whose -log q is replaced by its expectation given the site's parents.
        """
        values = {name: replace(pivot[name], coordinate=z).value for name, z in coordinates.items()}
        return self._evaluation(self._run_guide(values, noise), coordinates, noise, exact_entropy)

    def evaluate_draw(
        self, draw: Draw, coordinates: Coordinates, noise: Noise, *, exact_entropy: Collection[str] = ()
    ) -> Evaluation:
        """Do the same as `evaluate` at the coordinates of a draw itself, where the guide need not run again.

        The guide does run again if a fixed site is real-valued: a real draw may have a gradient path (even if NumPyro
        does not call the distribution reparameterized), and everything that depends on the draw would inherit it.
        """
        if any(jnp.issubdtype(jnp.result_type(draw[name].coordinate), jnp.inexact) for name in coordinates):
            return self.evaluate(coordinates, noise, pivot=draw, exact_entropy=exact_entropy)
        return self._evaluation(draw.trace, coordinates, noise, exact_entropy)

    def _evaluation(
        self, trace: dict[str, Any], coordinates: Coordinates, noise: Noise, exact_entropy: Collection[str]
    ) -> Evaluation:
        factors = {
            name: replace(factor, coordinate=coordinates.get(name, factor.coordinate))
            for name, factor in factors_of(trace).items()
        }
        log_p, observed = self._run_model(trace, noise)
        minus_log_q: dict[str, jax.Array] = {}
        if self.entropy:
            for name, factor in factors.items():
                for key, term in log_q_terms(factor, name in exact_entropy):
                    minus_log_q[key] = factor.counted(term)
            for name, site in sample_sites(trace):
                if site["is_observed"]:
                    minus_log_q[name] = -site_log_prob(site)
            for name, site in delta_sites(trace):
                minus_log_q[name] = -site_log_prob(site)
        return Evaluation(log_p, minus_log_q, factors, observed)

    def divergence(self, other: Problem, noise: Noise) -> dict[str, jax.Array]:
        """Return the KL of this guide from another, for each latent by element, given its parents at a draw.

        For an element with candidates, KL is a sum or integral over them; for other elements it is the estimate
        exp(-d) - 1 + d at the draw, with d the log-ratio. A multivariate Normal counts by the directions in which the
        two covariances differ (their generalized eigenvectors): the KLs along these add up to the whole, and the
        worst of them is the worst of any direction. One of low rank counts by its marginals, any other event without
        scalar elements as the mean over its coordinates.
        """
        trace = self._run_guide({}, noise)
        values = {name: site["value"] for name, site in sample_sites(trace) if not site["is_observed"]}
        there = factors_of(other._run_guide(values, noise))

        def one(here: Factor, there: Factor) -> jax.Array:
            scalar, bare, other = here.scalar, unwrap(here.fn).bare, unwrap(there.fn).bare
            if isinstance(bare, MultivariateNormal | LowRankMultivariateNormal) and type(bare) is type(other):
                share, apart = _shares(bare, other)
                mask = None if here.mask is None else over_events(here.mask, bare)
                along = 0.5 * (share + apart - 1.0 - jnp.log(share))
                return along if mask is None else jnp.where(mask, along, 0.0)
            found = None if scalar is None else support.candidates(scalar.base)
            if found is None:
                d = here.log_prob() - there.log_prob(here.coordinate)
                size = math.prod(bare.event_shape) if scalar is None else 1
                return here.counts(jnp.exp(jnp.minimum(-d, 40.0)) - 1.0 + d) / size
            ratio = here.log_prob(found.values) - there.log_prob(found.values)
            return here.counts(jnp.sum(jnp.where(found.weights > 0, found.weights * ratio, 0.0), axis=0))

        return {name: one(factor, there[name]) for name, factor in factors_of(trace).items()}

    def parents(self, pivot: Mapping[str, Factor], noise: Noise) -> dict[str, frozenset[str]]:
        """Return for each latent of the guide the latents that its distribution's parameters depend on directly.

        A site that is its own parent has elements that depend on each other (NumPyro's `scan`).
        """

        def program(**given: jax.Array) -> dict[str, jax.Array]:
            values = {n: replace(factor, coordinate=given[n]).value for n, factor in pivot.items()}
            factors = factors_of(self._run_guide(values, noise))
            return {n: factors[n].log_prob(given[f"own {n}"]) for n in pivot}

        own = {n: factor.coordinate for n, factor in pivot.items()}
        found = eval_provenance(program, **own, **{f"own {n}": z for n, z in own.items()})
        return {n: frozenset(found[n]) & frozenset(pivot) for n in pivot}

    # --- running the two programs ---------------------------------------------------------------------------

    @one_at_a_time
    def _run_guide(self, values: Mapping[str, jax.Array], noise: Noise, *layers: Messenger) -> dict[str, Any]:
        data = {**self.params, **values}
        with ExitStack() as stack:
            trace = stack.enter_context(handlers.trace())
            for layer in (*layers, _Keys(noise), handlers.substitute(data=data)):
                stack.enter_context(layer)
            self.guide(*self.args, **self.kwargs)
        reject_mutable(trace, "guide")
        return trace

    @one_at_a_time
    def _run_model(self, guide: dict[str, Any], noise: Noise) -> tuple[dict[str, Any], dict[str, Any]]:
        latents = {name: site for name, site in sample_sites(guide) if not site["is_observed"]}
        if not latents:
            raise ValueError("the guide has no latent site, so there is nothing to infer: sample one in it")
        named = {k: v for k, v in latents.items() if not v["infer"].get("is_auxiliary", False)}
        values = {name: site["value"] for name, site in named.items()}
        if isinstance(self.model, LogDensity):
            terms = jnp.asarray(self.model.f(values))
            return {"log_density": terms.astype(jnp.result_type(terms, float))}, {}
        plates = {name: site["value"] for name, site in guide.items() if site["type"] == "plate"}
        data = {**self.params, **{k: v["value"] for k, v in latents.items()}, **plates}
        with handlers.trace() as trace, _Keys(noise, len(guide)), handlers.substitute(data=data):
            self.model(*self.args, **self.kwargs)
        reject_mutable(trace, "model")
        check_match(trace, latents)
        observed = {name: observation(site) for name, site in sample_sites(trace) if site["is_observed"]}
        return {name: site_log_prob(site) for name, site in sample_sites(trace)}, observed


def _stop(x: Any) -> Any:
    # A concrete array has no gradient path, and its numbers stay readable for planning.
    return same_numbers(stop_gradient(x), x) if isinstance(x, _compat.Tracer) else x


def _shares(here: Any, there: Any) -> tuple[jax.Array, jax.Array]:
    """Return the ratio of two Gaussians' variances, and their squared distance, along each direction that counts."""
    if isinstance(here, LowRankMultivariateNormal):
        return here.variance / there.variance, (here.mean - there.mean) ** 2 / there.variance
    shape = jnp.broadcast_shapes(here.scale_tril.shape, there.scale_tril.shape)
    lower = jnp.broadcast_to(there.scale_tril, shape)
    ratio = solve_triangular(lower, jnp.broadcast_to(here.scale_tril, shape), lower=True)
    apart = solve_triangular(lower, jnp.broadcast_to(here.loc - there.loc, shape[:-1])[..., None], lower=True)
    share, directions = jnp.linalg.eigh(ratio @ jnp.swapaxes(ratio, -1, -2))
    tiny = jnp.finfo(share.dtype).tiny
    return jnp.maximum(share, tiny), jnp.square(jnp.swapaxes(directions, -1, -2) @ apart)[..., 0]
