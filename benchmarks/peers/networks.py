"""The sigmoid belief networks of the peers table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import by_hand
import data
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from estimators import DISARM, LEGRAD, LOO
from row import Peer
from sbn_data import PIXELS, binary_images, sbn
from warm import trained


def _one_layer(start: dict[str, Any]) -> tuple[Callable, Callable]:
    """A layer of binary latents with prior logits of their own, and a linear inference network."""

    def model(y: jax.Array) -> None:
        prior, W, b = (numpyro.param(name, start[name]) for name in ("prior", "W", "b"))
        with numpyro.plate("images", len(y)):
            h = numpyro.sample("h", dist.Bernoulli(logits=prior).to_event(1))
            numpyro.sample("y", dist.Bernoulli(logits=h @ W + b).to_event(1), obs=y)

    def guide(y: jax.Array) -> None:
        V, c = (numpyro.param(name, start[name]) for name in ("V", "c"))
        with numpyro.plate("images", len(y)):
            numpyro.sample("h", dist.Bernoulli(logits=y @ V + c).to_event(1))

    return model, guide


def _sizes(small: bool) -> dict[str, int]:
    return {"hidden": 6, "batch": 4, "pixels": 20} if small else {"hidden": 200, "batch": 100, "pixels": PIXELS}


def _rows(small: bool) -> np.ndarray:
    """Images to train on; the first of them are those of the problem."""
    return binary_images(60 if small else 10_000, _sizes(small)["pixels"])[0]


def _sbn(name: str, how: str, start: dict[str, Any], small: bool) -> Peer:
    hidden, batch, pixels = _sizes(small).values()
    y, (model, guide) = jnp.asarray(_rows(small)[:batch], int), _one_layer(start)
    return Peer(
        name,
        f"SBN {hidden}×{pixels}, batch {batch}, {how}",
        model,
        guide,
        (y,),
        start,
        {"h": "Bernoulli"},
        rate=0.003,
        steps=50,
        relaxed=True,
        hand={LEGRAD: data.by_hand("sbn"), DISARM: by_hand.disarm, LOO: by_hand.leave_one_out},
    )


def _random(small: bool) -> dict[str, Any]:
    """The numbers that the torch side has too."""
    params = {name[0]: jnp.asarray(value, float) for name, value in sbn(**_sizes(small)).params.items()}
    # Not quite zero, where the derivative of NumPyro 0.22's log-density is wrong: a blank image has the logits c.
    return params | {"c": params["c"] + 1e-3, "prior": jnp.full(len(params["c"]), 1e-3)}


def sbn_random(small: bool = False) -> Peer:
    """At random parameters."""
    return _sbn("sbn_random", "random parameters", _random(small), small)


def sbn_trained(small: bool = False) -> Peer:
    """After some steps of training on minibatches."""
    start, steps = _random(small), 20 if small else 400
    found = trained(*_one_layer(start), start, _rows(small), _sizes(small)["batch"], steps, 0.005)
    return _sbn("sbn_trained", "part-trained", jax.tree.map(jnp.asarray, found), small)


def _two_layers(start: dict[str, Any]) -> tuple[Callable, Callable]:
    def model(y: jax.Array) -> None:
        prior, W2, b2, W1, b1 = (numpyro.param(name, start[name]) for name in ("prior", "W2", "b2", "W1", "b1"))
        with numpyro.plate("images", len(y)):
            h2 = numpyro.sample("h2", dist.Bernoulli(logits=prior).to_event(1))
            h1 = numpyro.sample("h1", dist.Bernoulli(logits=h2 @ W2 + b2).to_event(1))
            numpyro.sample("y", dist.Bernoulli(logits=h1 @ W1 + b1).to_event(1), obs=y)

    def guide(y: jax.Array) -> None:
        V1, c1, V2, c2 = (numpyro.param(name, start[name]) for name in ("V1", "c1", "V2", "c2"))
        with numpyro.plate("images", len(y)):
            h1 = numpyro.sample("h1", dist.Bernoulli(logits=y @ V1 + c1).to_event(1))
            numpyro.sample("h2", dist.Bernoulli(logits=h1 @ V2 + c2).to_event(1))

    return model, guide


def sbn_two_layers(small: bool = False) -> Peer:
    """Two layers, part-trained: the lower one has children in the guide."""
    hidden, batch, D = _sizes(small).values()
    rows, rng = _rows(small), np.random.default_rng(3)
    sizes = {"prior": (hidden,), "W2": (hidden, hidden), "b2": (hidden,), "W1": (hidden, D), "b1": (D,)}
    sizes |= {"V1": (D, hidden), "c1": (hidden,), "V2": (hidden, hidden), "c2": (hidden,)}
    start = {name: jnp.asarray(rng.normal(size=shape) * 0.1, float) for name, shape in sizes.items()}
    if not small:
        start = jax.tree.map(jnp.asarray, trained(*_two_layers(start), start, rows, batch, 150, 0.005))
    model, guide = _two_layers(start)
    y = jnp.asarray(rows[:batch], int)
    return Peer(
        "sbn_two_layers",
        f"SBN {hidden}-{hidden}-{D}, batch {batch}, {'random parameters' if small else 'part-trained'}",
        model,
        guide,
        (y,),
        start,
        {"h1": "Bernoulli", "h2": "Bernoulli"},
        rate=0.003,
        steps=50,
        relaxed=True,
        pivots=2,
    )
