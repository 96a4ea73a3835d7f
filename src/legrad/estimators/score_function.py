"""LdGrad: the score function, also called REINFORCE or the log-derivative trick.

    ∇ E_q[f] = E_q[ Σ_e cost_e · ∇ log q(x_e | pa_e) ],    cost_e: the terms of e's learning signal (`costs`)

With the leave-one-out baseline, each draw's cost is measured from the mean of the other draws.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient

from legrad.estimators.base import Estimator, Score, draws, over_draws, require_positive, surrogate
from legrad.estimators.costs import Costs, fixed_parents
from legrad.model.problem import Evaluation, Noise, Problem


class ScoreFunction(Estimator):
    """The score-function estimator, for latents of any kind.

    Args:
        num_samples: the number of draws averaged in one estimate.
        baseline: None, or "leave_one_out" (needs at least two samples), which lowers the variance at no cost.

    Example:
        >>> svi = SVI(model, guide, Adam(1e-2), loss=legrad.ScoreFunction(16, baseline="leave_one_out"))

    References:
        Williams (1992). Kool, van Hoof, Welling (2019), "Buy 4 REINFORCE samples, get a baseline for free!"
    """

    def __init__(self, num_samples: int = 1, baseline: str | None = None) -> None:
        require_positive(num_samples=num_samples)
        if baseline not in (None, "leave_one_out"):
            raise ValueError(f'baseline={baseline!r}: it must be None or "leave_one_out"')
        if baseline is not None and num_samples < 2:
            raise ValueError("the leave-one-out baseline compares draws: set num_samples to at least 2")
        super().__init__(num_particles=num_samples)
        self.num_samples, self.baseline = num_samples, baseline

    def estimate(self, problem: Problem, key: jax.Array) -> jax.Array:
        """See `Estimator.estimate`."""

        def one(noise: Noise) -> tuple[jax.Array, dict[str, Score]]:
            pivot = problem.draw(noise)
            x = {name: stop_gradient(factor.coordinate) for name, factor in pivot.items()}
            evaluate = partial(problem.evaluate, noise=noise, pivot=pivot)
            costs = Costs(x, fixed_parents(x, problem.parents(pivot, noise)), evaluate)
            here = problem.evaluate_draw(pivot, x, noise)
            return here.total(stop=x), {name: score(name, here, costs) for name in x}

        value, scores = over_draws(one, draws(key, self.num_samples))
        return surrogate(value, scores, leave_one_out=self.baseline is not None)


def score(name: str, here: Evaluation, costs: Costs) -> Score:
    """Return the score of one site, whose own value is the only candidate."""
    log_q = here.factors[name].log_prob()
    cost = costs.of(name, costs.values(here))
    return Score(log_q[None], jnp.ones_like(log_q)[None], jnp.zeros_like(log_q)[None], cost)
