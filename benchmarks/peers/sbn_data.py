"""The numbers of the SBN problem, from NumPy alone: the JAX side and the torch side import this and agree.

    p(y, x) = p(x) Π_d Bernoulli(y_d | σ((x W1 + b1)_d)),    q(x | y) = Π_k Bernoulli(x_k | σ((y V1 + c1)_k))

The names are those of `legrad.experiments.sbn`, whose model and guide take them with `batch=None`: the ELBO is the
sum over the images given, without a scale.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

PIXELS = 784
_SEED = 20


class Sbn(NamedTuple):
    """Parameters in float32, images of zeros and ones (batch, pixels) in float32, and where the images come from."""

    params: dict[str, np.ndarray]
    images: np.ndarray
    source: str


def sbn(hidden: int = 200, batch: int = 100, pixels: int = PIXELS) -> Sbn:
    """Random parameters, of the size that a fit starts with, and the first images of binarized MNIST."""
    images, source = binary_images(batch, pixels)
    rng = np.random.default_rng(_SEED)
    mean = np.clip(images.mean(axis=0), 0.02, 0.98)
    params = {
        "W1": 0.1 * rng.normal(size=(hidden, pixels)),
        "b1": np.log(mean / (1 - mean)),
        "V1": 0.05 * rng.normal(size=(pixels, hidden)),
        "c1": np.zeros(hidden),
    }
    return Sbn({name: value.astype(np.float32) for name, value in params.items()}, images, source)


def binary_images(number: int, pixels: int = PIXELS) -> tuple[np.ndarray, str]:
    """Images as rows; fewer pixels than 784 are taken from the middle, where digits differ."""
    path = Path(os.environ.get("LEGRAD_DATA") or "", "binarized_mnist.npz")
    if os.environ.get("LEGRAD_DATA") and path.is_file():
        with np.load(path, allow_pickle=False) as archive:
            whole = np.unpackbits(archive["train"][:number], axis=1)[:, :PIXELS]
        source = "binarized MNIST, the first training images"
    else:
        whole, source = _synthetic(number), "synthetic images: LEGRAD_DATA holds no binarized_mnist.npz"
    begin = (PIXELS - pixels) // 2
    return whole[:, begin : begin + pixels].astype(np.float32), source


def _synthetic(number: int) -> np.ndarray:
    """A bright blob at a random place: about as many ones as a digit has, and pixels that go together."""
    rng = np.random.default_rng(_SEED + 1)
    side = int(PIXELS**0.5)
    axis = np.arange(side)
    centre, width = rng.uniform(0.3 * side, 0.7 * side, (number, 2)), rng.uniform(3.0, 6.0, (number, 2))
    rows, columns = (np.exp(-0.5 * ((axis - centre[:, [i]]) / width[:, [i]]) ** 2) for i in (0, 1))
    return (rng.uniform(size=(number, side, side)) < 0.9 * rows[:, :, None] * columns[:, None, :]).reshape(
        number, PIXELS
    )


def export(path: str | Path, hidden: int = 200, batch: int = 100, pixels: int = PIXELS) -> None:
    """Write the parameters and images to an .npz, for a program that cannot import this."""
    found = sbn(hidden, batch, pixels)
    np.savez(path, images=found.images, **found.params)
