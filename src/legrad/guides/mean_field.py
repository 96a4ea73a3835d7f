"""MeanField: a guide with an independent factor for every scalar latent of a model.

    q(z) = Π_e q(z_e),    q(z_e) = Bernoulli | Categorical | transformed Normal

The first call draws from the model's prior with fixed seeds, and builds a discrete or a continuous factor (`factors`)
from the draws of each site (`latents`). Every call samples these factors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
from jax.typing import ArrayLike
from numpyro import handlers

from legrad.guides.factors import (
    ContinuousFactor,
    DiscreteFactor,
    all_members,
    continuous_factor,
    discrete_factor,
    inside_the_data,
)
from legrad.guides.latents import check_static, prior_draws
from legrad.model.log_density import LogDensity
from legrad.model.prior_draw import prior_draw
from legrad.model.threads import one_at_a_time

_FAR = 5.0  # how far away another start may be, in the unconstrained space


class MeanField:
    r"""A guide with one independent factor per scalar latent, discrete latents included.

    .. math:: q(z) = \prod_e q(z_e)

    A Bernoulli site gets Bernoulli factors, any other site with a finite support a categorical over its
    integers, a count (Poisson, Geometric, ...) a categorical over a window of integers, and a continuous site
    a Normal through the bijection to its support. Values that the data rule out, such as N below y in
    y ~ Binomial(N, p), have probability zero. The parameters are `{name}_logits`, or `{name}_loc` and
    `{name}_log_scale` in the unconstrained space; all are real, and have the full size of the plates even
    when the plates subsample.

    The model is traced at the first call, and its sites, supports, masks and windows at that call's arguments
    are kept. Masked elements are masked in the guide, too; `handlers.scale` has no effect on the guide.

    Args:
        model: a NumPyro model.
        init: initial values of latents, by site name, of a shape that broadcasts to the shape of the site at full
            plate size. A continuous value is the location in the model's own space; a discrete value starts with
            probability 0.9; a discrete site also takes the probabilities of all its values on an additional
            last axis. By default continuous factors start at the prior median, and discrete factors uniform.
        window: for counts, the integers `low <= z < high` of the factor: `{name: (low, high)}`. By default
            the narrowest window that covers all but 1e-6 of the prior, if that is at most 256 wide. A window
            can also narrow a finite support.
        init_scale: initial standard deviation of continuous factors, in the unconstrained space.
        prefix: a prefix for the names of all parameters, in case they collide with names in the model.

    Example:
        >>> import jax, numpyro, numpyro.distributions as dist
        >>> def model():
        ...     with numpyro.plate("items", 3):
        ...         z = numpyro.sample("z", dist.Bernoulli(0.3))
        ...     numpyro.sample("y", dist.Normal(z.sum(), 1.0), obs=2.0)
        >>> guide = MeanField(model, init={"z": 1})
        >>> trace = numpyro.handlers.trace(numpyro.handlers.seed(guide, 0)).get_trace()
        >>> print(trace["z"]["fn"].probs)
        [0.9 0.9 0.9]
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
        if isinstance(model, LogDensity):
            raise ValueError("MeanField needs a NumPyro model; for a plain log-density write the guide by hand.")
        if not init_scale > 0:
            raise ValueError(f"MeanField: init_scale must be positive, got {init_scale}.")
        self.model = model
        self.init = dict(init or {})
        self.init_scale = init_scale
        self.prefix = prefix
        self._windows = dict(window or {})
        self._factors: dict[str, DiscreteFactor | ContinuousFactor] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, jax.Array]:
        """Sample every latent; return the values by site name."""
        return self._sample(args, kwargs, whole=False)

    def whole(self, *args: Any, **kwargs: Any) -> dict[str, jax.Array]:
        """Sample every latent with every plate at its full size: all members, not a subsample."""
        return self._sample(args, kwargs, whole=True)

    def _sample(self, args: tuple, kwargs: dict, whole: bool) -> dict[str, jax.Array]:
        self.set_up(*args, **kwargs)
        assert self._factors is not None
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

    def set_up(self, *args: Any, **kwargs: Any) -> None:
        """Look at the model, if that was not done before, as the first call does."""
        if self._factors is None:
            # Inside jit, arrays are traced unless JAX is told otherwise; outside, telling JAX only costs time.
            inside_jit = isinstance(jnp.zeros(()), jax.core.Tracer)
            with jax.ensure_compile_time_eval() if inside_jit else nullcontext(), handlers.block():
                self._factors = self._setup(args, kwargs, compiled=not inside_jit)

    @one_at_a_time
    def other_start(self, key: jax.Array, args: tuple, kwargs: dict) -> dict[str, jax.Array]:
        """Return other initial locations, by parameter: a draw from the prior, at most 5 from the initial ones."""
        assert self._factors is not None
        seeded = handlers.substitute(handlers.seed(self.model, key), substitute_fn=prior_draw)
        with numpyro.validation_enabled(False):  # a draw of the prior may lead anywhere
            trace = handlers.trace(seeded).get_trace(*args, **kwargs)
        found = {}
        for name, factor in self._factors.items():
            if isinstance(factor, ContinuousFactor):
                there = all_members(factor.latent, factor.transform, factor.transform.inv(trace[name]["value"]))
                far = jnp.nan_to_num(there.astype(factor.loc.dtype) - factor.loc)
                found[f"{self.prefix}{name}_loc"] = factor.loc + jnp.clip(far, -_FAR, _FAR)
        return found

    def window(self, name: str) -> tuple[int, int]:
        """Return the integers `low <= z < high` that the factor of a discrete site covers, as (low, high)."""
        if self._factors is None:
            raise RuntimeError("MeanField: windows are known after the guide's first call.")
        factor = self._factors.get(name)
        if not isinstance(factor, DiscreteFactor):
            raise ValueError(f"MeanField: '{name}' is not a discrete latent site of the model.")
        return factor.low, factor.high

    def _setup(self, args: tuple, kwargs: dict, compiled: bool) -> dict[str, DiscreteFactor | ContinuousFactor]:
        draws, taken = prior_draws(self.model, args, kwargs, compiled)
        sites = {draw[0].name: draw for draw in zip(*draws, strict=True)}
        if not sites:
            raise ValueError(
                "MeanField: the model has no latent sites, as all its sample sites have obs=: leave it out "
                "of what is to be inferred"
            )
        for option, names in (("init", self.init), ("window", self._windows)):
            if unknown := sorted(set(names) - set(sites)):
                raise ValueError(f"MeanField: {option} names {unknown}; the latent sites are {sorted(sites)}.")
        factors: dict[str, DiscreteFactor | ContinuousFactor] = {}
        for name, draw in sites.items():
            check_static(draw)
            init, window = self.init.get(name), self._windows.get(name)
            if draw[0].support.is_discrete:
                factors[name] = discrete_factor(draw, init, window)
            elif window is None:
                factors[name] = continuous_factor(draw, init, self.init_scale)
            else:
                raise draw[0].error("is continuous and takes no window: remove it from window=")
            for own in (f"{self.prefix}{name}_{suffix}" for suffix in factors[name].parameters):
                if own in taken:
                    raise draw[0].error(f"needs the name '{own}', which the model uses: pass prefix='q_'")
        if not compiled:
            return factors  # inside jit, what the data allow is not known
        discrete = [factor for factor in factors.values() if isinstance(factor, DiscreteFactor)]
        return factors | {f.latent.name: f for f in inside_the_data(discrete, self.model, args, kwargs, sites)}
