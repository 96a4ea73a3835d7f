"""LdGrad as the paper has it: every score is multiplied by the *whole* of f.

    ∇ E_q[f] ≈ 1/S Σ_s f(x_s) ∇ log q(x_s),    f = log p − log q,  or  f = log p with ∇ H[q] added in closed form

`legrad.ScoreFunction` drops the terms of f that an element does not touch, which the paper does not do; here f is
handed to `legrad.expectation` as one number, so nothing can be dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from numpyro import handlers
from numpyro.infer.elbo import ELBO
from numpyro.infer.util import compute_log_probs

from legrad.estimators import ScoreFunction
from legrad.estimators.expectation import expectation


class LdGrad(ELBO):
    """The score function times the whole of f.

    Args:
        num_samples: S.
        entropy: "inside" f, or "apart": its gradient in closed form.
        over: a plate whose members have a bound each (f has one number for each of them); None: f is one number.
    """

    can_infer_discrete = True

    def __init__(self, num_samples: int, entropy: str = "inside", over: str | None = None) -> None:
        if entropy not in ("inside", "apart"):
            raise ValueError(f'entropy={entropy!r}: it must be "inside" or "apart"')
        super().__init__(num_particles=num_samples)
        self.num_samples, self.entropy, self.over = num_samples, entropy, over

    def loss(
        self,
        rng_key: jax.Array,
        param_map: Mapping[str, Any],
        model: Callable[..., Any],
        guide: Callable[..., Any],
        *args: Any,
        **kwargs: Any,
    ) -> jax.Array:
        """The negative ELBO, estimated; see `numpyro.infer.elbo.ELBO.loss`."""
        of_plates, of_sites = jax.random.split(rng_key)
        with handlers.trace() as trace, handlers.seed(rng_seed=of_plates), handlers.substitute(data=dict(param_map)):
            guide(*args, **kwargs)
        latents = [name for name, site in trace.items() if site["type"] == "sample"]
        if self.entropy == "apart" and len(latents) > 1:
            raise ValueError(
                f"the guide has the sites {', '.join(latents)}: with entropy='apart' it may have one, because the "
                "entropy of a site given another one is not the whole of its gradient; use entropy='inside'"
            )
        batch = {name: site["value"] for name, site in trace.items() if site["type"] == "plate"}
        model, guide = (handlers.substitute(program, data=batch) for program in (model, guide))

        def f(latents: dict[str, Any]) -> jax.Array:
            terms = self._sum(model, args, kwargs, {**param_map, **latents})
            if self.entropy == "inside":
                fixed = jax.tree.map(stop_gradient, dict(param_map))
                terms = terms - self._sum(guide, args, kwargs, fixed | latents)
            return terms

        estimator = ScoreFunction(self.num_samples)
        value = expectation(f, guide, param_map, key=of_sites, estimator=estimator, args=args, kwargs=kwargs)
        if self.entropy == "apart":
            value = value + sum(
                jnp.sum((1.0 if site["scale"] is None else site["scale"]) * site["fn"].entropy())
                for site in trace.values()
                if site["type"] == "sample"
            )
        return -value

    def _sum(self, program: Callable[..., Any], args: Any, kwargs: Any, values: dict[str, Any]) -> jax.Array:
        """The log-density of all sites: one number, or one for each member of the plate."""
        sites, _ = compute_log_probs(program, args, kwargs, values, sum_log_prob=False)
        return sum((v if self.over else jnp.sum(v) for v in sites.values()), start=jnp.zeros(()))
