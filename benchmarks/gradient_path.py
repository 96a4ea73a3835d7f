"""How much of legrad one gradient passes through: the files and functions that run while it is traced.

    python benchmarks/gradient_path.py [--list]

The gradient is that of `LocalExpectation().loss` for the model of the README, with a `MeanField` guide. A function
counts once, however often it runs; lambdas and comprehensions do not count.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import legrad

ROOT = Path(legrad.__file__).parent


def model(X: jax.Array, y: jax.Array) -> None:
    """Spike and slab: which features matter?"""
    with numpyro.plate("features", X.shape[1]):
        included = numpyro.sample("included", dist.Bernoulli(0.2))
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(X @ (included * slope), 0.5), obs=y)


def path() -> dict[str, set[str]]:
    """Return the functions that the gradient passes, by file."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 20)).astype("float32")
    y = (X[:, :3].sum(axis=1) + 0.5 * rng.normal(size=100)).astype("float32")
    guide = legrad.MeanField(model)
    svi = numpyro.infer.SVI(model, guide, numpyro.optim.Adam(1e-2), loss=legrad.LocalExpectation())
    params = svi.get_params(svi.init(jax.random.key(0), X, y))
    passed: set[CodeType] = set()

    def seen(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            passed.add(frame.f_code)

    def loss(params: dict[str, jax.Array]) -> jax.Array:
        return legrad.LocalExpectation().loss(jax.random.key(1), params, model, guide, X, y)

    jax.clear_caches()
    sys.setprofile(seen)
    try:
        jax.make_jaxpr(jax.grad(loss))(params)
    finally:
        sys.setprofile(None)
    found: dict[str, set[str]] = defaultdict(set)
    for code in passed:
        file = Path(code.co_filename)
        if file.is_relative_to(ROOT) and not code.co_name.startswith("<"):
            found[file.relative_to(ROOT).as_posix()].add(code.co_qualname)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="also say which")
    options = parser.parse_args()
    found = path()
    print(f"{len(found)} files, {sum(map(len, found.values()))} functions")
    if options.list:
        for file in sorted(found):
            print(f"\n{file}")
            for name in sorted(found[file]):
                print(f"    {name}")


if __name__ == "__main__":
    main()
