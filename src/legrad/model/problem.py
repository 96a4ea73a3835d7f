"""What a model and a guide say: latent sites, additive terms of `log p` and `log q`, and who is whose parent.

The guide is read as a program with two kinds of input: the *coordinates* of the sites that an estimator holds
fixed (x), and the noise. Every other latent is recomputed from them, so one program gives every quantity that an
estimator needs, at the pivot and at any candidate:

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
from numpyro import handlers
from numpyro.distributions import Delta, Distribution, LowRankMultivariateNormal, MultivariateNormal
from numpyro.ops.provenance import eval_provenance
from numpyro.primitives import Messenger

from legrad import _compat
from legrad.distributions import support
from legrad.distributions.densities import log_prob
from legrad.distributions.unwrap import strip
from legrad.model.threads import one_at_a_time
from legrad.trace.concrete import same_numbers

Coordinates = dict[str, jax.Array]


class Noise(NamedTuple):
    """The randomness of one pivot. Pivots of one step differ in `sites` and share `plates`: one subsample."""

    sites: jax.Array
    plates: jax.Array


class LogDensity:
    """A plain log-density in the place of a model; see `log_density`."""

    def __init__(self, f: Callable[[dict[str, Any]], Any]) -> None:
        self.f = f

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: it is not a model that could be run."""
        raise TypeError(
            "a legrad.log_density is not a NumPyro model and cannot be run as one: pass it to legrad.fit or "
            "legrad.compare, with a guide that names its latents"
        )


def log_density(f: Callable[[dict[str, Any]], Any]) -> LogDensity:
    """Let a plain log-density stand where `fit` and `compare` take a model.

    Args:
        f: `f(latents: dict) -> scalar`, the unnormalized log-density of the latents that the guide names.
            It may also return an array of additive terms, which estimators use to find independence.

    Example:
        >>> target = legrad.log_density(lambda latents: -0.5 * ((latents["x"] - 2.0) ** 2).sum())
    """
    return LogDensity(f)


class _Keys(Messenger):
    """Gives each statement a key by its position, whether it needs one or not.

    NumPyro's `seed` skips statements that already have a value, so fixing one site would change the noise of
    the later ones.
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


@dataclass(frozen=True)
class Factor:
    """One latent site of the guide: its distribution at given parents, and how its value is made of elements."""

    name: str
    fn: Distribution
    coordinate: jax.Array
    scale: Any  # what f multiplies log q with: plate and handler scales; scores never use it
    mask: jax.Array | None  # where log q counts in f
    in_scan: bool = False

    @property
    def scalar(self) -> support.Scalar | None:
        """Its scalar elements; None where it has none (a MultivariateNormal, a Dirichlet)."""
        return support.scalar(self.fn)

    @property
    def elements(self) -> support.Scalar:
        """Its scalar elements, where it is known to have them."""
        scalar = self.scalar
        assert scalar is not None
        return scalar

    @property
    def family(self) -> str:
        """The name of the distribution, for messages."""
        return type(strip(self.fn).bare).__name__

    def counted(self, term: jax.Array) -> jax.Array:
        """A term of this factor as f counts it: scaled and masked."""
        return self.counts(self.scale * term)

    def counts(self, term: jax.Array) -> jax.Array:
        """A term of this factor, zero where it is masked."""
        return term if self.mask is None else jnp.where(self.mask, term, 0.0)

    @property
    def value(self) -> jax.Array:
        """The site's value: its coordinate through the transforms."""
        scalar = self.scalar
        return self.coordinate if scalar is None else scalar.value(self.coordinate)

    def log_prob(self, coordinate: jax.Array | None = None) -> jax.Array:
        """The bare log q of each element: no scale, no mask."""
        z = self.coordinate if coordinate is None else coordinate
        scalar = self.scalar
        return log_prob(strip(self.fn).bare, z) if scalar is None else scalar.log_prob(z)


