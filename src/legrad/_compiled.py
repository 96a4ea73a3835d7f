"""Compiling: what the package compiles, and how programs that were compiled once serve later fits as well.

Every fit traces its own programs, since models, guides and the data that a plan reads may have changed. Where the
traced program is that of an earlier fit to the last constant, so is the executable: XLA does not see it again.
Nothing is remembered of models, guides or data.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import numpy as np

from legrad import _compat

_QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
_PLAIN_LOOPS = {"xla_cpu_experimental_ynn_fusion_type": ""}
_SMALL = 100_000  # numbers among the arguments: for a larger program run time matters more than compile time
_MOST = 256  # executables that are kept
_LONGEST = 1 << 26  # characters of a program; larger ones hold large constants

_KEPT: OrderedDict[Any, Any] = OrderedDict()
_LOCK = threading.Lock()


@cache
def _options() -> dict[str, Any]:
    """Return compiler options for CPU, if this version of XLA knows them.

    With JAX 0.10 a sum over the first axis of an (8, 10⁶) array takes forty times as long in YNNPACK as in a plain
    loop, and XLA hands sums and what surrounds them to YNNPACK.
    """
    if jax.default_backend() != "cpu":
        return {}
    try:
        jax.jit(lambda x: x, compiler_options=_PLAIN_LOOPS).lower(0.0).compile()
    except Exception:  # XLA's error type for an unknown option differs between versions
        return {}
    return _PLAIN_LOOPS


class _Program:
    """A function that is compiled for each kind of arguments, unless the same program was compiled before."""

    def __init__(self, f: Callable[..., Any], quick: bool) -> None:
        self._f, self._quick = f, quick
        self._found: dict[Any, Callable[..., Any]] = {}
        self._jitted: dict[bool, Any] = {}

    def __call__(self, *args: Any) -> Any:
        leaves, tree = jax.tree.flatten(args)
        if any(isinstance(x, _compat.Tracer) for x in leaves) or not _compat.is_outside():
            return jax.jit(self._f)(*args)  # a part of another program, which has its own options
        kind = _kind(leaves)
        if kind is None:
            return self.jitted(leaves)(*args)
        if (tree, kind) not in self._found:
            self._found[tree, kind] = self._compiled(kind, leaves, args)
        return self._found[tree, kind](*args)

    def lower(self, *args: Any) -> Any:
        """Return the lowered program, as `jax.jit` has it."""
        return self.jitted(jax.tree.leaves(args)).lower(*args)

    def jitted(self, leaves: list[Any]) -> Any:
        """Return the function under `jax.jit`, with the compiler options for arguments of this size."""
        quick = self._quick and jax.default_backend() == "cpu" and sum(np.size(x) for x in leaves) < _SMALL
        if quick not in self._jitted:
            options = {**(_QUICK if quick else {}), **_options()} or None
            self._jitted[quick] = jax.jit(self._f, compiler_options=options, keep_unused=True)
        return self._jitted[quick]

    def _compiled(self, kind: Any, leaves: list[Any], args: tuple[Any, ...]) -> Callable[..., Any]:
        jitted = self.jitted(leaves)
        traced = jitted.trace(*args)
        lowered = traced.lower()
        text = _compat.lowered_text(lowered)
        if text is None or len(text) > _LONGEST:
            return jitted
        results = tuple((x.shape, str(x.dtype), x.weak_type) for x in traced.jaxpr.out_avals)
        digest = hashlib.sha256(text.encode()).digest()
        name = digest, kind, results, jitted is self._jitted.get(True), lowered.in_tree, lowered.out_tree
        try:
            hash(name)
        except TypeError:  # a tree with something in it that cannot be compared
            return jitted
        with _LOCK:
            if name in _KEPT:
                _KEPT.move_to_end(name)
                return _KEPT[name]
        compiled = lowered.compile()
        with _LOCK:
            _KEPT[name] = compiled
            while len(_KEPT) > _MOST:
                _KEPT.popitem(last=False)
        return compiled


def _kind(leaves: list[Any]) -> Any:
    """Return what a compiled program depends on of its arguments; None for those that `jax.jit` itself should see."""
    found: list[Any] = [_compat.surroundings()]
    for x in leaves:
        if isinstance(x, jax.Array):
            if len(x.devices()) > 1:
                return None
            found.append((x.shape, str(x.dtype), x.aval.weak_type, *x.devices(), getattr(x, "committed", False)))
        elif isinstance(x, np.ndarray | np.generic):
            found.append((np.shape(x), str(x.dtype)))
        elif type(x) in (bool, int, float):
            found.append(type(x))
        else:
            return None
    return tuple(found)


def jit(f: Callable[..., Any], quick: bool = False) -> Any:
    """Apply `jax.jit` with the compiler options that suit the programs of this package.

    Args:
        f: the function.
        quick: whether to compile for compile time where arguments are few, not for run time.
    """
    return _Program(f, quick)


def jit_once(f: Callable[..., Any]) -> Any:
    """Apply `jit` to a program that runs once: a small program is compiled for compile time, not for run time."""
    return jit(f, quick=True)


def outcome(f: Callable[..., Any], *args: Any) -> Any:
    """Return f(*args) from one compiled program, and from none where all that is returned is known without computing.

    A function that runs operation by operation compiles each of them; a distribution that a model makes only for its
    support computes parameters that nobody asks for.
    """
    leaves, _ = jax.tree.flatten(args)
    closed, shapes = jax.make_jaxpr(f, return_shape=True)(*args)
    parts, structure = jax.tree.flatten(shapes)
    jaxpr, takes = _compat.only_for(range(len(parts)), closed)
    given = [jax.device_put(x) for x, taken in zip(leaves, takes, strict=True) if taken]
    if jaxpr.eqns:
        results = jit_once(lambda *given: jax.core.eval_jaxpr(jaxpr, closed.consts, *given))(*given)
    else:
        known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*closed.consts, *given], strict=True))
        results = [
            jax.device_put(_compat.literal(x)) if isinstance(x, _compat.Literal) else known[x] for x in jaxpr.outvars
        ]
    return jax.tree.unflatten(structure, results)
