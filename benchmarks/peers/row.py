"""What a problem of the peers table is made of: a model and guide on their data, and where gradients are measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
from numpyro import handlers


@dataclass(frozen=True)
class Peer:
    """A problem that every library can be given.

    Models have no scales, so that NumPyro's TraceGraph_ELBO is unbiased. The values that model and guide declare for
    their parameters are where fits start.

    Attributes:
        name: of the problem.
        title: for the page.
        model: a NumPyro model of `args`.
        guide: a NumPyro guide of `args`.
        args: the data.
        params: where variance and time of gradients are measured, the same for all estimators.
        latents: each latent of the guide, and the kind of its factors.
        rate: of Adam, in the fits.
        steps: after so many steps LeGrad's ELBO is the target of the fits.
        focus: by label, parameters whose variance is of interest alone.
        relaxed: whether REBAR and RELAX are tried: the model takes values between 0 and 1 for its binary latents.
        pivots: a second LeGrad with so many pivots, where the guide has layers.
        unrolled: model and guide in another form with the same parameters, one site for each step of time, in which
            NumPyro sees more of what depends on what.
        hand: by the name of an estimator, its gradient of the loss written by hand: (params, key, args) → gradient.
    """

    name: str
    title: str
    model: Callable[..., Any]
    guide: Callable[..., Any]
    args: tuple[Any, ...]
    params: Mapping[str, Any]
    latents: Mapping[str, str]
    rate: float = 0.05
    steps: int = 200
    focus: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    relaxed: bool = False
    pivots: int = 1
    unrolled: tuple[Callable[..., Any], Callable[..., Any]] | None = None
    hand: Mapping[str, Callable[..., dict[str, jax.Array]]] = field(default_factory=dict)

    def guide_parameters(self) -> list[str]:
        """The names of the parameters of the guide: those whose gradient needs an estimator."""
        with handlers.trace() as trace, handlers.seed(rng_seed=0):
            self.guide(*self.args)
        return [name for name, site in trace.items() if site["type"] == "param"]
