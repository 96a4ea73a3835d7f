"""`estimator="auto"`: which estimator is the fastest way to the optimum, by what is known and a short trial.

What is known rules most out: discrete latents are local, with a second pivot where some depend on others, or
antithetic where all are Bernoulli; continuous ones are integrated or reparameterized. Those that are left give some
gradients at a place a little way into the fit. With mean g and variance V (both summed over the parameters) a step in
the direction of an estimate gains as much as 1 / (1 + V / |g|²) exact ones do, so the best estimator is the one with
the least

    seconds of a gradient · ( |g|² + V )

The clock of a busy machine errs: `LocalExpectation` is taken unless another is clearly better.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from numpyro.distributions import BernoulliLogits, BernoulliProbs
from numpyro.infer.elbo import ELBO

from legrad.diagnostics.timing import interleaved_seconds
from legrad.estimators.base import draws
from legrad.estimators.disarm import DisARM
from legrad.estimators.local_expectation import LocalExpectation
from legrad.estimators.reparameterized import Reparameterized
from legrad.fitting.data import Given
from legrad.fitting.parameters import Parameters
from legrad.problem import Noise, Problem
from legrad.wrappers import strip

STEPS, DRAWS = 50, 16  # of the way into the fit, and gradients there
CLEARLY = 1.2  # times better than the first candidate


def candidates(problem: Problem) -> list[ELBO]:
    """The estimators that could be best for a guide, the one to take in doubt first."""
    several = draws(jax.random.key(0), 1)
    noise = Noise(several.sites[0], several.plates)
    pivot = problem.draw(noise)
    continuous = [f for f in pivot.values() if not f.fn.is_discrete]
    discrete = [f for f in pivot.values() if f.fn.is_discrete]
    found: list[ELBO] = [LocalExpectation()]
    parents = problem.parents(pivot, noise)
    if any(f.name in parents[child.name] for f in discrete for child in discrete):
        found.append(LocalExpectation(num_pivots=2))  # each pivot is the other's baseline
    if continuous and all(f.fn.has_rsample for f in continuous):
        found.append(LocalExpectation(continuous="reparam") if discrete else Reparameterized())
    if discrete and all(isinstance(strip(f.fn).bare, BernoulliLogits | BernoulliProbs) for f in discrete):
        found.append(DisARM())
    return found


def choose(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    parameters: Parameters,
    given: Given,
    optimizer: optax.GradientTransformation,
    key: jax.Array,
) -> ELBO:
    """The best of the candidates.

    Args:
        model: the model.
        guide: the guide.
        parameters: where the fit starts.
        given: the arguments of model and guide at the first step.
        optimizer: the fit's.
        key: for the trial.
    """
    problem = Problem(model, guide, parameters.initial | given.plates, given.args, given.kwargs)
    found = candidates(problem)
    if len(found) == 1:
        return found[0]

    def gradient(estimator: ELBO, unconstrained: Any, key: jax.Array) -> Any:
        def loss(unconstrained: Any) -> jax.Array:
            params = parameters.constrain(unconstrained) | given.plates
            return estimator.loss(key, params, model, guide, *given.args, **given.kwargs)

        return jax.grad(loss)(unconstrained)

    def walk(start: Any) -> Any:
        def step(i: jax.Array, carry: Any) -> Any:
            x, memory = carry
            updates, memory = optimizer.update(gradient(found[0], x, jax.random.fold_in(key, i)), memory, x)
            return optax.apply_updates(x, updates), memory

        return jax.lax.fori_loop(0, STEPS, step, (start, optimizer.init(start)))[0]

    place = jax.jit(walk)(parameters.unconstrain(parameters.initial))
    keys = jax.random.split(jax.random.fold_in(key, STEPS), DRAWS)
    compiled: dict[str, Any] = {}
    for i, estimator in enumerate(found):
        try:
            one = jax.jit(lambda x, key, estimator=estimator: gradient(estimator, x, key))
            compiled[str(i)] = one.lower(place, keys[0]).compile()
        except (ValueError, NotImplementedError):  # it is not for this guide: the first says so when the fit begins
            if i == 0:
                return found[0]
    scores = _scores(compiled, place, keys)
    best = min(scores, key=scores.__getitem__)
    return found[int(best)] if scores[best] * CLEARLY < scores["0"] else found[0]


def _scores(compiled: Mapping[str, Any], place: Any, keys: jax.Array) -> dict[str, float]:
    """Seconds of a gradient times its mean square, for each candidate."""
    squares = {}
    for name, one in compiled.items():
        squared = [sum(jnp.sum(g.astype(float) ** 2) for g in jax.tree.leaves(one(place, key))) for key in keys]
        squares[name] = float(jnp.mean(jnp.stack(squared)))
    seconds = interleaved_seconds({name: lambda one=one: one(place, keys[0]) for name, one in compiled.items()})  # type: ignore[misc]
    return {name: seconds[name] * squares[name] for name in compiled}
