"""The entrance to `fit`: takes keys, frames and data as users have them, and says what is wrong in their words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import wraps
from typing import Any, ParamSpec, cast

from legrad.diagnostics.replay import user_model
from legrad.fitting.checkpoint import described
from legrad.fitting.lost_process import ends_together
from legrad.fitting.processes import require_alike
from legrad.fitting.result import FitResult
from legrad.model.data_checks import check_data
from legrad.model.explained import explained
from legrad.model.frames import unframed
from legrad.model.keys import as_key

P = ParamSpec("P")


def entrance(fit: Callable[P, FitResult]) -> Callable[P, FitResult]:
    """Wrap `fit`: keys may be whole numbers and arguments may be frames; data are checked, errors are explained."""

    @wraps(fit)
    def enter(
        model: Callable[..., Any],
        guide: Callable[..., Any] | None = None,
        *,
        key: Any,
        args: Any = (),
        kwargs: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> FitResult:
        run = cast(Callable[..., FitResult], fit)
        key = as_key(key)
        if not isinstance(args, tuple):  # `fit` says what to pass
            return run(model, guide, key=key, args=args, kwargs=kwargs, **settings)
        given = unframed(model, args, kwargs or {})
        if settings.get("data") is None and settings.get("mesh") is None:
            check_data(user_model(model), given.args, given.kwargs)
        together = settings.get("mesh") is not None
        of_all = ends_together(settings.get("checkpoint")) if together else nullcontext()
        with explained(model, guide, given.args, given.kwargs, given.names), of_all:
            if together:
                require_alike(described(key, given, settings))
            result = run(model, guide, key=key, args=given.args, kwargs=given.kwargs, **settings)
        return replace(result, names=given.names) if given.names else result

    return cast(Callable[P, FitResult], enter)