class Draw(dict[str, Factor]):
    """A factor for each latent of the guide, in ancestral order, its coordinate being the draw.

    Attributes:
        trace: the guide as it ran.
    """

    def __init__(self, trace: dict[str, Any]) -> None:
        super().__init__(_factors(trace))
        self.trace = trace

    def moved(self, values: Mapping[str, jax.Array]) -> Draw:
        """The same with other values of some discrete sites, which no other latent of the guide depends on."""
        return Draw(self.trace | {name: self.trace[name] | {"value": value} for name, value in values.items()})


class Evaluation(NamedTuple):
    """The program at one point: terms of log p, terms of -log q, and the guide's factors."""

    log_p: dict[str, jax.Array]
    minus_log_q: dict[str, jax.Array]
    factors: dict[str, Factor]
    observed: dict[str, jax.Array]  # the data of the model's observed sites, zero where masked

    def terms(self) -> dict[str, jax.Array]:
        """All additive terms of f."""
        return {f"log p({k})": v for k, v in self.log_p.items()} | {
            f"-log q({k})": v for k, v in self.minus_log_q.items()
        }

    def total(self, stop: Collection[str] = ()) -> jax.Array:
        """f, with no gradient through log q of the sites in `stop`: its expected score is zero."""
        parts = [*self.log_p.values()]
        parts += [stop_gradient(v) if k in stop else v for k, v in self.minus_log_q.items()]
        return sum((jnp.sum(part) for part in parts), start=jnp.zeros(()))


