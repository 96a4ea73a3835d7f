"""Pyro and Storchastic on problems of the peers table: gradient variance and seconds, in an environment of their own.

    python benchmarks/peers/torch_peers.py [--problems DIRECTORY] [--out FILE] [--only NAMES]      (make bench-torch)

The problems are files that `export.py` has written: the same parameters and data as the JAX side's. `variance` is the
mean over the coordinates of the guide's parameters of the variance of the ELBO's gradient; `seconds` are of one
gradient of all parameters, the median of turns that the estimators take; `bias_z` is the largest distance from
LeGrad's mean gradient, in standard errors, of sums over coordinates, here and on a small problem of the same kind. An
estimator whose gradient is wrong has no figures. Nothing is compiled: torch runs operation by operation.

"Storchastic REBAR, mended" has the right conditional sample (see `torch_models.conditional_sample`); temperature and
strength stay at 1, as what Storchastic learns of them raises the variance here. RELAX learns with Adam at 0.01.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import resource
import signal
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyro
import storch
import torch
import torch_models as models
from pyro.infer import TraceEnum_ELBO, TraceGraph_ELBO
from storch.method import ARM, LAX, REBAR, RELAX, DisARM, Expect, ScoreFunction, UnorderedSetEstimator, relax

ROOT = Path(__file__).parents[2]
OUT = ROOT / "docs" / "results" / "peers_torch.json"
THREADS = 2
BIASED, SUMS = 5.0, 20  # standard errors; sums of the coordinates of each parameter, with random signs
LEAST, MOST, BUDGET = 30, 400, 6.0  # draws of a gradient, and the seconds after which no more are taken
SMALL_DRAWS, SMALL_BUDGET = 2000, 10.0
GIGABYTES, SECONDS = 8, 60  # memory and CPU time that the first gradient may take
ROUNDS, TURN = 5, 0.3
BEFORE = 200  # gradients before the first that counts, where an estimator learns a baseline or control variate
Gradient = Callable[[], dict[str, torch.Tensor]]


class Problem:
    """A problem read from a file.

    Attributes:
        params: by name.
        args: the data, in floating point.
        mean: LeGrad's mean gradient, for each parameter of the guide.
        error: its standard error.
    """

    def __init__(self, path: Path) -> None:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: torch.tensor(file[name]).to(torch.float32) for name in file.files}
        self.params, self.mean, self.error = (
            {name.split()[1]: value for name, value in arrays.items() if name.startswith(f"{kind} ")}
            for kind in ("param", "mean", "error")
        )
        self.args = [arrays[name] for name in sorted(arrays) if name.startswith("arg ")]


# --- Pyro ------------------------------------------------------------------------------------------------------

PYRO = {
    "sbn_random": (models.sbn, models.sbn_each),
    "sbn_trained": (models.sbn, models.sbn_each),
    "spike_and_slab": (models.spike_and_slab, models.spike_and_slab_each),
    "ising": (models.ising, models.ising_each),
}


def with_pyro(problem: Problem, pair: models.Pair, elbo: Any, learn: int = 0) -> Gradient:
    """The gradient of an ELBO of Pyro's; it shares the parameters in Pyro's store with the others."""

    def gradient() -> dict[str, torch.Tensor]:
        store = dict(pyro.get_param_store().named_parameters())
        for value in store.values():
            value.grad = None
        elbo.loss_and_grads(pair.model, pair.guide)
        store = dict(pyro.get_param_store().named_parameters())
        return {name: -store[name].grad for name in problem.mean}

    check(gradient)
    for _ in range(learn):
        gradient()
    return gradient


def pyros(name: str, problem: Problem) -> dict[str, Callable[[], Gradient]]:
    """What is tried of Pyro's, by name."""
    whole, each = PYRO[name]

    def graph(infer: dict, learn: int = 0) -> Gradient:
        return with_pyro(problem, whole(problem.params, *problem.args, infer), TraceGraph_ELBO(), learn)

    def enumerated() -> Gradient:
        pair = each(problem.params, *problem.args, {"enumerate": "parallel"})
        return with_pyro(problem, pair, TraceEnum_ELBO(max_plate_nesting=1))

    average = {"baseline": {"use_decaying_avg_baseline": True}}
    return {
        "Pyro TraceGraph_ELBO": lambda: graph({}),
        "Pyro TraceGraph_ELBO, decaying average": lambda: graph(average, BEFORE),
        "Pyro TraceEnum_ELBO": enumerated,
    }


# --- Storchastic -----------------------------------------------------------------------------------------------


