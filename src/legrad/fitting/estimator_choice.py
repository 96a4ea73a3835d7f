"""`estimator="auto"`: which estimator is the fastest way to the optimum, by what is known and a short trial.

What is known rules most out: discrete latents are local, with a second pivot where some depend on others, or
antithetic where all are Bernoulli; continuous ones are integrated or reparameterized. Those that are left run from
the start of the fit for the same time. One that comes to its ELBO much later than another is out: at the beginning
noise costs little, and steps that are cheap count. Between the others noise decides, for it is what costs time later.
With mean g and variance V (both summed over the parameters) a step along the mean of m estimates gains as much as
1 / (1 + V / m|g|²) exact ones do, so the best of them is the one with the least

    seconds of a gradient · ( |g|² + V / m )

Optimizers with momentum, as Adam is, step along a mean of about ten. The clock of a busy machine errs:
`LocalExpectation` is taken unless another is clearly better.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from numpyro.distributions import BernoulliLogits, BernoulliProbs
from numpyro.infer.elbo import ELBO

from legrad._compat import jit
from legrad.diagnostics.timing import interleaved_seconds
from legrad.distributions.unwrap import unwrap
from legrad.estimators.base import draws
from legrad.estimators.disarm import DisARM
from legrad.estimators.local_expectation import LocalExpectation
from legrad.estimators.reparameterized import Reparameterized
from legrad.model.objective import Given, Objective, update
from legrad.model.parameters import Parameters
from legrad.model.problem import Noise, Problem

STEPS, LOOKS = 50, 8  # of the first candidate, in whose time the others run; how often the ELBO is looked at
DRAWS = 16  # of the ELBO, and gradients at the end
AVERAGED = 10  # gradients that a step with momentum goes by
CLEARLY = 1.2  # times less noise than the first candidate
LATE = 1.4  # times the seconds of the fastest to the same ELBO: out
MOST = 0.9  # of what a candidate gained: the ELBO that it is timed to
_TURN = 0.01  # seconds of a call that is timed

Run = Callable[[Any, jax.Array, int], tuple[Any, Any]]
"""(parameters and the optimizer's memory, key, steps) → the same later, and the last gradient."""


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
    if discrete and all(isinstance(unwrap(f.fn).bare, BernoulliLogits | BernoulliProbs) for f in discrete):
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
    objective = Objective(model, guide, parameters)
    start = parameters.unconstrain(parameters.initial)
    found = candidates(objective.problem(start, given))
    if len(found) == 1:
        return found[0]

    @jit
    def elbos(unconstrained: Any) -> jax.Array:
        return jax.lax.map(lambda key: objective.elbo(unconstrained, key, given), keys)

    def run(estimator: ELBO, state: Any, key: jax.Array, steps: jax.Array) -> Any:
        def step(i: jax.Array, carry: Any) -> Any:
            (unconstrained, memory), _ = carry
            of_step = jax.random.fold_in(key, i)
            done = update(lambda u: objective.loss(estimator, u, of_step, given), optimizer, unconstrained, memory)
            return (done.unconstrained, done.memory), done.gradient

        return jax.lax.fori_loop(0, steps, step, (state, state[0]))

    keys = jax.random.split(jax.random.fold_in(key, STEPS), DRAWS)
    state = start, optimizer.init(start)
    runs: dict[str, Run] = {}
    for i, estimator in enumerate(found):
        try:
            one = jit(lambda state, key, steps, estimator=estimator: run(estimator, state, key, steps))
            runs[str(i)] = one.lower(state, key, 1).compile()
        except (ValueError, NotImplementedError):  # it is not for this guide: the first says so when the fit begins
            if i == 0:
                return found[0]
    seconds = _seconds(runs, state, key)
    budget = STEPS * seconds["0"]
    courses = {name: _course(one, state, key, seconds[name], budget, elbos) for name, one in runs.items()}
    place = max(courses.values(), key=lambda course: course.looks[-1].gain).state
    noise = _noise({name: [one(place, k, 1)[1] for k in keys] for name, one in runs.items()})
    late = _lateness(courses)
    in_time = LATE * min(late.values())  # curves may cross, and each be later than another somewhere
    scores = {name: seconds[name] * noise[name] for name in runs if late[name] <= in_time}
    best = min(scores, key=scores.__getitem__)
    stays = "0" in scores and scores["0"] <= CLEARLY * scores[best]
    return found[0] if stays else found[int(best)]


def _seconds(runs: Mapping[str, Run], state: Any, key: jax.Array) -> dict[str, float]:
    """Of one step in a compiled loop."""
    steps = {}
    for name, one in runs.items():
        begun = time.perf_counter()
        jax.block_until_ready(one(state, key, 2))
        steps[name] = max(1, min(1000, int(2 * _TURN / (time.perf_counter() - begun))))
    took = interleaved_seconds({name: partial(one, state, key, steps[name]) for name, one in runs.items()})
    return {name: took[name] / steps[name] for name in runs}


class Look(NamedTuple):
    """How much the ELBO has gained after so many seconds, and the standard error of that."""

    seconds: float
    gain: float
    error: float


class Course(NamedTuple):
    """Where a candidate ended, and what was seen on the way; a gain of −∞ is no number."""

    state: Any
    looks: list[Look]


def _course(one: Run, state: Any, key: jax.Array, step: float, budget: float, elbos: Callable[[Any], Any]) -> Course:
    """So many seconds of a candidate, by what a step of it takes."""
    each = max(1, min(10 * STEPS, round(budget / LOOKS / step)))
    start, looks = elbos(state[0]), [Look(0.0, 0.0, 0.0)]
    for look in range(LOOKS):
        if looks[-1].seconds >= budget:
            break
        state, _ = one(state, jax.random.fold_in(key, look), each)
        gains = elbos(state[0]) - start  # with the same noise
        gain, error = float(jnp.mean(gains)), float(jnp.std(gains, ddof=1) / len(gains) ** 0.5)
        looks.append(Look(looks[-1].seconds + each * step, gain if math.isfinite(gain) else -math.inf, error))
    return Course(state, looks)


def _lateness(courses: Mapping[str, Course]) -> dict[str, float]:
    """For each candidate its seconds to most of what it gained, relative to those of the fastest to the same ELBO.

    A gain that may be noise says nothing: such a candidate is not late.
    """

    def reached(course: Course, target: float) -> float:
        for a, b in pairwise(look for look in course.looks if math.isfinite(look.gain)):
            if b.gain >= target:
                return a.seconds + (b.seconds - a.seconds) * (target - a.gain) / (b.gain - a.gain)
        return math.inf

    late = {}
    for name, course in courses.items():
        best = max(course.looks, key=lambda look: look.gain)
        target = MOST * best.gain
        fastest = min(reached(other, target) for other in courses.values())
        late[name] = reached(course, target) / fastest if best.gain > 3 * best.error else 1.0
    return late


def _noise(draws: Mapping[str, list[Any]]) -> dict[str, float]:
    """The mean square of an average of some gradients, for each candidate."""
    squares, variances = {}, {}
    for name, gradients in draws.items():
        each = [[g.astype(float) for g in jax.tree.leaves(gradient)] for gradient in gradients]
        mean = [sum(parts) / len(each) for parts in zip(*each, strict=True)]
        apart = [_square([g - m for g, m in zip(one, mean, strict=True)]) for one in each]
        variance = sum(apart) / (len(each) - 1)
        squares[name], variances[name] = _square(mean), variance if math.isfinite(variance) else math.inf
    calm = min(variances, key=variances.__getitem__)  # all have the same mean: it is known best from this one
    exact = max(0.0, squares[calm] - variances[calm] / DRAWS)
    return {name: exact + variance / AVERAGED for name, variance in variances.items()}


def _square(leaves: list[jax.Array]) -> float:
    return float(sum(jnp.sum(leaf**2) for leaf in leaves))
