"""MeanField: a guide with an independent factor for every scalar latent of a model.

    q(z) = Π_e q(z_e),    q(z_e) = Bernoulli | Categorical | transformed Normal

The first call draws from the model's prior with fixed seeds. Each draw of a latent site is a `_Latent`: shape
at full plate size, support, mask, value. From the draws of a site a `_Discrete` or a `_Continuous` factor is
made once, and then sampled at every call.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.distributions.transforms import IdentityTransform, Transform
from numpyro.infer import init_to_sample

from legrad.distributions.offset_categorical import OffsetCategorical
from legrad.distributions.unwrap import unwrap
from legrad.model.threads import one_at_a_time

_UNCOVERED = 1e-6  # prior mass that the window of a count may leave out
_MAX_WINDOW = 256
_PRIOR_DRAWS = 32
_FAR = 5.0  # how far another start may be, in the unconstrained space
_INIT_PROBABILITY = 0.9  # of a discrete value named in `init`


class _Plate(NamedTuple):
    name: str
    dim: int
    size: int
    subsample_size: int


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["value", "support", "mask", "prior"],
    meta_fields=["name", "family", "shape", "event_dim", "plates"],
)
@dataclass(frozen=True)
class _Latent:
    """A latent site in a draw from the prior."""

    name: str
    family: str
    shape: tuple[int, ...]  # of a value, with all plates at full size
    event_dim: int
    plates: tuple[_Plate, ...]
    value: Any
    support: Any  # of one factor: to_event removed
    mask: Any  # None, or broadcastable to the shape of the factors
    prior: Any  # of a count, else None: the distribution without expand, to_event, mask

    def static(self) -> "_Latent":
        """What holds for all draws."""
        return replace(self, value=None, prior=None)

    def error(self, problem: str) -> ValueError:
        return ValueError(f"MeanField: latent site '{self.name}' ({self.family}) {problem}")

    def concrete(self, what: str, *arrays: Any) -> None:
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(arrays)):
            raise RuntimeError(
                f"MeanField: the {what} of latent site '{self.name}' depends on traced arguments, and the "
                "guide's first call is inside jit. Call the guide once outside of it, "
                "`numpyro.handlers.seed(guide, 0)(*args)`, or use `legrad.fit`."
            )

    def full(self, value: ArrayLike) -> jax.Array:
        """The user's initial value, broadcast to the site."""
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


@dataclass(frozen=True)
class _Discrete:
    """The factor of a discrete site, over the integers low, ..., high - 1."""

    latent: _Latent
    low: int
    high: int
    logits: jax.Array

    parameters = ("logits",)

    def distribution(self, logits: jax.Array) -> Any:
        if self.latent.support == constraints.boolean:
            return dist.Bernoulli(logits=logits)
        if self.low == 0 and isinstance(self.latent.support, constraints.integer_interval):
            return dist.Categorical(logits=logits)
        return OffsetCategorical(logits, self.low)

    def sample(self, prefix: str) -> jax.Array:
        name, event_dim = self.latent.name, self.latent.event_dim
        axes = self.logits.ndim - len(self.latent.shape)
        logits = numpyro.param(f"{prefix}{name}_logits", self.logits, event_dim=event_dim + axes)
        return numpyro.sample(name, self.latent.wrap(self.distribution(logits)))


@dataclass(frozen=True)
class _Continuous:
    """The factor of a continuous site: a Normal through the bijection to the support."""

    latent: _Latent
    transform: Transform
    loc: jax.Array
    log_scale: jax.Array

    @property
    def parameters(self) -> tuple[str, ...]:
        return ("loc", "log_scale", "base") if self.latent.support.event_dim else ("loc", "log_scale")

    def sample(self, prefix: str) -> jax.Array:
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
        # The bijection mixes elements: a Normal site without it, and its image as a Delta.
        x = numpyro.sample(f"{base}_base", latent.wrap(normal.to_event(block_in)), infer={"is_auxiliary": True})
        z = transform(x)
        log_density = -transform.log_abs_det_jacobian(x, z)
        return numpyro.sample(name, latent.wrap(dist.Delta(z, log_density, event_dim=block_out)))


