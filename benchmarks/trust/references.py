"""The posteriors of the trust table's problems, each found twice: the reference, and a check by other means.

    python benchmarks/trust/references.py [--only gaussian,hmm]

writes docs/results/trust_references.json. By problem and latent it holds means and standard deviations of all
elements and the error of each: a standard error where the method samples, the difference to half as fine a grid where
it is a grid, zero where it sums exactly. The check's largest difference is in posterior standard deviations.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import exact
import jax
import numpy as np
import sampling
from exact import Moments
from problems import PROBLEMS
from row import TrustProblem

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "trust_references.json"
SEED, CHECK_SEED = 0, 1


class Method(NamedTuple):
    """A way to the posterior, and what to call it; one that samples takes a seed."""

    name: str
    solve: Callable[..., Moments]
    samples: bool = True

    def __call__(self, problem: TrustProblem, seed: int) -> Moments:
        return self.solve(problem, seed) if self.samples else self.solve(problem)


def _exactly(name: str, solve: Callable[..., Moments]) -> Method:
    return Method(name, solve, samples=False)


def _grid(*axes: np.ndarray) -> Method:
    return _exactly("grid", lambda problem: exact.grid(problem, *axes))


ENUMERATION = _exactly("enumeration", exact.enumeration)
PRIOR = Method("draws from the prior, weighted", sampling.from_prior)
STUDENT = Method("draws from a Student t, weighted", sampling.from_student)
NUTS = Method("NUTS", sampling.nuts)
LINEAR = _exactly("closed form", exact.linear)

METHODS: dict[str, tuple[Method, Method]] = {
    "gaussian": (LINEAR, NUTS),
    "gaussian_mean_field": (LINEAR, NUTS),
    "logistic": (NUTS, STUDENT),
    "poisson": (NUTS, STUDENT),
    "misspecified": (_grid(np.linspace(-6, 8, 801), np.exp(np.linspace(-2, 3.5, 801))), PRIOR),
    "eight_schools": (_exactly("grid over tau, the rest in closed form", exact.schools), PRIOR),
    "horseshoe": (
        Method("Gibbs", sampling.horseshoe_gibbs),
        Method("NUTS in units of the scales", sampling.horseshoe_nuts),
    ),
    "heavy_tails": (_grid(np.sinh(np.linspace(-12, 12, 40_001))), PRIOR),
    "two_modes": (_grid(np.linspace(-4, 5, 901), np.linspace(-5, 5, 1001)), PRIOR),
    "mixture": (
        _exactly("grid over weight and means, assignments summed", exact.two_components),
        Method("NUTS, assignments summed out", sampling.mixture_nuts),
    ),
    "spike_and_slab": (_exactly("enumeration of gamma, slopes in closed form", exact.spike), PRIOR),
    "hmm": (ENUMERATION, PRIOR),
    "noisy_or": (ENUMERATION, PRIOR),
    "noisy_or_mean_field": (ENUMERATION, PRIOR),
    "belief_net": (ENUMERATION, PRIOR),
}


def worst(differences: dict[str, np.ndarray], sd: dict[str, np.ndarray]) -> float:
    """The largest absolute difference, in units of the standard deviations."""
    return max(float(np.max(np.abs(differences[name]) / sd[name])) for name in sd)


def entry(name: str) -> dict[str, Any]:
    """What the file holds about one problem."""
    problem = PROBLEMS[name]()
    method, other = METHODS[name]
    begun = time.perf_counter()
    found = method(problem, SEED)
    seconds = time.perf_counter() - begun
    second = other(problem, CHECK_SEED)
    keys = ("mean", "sd", "mean_error", "sd_error")
    return {
        "method": method.name,
        "seed": SEED if method.samples else None,
        "seconds": round(seconds, 2),
        **found.facts,
        "worst_mean_error": worst(found.mean_error, found.sd),
        "worst_sd_error": worst(found.sd_error, found.sd),
        "check": {
            "method": other.name,
            "seed": CHECK_SEED if other.samples else None,
            **second.facts,
            "worst_mean_difference": worst({k: second.mean[k] - v for k, v in found.mean.items()}, found.sd),
            "worst_sd_difference": worst({k: second.sd[k] - v for k, v in found.sd.items()}, found.sd),
            "worst_mean_error": worst(second.mean_error, found.sd),
            "worst_sd_error": worst(second.sd_error, found.sd),
        },
        "latents": {
            latent: {key: np.asarray(getattr(found, key)[latent]).tolist() for key in keys} for latent in found.mean
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Find the posteriors of the trust table's problems.")
    parser.add_argument("--only", default=",".join(PROBLEMS), help="names of problems, with commas")
    names = parser.parse_args().only.split(",")
    jax.config.update("jax_enable_x64", True)
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in names:
        known[name] = entry(name)
        mean, sd = known[name]["worst_mean_error"], known[name]["worst_sd_error"]
        check = known[name]["check"]
        print(
            f"{name:24} {known[name]['method']:48} errors {mean:.4f} {sd:.4f}, differences to the check "
            f"{check['worst_mean_difference']:.4f} {check['worst_sd_difference']:.4f} "
            f"(its errors {check['worst_mean_error']:.4f} {check['worst_sd_error']:.4f})",
            flush=True,
        )
        RESULTS.write_text(json.dumps({n: known[n] for n in PROBLEMS if n in known}, indent=1) + "\n")


if __name__ == "__main__":
    main()
