"""The Gaussian parts of a structured guide, all in unconstrained space.

    joint:    x ~ Normal(loc, L Lᵀ)                            L full, or low rank plus diagonal where x is long
    members:  x_i | x ~ Normal(loc_i + G_i h(x), L_i L_iᵀ)     for each member i of a plate

with h(x) the joint latents less their mean, divided by their standard deviations. The cost of members is linear in
their number, and a plate may be subsampled.

Draws that are weighed against the posterior need tails at least as heavy as the posterior's. For those the joint is

    x ~ ⅓ Normal(loc, L Lᵀ) + ⅓ Normal(m, S) + ⅓ Student-t(5; m, S)     m, S: moments of the posterior, if known
    x ~ ⅓ Normal(loc, L Lᵀ) + ⅔ Σ_k π_k Student-t(5; m_k, S_k)          if a mixture that covers it is known
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints

from legrad.guides.latent_space import Part
from legrad.guides.latents import Plate
from legrad.guides.whitened import WhitenedCholesky, WhitenedVector

FULL = 400  # the largest number of latents with a full Cholesky factor
_TAILS = 5.0  # degrees of freedom of the heavy tails
Moments = tuple[np.ndarray, np.ndarray]  # a mean, and the Cholesky factor of a covariance
Cover = Moments | tuple[np.ndarray, np.ndarray, np.ndarray]
"""Or those of the components of a mixture of Student-t's, and the components' weights."""


@dataclass
class Joint:
    """The joint Gaussian of the latents outside of large plates.

    Attributes:
        name: the name of the site that is sampled, and before the names of its parameters.
        start: the initial mean.
        scale: the initial standard deviation of each latent.
        whitening: a center and a lower triangular matrix: the coordinates in which to optimize; None for plain ones.
        heavy: whether to sample with heavy tails.
        moments: the moments of the posterior, for the heavy tails, or a mixture that covers it; None for those of
            the Gaussian.
    """

    name: str
    start: np.ndarray
    scale: float
    whitening: Moments | None = None
    heavy: bool = False
    moments: Cover | None = None

    def sample(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Sample the vector; return it, its mean, and the vector less its mean in standard deviations."""
        loc, fn = self._distribution()
        x = numpyro.sample(self.name, self._heavy(fn) if self.heavy else fn, infer={"is_auxiliary": True})
        return x, loc, (x - loc) / jnp.sqrt(fn.variance)

    def initial(self, loc: np.ndarray, sd: np.ndarray) -> dict[str, np.ndarray]:
        """Return initial values of the parameters from means and standard deviations."""
        if len(loc) <= FULL:
            return {f"{self.name}_loc": loc, f"{self.name}_scale_tril": np.diag(sd)}
        return {f"{self.name}_loc": loc, f"{self.name}_log_scale": np.log(sd)}

    def _heavy(self, fn: Any) -> Any:
        if not isinstance(fn, dist.MultivariateNormal):
            return fn
        if self.moments is not None and len(self.moments) == 3:
            loc, tril, weights = map(jnp.asarray, self.moments)
            each = dist.MultivariateStudentT(_TAILS, loc, tril)
            cover = dist.MixtureSameFamily(dist.Categorical(probs=weights), each)
            return dist.MixtureGeneral(dist.Categorical(probs=jnp.asarray([1 / 3, 2 / 3])), [fn, cover])
        m, root = (fn.loc, fn.scale_tril) if self.moments is None else map(jnp.asarray, self.moments)
        parts = [fn, dist.MultivariateNormal(m, scale_tril=root), dist.MultivariateStudentT(_TAILS, m, root)]
        return dist.MixtureGeneral(dist.Categorical(probs=jnp.full(len(parts), 1 / len(parts))), parts)

    def _distribution(self) -> tuple[jax.Array, Any]:
        size, real = len(self.start), jnp.result_type(float)
        start, tril = jnp.asarray(self.start, real), self.scale * jnp.eye(size, dtype=real)
        vector: Any = constraints.real_vector
        matrix: Any = constraints.lower_cholesky
        if self.whitening is not None:
            center, white = (np.asarray(part, real) for part in self.whitening)
            start, tril = jnp.asarray(center), jnp.asarray(white)
            vector, matrix = WhitenedVector(center, white), WhitenedCholesky(white)
        if size <= FULL:
            loc = numpyro.param(f"{self.name}_loc", start, constraint=vector)
            return loc, dist.MultivariateNormal(
                loc, scale_tril=numpyro.param(f"{self.name}_scale_tril", tril, constraint=matrix)
            )
        rank = math.ceil(math.sqrt(size))
        loc = numpyro.param(f"{self.name}_loc", start, constraint=constraints.real_vector)
        # Not zero, where the gradient would be zero.
        factor = jnp.asarray(np.random.default_rng(0).normal(size=(size, rank)) * 0.1 * self.scale / rank**0.5, real)
        factor = numpyro.param(f"{self.name}_factor", factor)
        log_scale = numpyro.param(f"{self.name}_log_scale", jnp.full(size, math.log(self.scale), real))
        return loc, dist.LowRankMultivariateNormal(loc, factor, jnp.exp(2 * log_scale))


