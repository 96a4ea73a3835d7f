"""The only code that uses `jax.extend`, or that depends on the versions of JAX and ArviZ."""

from __future__ import annotations

import os
import sysconfig
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import lax
from jax._src import config, core, source_info_util
from jax._src.interpreters.partial_eval import dce_jaxpr
from jax.extend import core as jex

Literal = jex.Literal
Tracer = jax.core.Tracer

# Primitives that only wrap another program: walking into the program is the same as running the wrapper.
_WRAPPERS = {
    "jit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
}

CUSTOM_CALLS = ("custom_jvp_call", "custom_vjp_call")  # wrappers with derivative rules of their own


def _tile(x: jax.Array, reps: tuple[int, ...]) -> jax.Array:
    shape = (1,) * (len(reps) - x.ndim) + x.shape
    between = [n for pair in zip(reps, shape, strict=True) for n in pair]
    wide = lax.broadcast_in_dim(lax.reshape(x, shape), between, range(1, 2 * len(shape), 2))
    return lax.reshape(wide, [r * n for r, n in zip(reps, shape, strict=True)])


# Primitives that can be expressed by a few others: the rules need to know only the others.
_SPELLED: dict[str, Callable[..., Any]] = {
    "stack": lambda *parts, axis: lax.concatenate([lax.expand_dims(part, (axis,)) for part in parts], axis),
    "unstack": lambda x, axis: [lax.index_in_dim(x, i, axis, keepdims=False) for i in range(x.shape[axis])],
    "tile": _tile,
}


def wrapped_program(eqn: Any, name: str) -> tuple[Any, list[Any]] | None:
    """Return the (jaxpr, consts) that an equation of a given name merely wraps, or None for an ordinary primitive."""
    spelled = _SPELLED.get(eqn.primitive.name)
    if spelled is not None:
        given = [jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in eqn.invars]
        program = jax.make_jaxpr(partial(spelled, **eqn.params))(*given)
        eqns = [inner.replace(source_info=eqn.source_info) for inner in program.jaxpr.eqns]  # the user's line
        return program.jaxpr.replace(eqns=eqns), list(program.consts)
    key = _WRAPPERS.get(name)
    if key is None:
        return None
    program = eqn.params[key]  # a Jaxpr or a ClosedJaxpr, depending on primitive and JAX version
    return getattr(program, "jaxpr", program), list(getattr(program, "consts", ()))


def inner_programs(eqn: Any) -> list[Any]:
    """List the jaxprs that an equation holds: the bodies of loops, the branches of conditions."""
    return list(jex.jaxprs_in_params(eqn.params))


def only_for(results: Sequence[int], closed: Any) -> tuple[Any, list[bool]]:
    """Reduce a closed jaxpr to some of its results; return the jaxpr, and which of the inputs it still takes."""
    keep = [j in results for j in range(len(closed.jaxpr.outvars))]
    jaxpr, used = dce_jaxpr(closed.jaxpr, keep)
    return jaxpr, list(used)


def literal(atom: Any) -> Any:
    """Return the number that a literal represents, with its own type."""
    return np.asarray(atom.val, atom.aval.dtype) if isinstance(atom.val, bool | int | float) else atom.val


def is_concrete(x: Any) -> bool:
    """Whether the numbers in `x` can be read now, outside any compiled program."""
    return not isinstance(x, Tracer)


def bind(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    """Run the primitive of one equation."""
    with eqn.ctx.manager:
        results = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(eqn.params))
    return list(results) if eqn.primitive.multiple_results else [results]


def coordination_client() -> Any:
    """Return the client of the key-value store that `jax.distributed.initialize` opened; None if it did not."""
    return import_module("jax._src.distributed").global_state.client


def lowered_text(lowered: Any) -> str | None:
    """Return all that the compiler will see of a lowered program; None if there is more than the text says.

    That is so for arrays that are handed to it behind the arguments, and for functions that it calls on the host,
    which the text knows by their number alone.
    """
    inner = getattr(lowered, "_lowering", None)
    if inner is None or getattr(inner, "const_args", True) or inner.compile_args.get("host_callbacks", True):
        return None
    if inner.compile_args.get("keepalive") or inner.compile_args.get("unordered_effects"):
        return None
    text = str(lowered.as_text())
    return None if "callback" in text else text


def surroundings() -> Any:
    """Return the settings of JAX that a traced program depends on."""
    return config.trace_context()


def is_outside() -> bool:
    """Whether no program is being traced now."""
    return bool(core.trace_state_clean())


_LIBRARIES = tuple(f"{place}{os.sep}" for place in (Path(__file__).resolve().parent, sysconfig.get_paths()["stdlib"]))


def source_line(eqn: Any, inside: str | None = None) -> str:
    """Return the line of code that an equation comes from, as "model.py:12": the user's line if there is one.

    Args:
        eqn: the equation.
        inside: the file of ours that calls the user's code; a line outside of that call is not returned.
    """
    try:
        frames = list(source_info_util.user_frames(eqn.source_info.traceback))
    except Exception:  # a report must not fail for lack of a line number
        return ""
    if inside is not None:
        ours = [i for i, f in enumerate(frames) if f.file_name.endswith(inside)]
        frames = frames[: ours[0]] if ours else frames
    found = [line for f in frames if (line := users_line(f.file_name, f.start_line))]
    if not found and frames and inside is None:
        return f"{Path(frames[0].file_name).name}:{frames[0].start_line}"
    return found[0] if found else ""


def users_line(file: str, number: int) -> str:
    """Return a line of code as "model.py:12", or "" if it belongs to a library."""
    return f"{Path(file).name}:{number}" if is_users(file) else ""


def is_users(file: str) -> bool:
    """Whether a file is the user's, and not one of legrad, of an installed package or of Python."""
    return not file.startswith(_LIBRARIES) and "site-packages" not in file


def scan_counts(params: dict[str, Any]) -> tuple[int, int]:
    """Return how many constants and states a scan has; JAX 0.12 has trees of its inputs in the place of numbers."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    constants, states, _ = params["ft_in"].unpack()
    return len(list(constants.vals)), len(list(states.vals))


def arviz() -> Any:
    """Return the ArviZ module, or raise an error that says how to install it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # version 0.23 announces version 1 once a day
            return import_module("arviz")
    except ImportError as error:
        raise ImportError("this needs ArviZ: pip install 'legrad[arviz]'") from error


def arviz_tree(groups: dict[str, dict[str, Any]], coords: Any, dims: Any) -> Any:
    """Convert groups of arrays for ArviZ: to InferenceData before ArviZ 1, to a DataTree since."""
    az = arviz()
    if int(az.__version__.split(".")[0]) < 1:
        return az.from_dict(**groups, coords=coords, dims=dims)
    return az.from_dict(groups, coords=coords, dims=dims)


def pareto_smoothed(log_weights: np.ndarray, tail: int) -> tuple[np.ndarray, float]:
    """Run PSIS of arviz-stats with the `tail` largest weights as the tail; return smoothed log-weights, and k-hat.

    arviz-stats computes the size of the tail itself, from the number of draws and their relative efficiency, rounded
    down: the efficiency is set so that it arrives at `tail`. It takes log-likelihoods, minus the log-weights.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        stats = import_module("arviz_stats.base").array_stats
        smoothed, k = stats.psislw(-log_weights, r_eff=9 * len(log_weights) / (tail + 0.25) ** 2)
    return np.asarray(smoothed), float(k)
