"""The estimators of the peers table. All are tried on every problem; one that cannot run says why by itself.

LeGrad is the paper's estimator here; `benchmarks/exact` measures exact terms. Ours come from `legrad`, REBAR and
RELAX from `relaxed.py`, NumPyro's three ELBOs from NumPyro. TraceEnum_ELBO sums over the discrete latents of the
guide, and needs funsor. Some problems have gradients written by hand.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import optax
from numpyro.infer import SVI, Trace_ELBO, TraceEnum_ELBO, TraceGraph_ELBO
from row import Peer

import legrad

try:
    import relaxed
except ImportError:
    relaxed = None

LEGRAD, REGRAD, DISARM, LOO = "LeGrad", "ReGrad", "DisARM", "leave-one-out, S = 2"
REBAR, RELAX = "REBAR", "RELAX"
HAND, HAND_DISARM, HAND_LOO = (f"{name} by hand" for name in (LEGRAD, DISARM, LOO))
MIXED = "LeGrad, continuous by ReGrad"
TRACE, GRAPH, ENUM = "NumPyro Trace_ELBO", "NumPyro TraceGraph_ELBO", "NumPyro TraceEnum_ELBO"
UNROLLED = "NumPyro TraceGraph_ELBO, unrolled"
CHOICES = {  # what estimator="auto" may choose
    LEGRAD: legrad.LocalExpectation(),
    REGRAD: legrad.Reparameterized(),
    DISARM: legrad.DisARM(),
    MIXED: legrad.LocalExpectation(continuous="reparam"),
    f"{LEGRAD}, 2 pivots": legrad.LocalExpectation(num_pivots=2),
}
SCORE = (LOO, GRAPH, UNROLLED)  # the peers that rest on the score function alone


@dataclass(frozen=True)
class Method:
    """An estimator on one problem.

    Attributes:
        name: of its row.
        model: the problem's, or another form of it.
        guide: the same.
        estimator: a NumPyro ELBO; None for a gradient written by hand.
        hand: that gradient of the loss, as (params, key, args) → gradient.
        numpyro: whether it is NumPyro's, which is then fitted by NumPyro's SVI.
        fitted: whether a fit is timed.
    """

    name: str
    model: Callable[..., Any]
    guide: Callable[..., Any]
    estimator: Any
    hand: Callable[..., dict[str, jax.Array]] | None = None
    numpyro: bool = False
    fitted: bool = True


def methods(peer: Peer) -> dict[str, Callable[[], Method]]:
    """What is tried on a problem, by name: a function that makes it, or raises where it cannot run."""

    def ours(name: str, make: Callable[[], Any]) -> Callable[[], Method]:
        return lambda: Method(name, peer.model, peer.guide, make())

    found = {
        LEGRAD: ours(LEGRAD, partial(legrad.LocalExpectation, exact_terms=False)),
        REGRAD: ours(REGRAD, legrad.Reparameterized),
        DISARM: lambda: _disarm(peer),
        LOO: ours(LOO, lambda: legrad.ScoreFunction(num_samples=2, baseline="leave_one_out")),
        TRACE: lambda: _trace(peer),
        GRAPH: lambda: Method(GRAPH, peer.model, peer.guide, TraceGraph_ELBO(), numpyro=True),
        ENUM: lambda: _enumerated(peer),
    }
    if len({kind == "Normal" for kind in peer.latents.values()}) > 1:
        found[MIXED] = ours(MIXED, lambda: legrad.LocalExpectation(continuous="reparam", exact_terms=False))
    if peer.pivots > 1:
        name = f"{LEGRAD}, {peer.pivots} pivots"
        found[name] = ours(name, lambda: legrad.LocalExpectation(num_pivots=peer.pivots, exact_terms=False))
    if peer.relaxed and relaxed is not None:
        found[REBAR] = ours(REBAR, lambda: _rebar(peer))
        found[RELAX] = ours(RELAX, lambda: _relax(peer))
    if peer.unrolled is not None:
        found[UNROLLED] = lambda: Method(UNROLLED, *peer.unrolled, TraceGraph_ELBO(), numpyro=True, fitted=False)
    for name, hand in peer.hand.items():
        found[f"{name} by hand"] = partial(
            Method, f"{name} by hand", peer.model, peer.guide, None, hand, fitted=False
        )
    return found


def sentence(error: BaseException) -> str:
    """The first sentence of what an exception says, or where it comes from if it says nothing."""
    text = " ".join(str(error).split())
    if not text:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__} in {frame.name} of {'/'.join(Path(frame.filename).parts[-2:])}"
    for end in (". ", "; ", ": use "):
        text = text.split(end)[0]
    return text if len(text) <= 200 else f"{text[:197]}..."


def _disarm(peer: Peer) -> Method:
    if not any(kind == "Bernoulli" for kind in peer.latents.values()):
        raise ValueError("there are no Bernoulli latents")
    return Method(DISARM, peer.model, peer.guide, legrad.DisARM(surrogates=False))


def _trace(peer: Peer) -> Method:
    """Raises with NumPyro's warning where latents are discrete: the gradient would lack them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*does not support models with discrete latent variables")
        SVI(peer.model, peer.guide, optax.adam(0.1), Trace_ELBO()).init(jax.random.key(0), *peer.args)
    return Method(TRACE, peer.model, peer.guide, Trace_ELBO(), numpyro=True)


def _enumerated(peer: Peer) -> Method:
    if all(kind == "Normal" for kind in peer.latents.values()):
        raise ValueError("there are no discrete latents to sum over")
    from numpyro.contrib.funsor import config_enumerate

    return Method(ENUM, peer.model, config_enumerate(peer.guide), TraceEnum_ELBO(), numpyro=True)


def _rebar(peer: Peer) -> Any:
    """Temperature and strength are tuned here: with those of the default it would look worse than it is."""
    return relaxed.tune(jax.random.key(2), peer.params, peer.model, peer.guide, *peer.args, steps=200)


def _relax(peer: Peer) -> Any:
    return relaxed.train(jax.random.key(2), peer.params, peer.model, peer.guide, *peer.args, steps=100)
