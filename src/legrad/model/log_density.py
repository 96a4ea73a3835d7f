"""A plain log-density instead of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class LogDensity:
    """A plain log-density instead of a model; see `log_density`."""

    def __init__(self, f: Callable[[dict[str, Any]], Any]) -> None:
        self.f = f

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raise a TypeError: a log-density is not a model that can be run."""
        raise TypeError(
            "a legrad.log_density is not a NumPyro model and cannot be run as one: pass it to legrad.fit or "
            "legrad.compare, with a guide that names its latents"
        )


def log_density(f: Callable[[dict[str, Any]], Any]) -> LogDensity:
    """Wrap a plain log-density for use where `fit` and `compare` take a model.

    Args:
        f: `f(latents: dict) -> scalar`, the unnormalized log-density of the latents that the guide names.
            It may also return an array of additive terms, which estimators use to find independence.

    Example:
        >>> target = legrad.log_density(lambda latents: -0.5 * ((latents["x"] - 2.0) ** 2).sum())
    """
    return LogDensity(f)
