"""A continuous latent that depends on the discrete latent of the same plate member: a slab and its spike.

    u_i = x_i                         if z_i is the reference value r_i
    u_i = a_ik + b_ik x_i             if z_i = k,    b_ik > 0

x is Gaussian, jointly with all other continuous latents, and u_i goes through the bijection to the support. So a
slope may be narrow where it is included and as wide as its prior where it is not, and keeps its correlations.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import numpyro

from legrad.guides.factors import DiscreteFactor
from legrad.guides.latent_space import Part


@dataclass
class Conditional:
    """The pair of a continuous and a discrete site with the same members.

    Attributes:
        part: the continuous site.
        factor: the discrete site.
        prefix: comes before the names of the parameters.
        reference: for each member, the place of the value at which u is x.
    """

    part: Part
    factor: DiscreteFactor
    prefix: str
    reference: np.ndarray

    @property
    def names(self) -> tuple[str, str]:
        """The names of the parameters a and log b."""
        base = f"{self.prefix}{self.part.latent.name}"
        return f"{base}_shift", f"{base}_log_stretch"

    def place(self, x: jax.Array, z: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the value of the continuous site, and log |dvalue/dx|, given the discrete site's value."""
        k = self.factor.high - self.factor.low
        real = jnp.result_type(float)
        shift, stretch = (numpyro.param(name, jnp.zeros((*self.part.shape, k), real)) for name in self.names)
        index = jnp.asarray(z, int) - self.factor.low
        chosen = index[..., None] == jnp.arange(k)
        chosen &= jnp.arange(k) != self.reference[..., None]
        a, log_b = (jnp.sum(jnp.where(chosen, parameter, 0.0), -1) for parameter in (shift, stretch))
        u = a + jnp.exp(log_b) * self.part.before_bijection(x)
        value = self.part.transform(u)
        return value, self.part.counted(self.part.transform.log_abs_det_jacobian(u, value) + log_b)


def pairs(parts: dict[str, Part], factors: list[DiscreteFactor], prefix: str) -> dict[str, Conditional]:
    """Pair each continuous site with the first discrete site in the same plates and of the same shape."""
    found = {}
    for name, part in parts.items():
        latent = part.latent
        for factor in factors:
            same = factor.latent.plates == latent.plates and factor.latent.shape == latent.shape == part.shape
            if latent.plates and same and part.free is None and factor.latent.mask is None:
                found[name] = Conditional(part, factor, prefix, np.zeros(part.shape, int))
                break
    return found
