"""Structured: a guide whose continuous latents are jointly Gaussian in unconstrained space.

    q(x, z) = Normal(x | loc, L Lᵀ) · Π_e q(z_e | x),    logits of q(z_e | x) linear in x

x are the continuous latents through the bijections to their supports, z_e the elements of discrete latents.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers

from legrad.guides.conditional import Conditional, pairs
from legrad.guides.factors import DiscreteFactor, discrete_factor, inside_the_data
from legrad.guides.gaussian import FULL, Cover, Joint, Members, Moments
from legrad.guides.latent_space import LatentSpace, Part
from legrad.guides.latents import Latent, Plate, check_static, prior_draws
from legrad.model.log_density import LogDensity

_SLOPES = 1_000_000  # the largest number of slopes of one discrete site's logits


class Structured:
    r"""A guide that holds the correlations of a posterior.

    The continuous latents are jointly Gaussian in unconstrained space, with a full covariance up to 400 of them.
    Above, and in plates that subsample, the latents of each plate member are Gaussian given those outside plates, so
    that the cost is linear in members; what is left is low rank plus diagonal. Each element of a discrete latent has
    a factor as in `MeanField`, whose logits are linear in the continuous latents. A continuous latent in the plate of
    a discrete one has a location and a scale of its own for each of its values.

    `legrad.fit` takes this guide if it is given none. The model is traced at the first call, and its sites, supports
    and masks at that call's arguments are kept.

    Args:
        model: a NumPyro model.
        noncentered: location-scale sites to treat as loc + scale · x, with x Gaussian: for funnels.
        window: for counts, the integers `low <= z < high` of the factor: `{name: (low, high)}`; see `MeanField`.
        init_scale: initial standard deviation of continuous latents, in the unconstrained space.
        prefix: a prefix for the names of all parameters, in case they collide with names in the model.

    Example:
        >>> import jax, numpyro, numpyro.distributions as dist
        >>> def model():
        ...     a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        ...     b = numpyro.sample("b", dist.LogNormal(a, 1.0))
        >>> guide = Structured(model)
        >>> sorted(numpyro.handlers.seed(guide, 0)())
        ['a', 'b']
    """

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        noncentered: Sequence[str] = (),
        window: Mapping[str, tuple[int, int]] | None = None,
        init_scale: float = 0.1,
        prefix: str = "",
    ) -> None:
        if isinstance(model, LogDensity):
            raise ValueError("Structured needs a NumPyro model; for a plain log-density write the guide by hand.")
        if not init_scale > 0:
            raise ValueError(f"Structured: init_scale must be positive, got {init_scale}.")
        self.model, self.noncentered, self.init_scale, self.prefix = model, tuple(noncentered), init_scale, prefix
        self._windows = dict(window or {})
        self._whitening: Moments | None = None
        self._ready = False
        self._space: LatentSpace
        self._everything: LatentSpace
        self._joint: Joint | None
        self._members: list[Members]
        self._discrete: list[DiscreteFactor]
        self._pairs: dict[str, Conditional]

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, jax.Array]:
        """Sample every latent; return the values by site name."""
        return self._sample(args, kwargs, whole=False)

    def whole(self, *args: Any, **kwargs: Any) -> dict[str, jax.Array]:
        """Sample every latent with every plate at its full size: all members, not a subsample."""
        return self._sample(args, kwargs, whole=True)

    def space(self, *args: Any, **kwargs: Any) -> LatentSpace:
        """Return the vector space of the joint continuous latents of the model with these arguments."""
        self._prepare(args, kwargs)
        return self._space

    @property
    def is_one_gaussian(self) -> bool:
        """Whether the guide is a single Gaussian with a full covariance; known after the first call."""
        return not self._discrete and not self._members and 0 < self._space.size <= FULL

    @property
    def pairs(self) -> dict[str, Conditional]:
        """The continuous latents that depend on the discrete latent of their plate member; known after a call."""
        return self._pairs

    @property
    def discrete(self) -> list[DiscreteFactor]:
        """The factors of the discrete latents; known after the first call."""
        return self._discrete

    def everything(self, *args: Any, **kwargs: Any) -> LatentSpace:
        """Return the vector space of all continuous latents, those of plate members included."""
        self._prepare(args, kwargs)
        return self._everything

    @property
    def is_subsampled(self) -> bool:
        """Whether a plate of the model takes some of its members at a time; known after the first call."""
        latents = [part.latent for part in self._everything.parts.values()] + [f.latent for f in self._discrete]
        return any(plate.subsample_size < plate.size for latent in latents for plate in latent.plates)

    @property
    def is_whitenable(self) -> bool:
        """Whether there is a joint Gaussian with a full covariance; known after the first call."""
        return 0 < self._space.size <= FULL

    @property
    def joint_positions(self) -> np.ndarray:
        """Where the joint latents are in the vector of all continuous latents; known after the first call."""
        parts = [self._everything.parts[name] for name in self._space.parts]
        return np.concatenate([np.zeros(0, int), *(np.arange(p.start, p.start + p.size) for p in parts)])

    def initial(self, x: np.ndarray, sd: np.ndarray) -> dict[str, np.ndarray]:
        """Return initial values of the Gaussians that are not whitened, by the names of their parameters.

        Args:
            x: the means, in the vector space of all continuous latents.
            sd: the standard deviations.
        """
        found: dict[str, np.ndarray] = {}
        if self._joint is not None and self._whitening is None:
            mine = self.joint_positions
            found |= self._joint.initial(x[mine], sd[mine])
        for group in self._members:
            parts = [self._everything.parts[part.latent.name] for part in group.parts]
            places = [slice(p.start, p.start + p.size) for p in parts]
            found |= group.initial([x[place] for place in places], [sd[place] for place in places])
        return found

    @property
    def names(self) -> tuple[str, str]:
        """The names of the parameters of the joint Gaussian: its mean, and its Cholesky factor."""
        return f"{self._base}_loc", f"{self._base}_scale_tril"

    @property
    def settings(self) -> dict[str, Any]:
        """What the guide was made with, besides its model."""
        return {
            "noncentered": self.noncentered,
            "window": dict(self._windows),
            "init_scale": self.init_scale,
            "prefix": self.prefix,
        }

    def whiten(self, center: np.ndarray, tril: np.ndarray) -> None:
        """Let optimizers see the joint Gaussian in whitened coordinates, and start it at N(center, tril trilᵀ).

        Args:
            center: where the posterior is, in unconstrained space.
            tril: a lower triangular matrix that is close to the Cholesky factor of its covariance.
        """
        self._whitening = center, tril
        if self._ready and self._joint is not None:
            self._joint.whitening = self._whitening

    def proposal(self, moments: Cover | None = None) -> Structured:
        """Return this guide with heavier tails of the joint Gaussian, for draws that are weighed by the posterior.

        Args:
            moments: mean and Cholesky factor of the posterior's covariance in unconstrained space, if they are known;
                or those of the components of a mixture that covers it, and their weights.
        """
        other = copy.copy(self)
        if self._joint is not None:
            other._joint = replace(self._joint, heavy=True, moments=moments)
        return other

    @property
    def _base(self) -> str:
        # A fit of non-centred latents must not be loaded as one of centred latents: the names differ.
        return "_".join([f"{self.prefix}latents", *(f"noncentered_{name}" for name in self.noncentered)])

    def _sample(self, args: tuple, kwargs: dict, whole: bool) -> dict[str, jax.Array]:
        self._prepare(args, kwargs)
        values, h, x, loc = {}, None, None, None
        if self._joint is not None:
            x, loc, h = self._joint.sample()
            for name, (z, stretch) in self._space.place(x, args, kwargs).items():
                values[name] = (self._space.parts[name], z, stretch)
        latents = [part.latent for group in self._members for part in group.parts]
        latents += [part.latent for part, _, _ in values.values()] + [factor.latent for factor in self._discrete]
        plates = {
            plate: numpyro.plate(plate.name, plate.size, None if whole else plate.subsample_size, plate.dim)
            for plate in dict.fromkeys(p for latent in latents for p in latent.plates)
        }

        def inside(latent: Latent, run: Callable[[], Any]) -> Any:
            with ExitStack() as stack:
                for plate in latent.plates:
                    stack.enter_context(plates[plate])
                return run()

        found = {}
        paired = {pair.factor.latent.name for pair in self._pairs.values()}
        for factor in self._discrete:
            name = factor.latent.name
            given = None if name in paired else h  # a pair already has the dependence that matters
            found[name] = inside(factor.latent, partial(factor.sample, self.prefix, given, _SLOPES))
        for name, pair in self._pairs.items():
            assert x is not None
            assert loc is not None
            values[name] = (pair.part, *pair.place(x, loc, found[pair.factor.latent.name]))
        found |= {name: inside(p.latent, partial(_point, p, z, s)) for name, (p, z, s) in values.items()}
        for group in self._members:
            drawn = inside(group.parts[0].latent, partial(group.sample, h))
            for part in group.parts:
                u, z = drawn[part.latent.name]
                stretch = part.transform.log_abs_det_jacobian(u, z)
                found[part.latent.name] = inside(part.latent, partial(_point, part, z, stretch))
        return found

    def _prepare(self, args: tuple, kwargs: dict) -> None:
        if self._ready:
            return
        # Inside jit, arrays are traced unless JAX is told otherwise; outside, telling JAX only costs time.
        inside_jit = isinstance(jnp.zeros(()), jax.core.Tracer)
        with jax.ensure_compile_time_eval() if inside_jit else nullcontext(), handlers.block():
            self._setup(args, kwargs, compiled=not inside_jit)
        self._ready = True

    def _setup(self, args: tuple, kwargs: dict, compiled: bool) -> None:
        draws, taken = prior_draws(self.model, args, kwargs, compiled, "Structured")
        sites = {draw[0].name: draw for draw in zip(*draws, strict=True)}
        if not sites:
            raise ValueError(
                "Structured: the model has no latent sites, as all its sample sites have obs=: leave it out "
                "of what is to be inferred"
            )
        for option, names in (("noncentered", self.noncentered), ("window", self._windows)):
            if unknown := sorted(set(names) - set(sites)):
                raise ValueError(f"Structured: {option} names {unknown}; the latent sites are {sorted(sites)}.")
        continuous = {n: draw for n, draw in sites.items() if not draw[0].support.is_discrete}
        total = sum(draw[0].value.size for draw in continuous.values())
        local = {
            n: draw
            for n, draw in continuous.items()
            if any(p.subsample_size < p.size for p in draw[0].plates) or (total > FULL and draw[0].plates)
        }
        self._space = LatentSpace(
            self.model, [draw for n, draw in continuous.items() if n not in local], self.noncentered
        )
        self._space.check_moving(args, kwargs)
        # Subsampled plates have no place of all their members.
        self._everything = self._space if not local else LatentSpace(self.model, list(continuous.values()))
        size = self._space.size
        self._joint = Joint(self._base, self._space.start, self.init_scale, self._whitening) if size else None
        groups: dict[tuple[Plate, ...], list[Part]] = {}
        for part in LatentSpace(self.model, list(local.values())).parts.values():
            groups.setdefault(part.latent.plates, []).append(_member(part))
        self._members = [
            Members(f"{self.prefix}{parts[0].latent.name}_members", plates, parts, size, self.init_scale)
            for plates, parts in groups.items()
        ]
        self._discrete = []
        for name, draw in sites.items():
            if name not in continuous:
                check_static(draw)
                self._discrete.append(discrete_factor(draw, None, self._windows.get(name)))
        if compiled:
            self._discrete = inside_the_data(self._discrete, self.model, args, kwargs, sites)
        single = {n: p for n, p in self._space.parts.items() if n not in self.noncentered and not p.moving}
        self._pairs = pairs(single, self._discrete, self.prefix)
        own: dict[str, tuple[str, ...]] = {self._base: ("", "_loc", "_scale_tril", "_factor", "_log_scale")}
        own |= {group.name: ("", "_loc", "_given", "_scale_tril") for group in self._members}
        own |= {f"{self.prefix}{f.latent.name}": ("_logits", "_slopes") for f in self._discrete}
        own |= {f"{self.prefix}{name}": ("_centers", "_log_stretch") for name in self._pairs}
        for base, suffixes in own.items():
            for name in (base + suffix for suffix in suffixes):
                if name in taken:
                    raise ValueError(f"Structured needs the name '{name}', which the model uses: pass prefix='q_'.")


def _member(part: Part) -> Part:
    """Return the part of a site in plates; raise if its members cannot be told from its other axes."""
    latent = part.latent
    batch = latent.shape[: len(latent.shape) - latent.event_dim]
    plates = {plate.dim for plate in latent.plates}
    if any(n > 1 and i - len(batch) not in plates for i, n in enumerate(batch)):
        raise latent.error("has batch axes that are not plates: put them into a plate, or use to_event")
    if part.moving:
        raise latent.error("has a support that depends on other latents, in a large or subsampled plate: rescale it")
    if latent.mask is not None:
        raise latent.error("is masked inside a large or subsampled plate: write the guide by hand")
    return part


def _point(part: Part, z: jax.Array, stretch: jax.Array) -> jax.Array:
    """Sample a site that is a function of Gaussian latents, with the density that the bijection gives it."""
    latent = part.latent
    block = latent.support.event_dim
    return numpyro.sample(latent.name, latent.wrap(dist.Delta(z, -stretch, event_dim=block)))
