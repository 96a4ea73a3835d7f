"""A draw of the prior for any continuous latent, also one that nothing can be drawn from.

A flat prior has no draws, and some distributions lack what their draws need, such as the quantiles of a truncated
Student-t. Such a latent is placed at random, within 2 of zero in unconstrained space, as Stan starts its chains.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpyro.distributions as dist
from numpyro.infer import init_to_sample, init_to_uniform
from numpyro.primitives import Messenger

from legrad.distributions.unwrap import unwrap

_SOMETIMES_WITHOUT = (
    dist.ImproperUniform,
    dist.LeftTruncatedDistribution,
    dist.RightTruncatedDistribution,
    dist.TwoSidedTruncatedDistribution,
)


def prior_draw(site: Mapping[str, Any]) -> jax.Array | None:
    """Draw a continuous latent from its prior, or place it; None for other sites. A `substitute_fn` of NumPyro's."""
    try:
        return init_to_sample(site)
    except ImportError:
        return init_to_uniform(site)


class Placed(Messenger):
    """A messenger that gives a value to latents that nothing can be drawn from; all others are drawn as usual."""

    def __init__(self) -> None:
        super().__init__(None)

    def process_message(self, msg: dict[str, Any]) -> None:
        """Place a latent without a value, if its distribution has no draws."""
        if msg["type"] != "sample" or msg["value"] is not None or msg["is_observed"]:
            return
        if not isinstance(unwrap(msg["fn"]).bare, _SOMETIMES_WITHOUT):
            return
        try:
            msg["fn"].sample(msg["kwargs"]["rng_key"])
        except (NotImplementedError, ImportError):
            msg["value"] = init_to_uniform(msg)
