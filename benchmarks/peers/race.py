"""Seconds of a compiled fit to a given ELBO: LeGrad sets the target, the others have ten times its time to reach it.

Adam, start and data are the same for all. Ours run in the compiled loop of `legrad.fit`, NumPyro's in a compiled loop
of `SVI.update`. A step takes the median seconds of many steps in one call, in turns; how many steps the target takes
is found by measuring the ELBO between chunks of them, off the clock, with the same random numbers for all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from estimators import CHOICES, LEGRAD, Method
from measure import in_turns
from numpyro.infer import SVI, Trace_ELBO
from row import Peer

import legrad
from legrad.fitting.compiled_loop import CompiledLoop
from legrad.fitting.data import Feed
from legrad.fitting.estimator_choice import choose
from legrad.model.objective import Given
from legrad.model.parameters import Parameters

PATIENCE = 10.0  # times LeGrad's seconds
LOOKS = 20  # how often the ELBO is measured in LeGrad's time; later, whenever there are 5% more steps
KEY = 5


class Finish(NamedTuple):
    """How a fit went: steps and seconds to the target, None where it was not reached; the last ELBO measured."""

    steps: int | None
    seconds: float | None
    elbo: float
    step_seconds: float


class Ours:
    """The compiled loop of `legrad.fit`; `room` is the most steps that there may be."""

    def __init__(self, peer: Peer, method: Method, room: int, optimizer: Any = None) -> None:
        self.parameters = Parameters(method.model, method.guide, peer.args, {}, jax.random.key(KEY))
        self.feed, adam = Feed(peer.args, {}, None, 0), optimizer or optax.adam(peer.rate)
        key = jax.random.key(KEY)[None]
        self.program = CompiledLoop(
            method.model, method.guide, self.parameters, method.estimator, adam, self.feed, key
        )
        self.start = self.program.begin([self.parameters.unconstrain(self.parameters.initial)], room, None)

    def advance(self, state: Any, steps: int) -> Any:
        """So many steps more; a step that is not finite is not taken, and none after it."""
        ends = np.asarray([int(state.step) + steps])
        return jax.block_until_ready(self.program.advance(state, ends, self.feed.load(0))[0])

    def params(self, state: Any) -> Any:
        return self.parameters.constrain(state.unconstrained)


class Theirs:
    """NumPyro's SVI."""

    def __init__(self, peer: Peer, method: Method, room: int, optimizer: Any = None) -> None:
        svi = SVI(method.model, method.guide, optimizer or optax.adam(peer.rate), method.estimator)
        self.start, self.args, self.params = svi.init(jax.random.key(KEY), *peer.args), peer.args, svi.get_params

        @jax.jit
        def run(state: Any, steps: jax.Array, args: tuple[Any, ...]) -> Any:
            return jax.lax.fori_loop(0, steps, lambda i, s: svi.update(s, *args)[0], state)

        self._run = run

    def advance(self, state: Any, steps: int) -> Any:
        return jax.block_until_ready(self._run(state, steps, self.args))


def elbo_of(peer: Peer, draws: int) -> Callable[[Any], float]:
    """The ELBO at any parameters, with the same draws for all."""
    keys = jax.random.split(jax.random.key(4), draws)

    @jax.jit
    def mean(params: Any, args: tuple[Any, ...]) -> jax.Array:
        def one(key: jax.Array) -> jax.Array:
            return -Trace_ELBO().loss(key, params, peer.model, peer.guide, *args)

        return jnp.mean(jax.lax.map(one, keys))

    return lambda params: float(mean(params, peer.args))


def race(
    peer: Peer,
    methods: dict[str, Method],
    seconds: dict[str, float],
    effort: Any,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Finish]:
    """Every method that is fitted; `seconds` of a gradient say about how many steps the slowest clock allows."""
    fits: dict[str, Ours | Theirs] = {}
    for name, method in methods.items():
        if method.fitted:
            tell(f"{peer.name}: compiling the fit, {name}")
            room = 50 + math.ceil(1.5 * PATIENCE * peer.steps * max(1.0, seconds[LEGRAD] / seconds[name]))
            fits[name] = (Theirs if method.numpyro else Ours)(peer, method, room)
            fits[name].advance(fits[name].start, 1)
    tell(f"{peer.name}: seconds of a step")
    calls = {name: (lambda steps, f=f: f.advance(f.start, steps)) for name, f in fits.items()}
    took = in_turns(calls, effort.rounds, effort.turn, 10 * peer.steps)
    elbo = elbo_of(peer, effort.elbo_draws)
    ours, found, target = None, {}, math.inf
    for name in sorted(fits, key=lambda n: n != LEGRAD):
        tell(f"{peer.name}: fit, {name}")
        steps = peer.steps if ours is None else math.ceil(PATIENCE * ours / took[name])
        first = peer.steps if ours is None else max(LOOKS, round(peer.steps * took[LEGRAD] / took[name]))
        seen = _looks(fits[name], elbo, steps, max(1, first // LOOKS), target)
        if ours is None:
            target = seen[-1][1]
        reached = next((step for step, value in seen if value >= target), None)
        found[name] = Finish(reached, reached and reached * took[name], seen[-1][1], took[name])
        ours = found[LEGRAD].seconds
    return found


def _looks(fit: Any, elbo: Any, steps: int, every: int, target: float) -> list[tuple[int, float]]:
    """(steps, ELBO) at every measurement, up to the first that reaches the target."""
    state, done, seen = fit.start, 0, []
    while done < steps:
        more = min(steps - done, max(every, int(0.05 * done)))
        state, done = fit.advance(state, more), done + more
        seen.append((done, elbo(fit.params(state))))
        if seen[-1][1] >= target or not math.isfinite(seen[-1][1]):
            break
    return seen


def automatic(peer: Peer) -> str:
    """What `estimator="auto"` chooses, by the name of its row."""
    parameters = Parameters(peer.model, peer.guide, peer.args, {}, jax.random.key(KEY))
    adam, given = optax.adam(peer.rate), Given(peer.args, {}, {})
    chosen = choose(peer.model, peer.guide, parameters, given, adam, jax.random.key(KEY))
    return next(name for name, choice in CHOICES.items() if repr(choice) == repr(chosen))


def inside_compiled(peer: Peer, steps: int) -> float:
    """The share of a fit's time that compiled code takes, between its first and its last callback."""
    clock: list[tuple[float, float]] = []

    def callback(snapshot: legrad.Snapshot) -> None:
        clock.append((time.perf_counter(), snapshot.seconds))

    settings = {"steps": steps, "callback": callback, "callback_every": max(1, steps // 4), "progress": False}
    legrad.fit(peer.model, peer.guide, key=jax.random.key(6), args=peer.args, **settings)
    wall, compiled = np.asarray(clock[-1]) - np.asarray(clock[0])
    return float(compiled / wall)