@dataclass
class Members:
    """The Gaussian of each member of the same plates, given the joint latents.

    Attributes:
        name: the name of the site that is sampled, and before the names of its parameters.
        plates: the plates of all parts.
        parts: the sites.
        joint: the number of joint latents.
        scale: the initial standard deviation of each latent.
    """

    name: str
    plates: tuple[Plate, ...]
    parts: Sequence[Part]
    joint: int
    scale: float

    @property
    def batch(self) -> tuple[int, ...]:
        """The shape of the plates at full size."""
        shape = [1] * max(-plate.dim for plate in self.plates)
        for plate in self.plates:
            shape[plate.dim] = plate.size
        return tuple(shape)

    def initial(self, loc: Sequence[np.ndarray], sd: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Return initial values of the parameters from means and standard deviations of the parts."""
        found = [np.concatenate([p.reshape(*self.batch, -1) for p in parts], -1) for parts in (loc, sd)]
        diagonal = found[1][..., None] * np.eye(found[1].shape[-1])
        return {f"{self.name}_loc": found[0], f"{self.name}_scale_tril": diagonal}

    def sample(self, h: jax.Array | None) -> dict[str, tuple[jax.Array, jax.Array]]:
        """Sample the members inside their plates; return each site before and after its bijection."""
        real, events = jnp.result_type(float), [self._event(part) for part in self.parts]
        sizes = [math.prod(event) for event in events]
        size = sum(sizes)
        loc = numpyro.param(f"{self.name}_loc", jnp.zeros((*self.batch, size), real), event_dim=1)
        if h is not None:
            given = jnp.zeros((*self.batch, size, self.joint), real)
            loc = loc + numpyro.param(f"{self.name}_given", given, event_dim=2) @ h
        tril = jnp.broadcast_to(self.scale * jnp.eye(size, dtype=real), (*self.batch, size, size))
        tril = numpyro.param(f"{self.name}_scale_tril", tril, constraint=constraints.lower_cholesky, event_dim=2)
        base = dist.MultivariateNormal(loc, scale_tril=tril)
        x = numpyro.sample(self.name, base, infer={"is_auxiliary": True})
        found, at = {}, 0
        for part, event, n in zip(self.parts, events, sizes, strict=True):
            batch = x.shape[:-1]
            rank = len(part.shape) - len(event)  # a site may have fewer batch axes than its plates' dims suggest
            u = x[..., at : at + n].reshape((*batch, *event)[len(batch) - rank :])
            found[part.latent.name] = u, part.transform(u)
            at += n
        return found

    def _event(self, part: Part) -> tuple[int, ...]:
        batch = len(part.latent.shape) - part.latent.event_dim
        return part.shape[batch:]