class MeanField:
    r"""A guide with one independent factor per scalar latent, discrete ones included.

    .. math:: q(z) = \prod_e q(z_e)

    A Bernoulli site gets Bernoulli factors, any other site with a finite support a categorical over its
    integers, a count (Poisson, Geometric, ...) a categorical over a window of integers, and a continuous site
    a Normal through the bijection to its support. The parameters are `{name}_logits`, or `{name}_loc` and
    `{name}_log_scale` in the unconstrained space; all are real, and have the full size of the plates even
    when these subsample.

    The model is traced at the first call, with that call's arguments: the sites, supports, masks and windows
    that it has then stay. Masked elements are masked in the guide too; `handlers.scale` is not followed.

    Args:
        model: a NumPyro model.
        init: initial values of latents, by site name, of a shape that broadcasts to the site's at full plate
            size. A continuous value is the location in the model's own space; a discrete value starts with
            probability 0.9; a discrete site also takes the probabilities of all its values on an additional
            last axis. By default continuous factors start at the prior median, and discrete ones uniform.
        window: for counts, the integers `low <= z < high` of the factor: `{name: (low, high)}`. By default
            the narrowest that covers all but 1e-6 of the prior, if that is at most 256 wide. It also narrows
            finite supports.
        init_scale: initial standard deviation of continuous factors, in the unconstrained space.
        prefix: put before the name of each parameter, should they collide with names in the model.

    Example:
        >>> import jax, numpyro, numpyro.distributions as dist
        >>> def model():
        ...     with numpyro.plate("items", 3):
        ...         z = numpyro.sample("z", dist.Bernoulli(0.3))
        ...     numpyro.sample("y", dist.Normal(z.sum(), 1.0), obs=2.0)
        >>> guide = MeanField(model, init={"z": 1})
        >>> trace = numpyro.handlers.trace(numpyro.handlers.seed(guide, 0)).get_trace()
        >>> trace["z"]["fn"].probs.round(2).tolist()
        [0.9, 0.9, 0.9]
    """

    def __init__(
        self,
        model: Callable[..., Any],
        init: Mapping[str, ArrayLike] | None = None,
        *,
        window: Mapping[str, tuple[int, int]] | None = None,
        init_scale: float = 0.1,
        prefix: str = "",
    ) -> None:
        if type(model).__name__ == "LogDensity":
            raise ValueError("MeanField needs a NumPyro model; for a plain log-density write the guide by hand.")
        if not init_scale > 0:
            raise ValueError(f"MeanField: init_scale must be positive, got {init_scale}.")
        self.model = model
        self.init = dict(init or {})
        self.init_scale = init_scale
        self.prefix = prefix
        self._windows = dict(window or {})
        self._factors: dict[str, _Discrete | _Continuous] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, jax.Array]:
        """Sample every latent; returns the values by site name."""
        return self._sample(args, kwargs, whole=False)

    def whole(self, *args: Any, **kwargs: Any) -> dict[str, jax.Array]:
        """As a call, with every plate at its full size: the posterior of all members, not of a subsample."""
        return self._sample(args, kwargs, whole=True)

    def _sample(self, args: tuple, kwargs: dict, whole: bool) -> dict[str, jax.Array]:
        if self._factors is None:
            # Inside a jit all arrays are traced unless told otherwise; outside, telling it only costs time.
            inside_jit = isinstance(jnp.zeros(()), jax.core.Tracer)
            with jax.ensure_compile_time_eval() if inside_jit else nullcontext(), handlers.block():
                self._factors = self._setup(args, kwargs, compiled=not inside_jit)
        plates = {
            plate: numpyro.plate(plate.name, plate.size, None if whole else plate.subsample_size, plate.dim)
            for plate in dict.fromkeys(p for f in self._factors.values() for p in f.latent.plates)
        }
        values = {}
        for name, factor in self._factors.items():
            with ExitStack() as stack:
                for plate in factor.latent.plates:
                    stack.enter_context(plates[plate])
                values[name] = factor.sample(self.prefix)
        return values

    @one_at_a_time
    def elsewhere(self, key: jax.Array, args: tuple, kwargs: dict) -> dict[str, jax.Array]:
        """Locations to start from instead, by parameter: a draw from the prior, at most 5 from where they start."""
        assert self._factors is not None
        seeded = handlers.substitute(handlers.seed(self.model, key), substitute_fn=init_to_sample)
        trace = handlers.trace(seeded).get_trace(*args, **kwargs)
        found = {}
        for name, factor in self._factors.items():
            if isinstance(factor, _Continuous):
                there = _whole(factor.latent, factor.transform, factor.transform.inv(trace[name]["value"]))
                far = jnp.nan_to_num(there.astype(factor.loc.dtype) - factor.loc)
                found[f"{self.prefix}{name}_loc"] = factor.loc + jnp.clip(far, -_FAR, _FAR)
        return found

    def window(self, name: str) -> tuple[int, int]:
        """The integers `low <= z < high` that the factor of a discrete site covers."""
        if self._factors is None:
            raise RuntimeError("MeanField: windows are known after the guide's first call.")
        factor = self._factors.get(name)
        if not isinstance(factor, _Discrete):
            raise ValueError(f"MeanField: '{name}' is not a discrete latent site of the model.")
        return factor.low, factor.high

    def _setup(self, args: tuple, kwargs: dict, compiled: bool) -> dict[str, _Discrete | _Continuous]:
        draws, taken = _prior_draws(self.model, args, kwargs, compiled)
        sites = {draw[0].name: draw for draw in zip(*draws, strict=True)}
        if not sites:
            raise ValueError("MeanField: the model has no latent sites (all its sample sites are observed).")
        for option, names in (("init", self.init), ("window", self._windows)):
            if unknown := sorted(set(names) - set(sites)):
                raise ValueError(f"MeanField: {option} names {unknown}; the latent sites are {sorted(sites)}.")
        factors: dict[str, _Discrete | _Continuous] = {}
        for name, draw in sites.items():
            _check_static(draw)
            init, window = self.init.get(name), self._windows.get(name)
            if draw[0].support.is_discrete:
                factors[name] = _discrete(draw, init, window)
            elif window is None:
                factors[name] = _continuous(draw, init, self.init_scale)
            else:
                raise draw[0].error("is continuous and takes no window: remove it from window=")
            for own in (f"{self.prefix}{name}_{suffix}" for suffix in factors[name].parameters):
                if own in taken:
                    raise draw[0].error(f"needs the name '{own}', which the model uses: pass prefix='q_'")
        return factors


