"""What a fit gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from numpyro import handlers
from numpyro.infer import Predictive
from numpyro.infer.elbo import ELBO

from legrad.problem import Problem


@dataclass(frozen=True)
class FitResult:
    """A fitted guide.

    Attributes:
        params: the parameters of model and guide, constrained, by name.
        elbo: the ELBO estimate of every step.
        steps: how many steps were taken.
        seconds: how long they took, compiling included.
        clock: rows of (steps done, seconds of running so far), one after each chunk of compiled steps; the first
            step's seconds are mostly those of compiling.
        problem: model, guide, parameters and data, for what is computed from the fit.
        estimator: what gave the gradients.
        optimizer_state: what the optimizer carries, after the last step.
    """

    params: dict[str, Any]
    elbo: np.ndarray
    steps: int
    seconds: float
    clock: np.ndarray = field(repr=False)
    problem: Problem = field(repr=False)
    estimator: ELBO = field(repr=False)
    optimizer_state: Any = field(repr=False)

    def sample(self, key: jax.Array, num_samples: int = 1000) -> dict[str, jax.Array]:
        """Draws from the fitted guide: for each latent an array with a leading axis of draws."""
        problem = self.problem
        guide = getattr(problem.guide, "whole", problem.guide)
        draw = Predictive(guide, params=dict(self.params), num_samples=num_samples, parallel=True)
        values = draw(key, *problem.args, **problem.kwargs)
        return {name: value for name, value in values.items() if name not in self._auxiliary()}

    def _auxiliary(self) -> set[str]:
        with handlers.trace() as trace, handlers.seed(rng_seed=0), handlers.substitute(data=self.params):
            self.problem.guide(*self.problem.args, **self.problem.kwargs)
        return {
            name for name, site in trace.items() if site["type"] == "sample" and site["infer"].get("is_auxiliary")
        }

    def plot(self, path: Any = None) -> Any:
        """The ELBO by step, with its running mean; written to `path` if one is given. Needs matplotlib."""
        from legrad.diagnostics.plots import plot_fit

        return plot_fit(self, path)
