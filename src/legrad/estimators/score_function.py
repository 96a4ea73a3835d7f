"""LdGrad: the score function, also called REINFORCE or the log-derivative trick.

    ∇ E_q[f] = E_q[ Σ_e cost_e · ∇ log q(x_e | pa_e) ],    cost_e: the terms of e's learning signal (`costs`)

With the leave-one-out baseline, each draw's cost is measured from the mean of the other draws.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from numpyro.primitives import Messenger

from legrad.estimators.base import Estimator, Score, draws, over_draws, require_positive, surrogate
from legrad.estimators.costs import Costs, fixed_parents
from legrad.model.problem import Evaluation, Noise, Problem
from legrad.model.sites import Draw

_FEW = 8  # draws times sites: up to this many are written out one after the other


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
        noise, several = draws(key, self.num_samples), Several(self.num_samples)
        first = Noise(noise.sites[0], noise.plates)
        drawn = problem.draw(first, several)
        graph = problem.parents(drawn, first)
        at = {name: stop_gradient(factor.coordinate) for name, factor in drawn.items()}
        costs = Costs(at, fixed_parents(at, graph), partial(problem.evaluate, noise=first, pivot=drawn))

        def one(noise: Noise, pivot: Draw) -> tuple[jax.Array, dict[str, Score]]:
            x = {name: stop_gradient(factor.coordinate) for name, factor in pivot.items()}
            here = problem.evaluate_draw(pivot, x, noise)
            return here.total(stop=x), {name: score(name, here, costs) for name in x}

        if self.num_samples * len(drawn) <= _FEW and several.complete(drawn, graph):
            each = [one(first, drawn.moved(values)) for values in several.draws()]
            value, scores = jax.tree.map(lambda *parts: jnp.stack(parts), *each)
        else:
            value, scores = over_draws(lambda noise: one(noise, problem.draw(noise)), noise)
        return surrogate(value, scores, leave_one_out=self.baseline is not None)


class Several(Messenger):
    """A messenger that draws every discrete site several times.

    If no site depends on another, these are draws from the guide, whose parameters are the same for all of them. Then
    the guide runs once, and a few draws are written out one after the other: what the derivatives of the draws add up
    to is found in passing, while XLA's sum over an axis of draws takes as long as a product of matrices.
    """

    def __init__(self, number: int) -> None:
        super().__init__(None)
        self.number, self._values = number, dict[str, jax.Array]()

    def process_message(self, msg: dict[str, Any]) -> None:
        """Draw a site several times, and give it the first draw."""
        if msg["type"] != "sample" or msg["value"] is not None or not msg["fn"].is_discrete:
            return
        fn, args, kwargs = msg["fn"], msg["args"], msg["kwargs"]
        keys = jax.random.split(kwargs["rng_key"], self.number)
        drawn = jax.vmap(lambda key: fn(*args, **{**kwargs, "rng_key": key}))(keys)
        self._values[msg["name"]], msg["value"] = drawn, drawn[0]

    def complete(self, drawn: Draw, parents: Mapping[str, frozenset[str]]) -> bool:
        """Return whether the values are draws from the guide: all sites are discrete, and none depends on another."""
        alone = not any(parents.values()) and not any(factor.in_scan for factor in drawn.values())
        return alone and set(drawn) == set(self._values)

    def draws(self) -> list[dict[str, jax.Array]]:
        """Return the values of each draw."""
        return [{name: values[i] for name, values in self._values.items()} for i in range(self.number)]


def score(name: str, here: Evaluation, costs: Costs) -> Score:
    """Return the score of one site, whose own value is the only candidate."""
    log_q = here.factors[name].log_prob()
    cost = costs.of(name, costs.values(here))
    return Score(log_q[None], jnp.ones_like(log_q)[None], jnp.zeros_like(log_q)[None], cost)
