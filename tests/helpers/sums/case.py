"""A generated model, with the values of its continuous latents and the truth about its sum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
from numpyro.infer.util import log_density

from sums.oracle import Enumeration, Values


@dataclass(frozen=True)
class Case:
    """A model with discrete latents, its arguments, and values x of its continuous latents.

    `density(x)` is the expected log-density, by hand; None takes the enumeration, which is right where no scale
    surrounds a latent. `supports` lists values for the enumeration, `fixed` the subsamples of plates. The sum must
    agree to `tolerance`.
    """

    model: Callable[..., Any]
    args: tuple
    x: Values
    density: Callable[[Values], jax.Array] | None = None
    supports: dict[str, Any] = field(default_factory=dict)
    fixed: Values = field(default_factory=dict)
    tolerance: float = 1e-10
    name: str = ""

    def enumeration(self, **left: Any) -> Enumeration:
        """Return the enumeration of the discrete latents that are not in `left`."""
        return Enumeration(self.model, self.args, self.x, supports=self.supports, fixed=self.fixed | left)

    def expected(self) -> tuple[jax.Array, Values]:
        """Return the log-density without the discrete latents, and its gradient."""
        if self.density is not None:
            return jax.jit(jax.value_and_grad(self.density))(self.x)
        return self.enumeration().value_and_gradient(self.x)

    def of(self, model: Callable[..., Any], **left: Any) -> tuple[jax.Array, Values]:
        """Return the log-density of a model and its gradient at x, as a sampler asks for them: arguments known."""

        def value(x: Values) -> jax.Array:
            return log_density(model, self.args, {}, x | self.fixed | left)[0]

        return jax.jit(jax.value_and_grad(value))(self.x)
