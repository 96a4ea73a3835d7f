"""Optional methods of a guide, beyond being a NumPyro program. `MeanField` has the first two, `Structured` all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax


@runtime_checkable
class WholePlates(Protocol):
    """A guide that can be run with every plate at its full size, whatever the fit subsamples."""

    def whole(self, *args: Any, **kwargs: Any) -> Any:
        """Sample every latent, as a call of the guide does, for all members of plates."""
        ...


@runtime_checkable
class OtherStarts(Protocol):
    """A guide that knows good places for the other starts of a fit with `restarts`."""

    def other_start(self, key: jax.Array, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, jax.Array]:
        """Return initial values of some parameters, constrained, by name."""
        ...


@runtime_checkable
class HeavyTails(Protocol):
    """A guide that can draw with heavier tails, so that the weights of its draws have a bounded spread."""

    def proposal(self, moments: Any = None) -> Callable[..., Any]:
        """Return the guide with heavier tails, around the posterior's moments if they are known."""
        ...