def _prior_draws(
    model: Callable[..., Any], args: tuple, kwargs: dict, compiled: bool
) -> tuple[list[tuple[_Latent, ...]], Collection[str]]:
    """Draws of all latent sites from the prior, and the names that the model uses."""

    def draw(key: jax.Array) -> tuple[tuple[_Latent, ...], dict[str, tuple]]:
        # The strategy samples with the key that the seed gives, and can draw for an improper prior too.
        seeded = handlers.substitute(handlers.seed(model, key), substitute_fn=init_to_sample)
        trace = handlers.trace(seeded).get_trace(*args, **kwargs)
        latent = [s for s in trace.values() if s["type"] == "sample" and not s["is_observed"]]
        return tuple(_latent(site, trace) for site in latent), dict.fromkeys(trace, ())

    # With traced arguments a compiled draw would be traced as a whole; op by op, only what they reach is.
    run = jax.jit(draw) if compiled else draw
    draws, names = zip(*(run(key) for key in jax.random.split(jax.random.key(0), _PRIOR_DRAWS)), strict=True)
    if len({tuple(site.name for site in draw) for draw in draws}) > 1:
        raise ValueError(
            "MeanField: the model has other latent sites in each draw of its prior: write the guide by hand."
        )
    return list(draws), names[0]


def _latent(site: Mapping[str, Any], trace: Mapping[str, Any]) -> _Latent:
    name, fn, value = site["name"], site["fn"], jnp.asarray(site["value"])
    # Plates inside a `scan` are not in the trace: their axes are ordinary ones, unless they subsample.
    plates = tuple(
        _Plate(f.name, f.dim, trace[f.name]["args"][0], f.size) for f in site["cond_indep_stack"] if f.name in trace
    )
    shape = list(value.shape)
    for plate in plates:
        shape[plate.dim - fn.event_dim] = plate.size
    support = fn.support
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    base, mask = unwrap(fn)
    prior = base if isinstance(support, constraints.integer_greater_than) else None
    latent = _Latent(name, type(base).__name__, tuple(shape), fn.event_dim, plates, value, support, mask, prior)
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


