"""The negative ELBO of a small program, and its gradient, by a sum over a dense grid of all latents.

    −Σ_x ω(x) q(x; φ) [log p(x, y; θ) − log q(x; φ)]

Discrete elements take all values of their support. Continuous ones take equidistant points, each measured from the
distribution that the site has given its parents: the trapezoidal rule, which for a smooth f that decays as fast as a
Gaussian converges faster than any power of the step. Points and steps ω stay where they are when φ is differentiated,
so the gradient is that of the integral and no path of the estimators' is taken. Nothing here reads the structure of a
program: values are given to model and guide, NumPyro's densities do the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.lax import stop_gradient
from numpyro import handlers
from numpyro.infer.util import log_density
from numpyro.primitives import Messenger

from legrad._compiled import jit
from pivots import bare, elementwise, product

Values = dict[str, Any]
END = 8.6  # standard deviations, beyond which is less than 1e-17 of the mass
POINTS = {0: 1, 1: 301, 2: 87, 3: 43}  # for each element, by how many continuous elements there are
MOST = 400_000  # points of the grid
POSITIVE = np.arange(-20.0, 4.01, 0.2)  # log of a Gamma element in units of its mean


class AtPoint(Messenger):
    """Gives every latent of a guide its point of the grid; `log_weight` becomes log(ω q)."""

    def __init__(self, fn: Callable[..., Any], point: Values) -> None:
        super().__init__(fn)
        self.point, self.log_weight = point, jnp.zeros(())

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] != "sample" or msg["name"] not in self.point:
            return
        law, point = bare(msg["fn"]), self.point[msg["name"]]
        if msg["fn"].is_discrete:
            msg["value"] = point
            self.log_weight += jnp.sum(law.log_prob(point))
            return
        transform = None
        if isinstance(law, dist.TransformedDistribution) and not isinstance(law, dist.MultivariateNormal):
            transform, law = law.transforms, bare(law.base_dist)
        if isinstance(law, dist.MultivariateNormal):
            value = law.loc + jnp.einsum("...ij,...j->...i", law.scale_tril, point)
            log_step = jnp.sum(jnp.log(jnp.diagonal(law.scale_tril, axis1=-2, axis2=-1)))
        elif isinstance(law, dist.Gamma):
            value = law.concentration / law.rate * jnp.exp(point)
            log_step = jnp.sum(jnp.log(value))
        else:
            assert isinstance(law, dist.Normal), law
            value = law.loc + law.scale * point
            log_step = jnp.sum(jnp.broadcast_to(jnp.log(law.scale), point.shape))
        value = stop_gradient(value)
        self.log_weight += jnp.sum(law.log_prob(value)) + stop_gradient(log_step)
        for part in transform or ():
            value = part(value)
        msg["value"] = value


class Dense:
    """The grid of a model and guide: call it with parameters for the negative ELBO and its gradient.

    Args:
        model: a NumPyro model.
        guide: its guide.
        params: parameters of both, constrained; where the grid is made.
        args: arguments of both.
        points: how many points a continuous element takes; None for what suits their number.
    """

    def __init__(
        self, model: Any, guide: Any, params: Values, args: tuple[Any, ...], points: int | None = None
    ) -> None:
        self.model, self.guide, self.args = model, guide, args
        with handlers.seed(rng_seed=0), handlers.trace() as trace, handlers.substitute(data=params):
            guide(*args)
        sites = {n: s for n, s in trace.items() if s["type"] == "sample" and not s["is_observed"]}
        continuous = sum(int(np.prod(np.shape(s["value"]))) for s in sites.values() if not s["fn"].is_discrete)
        points = points or POINTS[continuous]
        line = np.linspace(-END, END, points) if continuous else np.zeros(1)
        parts, log_steps = {}, {}
        for name, site in sites.items():
            shape, law = np.shape(site["value"]), bare(site["fn"])
            count, choices, step = int(np.prod(shape)), line, 2 * END / max(1, points - 1)
            if site["fn"].is_discrete:
                choices, step = np.ravel(law.enumerate_support(expand=False)), 1.0
            elif isinstance(law, dist.Gamma):
                choices, step = POSITIVE, float(POSITIVE[1] - POSITIVE[0])
            parts[name] = elementwise([choices] * count, shape)
            log_steps[name] = count * np.log(step)
        total = int(np.prod([float(len(part)) for part in parts.values()]))
        assert total <= MOST, f"{total} points: make the program smaller"
        rows = product(*parts.values())
        self.grid = {n: jnp.asarray(part[i]) for (n, part), i in zip(parts.items(), rows, strict=True)}
        self.log_step = sum(log_steps.values())

    def one(self, params: Values, point: Values) -> tuple[jax.Array, jax.Array]:
        """Return log(ω q) and log p − log q at a point of the grid."""
        here = AtPoint(handlers.substitute(self.guide, data=params), point)
        log_q, trace = log_density(here, self.args, {}, {})
        values = {n: trace[n]["value"] for n in self.grid}
        log_p, _ = log_density(self.model, self.args, {}, params | values)
        return here.log_weight + self.log_step, log_p - log_q

    def loss(self, params: Values) -> jax.Array:
        """Return the negative ELBO; what has no probability takes no part."""
        log_weight, f = jax.vmap(lambda point: self.one(params, point))(self.grid)
        weight = jnp.exp(log_weight)
        return -jnp.sum(jnp.where(weight > 0, weight * jnp.where(weight > 0, f, 0.0), 0.0))

    def __call__(self, params: Values) -> tuple[jax.Array, Values]:
        return jit(jax.value_and_grad(self.loss))(params)  # XLA's YNNPACK mixes up constants