def with_storchastic(problem: Problem, method: Any, learn: int = 0, mended: bool = False) -> Gradient:
    """The gradient by a method of Storchastic's.

    Args:
        problem: an SBN.
        method: the method.
        learn: so many steps of Adam for the method's control variate, where it has one.
        mended: with the conditional sample of `torch_models` in the place of Storchastic's.
    """
    params = {name: value.detach().clone().requires_grad_() for name, value in problem.params.items()}
    (y,) = problem.args

    def gradient() -> dict[str, torch.Tensor]:
        for value in params.values():
            value.grad = None
        kept = storch.conditional_gumbel_rsample
        if mended:
            sample = storch.deterministic(models.conditional_sample)
            storch.conditional_gumbel_rsample = relax.conditional_gumbel_rsample = sample
        try:
            models.storchastic_sbn(params, y, method)
        finally:
            storch.conditional_gumbel_rsample = relax.conditional_gumbel_rsample = kept
            storch.inference.reset()  # what an error left behind
        return {name: -len(y) * params[name].grad.detach() for name in problem.mean}

    check(gradient)
    optimizer = torch.optim.Adam(getattr(method, "control_params", ()), 1e-2) if learn else None
    for _ in range(learn):
        optimizer.zero_grad()
        gradient()
        optimizer.step()
    return gradient


def storchastics(name: str, problem: Problem) -> dict[str, Callable[[], Gradient]]:
    """What is tried of Storchastic's, by name."""
    if not name.startswith("sbn"):
        return {}
    (hidden,) = problem.params["c"].shape

    def run(make: Callable[[], Any], **settings: Any) -> Callable[[], Gradient]:
        return lambda: with_storchastic(problem, make(), **settings)

    def moving() -> Gradient:
        gradient = with_storchastic(problem, ScoreFunction("h", baseline_factory="moving_average"))
        for _ in range(BEFORE):
            gradient()
        return gradient

    found = {
        "score function": run(lambda: ScoreFunction("h", baseline_factory="none")),
        "score function, moving average": moving,
        "leave-one-out, S = 2": run(lambda: ScoreFunction("h", n_samples=2, baseline_factory="batch_average")),
        "ARM": run(lambda: ARM("h")),
        "DisARM": run(lambda: DisARM("h")),
        "REBAR": run(lambda: REBAR("h")),
        "REBAR, mended": run(lambda: REBAR("h"), mended=True),
        "RELAX, mended": run(lambda: RELAX("h", in_dim=[hidden]), learn=BEFORE, mended=True),
        "LAX": run(lambda: LAX("h", in_dim=[hidden])),
        "expectation": run(lambda: Expect("h")),
        "unordered set, k = 2": run(lambda: UnorderedSetEstimator("h", k=2)),
    }
    return {f"Storchastic {method}": make for method, make in found.items()}


# --- measuring -------------------------------------------------------------------------------------------------


def attempt(make: Callable[[], Gradient]) -> Gradient | str:
    """An estimator that has given a gradient, or what kept it from it."""
    try:
        return make()
    except Exception as error:  # whatever stops a library is what the table says of it
        storch.inference.reset()
        text = " ".join(str(error).split())
        if "can't allocate memory" in text:
            return f"it needs more than {GIGABYTES} GB"
        return f"{type(error).__name__}: {text if len(text) <= 200 else text[:197] + '...'}"


def check(gradient: Gradient) -> None:
    """Raise where the first gradient takes too much, or is not finite; what is learned after it has no limit."""
    with limited():
        values = gradient().values()
    if not all(bool(torch.isfinite(value).all()) for value in values):
        raise FloatingPointError("its gradient is not finite")


@contextmanager
def limited() -> Iterator[None]:
    """Inside it the process may not grow beyond GIGABYTES, nor take more CPU time than SECONDS."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"no gradient within {SECONDS} seconds of CPU time")

    before, alarm = resource.getrlimit(resource.RLIMIT_AS), signal.signal(signal.SIGPROF, stop)
    resource.setrlimit(resource.RLIMIT_AS, (GIGABYTES << 30, before[1]))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, alarm)
        resource.setrlimit(resource.RLIMIT_AS, before)


class Draws(NamedTuple):
    """Draws of a gradient: how many, mean and variance of each coordinate, and sums of coordinates of every draw."""

    number: int
    mean: dict[str, torch.Tensor]
    variance: dict[str, torch.Tensor]
    sums: torch.Tensor  # (draws, parameters × SUMS)


def signs(values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """For each parameter SUMS rows of random signs, the same in every call."""
    random = torch.Generator().manual_seed(0)
    return {
        name: torch.randint(0, 2, (SUMS, value.numel()), generator=random).double() * 2 - 1
        for name, value in sorted(values.items())
    }


def summed(values: Mapping[str, torch.Tensor], by: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Sums of all coordinates of each parameter with random signs."""
    return torch.cat([rows @ values[name].double().ravel() for name, rows in by.items()])


