"""`estimator="auto"`: find the estimator that is the fastest way to the optimum, by rules and a short trial.

Rules exclude most estimators: discrete latents are local, with a second pivot where some depend on others, or
antithetic where all are Bernoulli; continuous latents are integrated or reparameterized. The remaining candidates run
from the start of the fit for the same time. A candidate that reaches its ELBO much later than another is out: at the
beginning noise costs little, and cheap steps count. Among the others noise decides, because it costs time later. With
mean g and variance V of a gradient (both summed over the parameters), a step along the mean of m estimates gains as
much as 1 / (1 + V / m|g|²) exact steps, so the best candidate is the one with the least

    seconds of a gradient · ( |g|² + V / m )

Optimizers with momentum, such as Adam, step along a mean of about ten gradients. Timings on a busy machine are noisy:
`LocalExpectation` is taken unless another candidate is clearly better.
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

from legrad._compiled import jit
from legrad.diagnostics.timing import interleaved_seconds
from legrad.distributions.unwrap import unwrap
from legrad.estimators.base import draws
from legrad.estimators.disarm import DisARM
from legrad.estimators.local_expectation import LocalExpectation
from legrad.estimators.reparameterized import Reparameterized
from legrad.model.objective import Given, Objective, update
from legrad.model.parameters import Parameters
from legrad.model.problem import Noise, Problem

STEPS, LOOKS = 50, 8  # each candidate gets the time of 50 steps of the first; number of ELBO estimates on the way
DRAWS = 16  # draws per ELBO estimate, and gradients at the end
AVERAGED = 10  # gradients that a step with momentum averages
CLEARLY = 1.2  # a candidate must score better than the first one by this factor
LATE = 1.4  # a candidate is out if it takes this many times as long as the fastest to the same ELBO
MOST = 0.9  # a candidate is timed up to this part of its gain in the ELBO
_TURN = 0.01  # seconds of a call that is timed

Run = Callable[[Any, jax.Array, int], tuple[Any, Any]]
"""(parameters and optimizer state, key, steps) → parameters and optimizer state after the steps, last gradient."""


def candidates(problem: Problem) -> list[ELBO]:
    """Return the estimators that could be best for a guide; the first is the default in case of doubt."""
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
    """Return the best of the candidates.

    Args:
        model: the model.
        guide: the guide.
        parameters: the parameters at which the fit starts.
        given: the arguments of model and guide at the first step.
        optimizer: the optimizer of the fit.
        key: the random key of the trial.
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
        except (ValueError, NotImplementedError):  # not for this guide; if it is the first, the fit itself will raise
            if i == 0:
                return found[0]
    seconds = _seconds(runs, state, key)
    budget = STEPS * seconds["0"]
    courses = {name: _course(one, state, key, seconds[name], budget, elbos) for name, one in runs.items()}
    place = max(courses.values(), key=lambda course: course.looks[-1].gain).state
    noise = _noise({name: [one(place, k, 1)[1] for k in keys] for name, one in runs.items()})
    late = _lateness(courses)
    in_time = LATE * min(late.values())  # curves may cross, so that each is later than another somewhere
    scores = {name: seconds[name] * noise[name] for name in runs if late[name] <= in_time}
    best = min(scores, key=scores.__getitem__)
    stays = "0" in scores and scores["0"] <= CLEARLY * scores[best]
    return found[0] if stays else found[int(best)]


def _seconds(runs: Mapping[str, Run], state: Any, key: jax.Array) -> dict[str, float]:
    """Return the seconds of one step in a compiled loop, for each candidate."""
    steps = {}
    for name, one in runs.items():
        begun = time.perf_counter()
        jax.block_until_ready(one(state, key, 2))
        steps[name] = max(1, min(1000, int(2 * _TURN / (time.perf_counter() - begun))))
    took = interleaved_seconds({name: partial(one, state, key, steps[name]) for name, one in runs.items()})
    return {name: took[name] / steps[name] for name in runs}


class Look(NamedTuple):
    """The gain in the ELBO after some seconds, and its standard error."""

    seconds: float
    gain: float
    error: float


class Course(NamedTuple):
    """Where a candidate ended, and the gains on the way; a gain of −∞ stands for an ELBO that is not finite."""

    state: Any
    looks: list[Look]


def _course(one: Run, state: Any, key: jax.Array, step: float, budget: float, elbos: Callable[[Any], Any]) -> Course:
    """Run a candidate for `budget` seconds, counting `step` seconds for each of its steps."""
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
    """Return for each candidate its seconds to most of its gain, relative to the fastest candidate to the same ELBO.

    A gain that may be noise says nothing: a candidate with such a gain is not late.
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
    """Return the mean square of an average of `AVERAGED` gradients, for each candidate."""
    squares, variances = {}, {}
    for name, gradients in draws.items():
        each = [[g.astype(float) for g in jax.tree.leaves(gradient)] for gradient in gradients]
        mean = [sum(parts) / len(each) for parts in zip(*each, strict=True)]
        apart = [_square([g - m for g, m in zip(one, mean, strict=True)]) for one in each]
        variance = sum(apart) / (len(each) - 1)
        squares[name], variances[name] = _square(mean), variance if math.isfinite(variance) else math.inf
    calm = min(variances, key=variances.__getitem__)  # all have the same mean, best known from the least noisy
    exact = max(0.0, squares[calm] - variances[calm] / DRAWS)
    return {name: exact + variance / AVERAGED for name, variance in variances.items()}


def _square(leaves: list[jax.Array]) -> float:
    return float(sum(jnp.sum(leaf**2) for leaf in leaves))
