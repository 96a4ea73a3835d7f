"""Seconds from the start to 99% and to 99.9% of the way to the best ELBO that any method finds; compiling apart.

    way = (ELBO − ELBO at the start) / (best ELBO of all methods − ELBO at the start)

The problems are those of the peers table whose ELBO has no noise: it is evaluated exactly, off the clock, for every
method. Adam has the best of three learning rates, chosen by its seconds to 99.9%. Fixed draws is
DADVI's idea: L-BFGS on the ELBO of 30 draws of reparameterized noise, for continuous latents.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import continuous
import discrete
import jax
import numpy as np
import optax
from estimators import ENUM, LEGRAD, MIXED, Method, methods, sentence
from race import Ours, Theirs
from row import Peer

import legrad
from legrad.fitting.exact_climb import ExactClimb
from legrad.model.parameters import Parameters

PROBLEMS = {
    "gaussian_100": continuous.gaussian_100,
    "gaussian_1000": continuous.gaussian_1000,
    "spike_and_slab": discrete.spike_and_slab,
    "ising": discrete.ising,
    "mixture": discrete.mixture,
    "factorial_hmm": discrete.factorial_hmm,
    "noisy_or": discrete.noisy_or,
    "logistic": continuous.logistic,
}
CLIMB, EXACT_ADAM, EXACT_LBFGS, FIXED = (
    "legrad.fit",
    "exact gradient, Adam",
    "exact gradient, L-BFGS",
    "fixed draws, L-BFGS",
)
SLOW = (ENUM,)  # takes minutes to compile on the larger of these problems
RATES = (0.01, 0.05, 0.2)
EVALUATIONS = 400  # of L-BFGS
LOOKS = 60  # of the ELBO, spread evenly over the logarithm of the steps


class Way(NamedTuple):
    """What a method reached: rows of (seconds, gradients or steps, ELBO)."""

    rows: list[tuple[float, int, float]]

    def seconds_to(self, target: float) -> tuple[float, int] | None:
        return next(((s, n) for s, n, elbo in self.rows if elbo >= target), None)


def climbed(peer: Peer) -> Way:
    """What `legrad.fit(model, guide, args=args, key=key)` does, on the clock."""
    ours = Ours(peer, Method(CLIMB, peer.model, peer.guide, legrad.LocalExpectation()), 8)
    climbs = ExactClimb(ours.program, [ours.parameters.unconstrain(ours.parameters.initial)])

    class Quiet:
        n = 0

        def set_postfix_str(self, *_: Any, **__: Any) -> None: ...

        def update(self, *_: Any) -> None: ...

    climbs.run(math.inf, Quiet())  # compiles
    seconds = min(climbs.run(math.inf, Quiet())[1] for _ in range(3))
    ended, _ = climbs.run(math.inf, Quiet())
    losses = np.asarray(ended.history[0])[: int(ended.evaluations[0])]
    best = np.maximum.accumulate(np.where(np.isfinite(losses), -losses, -np.inf))
    each = seconds / len(best)
    return Way([((i + 1) * each, i + 1, float(elbo)) for i, elbo in enumerate(best)])


def looks(most: int) -> Iterator[int]:
    """Steps at which to look at the ELBO."""
    return iter(sorted({max(1, round(most ** (k / LOOKS))) for k in range(LOOKS + 1)}))


def stepped(peer: Peer, method: Method, rate: float, elbo: Callable[[Any], float], most: int, seconds: float) -> Way:
    """Steps of Adam, until they are all taken or the time is over."""
    fit = (Theirs if method.numpyro else Ours)(replace(peer, rate=rate), method, most)
    fit.advance(fit.start, 1)  # compiles
    state, done, took, rows = fit.start, 0, 0.0, []
    for step in looks(most):
        begun = time.perf_counter()
        state = fit.advance(state, step - done)
        took, done = took + time.perf_counter() - begun, step
        rows.append((took, done, elbo(fit.params(state))))
        if took > seconds or not math.isfinite(rows[-1][2]):
            break
    return Way(rows)


def by_lbfgs(loss: Callable[[Any], jax.Array], start: Any, elbo: Callable[[Any], float], seconds: float) -> Way:
    """optax's L-BFGS with its line search; each step is one call, so that the clock sees it."""
    solver = optax.lbfgs()
    value_and_grad = optax.value_and_grad_from_state(loss)

    @jax.jit
    def step(u: Any, memory: Any) -> tuple[Any, Any]:
        value, gradient = value_and_grad(u, state=memory)
        updates, memory = solver.update(gradient, memory, u, value=value, grad=gradient, value_fn=loss)
        return optax.apply_updates(u, updates), memory

    u, memory = start, solver.init(start)
    jax.block_until_ready(step(*step(u, memory)))  # compiles, a second time for the types that a step returns
    took, rows = 0.0, []
    for i in range(EVALUATIONS):
        begun = time.perf_counter()
        u, memory = jax.block_until_ready(step(u, memory))
        took += time.perf_counter() - begun
        rows.append((took, i + 1, elbo(u)))
        if took > seconds or not math.isfinite(rows[-1][2]):
            break
    return Way(rows)


