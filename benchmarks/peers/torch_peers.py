"""Pyro and Storchastic on problems of the peers table: gradient variance and seconds, in an environment of their own.

    python benchmarks/peers/torch_peers.py [--problems DIRECTORY] [--out FILE] [--only NAMES]      (make bench-torch)

The problems are files that `export.py` has written: the same parameters and data as the JAX side's. `variance` is the
mean over the coordinates of the guide's parameters of the variance of the ELBO's gradient; `seconds` are of one
gradient of all parameters, the median of turns that the estimators take; `bias_z` is the largest distance of the mean
gradient from LeGrad's, in standard errors of the difference, on the small problem of the same kind. An estimator
whose gradient is wrong there has no figures. Nothing is compiled: torch runs operation by operation.

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
from typing import Any

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
BIASED = 5.0  # standard errors
LEAST, MOST, BUDGET = 30, 400, 6.0  # draws of a gradient, and the seconds after which no more are taken
SMALL_DRAWS, SMALL_BUDGET = 2000, 10.0
GIGABYTES, SECONDS = 8, 120  # memory and CPU time that a first gradient, and what is learned before it, may take
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
        with limited():
            gradient = make()
            if not all(bool(torch.isfinite(value).all()) for value in gradient().values()):
                return "its gradient is not finite"
    except Exception as error:  # whatever stops a library is what the table says of it
        storch.inference.reset()
        text = " ".join(str(error).split())
        if "can't allocate memory" in text:
            return f"it needs more than {GIGABYTES} GB"
        return f"{type(error).__name__}: {text if len(text) <= 200 else text[:197] + '...'}"
    return gradient


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


def moments(gradient: Gradient, most: int, budget: float) -> tuple[dict[str, Any], dict[str, Any], int]:
    """Mean and variance of each coordinate, in float64, and the number of draws."""
    begun, first, total, squares, count = time.perf_counter(), None, {}, {}, 0
    while count < LEAST or (count < most and time.perf_counter() - begun < budget):
        draw = {name: value.double() for name, value in gradient().items()}
        first = first or draw  # squares of differences from it do not lose the variance
        for name, value in draw.items():
            change = value - first[name]
            total[name] = total.get(name, 0.0) + change
            squares[name] = squares.get(name, 0.0) + change**2
        count += 1
    mean = {name: first[name] + value / count for name, value in total.items()}
    variance = {name: (squares[name] - total[name] ** 2 / count) / (count - 1) for name in total}
    return mean, variance, count


def bias_z(mean: Mapping[str, Any], variance: Mapping[str, Any], draws: int, problem: Problem) -> float:
    """The largest distance from LeGrad's mean over all coordinates, in standard errors."""
    largest = 0.0
    for name, value in mean.items():
        apart = (value - problem.mean[name]).abs()
        error = torch.sqrt(variance[name] / draws + problem.error[name].double() ** 2)
        slack = 1e-5 * problem.mean[name].abs().max()  # rounding, where both are exact
        largest = max(largest, float((apart / (error + slack).clamp_min(1e-30)).max()))
    return largest


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
            bias[method] = bias_z(*moments(gradient, SMALL_DRAWS, SMALL_BUDGET), small)
            print(f"  {method:46} bias {bias[method]:.1f} standard errors (small)", flush=True)
    problem, found, running = Problem(directory / f"{name}.npz"), {}, {}
    for method, gradient in estimators(name, problem).items():
        if isinstance(gradient, str):
            found[method] = {"cannot": gradient}
        elif bias.get(method, 0.0) > BIASED:
            wrong = f"it runs, but its gradient is wrong: {bias[method]:.0f} standard errors from LeGrad's"
            found[method] = {"cannot": f"{wrong}, on a small problem"}
        else:
            mean, variance, draws = moments(gradient, MOST, BUDGET)
            coordinates = torch.cat([value.ravel() for value in variance.values()])
            here = bias_z(mean, variance, draws, problem)
            found[method] = {"variance": float(coordinates.mean()), "draws": draws, "bias_z": bias.get(method)}
            found[method]["bias_z_full_size"] = here
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
