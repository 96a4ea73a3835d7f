"""What `legrad.single_site` costs: against one-element code by hand, against brute force, against one evaluation.

    python benchmarks/single_site.py [--rows chain,ising] [--json FILE] [--quick] [--check]

prints a row for each problem of `single_site_models.py`. The sides of a row are compiled, called once, and then timed
in turns; a ratio is the median over the turns. Where a side takes under a millisecond, all sides are timed inside a
compiled loop of 200 or more evaluations, each of which waits for the one before. Data are arguments of the compiled
functions. LEGRAD_DATA names a directory that holds mnist/train-*.gz; without it, synthetic data of that shape serve.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import single_site_models as models
from jax.lax import fori_loop, optimization_barrier
from jax.scipy.linalg import solve_triangular

import legrad

Tree = Any
OURS, HAND = "single_site", "hand-written"
TURNS, SLOW_TURNS, SLOW = 11, 3, 0.4  # a side that takes more than 0.4 s is timed in three turns
LOOP, LOOP_SECONDS = 200, 0.02  # a loop has at least that many evaluations and takes at least that long
SHORT, LONG = 2e-3, 25e-3  # a side below SHORT seconds puts its row into loops; one above LONG is called all the same
MAGIC = 1.2345e30  # no result equals it, and the compiler does not know
EQUAL = 1e-5  # relative, in float32
COMPILE_SECONDS, LOGISTIC_BYTES = 20.0, 2e9
SUBSET = 400  # elements of the sigmoid network that brute force is timed on


class Side(NamedTuple):
    """Something to time: run(x, *rest), whose time counts `scale` times."""

    run: Callable[..., Tree]
    x: Tree
    rest: tuple[Any, ...] = ()
    scale: float = 1.0


class Limit(NamedTuple):
    """`over` may take at most `bound` times what `under` takes; the two return the same numbers where `same`."""

    over: str
    under: str
    bound: float
    same: bool = False
    at_least: bool = False  # then the ratio must reach the bound

    def wanted(self) -> str:
        if self.at_least:
            return f"≥ {self.bound:g}x faster than {self.over}"
        return f"≤ {self.bound:g}x {self.under}"

    def holds(self, ratio: float) -> bool:
        return ratio >= self.bound if self.at_least else ratio <= self.bound


class Row(NamedTuple):
    """A line of the table."""

    title: str
    sides: Callable[[bool], dict[str, Side]]
    limits: tuple[Limit, ...]
    note: str = ""


class Timing(NamedTuple):
    """Seconds of each turn, by side; seconds to compile, bytes of temporaries, and outputs."""

    turns: dict[str, list[float]]
    compiling: dict[str, float]
    temporaries: dict[str, float]
    outputs: dict[str, Tree]
    looped: list[str]

    def seconds(self, side: str) -> float:
        return float(np.median(self.turns[side]))

    def ratio(self, over: str, under: str) -> float:
        pairs = zip(self.turns[over], self.turns[under], strict=False)  # the slow sides had fewer turns
        return float(np.median([a / b for a, b in pairs]))


# --- timing ---------------------------------------------------------------------------------------------------


def clock(sides: dict[str, Side], turns: int) -> Timing:
    """Compile all sides, choose between calls and loops, and time them in turns."""
    programs: dict[str, Callable[[], float]] = {}
    compiling, temporaries, outputs, first = {}, {}, {}, {}
    for name, side in sides.items():
        begun = time.perf_counter()
        compiled = jax.jit(side.run).lower(side.x, *side.rest).compile()
        compiling[name] = time.perf_counter() - begun
        temporaries[name] = getattr(compiled.memory_analysis(), "temp_size_in_bytes", math.nan)
        outputs[name] = jax.block_until_ready(compiled(side.x, *side.rest))
        programs[name] = partial(_seconds, compiled, side.x, *side.rest)
        first[name] = programs[name]()
    looped = [name for name in sides if min(first.values()) < SHORT and first[name] < LONG]
    programs |= {name: _loop(sides[name]) for name in looped}
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(turns):
        for name, side in sides.items():
            if turn < SLOW_TURNS or first[name] < SLOW:
                times[name].append(side.scale * programs[name]())
    return Timing(times, compiling, temporaries, outputs, looped)


def _seconds(compiled: Callable[..., Tree], *args: Any) -> float:
    begun = time.perf_counter()
    jax.block_until_ready(compiled(*args))
    return time.perf_counter() - begun


def _loop(side: Side) -> Callable[[], float]:
    """Seconds of one evaluation in a compiled loop, where each waits for the one before and none can be hoisted.

    All of a result is carried, so all of it is computed; the next pivot waits for its first number; and behind the
    barrier the data, too, look as if they changed.
    """

    def loop(count: jax.Array, x: Tree, *rest: Any) -> Tree:
        def body(_: Any, last: tuple[jax.Array, Tree]) -> tuple[jax.Array, Tree]:
            surprise = last[0] == MAGIC
            moved = jax.tree.map(lambda a: a + surprise.astype(a.dtype), x)
            result = side.run(*optimization_barrier((moved, *rest)))
            return jnp.ravel(jax.tree.leaves(result)[0])[0], result

        shapes = jax.eval_shape(body, 0, (jnp.zeros(()), None))
        return fori_loop(0, count, body, jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes))[1]

    compiled = jax.jit(loop).lower(LOOP, side.x, *side.rest).compile()
    _seconds(compiled, LOOP, side.x, *side.rest)
    estimate = _seconds(compiled, LOOP, side.x, *side.rest) / LOOP
    count = max(LOOP, math.ceil(LOOP_SECONDS / estimate))
    return lambda: _seconds(compiled, count, side.x, *side.rest) / count


# --- the sides ------------------------------------------------------------------------------------------------


def single_site(problem: models.Problem, method: str = "auto") -> Side:
    def run(x: Tree, candidates: Tree, data: Tree) -> Tree:
        return legrad.single_site(lambda x: problem.f(x, data), x, candidates, method=method)

    return Side(run, problem.x, (problem.candidates, problem.data))


def brute(problem: models.Problem) -> Side:
    return single_site(problem, method="brute")


def hand(problem: models.Problem) -> Side:
    assert problem.hand is not None
    return Side(problem.hand, problem.x, (problem.candidates, problem.data))


def evaluation(problem: models.Problem) -> Side:
    return Side(problem.f, problem.x, (problem.data,))


def value_and_gradient(problem: models.Problem) -> Side:
    return Side(jax.value_and_grad(problem.f), problem.x, (problem.data,))


def solve(problem: models.Problem) -> Side:
    """One triangular solve with as many right-hand sides as there are elements."""
    return Side(lambda B, L: solve_triangular(L, B, lower=True), jnp.eye(len(problem.x)), (problem.data[1],))


def local_expectation(guided: models.Guided) -> Side:
    """The gradient of LocalExpectation's loss, as a user compiles it."""

    def run(params: Tree, key: jax.Array, data: Tree) -> Tree:
        loss = partial(legrad.LocalExpectation().loss, key)
        return jax.grad(lambda params: loss(params, guided.model, guided.guide, *data))(params)

    return Side(run, guided.params, (jax.random.key(0), guided.data))


