"""Optional methods of a guide, beyond being a NumPyro program. `MeanField` has both."""

from __future__ import annotations

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
