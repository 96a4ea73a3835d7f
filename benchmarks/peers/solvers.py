"""Seconds from the start to 99% and to 99.9% of the way to the best ELBO that any method finds; compiling apart.

    way = (ELBO − ELBO at the start) / (best ELBO of all methods − ELBO at the start)

The problems are those of the peers table. Where the ELBO has no noise it is evaluated exactly, off the clock, for
every method; the ELBO of the belief nets is a mean over draws, the same for all. Adam has the best of three learning
rates, chosen by its seconds to 99.9%. Fixed draws is DADVI's idea: the ELBO of 30 draws of reparameterized noise, for
continuous latents, climbed by L-BFGS or SciPy's trust-ncg, which DADVI uses; NumPyro's `Minimize` is a BFGS.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import continuous
import discrete
import jax
import jax.numpy as jnp
import networks
import numpy as np
import numpyro
import optax
from estimators import ENUM, LEGRAD, MIXED, Method, methods, sentence
from jax.flatten_util import ravel_pytree
from numpyro.infer import SVI, Trace_ELBO
from race import Ours, Theirs, elbo_of
from row import Peer
from scipy.optimize import minimize
from tqdm import tqdm

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
NETS = {
    "sbn_random": networks.sbn_random,
    "sbn_trained": networks.sbn_trained,
    "sbn_two_layers": networks.sbn_two_layers,
}
CLIMB, EXACT_ADAM, EXACT_LBFGS, FIXED, NEWTON, MINIMIZE = (
    "legrad.fit",
    "exact gradient, Adam",
    "exact gradient, L-BFGS",
    "fixed draws, L-BFGS",
    "fixed draws, trust-ncg (DADVI)",
    "NumPyro Minimize, fixed draws",
)
ENUMERABLE = ("mixture",)  # TraceEnum_ELBO takes minutes to compile, or refuses, on the others of these problems
DRAWS = 30  # that are fixed
RATES, NET_RATES = (0.01, 0.05, 0.2), (0.001, 0.003, 0.01)
ELBO_DRAWS = 100  # of a belief net's ELBO
EVALUATIONS = 400  # of L-BFGS
MOST_SECONDS, NET_SECONDS = 4.0, 3.0  # of each method and rate: at the most; of the nets
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

    quiet = tqdm(disable=True)
    climbs.run(math.inf, quiet)  # compiles
    runs = [climbs.run(math.inf, quiet) for _ in range(3)]
    seconds, ended = min(took for _, took in runs), runs[0][0].climbs
    losses = np.asarray(ended.memory.history[0])[: int(ended.evaluations[0])]
    best = np.maximum.accumulate(np.where(np.isfinite(losses), -losses, -np.inf))
    each = seconds / len(best)
    return Way([((i + 1) * each, i + 1, float(elbo)) for i, elbo in enumerate(best)])


def looks(most: int) -> Iterator[int]:
    """Steps at which to look at the ELBO."""
    return iter(sorted({max(1, round(most ** (k / LOOKS))) for k in range(LOOKS + 1)}))


class Adam:
    """Adam on one method: a program that takes its rate as an argument, so that it is compiled once."""

    def __init__(self, peer: Peer, method: Method, most: int) -> None:
        optimizer = optax.inject_hyperparams(optax.adam)(learning_rate=0.01)
        self.fit = (Theirs if method.numpyro else Ours)(peer, method, most, optimizer)
        self.most = most
        self.fit.advance(self.fit.start, 1)  # compiles

    def climb(self, rate: float, elbo: Callable[[Any], float], seconds: float) -> Way:
        """Take steps until they are all taken or the time is over."""

        def with_rate(path: Any, leaf: Any) -> Any:
            return jnp.asarray(rate, leaf.dtype) if "learning_rate" in jax.tree_util.keystr(path) else leaf

        state, done, took, rows = jax.tree_util.tree_map_with_path(with_rate, self.fit.start), 0, 0.0, []
        for step in looks(self.most):
            begun = time.perf_counter()
            state = self.fit.advance(state, step - done)
            took, done = took + time.perf_counter() - begun, step
            rows.append((took, done, elbo(self.fit.params(state))))
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


def by_newton(loss: Callable[[Any], jax.Array], start: Any, elbo: Callable[[Any], float], seconds: float) -> Way:
    """SciPy's trust-ncg with products of the Hessian, as DADVI has it; looks at the ELBO are off the clock."""
    flat, back = ravel_pytree(start)
    value = jax.jit(jax.value_and_grad(lambda x: loss(back(x))))
    product = jax.jit(lambda x, v: jax.jvp(jax.grad(lambda x: loss(back(x))), (x,), (v,))[1])
    jax.block_until_ready((value(flat), product(flat, flat)))  # compiles
    rows: list[tuple[float, int, float]] = []
    off = [0.0]

    def look(x: np.ndarray) -> None:
        paused = time.perf_counter()
        rows.append((paused - begun - off[0], len(rows) + 1, elbo(back(np.asarray(x, flat.dtype)))))
        off[0] += time.perf_counter() - paused
        if rows[-1][0] > seconds:
            raise StopIteration

    def both(x: np.ndarray) -> tuple[float, np.ndarray]:
        f, g = value(np.asarray(x, flat.dtype))
        return float(f), np.asarray(g, float)

    def along(x: np.ndarray, v: np.ndarray) -> np.ndarray:
        return np.asarray(product(np.asarray(x, flat.dtype), np.asarray(v, flat.dtype)), float)

    begun = time.perf_counter()
    with contextlib.suppress(StopIteration):
        minimize(both, np.asarray(flat, float), jac=True, hessp=along, method="trust-ncg", callback=look,
                 options={"maxiter": EVALUATIONS})  # fmt: skip
    return Way(rows)


