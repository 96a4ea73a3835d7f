"""Which elements of a latent each number of a program can see: proved from the program, never assumed.

Every intermediate number carries what it may have been influenced by, in one of two forms:

    a box   the interval [lo, hi] of indices along each axis of the latent, as (lo_1, ..., lo_D, -hi_1, ..., -hi_D) in
            int32; joining two takes minima, and "sees nothing" is EMPTY in all places
    a set   a bit for each element of the latent, in words of uint64; joining two is "or", "sees nothing" is no bit

Both forms use a leading axis, which no rule looks into: several latents are followed together by concatenating along
that axis. A program is followed by running its data movement on these arrays and joining wherever it mixes numbers. A
primitive without a rule mixes everything with everything, which is always sound. Sets are exact, while boxes include
what lies between; but sets take memory for every element times every number, so they are for small programs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from functools import partial, reduce
from typing import Any

import jax
import numpy as np

from legrad.trace.operations import ELEMENTWISE as ELEMENTWISE_OPERATIONS
from legrad.trace.primitives import ELEMENTWISE
from legrad.trace.program import Program

EMPTY = np.iinfo(np.int32).max


def own_boxes(shape: tuple[int, ...], event_ndim: int = 0) -> np.ndarray:
    """Return boxes in which each element of an array sees itself; trailing event axes belong to the element.

    An array with no batch axis is one element: it gets one axis, so that there is something to see.
    """
    batch = shape[: len(shape) - event_ndim]
    index = np.indices(batch or (1,), dtype=np.int32).reshape(max(len(batch), 1), *batch)
    index = index.reshape(index.shape + (1,) * event_ndim)
    index = np.broadcast_to(index, (len(index), *shape))
    return np.concatenate([index, -index])


def own_sets(shape: tuple[int, ...], event_ndim: int = 0) -> np.ndarray:
    """Return the same as `own_boxes` in the form of sets: element i is bit i % 64 of word i // 64."""
    batch = shape[: len(shape) - event_ndim]
    i = np.arange(math.prod(batch))
    words = np.zeros((-(-max(i.size, 1) // 64), i.size), np.uint64)
    words[i // 64, i] = np.uint64(1) << (i % 64).astype(np.uint64)
    words = words.reshape(len(words), *batch, *(1,) * event_ndim)
    return np.broadcast_to(words, (len(words), *shape))


def members(sets: np.ndarray) -> np.ndarray:
    """Return sets as flags: (words, ...) → (..., 64 · words)."""
    octets = np.ascontiguousarray(np.moveaxis(sets, 0, -1)).astype("<u8", copy=False).view(np.uint8)
    return np.unpackbits(octets, axis=-1, bitorder="little").astype(bool)


def join(*parts: np.ndarray) -> np.ndarray:
    """Return what any of some numbers sees; shapes broadcast."""
    return reduce(_form(parts[0])[0], parts)


def _form(seen: np.ndarray) -> tuple[np.ufunc, int]:
    """Return the function that joins two boxes or sets, and the value that means "sees nothing"."""
    return (np.bitwise_or, 0) if seen.dtype == np.uint64 else (np.minimum, EMPTY)


def join_over(seen: np.ndarray, axes: int | tuple[int, ...], keepdims: bool = False) -> np.ndarray:
    """Join what all numbers along some axes see."""
    together, none = _form(seen)
    return together.reduce(seen, axis=axes, keepdims=keepdims, initial=none)


def nothing(like: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return an array of numbers that see nothing."""
    return np.full((len(like), *shape), _form(like)[1], like.dtype)


class Unseen:
    """A value that sees nothing; `read` returns its numbers, or None if they are not known while tracing."""

    def __init__(self, read: Callable[[], np.ndarray | None]) -> None:
        self.read = read


Seen = np.ndarray | Unseen


def reach(program: Program, seen: Any) -> Any:
    """Follow a program; return what every output sees, None for an output that sees nothing.

    Args:
        program: the program.
        seen: the boxes or sets of the inputs, in the structure of the inputs; None for an input that sees nothing.
    """
    leaves = jax.tree.leaves(seen, is_leaf=lambda box: box is None)
    given = {i: box for i, box in zip(program.inputs, leaves, strict=True) if box is not None}
    found = reach_every(program, given)
    return jax.tree.unflatten(program.structure, [found.get(o) for o in program.outputs])


def reach_every(
    program: Program, given: dict[int, np.ndarray], elementwise: Collection[str] = ()
) -> dict[int, np.ndarray]:
    """Follow a program; return what each of its values sees, by number, without those that see nothing.

    Args:
        program: the program.
        given: the boxes or sets of the inputs that see something, by number.
        elementwise: names of further operations that are elementwise in this program.
    """
    found = dict(given)
    for op in program.ops:
        if not any(i in found for i in op.inputs):
            continue
        operands = [found[i] if i in found else Unseen(partial(program.read, i)) for i in op.inputs]
        plain = op.name in ELEMENTWISE_OPERATIONS or op.name in elementwise
        rule = _elementwise if plain else RULES.get(op.name, _everything)
        results = rule(op.eqn, operands)
        for i, box in zip(op.outputs, results, strict=True):
            # A rule that gets a shape wrong could claim independence that does not hold.
            assert box.shape[1:] == program.shapes[i], (op.name, box.shape)
            found[i] = box
    return found


# --- the rules: one function per family ----------------------------------------------------------------------


def _boxes(x: Seen, like: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return nothing(like, shape) if isinstance(x, Unseen) else x


def _some(operands: list[Seen]) -> np.ndarray:
    return next(x for x in operands if not isinstance(x, Unseen))


def _everything(eqn: Any, operands: list[Seen]) -> list[np.ndarray]:
    total = join(*(join_over(x, tuple(range(1, x.ndim))) for x in operands if not isinstance(x, Unseen)))
    return [_spread(total, v.aval.shape) for v in eqn.outvars]


def _spread(box: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return np.broadcast_to(box.reshape(len(box), *(1,) * len(shape)), (len(box), *shape))


def _elementwise(eqn: Any, operands: list[Seen]) -> list[np.ndarray]:
    # Operands may have rank 0, or axes of size 1: primitives broadcast those by themselves.
    shape = eqn.outvars[0].aval.shape
    parts = [x if x.ndim > 1 else _spread(x, shape) for x in operands if not isinstance(x, Unseen)]
    joined = np.broadcast_to(join(*parts), (len(parts[0]), *shape))
    return [joined for _ in eqn.outvars]


def _reshape(eqn: Any, operands: list[Seen]) -> list[np.ndarray]:
    x = _some(operands)
    return [x.reshape(len(x), *eqn.outvars[0].aval.shape)]


def _transpose(eqn: Any, operands: list[Seen]) -> list[np.ndarray]:
    return [_some(operands).transpose(0, *(p + 1 for p in eqn.params["permutation"]))]


def _broadcast_in_dim(eqn: Any, operands: list[Seen]) -> list[np.ndarray]:
    x, shape = _some(operands), eqn.params["shape"]
    aligned = [1] * len(shape)
    for axis, target in enumerate(eqn.params["broadcast_dimensions"]):
        aligned[target] = x.shape[axis + 1]
    return [np.broadcast_to(x.reshape(len(x), *aligned), (len(x), *shape))]


def _slice(eqn: Any, operands: list[Seen]) -> list[np.ndarray]:
    p = eqn.params
    strides = p["strides"] or (1,) * len(p["start_indices"])
    window = map(slice, p["start_indices"], p["limit_indices"], strides)
    return [_some(operands)[(slice(None), *window)]]


def _rev(eqn: Any, operands: list[Seen]) -> list[np.ndarray]:
    return [np.flip(_some(operands), tuple(d + 1 for d in eqn.params["dimensions"]))]


def _concatenate(eqn: Any, operands: list[Seen]) -> list[np.ndarray]:
    like = _some(operands)
    parts = [_boxes(x, like, v.aval.shape) for x, v in zip(operands, eqn.invars, strict=True)]
    return [np.concatenate(parts, axis=eqn.params["dimension"] + 1)]


def _split(eqn: Any, operands: list[Seen]) -> list[np.ndarray]:
    cuts = np.cumsum(eqn.params["sizes"])[:-1]
    return list(np.split(_some(operands), cuts, axis=eqn.params["axis"] + 1))


def _pad(eqn: Any, operands: list[Seen]) -> list[np.ndarray]:
    config = eqn.params["padding_config"]
    if any(lo < 0 or hi < 0 for lo, hi, _ in config):
        return _everything(eqn, operands)
    like, shape = _some(operands), eqn.outvars[0].aval.shape
    padding = operands[1]
    out = nothing(like, shape)
    if not isinstance(padding, Unseen):
        out = _spread(padding, shape).copy()
    inner = tuple(slice(lo, size - hi, step + 1) for (lo, hi, step), size in zip(config, shape, strict=True))
    out[(slice(None), *inner)] = _boxes(operands[0], like, eqn.invars[0].aval.shape)
    return [out]


def _reduce(eqn: Any, operands: list[Seen]) -> list[np.ndarray]:
    axes = tuple(a + 1 for a in eqn.params["axes"])
    parts = [join_over(x, axes) for x in operands if not isinstance(x, Unseen)]
    return [join(*parts) for _ in eqn.outvars]


def _categorical(eqn: Any, operands: list[Seen]) -> list[np.ndarray]:
    """A datum sees the logits of its classes, and itself."""
    logits, value = operands
    parts = [] if isinstance(logits, Unseen) else [join_over(logits, -1)]
    return [join(*parts, *([] if isinstance(value, Unseen) else [value]))]


def _cumulative(eqn: Any, operands: list[Seen]) -> list[np.ndarray]:
    x, axis = _some(operands), eqn.params["axis"] + 1
    x = np.flip(x, axis) if eqn.params["reverse"] else x
    x = _form(x)[0].accumulate(x, axis=axis)
    return [np.flip(x, axis) if eqn.params["reverse"] else x]


def _sort(eqn: Any, operands: list[Seen]) -> list[np.ndarray]:
    axis = eqn.params["dimension"] + 1
    joined = join(*(x for x in operands if not isinstance(x, Unseen)))
    joined = np.broadcast_to(join_over(joined, axis, keepdims=True), joined.shape)
    return [joined for _ in eqn.outvars]


def _linear_algebra(eqn: Any, operands: list[Seen]) -> list[np.ndarray]:
    """Matrices of a batch do not mix; within one matrix everything mixes."""
    parts = [join_over(x, (-2, -1)) for x in operands if not isinstance(x, Unseen)]
    joined = join(*parts)
    return [np.broadcast_to(joined[..., None, None], (len(joined), *v.aval.shape)) for v in eqn.outvars]


def _dot_general(eqn: Any, operands: list[Seen]) -> list[np.ndarray]:
    (contract, batch), out = eqn.params["dimension_numbers"], eqn.outvars[0].aval.shape
    joined = None
    free = [v.aval.ndim - len(c) - len(b) for v, c, b in zip(eqn.invars, contract, batch, strict=True)]
    for side, x in enumerate(operands):
        if isinstance(x, Unseen):
            continue
        x = np.moveaxis(x, [b + 1 for b in batch[side]], range(1, len(batch[side]) + 1))
        kept = [d for d in range(eqn.invars[side].aval.ndim) if d not in batch[side]]
        drop = tuple(kept.index(c) + 1 + len(batch[side]) for c in contract[side])
        x = join_over(x, drop)
        head, tail = x.shape[: 1 + len(batch[side])], x.shape[1 + len(batch[side]) :]
        ones = (1,) * free[1 - side]
        x = x.reshape(*head, *((*tail, *ones) if side == 0 else (*ones, *tail)))
        joined = x if joined is None else join(joined, x)
    assert joined is not None
    return [np.broadcast_to(joined, (len(joined), *out))]


def _gather(eqn: Any, operands: list[Seen]) -> list[np.ndarray]:
    operand, indices = operands
    out = eqn.outvars[0].aval
    parts: list[Any] = []
    if not isinstance(indices, Unseen):  # mu[z]: an output sees the indices that picked it
        offset = eqn.params["dimension_numbers"].offset_dims
        picked = join_over(indices, -1)
        picked = np.expand_dims(picked, [d + 1 for d in offset])
        parts.append(np.broadcast_to(picked, (len(picked), *out.shape)))
    if not isinstance(operand, Unseen):
        where = indices.read() if isinstance(indices, Unseen) else None
        if where is not None:
            parts.append(_take(eqn, operand, where))
        else:
            parts.append(_everything(eqn, [operand])[0])
    return [join(*parts)]


def _take(eqn: Any, operand: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Run the gather on positions, then look the boxes up: exact for every mode of the primitive."""
    shape = operand.shape[1:]
    size = int(np.prod(shape))
    positions = np.arange(1, size + 1, dtype=np.int32).reshape(shape)
    params = dict(eqn.params, fill_value=0)  # position 0: out of bounds, filled with a constant
    with jax.ensure_compile_time_eval():
        taken = np.asarray(eqn.primitive.bind(positions, indices, **params))
    flat = np.concatenate([nothing(operand, (1,)), operand.reshape(len(operand), size)], axis=1)
    return flat[:, taken]


RULES: dict[str, Callable[[Any, list[Seen]], list[np.ndarray]]] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(["reshape", "squeeze"], _reshape),
    **dict.fromkeys(
        [
            "reduce_sum",
            "reduce_max",
            "reduce_min",
            "reduce_prod",
            "reduce_and",
            "reduce_or",
            "reduce_xor",
            "argmax",
            "argmin",
        ],
        _reduce,
    ),
    **dict.fromkeys(["cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"], _cumulative),
    **dict.fromkeys(["triangular_solve", "cholesky"], _linear_algebra),
    "transpose": _transpose,
    "broadcast_in_dim": _broadcast_in_dim,
    "slice": _slice,
    "rev": _rev,
    "concatenate": _concatenate,
    "split": _split,
    "pad": _pad,
    "sort": _sort,
    "legrad_categorical_logits": _categorical,
    "dot_general": _dot_general,
    "gather": _gather,
}
