"""What a row of the trust table is made of: a model, a guide, and the latents whose posterior is compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np


@dataclass(frozen=True)
class TrustProblem:
    """A posterior that is known, and a guide to fit to it.

    Attributes:
        name: of the row.
        model: a NumPyro model of `args`.
        guide: a NumPyro guide of `args`.
        args: the data.
        latents: the sites to compare. The number is that of the values of a categorical site, whose indicators are
            compared; 0 says that the value itself is, which for a Bernoulli site is the indicator.
        expected: "right" if the guide can hold the posterior to 0.1 of its standard deviations, else "flagged".
        note: why.
        estimator: for the fit; None for the default.
        restarts: values of the latents to start other fits from, where one fit cannot see what is wrong.
    """

    name: str
    model: Callable[..., Any]
    guide: Callable[..., Any]
    args: tuple[Any, ...]
    latents: Mapping[str, int]
    expected: Literal["right", "flagged"]
    note: str
    estimator: Any = None
    restarts: tuple[Mapping[str, Any], ...] = field(default=())

    def features(self, draws: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """What is compared, of draws with a leading axis: an array (draws, elements) for each latent."""
        found = {}
        for name, values in self.latents.items():
            x = np.asarray(draws[name])
            x = x[..., None] == np.arange(values) if values else x
            found[name] = x.reshape(len(x), -1).astype(np.float64)
        return found
