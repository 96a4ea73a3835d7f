"""A continuous latent that depends on the discrete latent of the same plate member: a slab and its spike.

    u_i = x_i                              if z_i is the reference value r_i
    u_i = c_ik + b_ik (x_i − loc_i)        if z_i = k,    b_ik > 0

x is Gaussian around loc, jointly with all other continuous latents, and u_i goes through the bijection to the
support. So a slope may be narrow where it is included and as wide as its prior where it is not, and keeps its
correlations.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import numpyro

from legrad.guides.factors import DiscreteFactor
from legrad.guides.latent_space import Part
from legrad.guides.whitened import Scaled

_STEP = 0.1  # of the optimizer's step


@dataclass
class Conditional:
    """The pair of a continuous and a discrete site with the same members.

    Attributes:
        part: the continuous site.
        factor: the discrete site.
        prefix: comes before the names of the parameters.
        reference: for each member, the place of the value at which u is x.
        units: for each member and value, the standard deviation of u: optimizers take small steps in this unit,
            since values of low probability have noisy gradients.
    """

    part: Part
    factor: DiscreteFactor
    prefix: str
    reference: np.ndarray
    units: np.ndarray

    @property
    def names(self) -> tuple[str, str]:
        """The names of the parameters c and log b."""
        base = f"{self.prefix}{self.part.latent.name}"
        return f"{base}_centers", f"{base}_log_stretch"

    def place(self, x: jax.Array, loc: jax.Array, z: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the value of the continuous site, and log |dvalue/dx|, given the discrete site's value."""
        real = jnp.result_type(float)
        number = self.units.shape[-1]
        zeros = jnp.zeros(self.units.shape, real)
        units = [np.asarray(_STEP * self.units, real), np.full(self.units.shape, _STEP, real)]
        centers, log_b = (
            numpyro.param(name, zeros, constraint=Scaled(unit)) for name, unit in zip(self.names, units, strict=True)
        )
        index = jnp.asarray(z, int) - self.factor.low
        chosen = index[..., None] == jnp.arange(number)
        x, loc = self.part.before_bijection(x), self.part.before_bijection(loc)
        c, log_stretch = (jnp.sum(jnp.where(chosen, parameter, 0.0), -1) for parameter in (centers, log_b))
        same = index == self.reference
        log_stretch = jnp.where(same, 0.0, log_stretch)
        u = jnp.where(same, x, c + jnp.exp(log_stretch) * (x - loc))
        value = self.part.transform(u)
        return value, self.part.counted(self.part.transform.log_abs_det_jacobian(u, value) + log_stretch)


def pairs(parts: dict[str, Part], factors: list[DiscreteFactor], prefix: str) -> dict[str, Conditional]:
    """Pair each continuous site with the first discrete site in the same plates and of the same shape."""
    found = {}
    for name, part in parts.items():
        latent = part.latent
        for factor in factors:
            same = factor.latent.plates == latent.plates and factor.latent.shape == latent.shape == part.shape
            if latent.plates and same and part.free is None and factor.latent.mask is None:
                values = factor.high - factor.low
                reference, units = np.zeros(part.shape, int), np.ones((*part.shape, values))
                found[name] = Conditional(part, factor, prefix, reference, units)
                break
    return found
