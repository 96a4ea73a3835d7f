"""`f` with one element of `x` replaced, for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from legrad.singlesite.brute import brute
from legrad.singlesite.execute import auto, auto_totals, auto_work

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
    f, x = _looked_up(f), _arrays(x)
    _check(x, candidates, method)
    if method == "brute":
        return brute(f, x, candidates, memory=memory)
    return auto(f, x, candidates, memory=memory, differences=False)


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
    f, x = _looked_up(f), _arrays(x)
    _check(x, candidates, method)
    if method == "auto":
        return auto(f, x, candidates, memory=memory, differences=True)
    return brute(f, x, candidates, memory=memory, pivot=f(x) if at_pivot is None else at_pivot)


def single_site_totals(
    f: Callable[[Any], tuple[Any, ...]], x: Any, candidates: Any, method: str = "auto", *, at_pivot: Any = None
) -> Any:
    """As `single_site_differences`, each of the pytrees that `f` returns as a tuple added up to one number."""
    _check(x, candidates, method)
    if method == "auto":
        return auto_totals(f, x, candidates, memory=MEMORY)
    pivot = f(x) if at_pivot is None else at_pivot
    found = brute(f, x, candidates, memory=MEMORY, pivot=pivot)
    whole: Any = jax.tree.structure(pivot)

    def add_up(parts: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(sum(jax.tree.leaves(part), start=jnp.zeros(())) for part in parts)

    return jax.tree.map(add_up, found, is_leaf=lambda tree: bool(jax.tree.structure(tree) == whole))


class Work(NamedTuple):
    """What the changes of a leaf cost, and what one evaluation of f costs, in numbers computed."""

    changes: int
    evaluation: int


def single_site_work(f: Callable[[Any], Any], x: Mapping[str, Any], count: int) -> dict[str, Work]:
    """The estimated cost of all changes of each leaf with so many candidates. Nothing is computed."""
    found: dict[str, Work] = {}

    def trace(x: dict[str, Any]) -> None:
        found.update({name: Work(*work) for name, work in auto_work(f, x, count, MEMORY).items()})

    jax.eval_shape(trace, dict(x))
    return found


def _arrays(x: Any) -> Any:
    """JAX arrays in the place of NumPy's, which cannot be looked up in with an element that moves."""
    return jax.tree.map(jnp.asarray, x)


def _looked_up(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """f, with a sentence where it looks a traced element up in a NumPy array of its own."""

    def run(x: Any) -> Any:
        try:
            return f(x)
        except jax.errors.TracerArrayConversionError as error:
            raise TypeError(
                "f gives NumPy an element of x, which JAX traces: a NumPy array that f looks up in (table[x]) must "
                "be a JAX array, jnp.asarray(table), and functions of x must be those of jax.numpy"
            ) from error

    return run


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