def draw(gradient: Gradient, most: int, budget: float) -> Draws:
    """Draw until there are `most`, or LEAST when `budget` seconds have passed."""
    begun, first, total, squares, sums = time.perf_counter(), None, {}, {}, []
    while len(sums) < LEAST or (len(sums) < most and time.perf_counter() - begun < budget):
        values = {name: value.double() for name, value in gradient().items()}
        if first is None:
            first, by = values, signs(values)
        for name, value in values.items():
            change = value - first[name]  # squares of small numbers do not lose the variance
            total[name] = total.get(name, 0.0) + change
            squares[name] = squares.get(name, 0.0) + change**2
        sums.append(summed(values, by))
    n = len(sums)
    mean = {name: first[name] + value / n for name, value in total.items()}
    variance = {name: (squares[name] - total[name] ** 2 / n) / (n - 1) for name in total}
    return Draws(n, mean, variance, torch.stack(sums))


def bias_z(draws: Draws, problem: Problem) -> float:
    """The largest distance of a signed sum's mean from LeGrad's, in standard errors.

    A single coordinate may be the same in most draws and far away in a few: its standard error then says nothing.
    """
    by = signs(problem.mean)
    apart = (draws.sums.mean(dim=0) - summed(problem.mean, by)).abs()
    ours = torch.cat([problem.error[name].double().norm().expand(SUMS) for name in by])
    rounding = 1e-5 * torch.cat(
        [problem.mean[name].double().norm().expand(SUMS) for name in by]
    )  # where both are exact
    return float((apart / (torch.sqrt(draws.sums.var(dim=0) / draws.number + ours**2) + rounding)).max())


def seconds(gradients: Mapping[str, Gradient]) -> dict[str, float]:
    """The median over rounds of the seconds of one gradient, the estimators taking turns."""
    repeats, times = {}, {name: [] for name in gradients}
    for name, gradient in gradients.items():
        begun = time.perf_counter()
        gradient()
        repeats[name] = max(1, int(TURN / max(time.perf_counter() - begun, 1e-6)))
    for _ in range(ROUNDS):
        for name, gradient in gradients.items():
            begun = time.perf_counter()
            for _ in range(repeats[name]):
                gradient()
            times[name].append((time.perf_counter() - begun) / repeats[name])
    return {name: statistics.median(values) for name, values in times.items()}


def estimators(name: str, problem: Problem) -> dict[str, Gradient | str]:
    """All that is tried on a problem; a string is the reason why it cannot run."""
    pyro.clear_param_store()
    tried = pyros(name, problem) | storchastics(name, problem)
    return {method: attempt(make) for method, make in tried.items()}


def row(name: str, directory: Path) -> dict[str, dict[str, Any]]:
    """All that is measured on one problem."""
    small = Problem(directory / f"{name}_small.npz")
    bias = {}
    for method, gradient in estimators(name, small).items():
        if isinstance(gradient, str):
            print(f"  {method:46} {gradient} (small)", flush=True)
        else:
            bias[method] = bias_z(draw(gradient, SMALL_DRAWS, SMALL_BUDGET), small)
            print(f"  {method:46} bias {bias[method]:.1f} standard errors (small)", flush=True)
    problem, found, running = Problem(directory / f"{name}.npz"), {}, {}
    for method, gradient in estimators(name, problem).items():
        if isinstance(gradient, str):
            found[method] = {"cannot": gradient}
        else:
            draws = draw(gradient, MOST, BUDGET)
            z = max(bias.get(method, 0.0), bias_z(draws, problem))
            if z > BIASED:
                found[method] = {
                    "cannot": f"it runs, but its gradient is wrong: {z:.0f} standard errors from LeGrad's"
                }
                continue
            coordinates = torch.cat([value.ravel() for value in draws.variance.values()])
            found[method] = {"variance": float(coordinates.mean()), "draws": draws.number, "bias_z": z}
            running[method] = gradient
    for method, taken in seconds(running).items():
        found[method]["seconds"] = taken
    for method, figures in found.items():
        shown = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in figures.items()}
        print(f"  {method:46} {shown}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure Pyro and Storchastic.")
    parser.add_argument("--problems", type=Path, default=Path("out/peers"), help="where export.py has written")
    parser.add_argument("--out", type=Path, default=OUT, help="the JSON file; rows that are not run again stay")
    parser.add_argument("--only", default=",".join(PYRO), help="names of problems, with commas")
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    warnings.filterwarnings("ignore", module="pyro|storch|torch")
    rows = json.loads(options.out.read_text())["rows"] if options.out.exists() else {}
    for name in options.only.split(","):
        print(name, flush=True)
        rows[name] = row(name, options.problems)
        packages = ("torch", "pyro-ppl", "storchastic")
        text = {
            "versions": {package: importlib.metadata.version(package) for package in packages},
            "threads": THREADS,
            "rows": {n: rows[n] for n in PYRO if n in rows},
        }
        options.out.write_text(json.dumps(text, indent=1) + "\n")


if __name__ == "__main__":
    main()