def race(name: str, small: bool, seconds: float, tell: Callable[[str], None]) -> dict[str, Any]:
    """All methods on one problem."""
    peer = PROBLEMS[name](small)
    exact, sampled = legrad.LocalExpectation(), legrad.LocalExpectation(exact_terms=False)
    parameters = Parameters(peer.model, peer.guide, peer.args, {}, jax.random.key(0))
    start = parameters.unconstrain(parameters.initial)

    def loss(u: Any) -> jax.Array:
        return exact.loss(jax.random.key(0), parameters.constrain(u), peer.model, peer.guide, *peer.args)

    compiled = jax.jit(loss)
    begin = -float(compiled(start))
    ways: dict[str, Way] = {}
    tell(f"{name}: {CLIMB}")
    ways[CLIMB] = climbed(peer)
    ours = ways[CLIMB].rows[-1][0]
    limit = max(seconds, 20 * ours)
    tell(f"{name}: L-BFGS")
    ways[EXACT_LBFGS] = by_lbfgs(loss, start, lambda u: -float(compiled(u)), limit)
    continuous_only = set(peer.latents.values()) == {"Normal"}
    if continuous_only:
        reparameterized = legrad.Reparameterized(30)

        def fixed(u: Any) -> jax.Array:
            params = parameters.constrain(u)
            return reparameterized.loss(jax.random.key(1), params, peer.model, peer.guide, *peer.args)

        ways[FIXED] = by_lbfgs(fixed, start, lambda u: -float(compiled(u)), limit)
    stochastic = {
        EXACT_ADAM: Method(EXACT_ADAM, peer.model, peer.guide, exact),
        LEGRAD: Method(LEGRAD, peer.model, peer.guide, sampled),
    }
    for rival, make in methods(peer).items():
        if rival in (LEGRAD, MIXED, *SLOW):
            continue
        try:
            method = make()
        except Exception as error:
            tell(f"{name}: {rival} cannot run: {sentence(error)}")
            continue
        if method.fitted:
            stochastic[rival] = method
    best_of: dict[str, float] = {}

    def elbo_at(params: Any) -> float:
        return -float(compiled(parameters.unconstrain(params)))

    runs: dict[str, dict[float, Way]] = {}
    for method_name, method in stochastic.items():
        for rate in RATES:
            tell(f"{name}: {method_name}, {rate}")
            try:
                way = stepped(peer, method, rate, elbo_at, 4000, limit)
            except ValueError as error:
                tell(f"{name}: {method_name} cannot run: {sentence(error)}")
                break
            runs.setdefault(method_name, {})[rate] = way
    everything = [*ways.values(), *(way for by_rate in runs.values() for way in by_rate.values())]
    best = max(elbo for way in everything for *_, elbo in way.rows if math.isfinite(elbo))
    target = {share: begin + share * (best - begin) for share in (0.99, 0.999)}
    for method_name, by_rate in runs.items():

        def late(rate: float, by_rate: dict[float, Way] = by_rate) -> tuple[float, float]:
            found = by_rate[rate].seconds_to(target[0.999])
            return (found[0] if found else math.inf, -max(e for *_, e in by_rate[rate].rows))

        best_of[method_name] = min(by_rate, key=late)
        ways[method_name] = by_rate[best_of[method_name]]
    found = {}
    for method_name, way in ways.items():
        reached = {str(share): way.seconds_to(goal) for share, goal in target.items()}
        found[method_name] = {
            "reached": reached,
            "elbo": max((e for *_, e in way.rows if math.isfinite(e)), default=None),
            "rate": best_of.get(method_name),
        }
    return {"title": peer.title, "start": begin, "best": best, "methods": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(PROBLEMS))
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each method and rate, at the least")
    parser.add_argument("--out", type=Path, default=Path("docs/results/solvers.json"))
    options = parser.parse_args()
    found = json.loads(options.out.read_text()) if options.out.exists() else {}
    for name in options.only:
        jax.clear_caches()
        found[name] = race(name, options.small, options.seconds, lambda text: print(text, flush=True))
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