def hand_gradient(guided: models.Guided) -> Side:
    def run(params: Tree, key: jax.Array, data: Tree) -> Tree:
        return guided.hand(params, guided.draw(key, params, data), data)

    return Side(run, guided.params, (jax.random.key(0), guided.data))


def brute_flips(guided: models.Guided) -> Side:
    """Brute force on some of the binary latents; its time counts for all of them."""
    problem = guided.problem()
    pivot = problem.x[guided.site]
    chosen = np.linspace(0, pivot.size - 1, min(SUBSET, pivot.size)).astype(int)

    def run(some: jax.Array, pivot: jax.Array, data: Tree) -> Tree:
        def f(some: jax.Array) -> jax.Array:
            return problem.f({guided.site: pivot.ravel().at[chosen].set(some).reshape(pivot.shape)}, data)

        return legrad.single_site(f, some, 1 - some[None], method="brute")

    return Side(run, pivot.ravel()[chosen], (pivot, problem.data), scale=pivot.size / chosen.size)


# --- the rows -------------------------------------------------------------------------------------------------


def against(name: str, **others: Callable[[models.Problem], Side]) -> Callable[[bool], dict[str, Side]]:
    """`single_site` on a problem and the other sides, with spaces for the underscores of their names."""

    def sides(small: bool) -> dict[str, Side]:
        problem = models.PROBLEMS[name](small=small)
        return {OURS: single_site(problem)} | {k.replace("_", " "): make(problem) for k, make in others.items()}

    return sides


def _gradients(guided: models.Guided) -> dict[str, Side]:
    return {OURS: local_expectation(guided), HAND: hand_gradient(guided)}


def _sbn(small: bool) -> dict[str, Side]:
    guided = models.sbn(small)
    return _gradients(guided) | {"brute": brute_flips(guided)}


