"""The entrance to `fit`: takes keys, frames and data as users have them, and says what is wrong in their words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import wraps
from typing import Any, ParamSpec, cast

import jax
import jax.numpy as jnp
import numpy as np

from legrad.diagnostics.replay import user_model
from legrad.fitting.checkpoint import described
from legrad.fitting.lost_process import ends_together
from legrad.fitting.processes import require_alike
from legrad.fitting.result import FitResult
from legrad.fitting.telling import tell, telling
from legrad.marginal.marginalize import Marginal
from legrad.model.data_checks import check_data
from legrad.model.explained import NEEDS_NUMBERS, explained
from legrad.model.fixed_arguments import WithFixed, fix
from legrad.model.frames import Arguments, unframed
from legrad.model.keys import as_key
from legrad.model.log_density import LogDensity

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
        for name, program in (("model", model), ("guide", guide)):
            if not (callable(program) or (name == "guide" and program is None)):
                raise TypeError(
                    f"{name} is {_a(program)}, not a function: pass the function that samples, and its arguments as "
                    "args=(X, y)"
                )
        if not isinstance(args, tuple):  # `fit` says what to pass
            return run(model, guide, key=key, args=args, kwargs=kwargs, **settings)
        given = unframed(model, args, kwargs or {})
        if settings.get("data") is None and settings.get("mesh") is None:
            check_data(user_model(model), given.args, given.kwargs)
        together = settings.get("mesh") is not None
        of_all = ends_together(settings.get("checkpoint")) if together else nullcontext()
        shown = telling(settings.get("progress"))
        with explained(model, guide, given.args, given.kwargs, given.names), of_all, shown:
            tell("reading the model")
            if together:
                require_alike(described(key, given, settings))
            try:
                result = run(model, guide, key=key, args=given.args, kwargs=given.kwargs, **settings)
            except NEEDS_NUMBERS:
                if guide is not None or settings.get("data") is not None or isinstance(model, LogDensity | Marginal):
                    raise
                result = _with_numbers(run, model, given, key, settings)
        return replace(result, names=given.names) if given.names else result

    return cast(Callable[P, FitResult], enter)


def _a(thing: Any) -> str:
    return "None" if thing is None else f"a {type(thing).__name__}"


def _with_numbers(
    run: Callable[..., FitResult], model: Callable[..., Any], given: Arguments, key: Any, settings: Mapping[str, Any]
) -> FitResult:
    """Fit a model that reads numbers of its arguments (groups, sizes) while it is compiled, or indexes by latents.

    First with NumPy's arrays as JAX's, which a latent may index; then with all arrays as constants.
    """
    try:
        args, kwargs = jax.tree.map(
            lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, (given.args, given.kwargs)
        )
        return run(model, None, key=key, args=args, kwargs=kwargs, **settings)
    except NEEDS_NUMBERS:
        args, kwargs = fix((given.args, given.kwargs))
        return run(WithFixed(model), None, key=key, args=args, kwargs=kwargs, **settings)