def _check_static(draws: Sequence[_Latent]) -> None:
    """Refuse a site whose shape, support or mask is not the same in all draws."""
    site = draws[0]
    site.concrete("support or mask", site.support, site.mask)
    if len({jax.tree.structure(other) for other in draws}) > 1:
        raise site.error("changes its shape or distribution with other latents: write the guide by hand")
    for what, leaves in (
        ("support", [jax.tree.leaves(other.support) for other in draws]),
        ("mask", [jax.tree.leaves(other.mask) for other in draws]),
    ):
        if not all(map(np.array_equal, leaves[0] * (len(leaves) - 1), chain(*leaves[1:]))):
            raise site.error(f"has a {what} that depends on other latents: write the guide by hand")


def _support_window(site: _Latent) -> tuple[int, int | None]:
    """The integers of a discrete support, low <= z < high, with high=None for a count."""
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


def _window(draws: Sequence[_Latent], given: tuple[int, int] | None) -> tuple[int, int]:
    """The window that the user gave, else the support, else a window from the prior."""
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


def _prior_window(draws: Sequence[_Latent], smallest: int) -> tuple[int, int]:
    """The narrowest window with all but `_UNCOVERED` of each element's prior, averaged over the draws."""
    site = draws[0]
    site.concrete("prior", site.prior, site.value)
    remedy = f"pass MeanField(window={{'{site.name}': (low, high)}})"
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
    log_prob = jax.jit(lambda prior: prior.log_prob(z))
    pmf = sum(np.exp(np.asarray(log_prob(draw.prior), np.float64)) for draw in draws) / len(draws)
    pmf = np.reshape(pmf, (len(grid), -1))
    below, above = pmf.cumsum(0), pmf[::-1].cumsum(0)[::-1]
    inside = grid[((below > _UNCOVERED / 2) & (above > _UNCOVERED / 2)).any(1)]
    if inside[-1] - inside[0] >= _MAX_WINDOW:
        raise too_wide
    return int(inside[0]), int(inside[-1]) + 1


def _discrete(draws: Sequence[_Latent], init: ArrayLike | None, window: tuple[int, int] | None) -> _Discrete:
    site = draws[0]
    low, high = _window(draws, window)
    K = high - low
    logits = jnp.zeros((*site.shape, K))
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
        logits = logits[..., 1] - logits[..., 0]
    return _Discrete(site.static(), low, high, logits)


def _whole(site: _Latent, transform: Transform, loc: jax.Array) -> jax.Array:
    """Locations of all members of plates, repeated from those of a subsample."""
    for plate in site.plates:
        axis = plate.dim - (site.event_dim - site.support.event_dim + transform.domain.event_dim)
        loc = jnp.take(loc, np.arange(plate.size) % plate.subsample_size, axis)
    return loc


def _continuous(draws: Sequence[_Latent], init: ArrayLike | None, scale: float) -> _Continuous:
    site = draws[0]
    try:
        # Constants of the transform as NumPy arrays: they are no parameters.
        transform = jax.tree.map(np.asarray, dist.biject_to(site.support))
    except NotImplementedError:
        raise site.error(
            f"has support {site.support}, to which no bijection is known: write the guide by hand"
        ) from None
    if init is None:
        site.concrete("prior", site.value)
        values = jnp.stack([draw.value for draw in draws])
        loc = jax.jit(lambda values: jnp.median(transform.inv(values), axis=0))(values)
        loc = _whole(site, transform, loc)
    else:
        value = site.full(init).astype(site.value.dtype)
        if not np.all(site.support(value)):
            raise site.error(f"has support {site.support}, but init['{site.name}'] has values outside of it")
        loc = transform.inv(value)
    if not np.all(np.isfinite(loc)):
        raise site.error(f"starts at the edge of its support: pass an interior point, init={{'{site.name}': ...}}")
    loc = loc.astype(jnp.result_type(float))
    return _Continuous(site.static(), transform, loc, jnp.full(loc.shape, math.log(scale), loc.dtype))
