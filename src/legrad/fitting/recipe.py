"""How to make the guide of a fit without a guide again: what a file keeps of it, as it holds no code.

`legrad.load(path, model, args=...)` sums the same latents out of the model, and makes the same `Structured` guide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from legrad.guides.structured import Structured
from legrad.marginal.marginalize import Marginal
from legrad.model.problem import Problem


def recipe(problem: Problem) -> dict[str, Any] | None:
    """Return what makes the model and guide of a fit from the user's model; None if they are the user's own."""
    model, guide = problem.model, problem.guide
    marginal = isinstance(model, Marginal)
    kept: dict[str, Any] = {"summed": None, "guide": None}
    if isinstance(model, Marginal):
        sites = None if model.sites is None else list(model.sites)
        kept["summed"] = {"sites": sites, "limit": model.limit, "window": model.window}
    if isinstance(guide, Structured):
        kept["guide"] = guide.settings
    elif not (marginal and getattr(guide, "samples_nothing", False)):
        return None
    return kept


def made_again(kept: Mapping[str, Any], model: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the model and the guide that a recipe makes.

    Args:
        kept: a result of `recipe`.
        model: the user's model, or already the one without the latents that are summed out.
    """
    if kept["summed"] and not isinstance(model, Marginal):
        model = Marginal(model, **kept["summed"])
    return model, no_latents if kept["guide"] is None else Structured(model, **kept["guide"])


def no_latents(*args: Any, **kwargs: Any) -> None:
    """Sample nothing: the guide of a model without latents."""


no_latents.samples_nothing = True  # type: ignore[attr-defined]
