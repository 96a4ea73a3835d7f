"""What one would use instead of `legrad.fit`, on continuous posteriors: NumPyro's guides, Pathfinder, and NUTS.

Each takes a model, its arguments and a random key, fits, and returns a function that draws the latents: the time of
the draws is not part of that of the fit. NumPyro's guides take 20,000 steps of Adam with a rate of 1e-2. Pathfinder
is blackjax's, with its defaults (at most 30 steps of L-BFGS, to a relative change of 1e-5), and "long": at most
1,000 steps, to 1e-12. NUTS has 4 chains of 1,000 draws after a warm-up of 1,000.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import blackjax
import jax
import numpy as np
from numpyro.infer import MCMC, NUTS, SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoLaplaceApproximation, AutoMultivariateNormal, AutoNormal
from numpyro.infer.util import initialize_model
from numpyro.optim import Adam

STEPS, RATE, DRAWS = 20_000, 1e-2, 8_000
Draw = Callable[[], dict[str, np.ndarray]]


def _guide(kind: type) -> Callable[..., Draw]:
    def fit(model: Callable[..., Any], args: tuple[Any, ...], key: jax.Array) -> Draw:
        of_fit, of_draws = jax.random.split(key)
        guide = kind(model)
        svi = SVI(model, guide, Adam(RATE), Trace_ELBO())
        params = jax.block_until_ready(svi.run(of_fit, STEPS, *args, progress_bar=False).params)
        if kind is AutoLaplaceApproximation:
            jax.block_until_ready(guide.get_posterior(params).scale_tril)  # the Hessian is part of the fit
        return lambda: _arrays(guide.sample_posterior(of_draws, params, *args, sample_shape=(DRAWS,)))

    return fit


def _pathfinder(**settings: Any) -> Callable[..., Draw]:
    """One path from NumPyro's start."""

    def fit(model: Callable[..., Any], args: tuple[Any, ...], key: jax.Array) -> Draw:
        of_start, of_path, of_draws = jax.random.split(key, 3)
        start = initialize_model(of_start, model, model_args=args, dynamic_args=False)

        @jax.jit
        def approximate(key: jax.Array, at: Any) -> Any:
            return blackjax.vi.pathfinder.approximate(key, lambda z: -start.potential_fn(z), at, **settings)[0]

        state = jax.block_until_ready(approximate(of_path, start.param_info.z))
        sample = blackjax.vi.pathfinder.sample
        return lambda: _arrays(jax.vmap(start.postprocess_fn)(sample(of_draws, state, DRAWS)[0]))

    return fit


def nuts(model: Callable[..., Any], args: tuple[Any, ...], key: jax.Array) -> Draw:
    """Four chains, one after another."""
    chains = MCMC(
        NUTS(model), num_warmup=1_000, num_samples=1_000, num_chains=4, chain_method="sequential", progress_bar=False
    )
    chains.run(key, *args)
    draws = _arrays(chains.get_samples())
    return lambda: draws


def _arrays(draws: dict[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.asarray(x) for name, x in draws.items()}


METHODS: dict[str, Callable[..., Draw]] = {
    "AutoLaplaceApproximation": _guide(AutoLaplaceApproximation),
    "Pathfinder": _pathfinder(),
    "Pathfinder, long": _pathfinder(maxiter=1_000, ftol=1e-12),
    "AutoNormal": _guide(AutoNormal),
    "AutoMultivariateNormal": _guide(AutoMultivariateNormal),
    "NUTS": nuts,
}
