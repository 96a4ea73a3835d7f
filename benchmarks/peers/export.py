"""Write problems of the peers table as files that need no JAX: parameters, data, and LeGrad's mean gradient.

    python benchmarks/peers/export.py [--out DIRECTORY]

For each problem NAME.npz, and NAME_small.npz with a small one of its kind, on which a bias is seen sooner. `param X`
and `arg I` are what model and guide take; `mean X` and `error X` are the mean gradient of the ELBO for the parameters
of the guide and its standard error. `torch_peers.py` reads them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import jax
import numpy as np
from problems import PROBLEMS
from row import Peer
from tqdm import tqdm

import legrad
from legrad.diagnostics.gradients import gradient, moments

NAMES = ("sbn_random", "sbn_trained", "spike_and_slab", "ising")
DRAWS = {False: 200, True: 20_000}  # by whether the problem is small


def arrays(peer: Peer, draws: int) -> dict[str, np.ndarray]:
    """What is written of one problem."""
    one = gradient(legrad.LocalExpectation(), peer.model, peer.guide, peer.params, peer.args, {})
    found = jax.device_get(jax.jit(lambda key: moments(one, key, draws))(jax.random.key(0)))
    written = {f"param {name}": np.asarray(value) for name, value in peer.params.items()}
    written |= {f"arg {i}": np.asarray(value) for i, value in enumerate(peer.args)}
    for name in peer.guide_parameters():
        written[f"mean {name}"] = found.mean[name]
        written[f"error {name}"] = np.sqrt(found.variance[name] / draws)
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description="Write problems of the peers table as .npz files.")
    parser.add_argument("--out", type=Path, default=Path("out/peers"), help="the directory")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for name, small in (bar := tqdm([(name, small) for name in NAMES for small in (True, False)])):
        bar.set_description(name)
        suffix = "_small" if small else ""
        np.savez(out / f"{name}{suffix}.npz", **arrays(PROBLEMS[name](small=small), DRAWS[small]))


if __name__ == "__main__":
    main()
