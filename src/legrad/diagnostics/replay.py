"""Forward runs of a model or a guide with some of its values given, for predictions and simulations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import jax
import jax.numpy as jnp
from numpyro import handlers
from numpyro.distributions.distribution import Unit
from numpyro.primitives import Messenger

from legrad.distributions.unwrap import unwrap
from legrad.marginal.marginalize import Marginal
from legrad.model.prior_draw import Placed
from legrad.model.threads import one_at_a_time

Trace = dict[str, Any]


class Whole(Messenger):
    """A messenger that gives every plate its full size: all members in order, instead of a subsample.

    Attributes:
        enlarged: the names of the plates that subsample.
    """

    def __init__(self) -> None:
        super().__init__(None)
        self.enlarged: set[str] = set()

    def process_message(self, msg: dict[str, Any]) -> None:
        """Replace the indices of a plate by all indices."""
        if msg["type"] != "plate":
            return
        size, subsample_size = msg["args"]
        if subsample_size not in (None, size):
            self.enlarged.add(msg["name"])
            msg["args"], msg["value"] = (size, size), jnp.arange(size)


def replay(
    program: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    key: jax.Array,
    given: Mapping[str, Any],
    *layers: Messenger,
) -> Trace:
    """Return the trace of a model or guide, with parameters and latents as given.

    Args:
        program: the model or guide.
        args: the positional arguments of the program.
        kwargs: the keyword arguments of the program.
        key: the random key of all draws.
        given: values of parameters and latents by name; names that the program does not have are ignored.
        layers: further handlers, the innermost last.
    """
    with one_at_a_time, ExitStack() as stack:
        trace = stack.enter_context(handlers.trace())
        for layer in (Placed(), handlers.seed(rng_seed=key), handlers.substitute(data=dict(given)), *layers):
            stack.enter_context(layer)
        program(*args, **kwargs)
    return trace


def latent_sites(trace: Trace) -> Trace:
    """Return the sample sites without data, except auxiliary sites."""
    return {
        name: site
        for name, site in trace.items()
        if site["type"] == "sample" and not site["is_observed"] and not site["infer"].get("is_auxiliary")
    }


def observed_sites(trace: Trace) -> Trace:
    """Return the sample sites with data; a `numpyro.factor` has no data."""
    return {
        name: site
        for name, site in trace.items()
        if site["type"] == "sample" and site["is_observed"] and not is_factor(site)
    }


def is_factor(site: Any) -> bool:
    """Whether a sample site is a `numpyro.factor`."""
    return isinstance(unwrap(site["fn"]).bare, Unit)


def full_shape(site: Any) -> tuple[int, ...]:
    """Return the shape of a draw of a sample site."""
    return site["fn"].shape(site["kwargs"].get("sample_shape", ()))


def axis_names(site: Any) -> list[str] | None:
    """Return names of a site's axes: those of its plates, and those that `infer={"event_dims": ...}` gives to events.

    ArviZ infers the same names, but takes plates to be the leading axes, which fails for plates with a gap between
    them, and inside `scan`. Here plates are placed by position.
    """
    plates = sorted(site["cond_indep_stack"], key=lambda frame: frame.dim)
    if site["type"] == "sample":
        shape, event_dim = full_shape(site), site["fn"].event_dim
    else:
        shape = jnp.shape(site["value"])
        event_dim = len(shape) + (plates[0].dim if plates else 0)  # assume that plates lead: nothing else is known
    events = list(site.get("infer", {}).get("event_dims", ()))
    axes = [f"{site['name']}_dim_{i}" for i in range(len(shape))]
    for frame in plates:
        axis = len(shape) - event_dim + frame.dim
        if event_dim < 0 or axis < 0 or shape[axis] != frame.size:
            return None
        axes[axis] = frame.name
    axes[len(shape) - event_dim :] = events + axes[len(shape) - event_dim + len(events) :]
    return axes if plates or events else None


def user_model(model: Callable[..., Any]) -> Callable[..., Any]:
    """Return the model as its user wrote it, before discrete latents were summed out."""
    return model.model if isinstance(model, Marginal) else model