def by_numpyro(peer: Peer, elbo: Callable[[Any], float]) -> Way:
    """NumPyro's `Minimize`: one update is the whole climb of the ELBO of fixed draws."""
    svi = SVI(peer.model, peer.guide, numpyro.optim.Minimize(), Trace_ELBO(DRAWS))
    state = svi.init(jax.random.key(1), *peer.args)
    run = jax.jit(lambda state, args: svi.update(state, *args)[0])
    jax.block_until_ready(run(state, peer.args))  # compiles
    begun = time.perf_counter()
    state = jax.block_until_ready(run(state, peer.args))
    return Way([(time.perf_counter() - begun, 1, elbo(svi.get_params(state)))])


def race(name: str, small: bool, seconds: float, tell: Callable[[str], None]) -> dict[str, Any]:
    """All methods on one problem."""
    peer = (PROBLEMS | NETS)[name](small)
    exact, sampled = legrad.LocalExpectation(), legrad.LocalExpectation(exact_terms=False)
    parameters = Parameters(peer.model, peer.guide, peer.args, {}, jax.random.key(0))
    start = parameters.start

    def loss(u: Any) -> jax.Array:
        return exact.loss(jax.random.key(0), parameters.constrain(u), peer.model, peer.guide, *peer.args)

    ways: dict[str, Way] = {}
    if name in NETS:
        mean = elbo_of(peer, ELBO_DRAWS)
        limit = max(seconds, NET_SECONDS)

        def elbo(u: Any) -> float:
            return mean(parameters.constrain(u))

    else:
        compiled = jax.jit(loss)

        def elbo(u: Any) -> float:
            return -float(compiled(u))

        tell(f"{name}: {CLIMB}")
        ways[CLIMB] = climbed(peer)
        limit = min(max(seconds, 20 * ways[CLIMB].rows[-1][0]), MOST_SECONDS)
        tell(f"{name}: L-BFGS")
        ways[EXACT_LBFGS] = by_lbfgs(loss, start, elbo, limit)
    begin = elbo(start)

    def elbo_at(params: Any) -> float:
        return elbo(parameters.unconstrain(params))

    if set(peer.latents.values()) == {"Normal"}:
        reparameterized = legrad.Reparameterized(DRAWS)

        def fixed(u: Any) -> jax.Array:
            params = parameters.constrain(u)
            return reparameterized.loss(jax.random.key(1), params, peer.model, peer.guide, *peer.args)

        tell(f"{name}: fixed draws")
        ways[FIXED] = by_lbfgs(fixed, start, elbo, limit)
        ways[NEWTON] = by_newton(fixed, start, elbo, limit)
        ways[MINIMIZE] = by_numpyro(peer, elbo_at)
    stochastic = {EXACT_ADAM: Method(EXACT_ADAM, peer.model, peer.guide, exact)} if name not in NETS else {}
    stochastic[LEGRAD] = Method(LEGRAD, peer.model, peer.guide, sampled if name not in NETS else exact)
    for rival, make in methods(peer).items():
        if rival in (LEGRAD, MIXED) or (rival == ENUM and name not in ENUMERABLE):
            continue
        try:
            method = make()
        except Exception as error:
            tell(f"{name}: {rival} cannot run: {sentence(error)}")
            continue
        if method.fitted:
            stochastic[rival] = method
    best_of: dict[str, float] = {}
    runs: dict[str, dict[float, Way]] = {}
    for method_name, method in stochastic.items():
        tell(f"{name}: {method_name}")
        try:
            adam = Adam(peer, method, 4000)
            rates = NET_RATES if name in NETS else RATES
            runs[method_name] = {rate: adam.climb(rate, elbo_at, limit) for rate in rates}
        except Exception as error:  # a rival that cannot run is left out, with its reason
            tell(f"{name}: {method_name} cannot run: {sentence(error)}")
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
    parser.add_argument("--only", nargs="*", default=[*PROBLEMS, *NETS])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each method and rate, at the least")
    parser.add_argument("--out", type=Path, default=Path("docs/results/solvers.json"))
    options = parser.parse_args()
    found = json.loads(options.out.read_text()) if options.out.exists() else {}
    for name in options.only:
        jax.clear_caches()
        found[name] = race(name, options.small, options.seconds, lambda text: print(text, flush=True))
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
