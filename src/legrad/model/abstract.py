"""The sites of a model without computing anything: shapes and types alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpyro
from numpyro import handlers

from legrad.model.prior_draw import prior_draw
from legrad.model.threads import one_at_a_time


@one_at_a_time
def abstract_trace(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return a trace of a model at a draw of its prior, in which values of latents have a shape and a type alone."""
    found: dict[str, dict[str, Any]] = {}

    def run() -> None:
        seeded = handlers.substitute(handlers.seed(model, 0), substitute_fn=prior_draw)
        with handlers.block(), numpyro.validation_enabled(False):  # a draw of the prior may lead anywhere
            found.update(handlers.trace(seeded).get_trace(*args, **kwargs))

    jax.eval_shape(run)
    return found
