"""Errors that JAX and NumPyro raise inside a model or guide, said in the words of the person who wrote it.

Each message names the line of the model, the cause, and the next step; the original error is its `__cause__`.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpyro.distributions as dist
from numpyro.infer.autoguide import AutoContinuous, AutoDelta, AutoNormal

from legrad._compat import is_users
from legrad.model.data_checks import describe_missing, describe_text, discrete_latent
from legrad.model.frames import Names

_CONCRETE = (jax.errors.ConcretizationTypeError, jax.errors.TracerIntegerConversionError)
_TRACED = (*_CONCRETE, jax.errors.TracerArrayConversionError)
NEEDS_NUMBERS = (*_TRACED, jax.errors.NonConcreteBooleanIndexError)  # what a model raises that reads its arguments
_PARAMETER = re.compile(r"(\w+) distribution got invalid (\w+) parameter")
_DISCRETE = re.compile(  # what NumPyro says depends on the distribution, and on whether funsor is installed
    r"Continuous inference cannot handle discrete|only work for discrete sites|models with discrete latent variables"
)
_SHAPES = re.compile(r"[Ii]ncompatible shapes|dot_general requires|Cannot broadcast|must be broadcast")
_EMPTY = "size of plate should be positive"  # an assertion of NumPyro's
_NO_ARRAY = re.compile(r"not a valid JAX array type|as a JAX value|as an abstract array")
_NOT_FINITE = re.compile(r"not finite|\bnan\b|NaN or infinite")
_REMEDY = "drop or impute these rows, or replace the values and mask their terms with numpyro.handlers.mask"


@contextmanager
def explained(
    model: Callable[..., Any],
    guide: Callable[..., Any] | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    names: Sequence[Names] = (),
) -> Iterator[None]:
    """Translate errors from running a model or guide into messages that say what to change."""
    try:
        yield
    except _TRACED as error:
        raise TypeError(_traced(error)) from error
    except jax.errors.NonConcreteBooleanIndexError as error:
        raise TypeError(
            f"{_line(error)} indexes with a condition on a latent, so the size of the result depends on its value: "
            "keep all elements and use jnp.where(condition, a, b)"
        ) from error
    except (ValueError, TypeError, RuntimeError, ImportError, AssertionError) as error:
        message = _translated(error, model, guide, args, kwargs, names)
        if message is None:
            raise
        raise ValueError(message) from error


def _traced(error: Exception) -> str:
    if isinstance(error, jax.errors.TracerArrayConversionError):
        return (
            f"{_line(error)} passes a latent, or what is computed from it, to NumPy, which needs its numbers: use "
            "jax.numpy there (import jax.numpy as jnp), and jnp.asarray(...) for the data"
        )
    if isinstance(error, jax.errors.TracerBoolConversionError):
        return (
            f"{_line(error)} decides in Python by the value of a latent, but a model is compiled for all values of "
            "its latents at once: use jnp.where(condition, a, b) to choose between numbers, or jax.lax.cond to "
            "choose between computations"
        )
    return (
        f"{_line(error)} needs the value of a latent, or of data, as a plain Python number, but a model is compiled "
        "for all values at once: index arrays with the latent itself (table[z]), and take sizes from shapes"
    )


def _translated(
    error: Exception,
    model: Callable[..., Any],
    guide: Callable[..., Any] | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    names: Sequence[Names],
) -> str | None:
    text = str(error)
    about_shapes = _SHAPES.search(text) and _from_model(error)
    if _DISCRETE.search(text) or (about_shapes and _cannot_hold(guide, model, args, kwargs)):
        name = discrete_latent(model, args, kwargs) or "of the model"
        return (
            f"{type(guide).__name__} cannot hold the discrete latent '{name}': use "
            "legrad.MeanField(model), which has a factor for every latent, discrete ones included, or leave the "
            "guide out"
        )
    if about_shapes:
        return (
            f"{_line(error)} brings together arrays whose shapes do not fit ({text.strip().rstrip('.')}): compare "
            "the sizes of plates, data and latents; members of a plate at dim=-2 need an axis: x[:, None]"
        )
    if _EMPTY in text and _from_model(error):
        return f"{_line(error)} makes a plate without members: pass data with at least one row"
    if isinstance(error, TypeError) and _NO_ARRAY.search(text):
        return describe_text(model, args, kwargs) or None
    found = _PARAMETER.search(text)
    if not found and not _NOT_FINITE.search(text):
        return None
    missing = describe_missing(model, args, kwargs, names)
    if missing and "the data of site" not in text:
        cause = f"the {found[2]} of {found[1]} at {_line(error)} is no number" if found else text.split(":")[0]
        return f"{missing}, and so {cause}. Remedy: {_REMEDY}"
    if not found:
        return None
    family, parameter = found[1], found[2]
    if parameter == "logits":
        return (
            f"the logits of {family} at {_line(error)} are not finite: give a value that is to be impossible a large "
            "negative logit such as -1e9 in place of -inf, and start parameters at finite logits"
        )
    allowed = getattr(getattr(dist, family, None), "arg_constraints", {}).get(parameter)
    return (
        f"the {parameter} of {family} at {_line(error)} is outside what it may be ({allowed}): check what it is "
        "computed from, and give a numpyro.param the constraint it needs, such as "
        "constraint=dist.constraints.positive"
    )


_OURS = str(Path(__file__).resolve().parents[1])


def _from_model(error: BaseException) -> bool:
    """Whether an error comes from code of the user that legrad runs, and not from legrad or its call."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    ours = [i for i, name in enumerate(files) if name.startswith(_OURS) and name != __file__]
    return any(is_users(name) for name in files[ours[0] :]) if ours else False


def _cannot_hold(
    guide: Callable[..., Any] | None, model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> bool:
    """Whether NumPyro's guide is continuous and the model is not: with funsor it enumerates, and shapes collide."""
    return isinstance(guide, AutoContinuous | AutoNormal | AutoDelta) and bool(discrete_latent(model, args, kwargs))


def _line(error: BaseException) -> str:
    """Return the last line of the user's own code that an error passed: "model.py, line 12 (`if z > 0:`)"."""
    frames = traceback.extract_tb(error.__traceback__)
    mine = [frame for frame in frames if is_users(frame.filename)]
    if not mine:
        return "a line of the model or guide"
    frame = mine[-1]
    code = f" (`{frame.line}`)" if frame.line else ""
    return f"{Path(frame.filename).name}, line {frame.lineno}{code},"
