"""What the peers table takes from its neighbours: rows of the logistic regression, and the steps written by hand."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from sbn_data import binary_images

sys.path.append(str(Path(__file__).parents[1]))
single_site_models = importlib.import_module("single_site_models")
ones_and_sixes = single_site_models.ones_and_sixes  # the 12,660 rows of the paper's logistic regression


def sources(small: bool) -> dict[str, str]:
    """Where the digits come from, for the page."""
    found = not small and single_site_models.mnist_directory() is not None
    return {
        "belief networks": binary_images(1)[1],
        "logistic regression": "MNIST, the digits 1 and 6" if found else "synthetic digits",
    }


def by_hand(name: str) -> Callable[..., dict[str, jax.Array]]:
    """The hand-written LeGrad step of `single_site_models`, as (params, key, args) → gradient of the loss."""
    guided = single_site_models.GUIDED[name](small=True)  # its functions take their sizes from their arguments

    def gradient(params: Any, key: jax.Array, args: tuple[Any, ...]) -> dict[str, jax.Array]:
        return guided.hand(params, guided.draw(key, params, args), args)

    return gradient
