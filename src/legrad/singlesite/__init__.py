"""Evaluate `f` with one element of `x` replaced, for every element and candidate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from legrad.singlesite.brute import brute
from legrad.singlesite.execute import differences_or_values, estimated_work, total_differences

METHODS = ("auto", "brute")
MEMORY = 1 << 29  # bytes of intermediate values held at once


def single_site(
    f: Callable[[Any], Any], x: Any, candidates: Any, method: str = "auto", *, memory: int = MEMORY
) -> Any:
    """Evaluate f(x with one element set to one of its candidates), for every element and candidate.

    Args:
        f: a function of a pytree of arrays that returns a scalar or a pytree of scalars. A leaf that is an array
            counts as a list of additive terms and is summed.
        x: the pivot: a pytree of arrays, of integers or floats.
        candidates: a pytree with the structure of `x`; each leaf has a leading axis of its own length K. Along an
            axis of length 1 all elements have the same candidates.
        method: "auto" takes the fastest method; "brute" evaluates all of `f` each time.
        memory: a bound in bytes on intermediate values, met by running blocks in sequence.

    Returns:
        A pytree with the structure of `x`, each leaf with the leading axis of its candidates. If `f` returns a
        pytree, each leaf holds that pytree.

    The result can be differentiated with respect to what `f` closes over. Only `method="brute"` applies the
    derivative rules of `jax.custom_jvp` and `jax.custom_vjp` inside `f`.

    Example:
        >>> legrad.single_site(lambda x: (x**2).sum(), jnp.array([1.0, 2.0]), jnp.zeros((1, 2)))
        Array([[4., 1.]], dtype=float32)
    """
    f, x = _looked_up(f), _arrays(x)
    _check(x, candidates, method)
    if method == "brute":
        return brute(f, x, candidates, memory=memory)
    return differences_or_values(f, x, candidates, memory=memory, differences=False)


def single_site_differences(
    f: Callable[[Any], Any],
    x: Any,
    candidates: Any,
    method: str = "auto",
    *,
    memory: int = MEMORY,
    at_pivot: Any = None,
) -> Any:
    """Evaluate `single_site` minus f(x) as a difference, which is accurate even if f is a sum of many terms.

    The arguments are those of `single_site`, and `at_pivot`, the value f(x) if it is known already. If `f` returns
    arrays of terms, differences are taken term by term.
    """
    f, x = _looked_up(f), _arrays(x)
    _check(x, candidates, method)
    if method == "auto":
        return differences_or_values(f, x, candidates, memory=memory, differences=True)
    return brute(f, x, candidates, memory=memory, pivot=f(x) if at_pivot is None else at_pivot)


def single_site_totals(
    f: Callable[[Any], tuple[Any, ...]], x: Any, candidates: Any, method: str = "auto", *, at_pivot: Any = None
) -> Any:
    """Evaluate `single_site_differences`, with each pytree in the tuple that `f` returns added up to a scalar."""
    _check(x, candidates, method)
    if method == "auto":
        return total_differences(f, x, candidates, memory=MEMORY)
    pivot = f(x) if at_pivot is None else at_pivot
    found = brute(f, x, candidates, memory=MEMORY, pivot=pivot)
    whole: Any = jax.tree.structure(pivot)

    def add_up(parts: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(sum(jax.tree.leaves(part), start=jnp.zeros(())) for part in parts)

    return jax.tree.map(add_up, found, is_leaf=lambda tree: bool(jax.tree.structure(tree) == whole))


class Work(NamedTuple):
    """The cost of a leaf's changes, and that of one evaluation of f, in numbers computed."""

    changes: int
    evaluation: int


def single_site_work(f: Callable[[Any], Any], x: Mapping[str, Any], count: int) -> dict[str, Work]:
    """Estimate the cost of all changes of each leaf with `count` candidates. Nothing is computed."""
    found: dict[str, Work] = {}

    def trace(x: dict[str, Any]) -> None:
        found.update({name: Work(*work) for name, work in estimated_work(f, x, count, MEMORY).items()})

    jax.eval_shape(trace, dict(x))
    return found


def _arrays(x: Any) -> Any:
    """Convert NumPy arrays to JAX arrays, since a NumPy array cannot be indexed by a traced element."""
    return jax.tree.map(jnp.asarray, x)


def _looked_up(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap f so that indexing a NumPy array with a traced element raises an error that says what to do."""

    def run(x: Any) -> Any:
        try:
            return f(x)
        except jax.errors.TracerArrayConversionError as error:
            raise TypeError(
                "f passes an element of x, which JAX traces, to NumPy: make a NumPy array that x indexes (table[x]) "
                "a JAX array, jnp.asarray(table), and use the functions of jax.numpy on x"
            ) from error

    return run


def _check(x: Any, candidates: Any, method: str) -> None:
    """Raise an error if the method is unknown, or if the candidates do not match x."""
    if method not in METHODS:
        raise ValueError(f"method={method!r} is not a method: choose one of {', '.join(METHODS)}")
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
