"""Static binarized MNIST, one layer of 200 units: how far each estimator gets, in steps and in time.

    python benchmarks/mnist/run.py [--methods LeGrad,DisARM,...] [--steps 20000] [--rate 3e-3] [--label compare]

All methods have the same code, optimizer, seed and minibatches. The ELBO of the training images is taken after the
fits, from parameters that were kept along the way, so that no clock counts it. Results are merged into
docs/results/mnist.json, from which docs/mnist.py makes a page. LEGRAD_DATA must hold binarized_mnist.npz.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import jax
import optax
from net import Net
from numpyro.infer import TraceGraph_ELBO

import legrad
from legrad.experiments.datasets import binarized_mnist

HERE = Path(__file__).parents[2]
OUT = HERE / "docs" / "results" / "mnist.json"
sys.path.append(str(HERE / "benchmarks" / "peers"))

POINTS = 20  # places along a fit where its bound is taken
TRAIN = 10_000  # training images for the curve; the last point has all of them


def estimators() -> dict[str, Any]:
    from relaxed import Rebar

    return {
        "LeGrad": legrad.LocalExpectation(),
        "DisARM": legrad.DisARM(surrogates=False),
        "leave-one-out": legrad.ScoreFunction(num_samples=2, baseline="leave_one_out"),
        "REBAR": Rebar(temperature=0.1),  # about what `relaxed.tune` finds on this net
        "TraceGraph": TraceGraph_ELBO(),
    }


def optimizer(rate: float, steps: int, decay: str) -> optax.GradientTransformation:
    schedule = optax.cosine_decay_schedule(rate, steps) if decay == "cosine" else rate
    return optax.adam(schedule)


def run(name: str, estimator: Any, options: argparse.Namespace, data: Any) -> dict[str, Any]:
    """One fit, and its bounds along the way and at its end."""
    net = Net(data.train, signs=not options.zeros)
    kept: list[tuple[int, float, Any]] = []
    every = max(1, options.steps // POINTS)

    def keep(snapshot: legrad.Snapshot) -> None:
        kept.append((snapshot.step, snapshot.seconds, jax.device_get(snapshot.params())))

    result = legrad.fit(
        net.model,
        net.guide,
        key=jax.random.key(options.seed),
        data=legrad.Minibatches(data.train, size=100),
        estimator=estimator,
        optimizer=optimizer(options.rate, options.steps, options.decay),
        steps=options.steps,
        seconds=options.seconds,
        callback=keep,
        callback_every=every,
    )
    key = jax.random.key(1000 + options.seed)
    curve = [(step, seconds, net.judge(key, params, data.train[:TRAIN])) for step, seconds, params in kept]
    end = {
        "train": net.judge(key, result.params, data.train),
        "test": net.judge(key, result.params, data.test),
        "test_100": net.judge(key, result.params, data.test, samples=100),
    }
    print(f"{name}: {result.steps:,} steps, {result.seconds:.0f} s, {end}", flush=True)
    return {
        "steps": result.steps,
        "seconds": result.seconds,
        "rate": options.rate,
        "decay": options.decay,
        "signs": not options.zeros,
        "seed": options.seed,
        "curve": curve,
        **end,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=",".join(["LeGrad", "DisARM", "leave-one-out", "REBAR", "TraceGraph"]))
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, help="end each fit after so long")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--decay", choices=["cosine", "none"], default="cosine")
    parser.add_argument("--zeros", action="store_true", help="units count as 0 and 1, not as -1 and 1")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--label", default="compare", help="the name of this set of runs in the file")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    data, known = binarized_mnist(), estimators()
    for name in options.methods.split(","):
        found = run(name, known[name], options, data)
        kept = json.loads(options.out.read_text()) if options.out.exists() else {}
        kept.setdefault(options.label, {})[name] = found
        options.out.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