def _chain(small: bool) -> dict[str, Side]:
    quarter = models.chain(small, n=5 if small else 2_500)
    return against("chain", evaluation=evaluation)(small) | {"n/4": single_site(quarter)}


def _twice(names: tuple[str, str], label: str) -> Callable[[bool], dict[str, Side]]:
    """Two problems in one row, each against brute force."""

    def sides(small: bool) -> dict[str, Side]:
        one, two = (against(name, brute=brute)(small) for name in names)
        return one | {f"{k}, {label}": side for k, side in two.items()}

    return sides


def _never_slower(bound: float, label: str = "") -> tuple[Limit, ...]:
    one = Limit(OURS, "brute", bound, same=True)
    return (one, Limit(f"{OURS}, {label}", f"brute, {label}", bound, same=True)) if label else (one,)


ROWS: dict[str, Row] = {
    "logistic": Row(
        "logistic regression, 12660x785, K=5",
        lambda small: (
            {HAND: hand(problem := models.logistic(small))} | {OURS: single_site(problem), "brute": brute(problem)}
        ),
        (Limit(OURS, HAND, 1.3, same=True), Limit("brute", OURS, 10, same=True, at_least=True)),
    ),
    "logistic_numpyro": Row(
        "the same as a NumPyro model, through `LocalExpectation`",
        lambda small: _gradients(models.logistic_numpyro(small)),
        (Limit(OURS, HAND, 1.5),),
    ),
    "sbn": Row(
        "SBN, 200 latents x 784 outputs, batch 100, through `LocalExpectation`",
        _sbn,
        (Limit(OURS, HAND, 1.3), Limit("brute", OURS, 20, at_least=True)),
        f"brute: {SUBSET} of 20,000 elements, scaled",
    ),
    "gaussian": Row(
        "Gaussian, n=1000, K=5, quadratic form in the precision",
        against("gaussian", value_and_gradient=value_and_gradient),
        (Limit(OURS, "value and gradient", 5),),
    ),
    "cholesky": Row(
        "the same through a Cholesky factor and a triangular solve",
        against("cholesky", solve=solve),
        (Limit(OURS, "solve", 1.5),),
        "solve: one triangular solve with n right-hand sides",
    ),
    "chain": Row(
        "chain of pairwise terms, n=10,000, 4 states",
        _chain,
        (Limit(OURS, "evaluation", 25), Limit(OURS, "n/4", 6)),
        "n/4: single_site at n=2,500",
    ),
    "ising": Row("Ising grid 100x100", against("ising", evaluation=evaluation), (Limit(OURS, "evaluation", 20),)),
    "mixture": Row(
        "mixture with `mu[z]`, 10,000 points, 8 components",
        against("mixture", evaluation=evaluation),
        (Limit(OURS, "evaluation", 25),),
    ),
    "spike_and_slab": Row(
        "spike-and-slab `X @ (gamma * beta)`, 1000x500",
        lambda small: {HAND: hand(problem := models.spike_and_slab(small)), OURS: single_site(problem)},
        (Limit(OURS, HAND, 1.5, same=True),),
    ),
    "noisy_or": Row(
        "noisy-or, 1,000 causes, 5,000 findings of 5 causes each",
        against("noisy_or", evaluation=evaluation),
        (Limit(OURS, "evaluation", 40),),
    ),
    "decoder": Row(
        "two-layer neural decoder, 100-200-784, K=2",
        _twice(("decoder", "decoder_batch"), "batch 10"),
        _never_slower(1.2, "batch 10"),
    ),
    "hmm": Row(
        "HMM with `lax.scan`, 200 steps, 4 states",
        _twice(("hmm", "hmm_forward"), "states summed out"),
        _never_slower(1.3, "states summed out"),
    ),
    "sort": Row("a model with `sort`, n=400, K=5", against("sort", brute=brute), _never_slower(1.3)),
}


# --- the table ------------------------------------------------------------------------------------------------

COLUMNS = ("problem", "must reach", "measured", "holds", "milliseconds", "compile s", "temp MB", "remarks")