@dataclass(frozen=True)
class Problem:
    """A model and a guide at given parameters and data.

    Attributes:
        entropy: whether f holds -log q (the ELBO) or only log p (the expectation of a function).
    """

    model: Callable[..., Any]
    guide: Callable[..., Any]
    params: Mapping[str, Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    entropy: bool = True

    def stopped(self) -> Problem:
        """The same problem with no gradient path: for values that only weigh a score."""
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
            pivot: what `draw` gave, for the transforms from coordinate to value.
            exact_entropy: sites whose -log q is replaced by its expectation given the site's parents.
        """
        values = {name: replace(pivot[name], coordinate=z).value for name, z in coordinates.items()}
        return self._evaluation(self._run_guide(values, noise), coordinates, noise, exact_entropy)

    def evaluate_draw(
        self, draw: Draw, coordinates: Coordinates, noise: Noise, *, exact_entropy: Collection[str] = ()
    ) -> Evaluation:
        """As `evaluate`, at the coordinates of a draw itself: the guide need not run again.

        The guide does run again where a fixed site has real numbers: a draw of these may have a gradient path (also
        where NumPyro does not call the distribution reparameterized), and whatever depends on it would inherit that.
        """
        if any(jnp.issubdtype(jnp.result_type(draw[name].coordinate), jnp.inexact) for name in coordinates):
            return self.evaluate(coordinates, noise, pivot=draw, exact_entropy=exact_entropy)
        return self._evaluation(draw.trace, coordinates, noise, exact_entropy)

    def _evaluation(
        self, trace: dict[str, Any], coordinates: Coordinates, noise: Noise, exact_entropy: Collection[str]
    ) -> Evaluation:
        factors = {
            name: replace(factor, coordinate=coordinates.get(name, factor.coordinate))
            for name, factor in _factors(trace).items()
        }
        log_p, observed = self._run_model(trace, noise)
        minus_log_q: dict[str, jax.Array] = {}
        if self.entropy:
            for name, factor in factors.items():
                for key, term in _minus_log_q(factor, name in exact_entropy):
                    minus_log_q[key] = factor.counted(term)
            for name, site in _sites(trace):
                if site["is_observed"]:
                    minus_log_q[name] = -_site_log_prob(site)
            for name, site in _deltas(trace):
                minus_log_q[name] = -_site_log_prob(site)
        return Evaluation(log_p, minus_log_q, factors, observed)

    def divergence(self, other: Problem, noise: Noise) -> dict[str, jax.Array]:
        """KL of this guide from another, for each latent by element, given its parents at a draw of this one.

        An element with candidates sums or integrates over them; of others it is the estimate exp(-d) - 1 + d at the
        draw, with d the log-ratio. A multivariate Normal counts by its marginals, another event without scalar
        elements as the mean over its coordinates.
        """
        trace = self._run_guide({}, noise)
        values = {name: site["value"] for name, site in _sites(trace) if not site["is_observed"]}
        there = _factors(other._run_guide(values, noise))

        def one(here: Factor, there: Factor) -> jax.Array:
            scalar, bare, other = here.scalar, strip(here.fn).bare, strip(there.fn).bare
            if isinstance(bare, MultivariateNormal | LowRankMultivariateNormal) and type(bare) is type(other):
                share, apart = bare.variance / other.variance, (bare.mean - other.mean) ** 2 / other.variance
                mask = None if here.mask is None else _over_events(here.mask, bare)
                marginals = 0.5 * (share + apart - 1.0 - jnp.log(share))
                return marginals if mask is None else jnp.where(mask, marginals, 0.0)
            found = None if scalar is None else support.candidates(scalar.base)
            if found is None:
                d = here.log_prob() - there.log_prob(here.coordinate)
                size = math.prod(bare.event_shape) if scalar is None else 1
                return here.counts(jnp.exp(jnp.minimum(-d, 40.0)) - 1.0 + d) / size
            ratio = here.log_prob(found.values) - there.log_prob(found.values)
            return here.counts(jnp.sum(jnp.where(found.weights > 0, found.weights * ratio, 0.0), axis=0))

        return {name: one(factor, there[name]) for name, factor in _factors(trace).items()}

    def parents(self, pivot: Mapping[str, Factor], noise: Noise) -> dict[str, frozenset[str]]:
        """For each latent of the guide, the latents that its distribution's parameters depend on directly.

        A site that is its own parent has elements that depend on each other (NumPyro's `scan`).
        """

        def program(**given: jax.Array) -> dict[str, jax.Array]:
            values = {n: replace(factor, coordinate=given[n]).value for n, factor in pivot.items()}
            factors = _factors(self._run_guide(values, noise))
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
        _reject_mutable(trace, "guide")
        return trace

    @one_at_a_time
    def _run_model(self, guide: dict[str, Any], noise: Noise) -> tuple[dict[str, Any], dict[str, Any]]:
        latents = {name: site for name, site in _sites(guide) if not site["is_observed"]}
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
        _reject_mutable(trace, "model")
        _check_match(trace, latents)
        observed = {name: _observation(site) for name, site in _sites(trace) if site["is_observed"]}
        return {name: _site_log_prob(site) for name, site in _sites(trace)}, observed


def _stop(x: Any) -> Any:
    # A concrete array has no gradient path, and what it holds stays readable for planning.
    return same_numbers(stop_gradient(x), x) if isinstance(x, _compat.Tracer) else x


def _sites(trace: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(name, _expanded(site)) for name, site in trace.items() if site["type"] == "sample"]


def _expanded(site: Any) -> Any:
    """A `sample_shape` outside of plates stands beside the distribution: put it in."""
    shape = site["kwargs"].get("sample_shape", ())
    return site | {"fn": site["fn"].expand(shape + site["fn"].batch_shape)} if shape else site


def _is_delta(site: Any) -> bool:
    return isinstance(strip(site["fn"]).bare, Delta)


def _deltas(trace: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(name, site) for name, site in _sites(trace) if not site["is_observed"] and _is_delta(site)]


def _factors(trace: Mapping[str, Any]) -> dict[str, Factor]:
    """The random latents of the guide; a Delta is a function of its parents, not a latent of its own."""
    factors = {}
    for name, site in _sites(trace):
        if site["is_observed"] or _is_delta(site):
            continue
        scalar = support.scalar(site["fn"])
        value = site["value"]
        if scalar is not None and scalar.transforms:
            # The value before the transforms: exact where NumPyro kept it, else inverted.
            value = site["intermediates"][0][0] if site["intermediates"] else _invert(scalar, value)
        in_scan = "_scan_current_index" in site["infer"]
        factors[name] = Factor(name, site["fn"], value, _scale(site), strip(site["fn"]).mask, in_scan)
    return factors


def _invert(scalar: support.Scalar, value: jax.Array) -> jax.Array:
    for transform in reversed(scalar.transforms):
        value = transform.inv(value)
    return value


def _minus_log_q(factor: Factor, exact: bool) -> list[tuple[str, jax.Array]]:
    scalar = factor.scalar
    if not exact or scalar is None:
        return [(factor.name, -factor.log_prob())]
    entropy = support.entropy(scalar.base)
    assert entropy is not None
    terms = [(f"entropy of {factor.name}", entropy)]
    if scalar.transforms:
        terms.append((factor.name, scalar.log_abs_det(factor.coordinate)))
    return terms


def _site_log_prob(site: Any) -> jax.Array:
    """Elementwise, scaled and masked: the terms that a sample statement adds to the log-density."""
    bare, mask = strip(site["fn"])
    value = site["value"]
    if mask is not None:
        value = jnp.where(_over_events(mask, bare), value, _feasible(bare, value))
    shape = site["fn"].shape()[: len(site["fn"].shape()) - bare.event_dim]
    terms = log_prob(bare, value)
    terms = jnp.broadcast_to(terms, jnp.broadcast_shapes(terms.shape, shape))  # one datum for all of a plate
    terms = _scale(site) * terms
    return terms if mask is None else jnp.where(mask, terms, 0.0)


def _scale(site: Any) -> Any:
    """The site's scale, aligned with its elementwise log-density: event axes follow the batch axes."""
    if site["scale"] is None:
        return 1.0
    events = site["fn"].event_dim - strip(site["fn"]).bare.event_dim
    return (
        jnp.reshape(site["scale"], jnp.shape(site["scale"]) + (1,) * events)
        if jnp.ndim(site["scale"])
        else site["scale"]
    )


def _observation(site: Any) -> jax.Array:
    bare, mask = strip(site["fn"])
    return site["value"] if mask is None else jnp.where(_over_events(mask, bare), site["value"], 0)


def _over_events(mask: jax.Array, bare: Distribution) -> jax.Array:
    return jnp.reshape(mask, jnp.shape(mask) + (1,) * bare.event_dim)


def _feasible(bare: Distribution, value: jax.Array) -> jax.Array:
    try:
        return bare.support.feasible_like(value)
    except NotImplementedError:
        return value


def _reject_mutable(trace: Mapping[str, Any], where: str) -> None:
    for name, site in trace.items():
        if site["type"] == "mutable":
            raise NotImplementedError(
                f"site '{name}' of the {where} is mutable state, which legrad does not carry between "
                "steps: use a module without running statistics (LayerNorm in place of BatchNorm)"
            )


def _check_match(model: Mapping[str, Any], latents: Mapping[str, Any]) -> None:
    in_model = {name: site for name, site in _sites(model) if not site["is_observed"]}
    for name, site in in_model.items():
        if name in latents:
            continue
        if site["infer"].get("enumerate"):
            raise ValueError(
                f"latent site '{name}' of the model is marked for enumeration and is not in the guide: legrad does "
                "not sum it out of the model; give it a factor in the guide (legrad.MeanField does), where its "
                "expectation is taken exactly"
            )
        raise ValueError(
            f"latent site '{name}' of the model is missing from the guide: sample '{name}' in the guide, or use "
            "legrad.MeanField(model)"
        )
    for name, site in latents.items():
        if name not in in_model:
            if site["infer"].get("is_auxiliary", False):
                continue
            where = "is observed" if name in dict(_sites(model)) else "does not exist"
            raise ValueError(
                f"site '{name}' of the guide {where} in the model: rename it to a latent of the model "
                f"({', '.join(sorted(in_model)) or 'it has none'}), or mark it infer={{'is_auxiliary': True}}"
            )
        wanted, got = in_model[name]["fn"].shape(), jnp.shape(site["value"])
        if wanted != got:
            raise ValueError(
                f"site '{name}' has shape {wanted} in the model and {got} in the guide: give the guide's "
                "distribution the model's batch shape (plates, .expand) and event shape (.to_event)"
            )
