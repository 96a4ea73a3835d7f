"""Gradients at fixed parameters: their variance in every coordinate, and their time, for several estimators.

The variance of an average of S independent draws is 1/S of one draw's, so a large S is measured from a smaller one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from numpyro.infer.elbo import ELBO
from tqdm.auto import tqdm

from legrad.diagnostics.gradients import gradient_at, moments
from legrad.diagnostics.timing import interleaved_seconds
from legrad.experiments.stages import Arrays
from legrad.model.arrays import split_arrays
from legrad.model.objective import Given, Objective
from legrad.model.parameters import Parameters
from legrad.trace.concrete import compiled_for

_ROUNDS = 5


class MeasurePlan(NamedTuple):
    """How one estimator's variance is measured: `draws` gradients, whose variance is divided by `divide`."""

    estimator: ELBO
    draws: int
    divide: float = 1.0


class Bench:
    """A model and guide on their data, whose gradients are drawn at any parameters by compiled programs."""

    def __init__(self, model: Callable[..., Any], guide: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.model, self.guide = model, guide
        self.parameters = Parameters(model, guide, args, {}, jax.random.key(0))
        self.objective = Objective(model, guide, self.parameters)
        self.arrays, self.rebuild = split_arrays((args, {}))
        self._compiled: dict[int, tuple[ELBO, Callable[..., Any]]] = {}

    def moments(self, estimator: ELBO) -> Callable[..., Any]:
        """(unconstrained parameters, key, how many draws) → mean and variance of each coordinate; compiled once."""
        if id(estimator) not in self._compiled:

            def run(at: Any, key: jax.Array, draws: Any, arrays: Any) -> Any:
                with compiled_for(arrays, self.arrays):
                    args, kwargs = self.rebuild(arrays)
                    given = Given(args, kwargs, {})
                    return moments(lambda k: gradient_at(self.objective, estimator, at, k, given), key, draws)

            self._compiled[id(estimator)] = estimator, partial(jax.jit(run), arrays=self.arrays)
        return self._compiled[id(estimator)][1]

    def variances(self, plans: Mapping[str, MeasurePlan], kept: Sequence[dict[str, Any]], label: str) -> Arrays:
        """For each name and parameter: `mean NAME PARAM` and `variance NAME PARAM`, first axis: the points kept."""
        found: dict[str, list[np.ndarray]] = {}
        with tqdm(total=len(plans) * len(kept), desc=label, unit="point") as bar:
            for name, plan in plans.items():
                run = self.moments(plan.estimator)
                for i, at in enumerate(kept):
                    mean, variance = jax.device_get(run(at, jax.random.key(i), plan.draws))
                    for param in mean:
                        found.setdefault(f"mean {name} {param}", []).append(mean[param])
                        found.setdefault(f"variance {name} {param}", []).append(variance[param] / plan.divide)
                    bar.update()
        return {name: np.stack(values) for name, values in found.items()}

    def paired(self, pair: Mapping[str, ELBO], kept: Sequence[dict[str, Any]], draws: int, label: str) -> Arrays:
        """As `variances`, for two estimators at the same pivots; and `excess PARAM`, for each coordinate.

        Gradients may have heavy tails, which the two then share. `excess`: by how many standard errors of the mean
        difference of squares the first one's variance is above the second's.
        """
        found: dict[str, list[np.ndarray]] = {}
        with tqdm(total=2 * len(kept), desc=label, unit="point") as bar:
            for i, at in enumerate(kept):
                squares: dict[str, list[np.ndarray]] = {}
                for name, estimator in pair.items():
                    for param, values in self._draws(estimator, at, jax.random.key(i), draws).items():
                        mean = values.mean(axis=0)
                        found.setdefault(f"mean {name} {param}", []).append(mean)
                        squares.setdefault(param, []).append((values - mean) ** 2)
                        found.setdefault(f"variance {name} {param}", []).append(values.var(axis=0, ddof=1))
                    bar.update()
                for param, (first, second) in squares.items():
                    difference = first - second
                    error = difference.std(axis=0, ddof=1) / np.sqrt(draws)
                    z = difference.mean(axis=0) / np.maximum(error, 1e-30)
                    found.setdefault(f"excess {param}", []).append(z)
        return {name: np.stack(values) for name, values in found.items()}

    def _draws(self, estimator: ELBO, at: Any, key: jax.Array, number: int) -> dict[str, np.ndarray]:
        """Gradients at the same keys for every estimator, which draw the same pivots from them."""
        run = self.moments(estimator)
        one = [run(at, jax.random.fold_in(key, i), 1).mean for i in range(number)]
        return {param: np.stack([np.asarray(g[param], np.float64) for g in one]) for param in one[0]}

    def seconds(self, loops: Mapping[str, tuple[ELBO, int]], at: dict[str, Any], label: str) -> Arrays:
        """`NAME`: the median seconds of one gradient, the estimators taking turns.

        Each runs as in a fit: so many gradients in one compiled loop, where what does not change is computed once.
        """
        with tqdm(total=len(loops) * (_ROUNDS + 2), desc=label, unit="run") as bar:

            def call(run: Any, draws: int) -> Any:
                found = jax.block_until_ready(run(at, jax.random.key(0), draws))
                bar.update()
                return found

            calls = {name: partial(call, self.moments(e), draws) for name, (e, draws) in loops.items()}
            times = interleaved_seconds(calls, _ROUNDS, least=0.0)
        return {name: np.asarray(seconds / loops[name][1]) for name, seconds in times.items()}


def points(trajectory: Arrays) -> list[dict[str, np.ndarray]]:
    """The parameters that a trajectory kept, one dictionary a point."""
    kept = {name.removeprefix("kept "): value for name, value in trajectory.items() if name.startswith("kept ")}
    kept.pop("steps", None)
    return [{name: value[i] for name, value in kept.items()} for i in range(len(next(iter(kept.values()))))]