def measure(name: str, quick: bool) -> dict[str, Any]:
    """Run one row: all that the table and the JSON file say."""
    row = ROWS[name]
    timing = clock(row.sides(quick), SLOW_TURNS if quick else TURNS)
    ratios = [timing.ratio(limit.over, limit.under) for limit in row.limits]
    holds = [limit.holds(ratio) for limit, ratio in zip(row.limits, ratios, strict=True)]
    remarks = [row.note] if row.note and not quick else []  # notes speak of the full size
    same = [models.distance(timing.outputs[a], timing.outputs[b]) for a, b, _, same, _ in row.limits if same]
    if same:
        holds.append(max(same) <= EQUAL)
        remarks.append(f"equal to {max(same):.0e}")
    if timing.looped:
        alone = [side for side in timing.turns if side not in timing.looped]
        remarks.append("in a compiled loop" + (f", except {' and '.join(alone)}" if alone else ""))
    compiling, temporaries = timing.compiling[OURS], timing.temporaries[OURS]
    holds.append(compiling <= COMPILE_SECONDS)
    if name == "logistic":
        holds.append(temporaries <= LOGISTIC_BYTES)
    return {
        "row": name,
        "problem": row.title,
        "must reach": [limit.wanted() for limit in row.limits],
        "measured": ratios,
        "holds": all(holds),
        "milliseconds": {side: 1e3 * timing.seconds(side) for side in timing.turns},
        "turns": {side: len(times) for side, times in timing.turns.items()},
        "compile s": timing.compiling,
        "temp bytes": timing.temporaries,
        "remarks": remarks,
    }


def line(result: dict[str, Any]) -> str:
    """A result as a row of the markdown table."""
    cells = [
        result["problem"],
        "; ".join(result["must reach"]),
        "; ".join(f"{ratio:.3g}x" for ratio in result["measured"]),
        "yes" if result["holds"] else "NO",
        "; ".join(
            f"{side} {ms:.3g}" if ms < 1e3 else f"{side} {ms:,.0f}" for side, ms in result["milliseconds"].items()
        ),
        f"{result['compile s'][OURS]:.1f}",
        f"{result['temp bytes'][OURS] / 1e6:.3g}",
        "; ".join(result["remarks"]),
    ]
    return "| " + " | ".join(cells) + " |"


# --- the check ------------------------------------------------------------------------------------------------


def check() -> dict[str, float]:
    """Compare the code by hand with brute force at small size, in float64: the errors by name; raises above 1e-9."""
    errors = {}
    with jax.enable_x64(True):
        for name, make in models.PROBLEMS.items():
            problem = make(small=True)
            if problem.hand is not None:
                sides = {side: make(problem) for side, make in (("hand", hand), ("brute", brute))}
                one, other = (jax.jit(side.run)(side.x, *side.rest) for side in sides.values())
                errors[name] = models.distance(one, other)
        for name, make_guided in models.GUIDED.items():
            errors[name] = _gradient_error(make_guided(small=True))
    if wrong := {name: error for name, error in errors.items() if not error < 1e-9}:
        raise AssertionError(f"the code by hand differs from brute force: {wrong}")
    return errors


def _gradient_error(guided: models.Guided) -> float:
    """The gradient by hand against LocalExpectation's, at the pivot that the latter drew: the guide's first value."""

    def loss(params: Tree) -> tuple[jax.Array, jax.Array]:
        drawn: list[jax.Array] = []

        def guide(*args: Any) -> None:
            with numpyro.handlers.trace() as trace:
                guided.guide(*args)
            drawn.append(trace[guided.site]["value"])

        estimator = legrad.LocalExpectation(method="brute")
        return estimator.loss(jax.random.key(3), params, guided.model, guide, *guided.data), drawn[0]

    gradient, pivot = jax.jit(jax.grad(loss, has_aux=True))(guided.params)
    return models.distance(jax.jit(guided.hand)(guided.params, pivot, guided.data), gradient)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join(ROWS), help="some of " + ", ".join(ROWS))
    parser.add_argument("--json", metavar="FILE", help="write the results there, too")
    parser.add_argument("--quick", action="store_true", help="small sizes and few turns: does it run?")
    parser.add_argument("--check", action="store_true", help="compare the code by hand with brute force, and stop")
    options = parser.parse_args()
    names = options.rows.split(",")
    if unknown := set(names) - set(ROWS):
        parser.error(f"unknown rows {sorted(unknown)}: choose some of {', '.join(ROWS)}")
    if options.check:
        print("\n".join(f"{name}: equal to brute force to {error:.0e}" for name, error in check().items()))
        return
    data = (
        "small synthetic data (the limits are for full size)"
        if options.quick
        else "MNIST"
        if models.mnist_directory()
        else "synthetic digits"
    )
    about = f"JAX {jax.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores, {data}"
    print(f"{about}\n\n| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
    results = []
    for name in names:
        results.append(measure(name, options.quick))
        print(line(results[-1]), flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"about": about, "quick": options.quick, "rows": results}, file, indent=1)


if __name__ == "__main__":
    main()
