"""`f` with one element of `x` replaced, for all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from legrad.singlesite.auto import auto
from legrad.singlesite.brute import brute

METHODS = ("auto", "brute")
MEMORY = 1 << 29  # bytes of intermediate values held at once


def single_site(
    f: Callable[[Any], Any], x: Any, candidates: Any, method: str = "auto", *, memory: int = MEMORY
) -> Any:
    """The values f(x with one element set to one of its candidates), for every element and candidate.

    Args:
        f: a function of a pytree of arrays that returns a scalar or a pytree of scalars. A leaf that is an array
            counts as a list of additive terms and is summed.
        x: the pivot: a pytree of arrays, of integers or floats.
        candidates: the structure of `x`; each leaf has a leading axis of its own length K. Along an axis of length 1
            all elements have the same candidates.
        method: "auto" takes the fastest method there is; "brute" evaluates all of `f` each time.
        memory: a bound in bytes on intermediate values, met by running blocks in sequence.

    Returns:
        The structure of `x`, each leaf with the leading axis of its candidates. Where `f` returns a pytree, each leaf
        holds that pytree.

    The result can be differentiated with respect to what `f` closes over, but derivative rules of `jax.custom_jvp`
    and `jax.custom_vjp` inside `f` are not applied: `method="brute"` applies them.

    Example:
        >>> legrad.single_site(lambda x: (x**2).sum(), jnp.array([1.0, 2.0]), jnp.zeros((1, 2)))
        Array([[4., 1.]], dtype=float32)
    """
    _check(x, candidates, method)
    if method == "brute":
        return brute(f, x, candidates, memory=memory)
    here, changes = auto(f, x, candidates, memory=memory)
    is_result = _is_result(here)

    def add() -> Any:
        return jax.tree.map(lambda change: jax.tree.map(jnp.add, here, change), changes, is_leaf=is_result)

    # A pivot that f forbids, f(x) = -inf, says nothing about its neighbours: a sum with it would be NaN.
    finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(v)) for v in jax.tree.leaves(here)] or [jnp.array(True)]))
    return jax.lax.cond(finite, add, lambda: brute(f, x, candidates, memory=memory))


def single_site_differences(
    f: Callable[[Any], Any],
    x: Any,
    candidates: Any,
    method: str = "auto",
    *,
    memory: int = MEMORY,
    at_pivot: Any = None,
) -> Any:
    """As `single_site`, minus f(x), computed as a difference: accurate where f is a sum of many terms.

    The arguments are those of `single_site`, and `at_pivot`, the value f(x) where it is known already. Differences
    are taken term by term where `f` returns arrays of terms.
    """
    _check(x, candidates, method)
    if method == "auto":
        return auto(f, x, candidates, memory=memory)[1]
    return brute(f, x, candidates, memory=memory, pivot=f(x) if at_pivot is None else at_pivot)


def _is_result(here: Any) -> Callable[[Any], bool]:
    structure: Any = jax.tree.structure(here)
    return lambda tree: bool(structure == jax.tree.structure(tree))


def _check(x: Any, candidates: Any, method: str) -> None:
    if method not in METHODS:
        raise ValueError(f"method={method!r} is not known: choose one of {', '.join(METHODS)}")
    wanted, given = str(jax.tree.structure(x)), str(jax.tree.structure(candidates))
    if wanted != given:
        raise ValueError(f"candidates have the structure {given} and x has {wanted}: they must be the same")
    for (path, leaf), values in zip(jax.tree.leaves_with_path(x), jax.tree.leaves(candidates), strict=True):
        name, shape = "x" + jax.tree_util.keystr(path), jnp.shape(leaf)
        got = jnp.shape(values)
        if len(got) != 1 + len(shape) or any(g not in (1, n) for g, n in zip(got[1:], shape, strict=True)):
            raise ValueError(
                f"the candidates of {name} have shape {got}: expected {('K', *shape)}, an array of "
                f"{name}'s shape for each of K candidates; an axis may have length 1 instead"
            )
        if not np.can_cast(jnp.result_type(values), jnp.result_type(leaf), "same_kind"):
            raise ValueError(
                f"the candidates of {name} are {jnp.result_type(values)} and {name} is {jnp.result_type(leaf)}: "
                "give both the same type"
            )
