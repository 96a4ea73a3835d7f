"""The instructions that random programs are made of: one row each in `OPS`.

A row makes a JAX function of its operands from `p`, which picks one of several options (drawn by hypothesis, or read
from a program), and `c`, which draws constants. Nothing is decided by rounding: comparisons and floors are shifted by
generic constants. Each row bounds the magnitude of its result as a power of ten, so that programs do not overflow.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

STATES = 4  # integer latents lie in 0..3, and tables have four rows


class Op(NamedTuple):
    """A kind of instruction."""

    make: Callable  # (pick, const, *operands' shapes and dtypes) -> a function of the operands
    kinds: str  # of the operands: float, integer, boolean, number, z (an index below STATES), any
    grow: Callable  # bounds of the operands -> bound of the result
    rank: int  # the least rank of the first operand
    same: bool  # the operands broadcast with each other


OPS: dict[str, Op] = {}
longest = lambda *s: max(s)
one_more = lambda *s: max(s) + 0.7
product = lambda *s: sum(s) + 0.7
bounded = lambda *s: 0.0


def declare(kinds: str, grow: Callable = longest, rank: int = 0, same: bool = False, **makes: Callable) -> None:
    """Rows of the table: each `make` takes pick, const and the operands' shapes."""
    OPS.update({name.strip("_"): Op(make, kinds, grow, rank, same) for name, make in makes.items()})


def plain(kinds: str, grow: Callable = longest, rank: int = 0, same: bool = False, **functions: Callable) -> None:
    """Rows that have nothing to choose."""
    declare(kinds, grow, rank, same, **{k: lambda p, c, *a, fn=fn: fn for k, fn in functions.items()})


MAGNITUDES = (0, 0, 0, 1, -3, -6, -9, -12, -30, 3, 6, 9, 12, 30)  # powers of ten


class Const:
    """The constants of one step, drawn from the program's seed and the step's position.

    Hard ones have any magnitude from 1e-30 to 1e30, some are infinite, and all are the same in float32 and float64.
    """

    def __init__(self, *seed: int, hard: bool = False):
        self.rng, self.hard = np.random.default_rng(seed), hard

    def __call__(self, shape: tuple = (), like=None) -> jax.Array:
        dtype = np.float32 if like is not None and like.dtype == np.float32 else np.float64
        numbers = np.clip(self.rng.normal(size=shape), -2, 2)
        if self.hard:
            numbers = np.float32(numbers * 10.0 ** self.rng.choice(MAGNITUDES))
            numbers = np.where(self.rng.random(shape) < 0.02, np.float32(np.inf) * np.sign(numbers), numbers)
        return jnp.asarray(numbers, dtype)

    def large(self) -> float:
        """Minus what a mask holds where it is closed."""
        return float(self.rng.choice([1e3, 1e6, 1e9, 1e12, 1e30, np.inf]))

    def small(self) -> float:
        """What keeps a rate above zero."""
        return float(np.float32(self.rng.choice([1e-3, 1e-5, 1e-7, 1e-9, 1e-12, 1e-30])))

    def ints(self, high: int, *shape: int) -> jax.Array:
        return jnp.asarray(self.rng.integers(0, high, size=shape))

    def some(self, high: int) -> jax.Array:
        """Distinct indices, in no order."""
        return jnp.asarray(self.rng.permutation(high)[: max(1, high - 1)])


number = lambda v: v.astype(np.int32) if v.dtype == bool else v
axis = lambda p, a, most=64: p([i for i, n in enumerate(a.shape) if n <= most])
replaced = lambda shape, i, *sizes: (*shape[:i], *sizes, *shape[i + 1 :])
wide = lambda shape: tuple(3 if n == 1 else n for n in shape)


def one_of(p, fns):
    named = {fn.__name__: fn for fn in fns}
    return named[p(list(named))]


def both(fn):
    """Two operands, broadcast to one shape."""
    return lambda x, y: fn(jnp.broadcast_arrays(x, y))


def using(fn, *values):
    """A function of the operands, with constants and choices after them."""
    return lambda *x: fn(*x, *values)


def real(fn):
    """Integers as float64, where JAX would make them float32."""
    return lambda *x: fn(*(v if v.dtype.kind == "f" else v.astype(np.float64) for v in x))


# ---- elementwise ----
plain("n", neg=jnp.negative, abs=jnp.abs, relu=jax.nn.relu)
plain("n", log1p=real(lambda x: jnp.log1p(jnp.abs(x))))
plain("n", bounded, tanh=real(jnp.tanh), sin=real(jnp.sin), reciprocal=real(lambda x: 1 / (1 + jnp.square(x))))
plain("n", lambda s: 2 * s, square=jnp.square)
plain("n", lambda s: 3 * s, cube=lambda x: lax.integer_pow(x, 3))
plain("n", lambda s: 10 ** min(s, 2) * 0.4343, exp=real(jnp.exp))
plain("n", one_more, softplus=real(jax.nn.softplus), power=real(lambda x: (1 + jnp.square(x)) ** 0.3))
plain("f", bounded, logistic=lax.logistic, erf=lax.erf)
plain("f", bounded, clamp=lambda x: lax.clamp(x.dtype.type(-0.7), x, x.dtype.type(1)))
plain("f", finite=lambda x: jnp.where(jnp.isfinite(x), x, 0))
declare("nn", same=True, extreme=lambda p, c, a, b: one_of(p, (jnp.maximum, jnp.minimum)))
plain("nn", same=True, div=real(lambda x, y: x / (1 + jnp.square(y))))
plain("nn", one_more, same=True, add=jnp.add, sub=jnp.subtract, logaddexp=real(jnp.logaddexp))
plain("nn", product, same=True, mul=jnp.multiply)
plain("nnb", same=True, where=lambda x, y, p: jnp.where(p, x, y))
declare("bb", same=True, logic=lambda p, c, a, b: one_of(p, (jnp.logical_and, jnp.logical_or, jnp.logical_xor)))
plain("b", not_=jnp.logical_not, count=lambda x: jnp.sum(x, keepdims=True))
plain("i", one_more, affine=lambda z: 3 * z - 1, mod=lambda z: z % 3, equals=lambda z: z == 2)
plain("a", cast=lambda x: x.astype(np.float32 if x.dtype == np.float32 else np.float64))


def constant(*fns):
    """With a constant on either side: a scalar, a row, an equal array, or one that broadcasts the operand."""

    def make(p, c, a):
        fn = one_of(p, fns)
        value, left = c(p([(), a.shape, a.shape[-1:], (2, *a.shape), wide(a.shape)]), a), p((False, True))
        return lambda x: fn(value, number(x)) if left else fn(number(x), value)

    return make


declare("a", product, mul_const=constant(jnp.multiply))
declare("a", one_more, add_const=constant(jnp.add, jnp.subtract))
declare("a", max_const=constant(jnp.maximum, jnp.minimum))
declare("a", bounded, compare_const=constant(jnp.greater, jnp.less, jnp.greater_equal, jnp.less_equal))
declare(
    "n",
    one_more,
    div_const=lambda p, c, a: using(jnp.divide, 0.5 + jnp.square(c(a.shape, a))),
    where_const=lambda p, c, a: using(lambda x, m, v: jnp.where(m, x, v), p((1, -1)) * c(a.shape) > 0, c((), a)),
    floor=lambda p, c, a: using(lambda x, v: jnp.floor(x * v.dtype.type(1.5) + v), c(a.shape, a)),
    sign=lambda p, c, a: using(lambda x, v: jnp.sign(x - v), c(a.shape, a)),
)
declare("nn", bounded, same=True, compare=lambda p, c, a, b: using(lambda x, y, v: x > y + v, c(a.shape)))


# ---- data movement ----
def slice_(p, c, a):
    cuts = [p([cut for cut in ((0, n, 1), (1, n, 1), (0, n - 1, 1), (0, n, 2)) if cut[0] < cut[1]]) for n in a.shape]
    return lambda x: x[tuple(slice(*cut) for cut in cuts)]


def reshape(p, c, a):
    n = math.prod(a.shape)
    shapes = [(i, j, n // i // j) for i in (1, 2) for j in range(1, n + 1) if n % (i * j) == 0]
    shape = p([(n,), *(s[1:] for s in shapes if s[0] == 1), *shapes, *([()] if n == 1 else [])])
    return lambda x: x.reshape(shape)


def split_axis(p, c, a):
    i = axis(p, a)
    n = p([d for d in (2, 3, 1) if a.shape[i] % d == 0])
    return lambda x: x.reshape(replaced(a.shape, i, n, a.shape[i] // n))


def merge_axes(p, c, a):
    i = p(range(a.ndim - 1))
    return lambda x: x.reshape(*a.shape[:i], -1, *a.shape[i + 2 :])


def split(p, c, a):
    i, part = axis(p, a), p((0, 1))
    return lambda x: jnp.split(x, [(a.shape[i] + 1) // 2], axis=i)[part * (a.shape[i] > 1)]


def pad(p, c, a):
    ways = ((1, 0, 0), (0, 0, 0), (0, 2, 0), (-1, 0, 0), (0, -1, 0), (1, 0, 1), (-1, 2, 1))
    config = [p([w for w in ways if n + w[0] + w[1] + (n - 1) * w[2] > 0]) for n in a.shape]
    fill = p((0, 1))
    return lambda x: lax.pad(x, jnp.asarray(fill, x.dtype), config)


def concatenate_const(p, c, a):
    i, order = axis(p, a), p((1, -1))
    value = c(replaced(a.shape, i, 2), a)
    return lambda x: jnp.concatenate([x, value][::order], i)


def gather(p, c, a):
    i = axis(p, a)
    idx = c.ints(a.shape[i], *p([(3,), (2, 2), ()]))
    return lambda x: x[(slice(None),) * i + (idx,)]


def gather_pair(p, c, a):
    i, j = p(list(itertools.combinations(range(a.ndim), 2)))
    chosen = {k: c.ints(a.shape[k], 3) for k in (i, j)}
    return lambda x: x[tuple(chosen.get(k, slice(None)) for k in range(a.ndim))]


def gather_along(p, c, a):
    i = axis(p, a)
    idx = c.ints(a.shape[i], *replaced(a.shape, i, 2))
    return lambda x: jnp.take_along_axis(x, idx, i)


def scatter(p, c, a):
    """Some rows of a value overwritten or added to; or a value's rows put in a larger array."""
    n, how, rows = a.shape[0], p(("set", "add", "multiply", "max")), p(("constant", "latent"))
    if rows == "constant":
        idx, value = c.some(n), c(a.shape[1:], a)
        return lambda x: getattr(number(x).astype(value.dtype).at[idx], how)(value)
    idx, base = (c.some(n + 3)[:n] if how == "set" else c.ints(n + 2, n)), c((n + 2, *a.shape[1:]), a)
    return lambda x: getattr(base.at[idx], how)(x.astype(base.dtype))


with_axis = lambda fn, **more: lambda p, c, a: partial(fn, axis=axis(p, a), **more)
declare(
    "a",
    expand_dims=lambda p, c, a: partial(jnp.expand_dims, axis=p(range(a.ndim + 1))),
    broadcast=lambda p, c, a: using(jnp.broadcast_to, p([(2, *a.shape), wide(a.shape)])),
    squeeze=lambda p, c, a: partial(jnp.squeeze, axis=p([i for i, n in enumerate(a.shape) if n == 1])),
    reshape=reshape,
)
declare(
    "a",
    rank=1,
    slice=slice_,
    split_axis=split_axis,
    split=split,
    pad=pad,
    gather=gather,
    gather_along=gather_along,
    scatter=scatter,
    reverse=with_axis(jnp.flip),
    repeat=with_axis(jnp.repeat, repeats=2),
    roll=lambda p, c, a: partial(jnp.roll, shift=p((1, -1, 2)), axis=axis(p, a)),
    tile=lambda p, c, a: partial(jnp.tile, reps=replaced((1,) * a.ndim, axis(p, a), 2)),
)
declare("a", rank=2, merge_axes=merge_axes, gather_pair=gather_pair, diagonal=lambda p, c, a: jnp.diagonal)
orders = lambda a: list(itertools.permutations(range(a.ndim)))[::-1]
declare("a", rank=2, transpose=lambda p, c, a: partial(jnp.transpose, axes=p(orders(a))))
declare("n", rank=2, tril=lambda p, c, a: partial(jnp.tril, k=p((0, 1, -1))))
declare("n", rank=1, concatenate_const=concatenate_const)
declare("aa", rank=1, same=True, concatenate=lambda p, c, a, b: both(partial(jnp.concatenate, axis=-1 - axis(p, a))))
declare("aa", same=True, stack=lambda p, c, a, b: both(partial(jnp.stack, axis=p(range(a.ndim + 1)))))


# ---- reductions, running reductions, sorting ----
def over_axes(*fns, most=64):
    def make(p, c, a):
        fn = one_of(p, fns)
        sets = itertools.chain(*(itertools.combinations(range(a.ndim), n) for n in range(1, a.ndim + 1)))
        sets = [s for s in [None, *sets] if math.prod(a.shape if s is None else [a.shape[i] for i in s]) <= most]
        return partial(fn, axis=p(sets), keepdims=p((False, True)))

    return make


def argmax(p, c, a):
    v, i, fn = c(a.shape), p([None, *range(a.ndim)]), one_of(p, (jnp.argmax, jnp.argmin))
    return lambda x: fn(x + v, axis=i)


running = lambda *fns, most=64: lambda p, c, a: partial(one_of(p, fns), axis=axis(p, a, most), reverse=p((0, 1)) > 0)
many = lambda *s: sum(s) + 1.2
declare("n", many, sum=over_axes(jnp.sum))
declare("f", one_more, mean=over_axes(jnp.mean), logsumexp=over_axes(jax.nn.logsumexp))
declare("n", max=over_axes(jnp.max, jnp.min), argmax=argmax)
declare("n", lambda s: 6 * s, prod=over_axes(jnp.prod, most=6))
declare("b", any=over_axes(jnp.any), all=over_axes(jnp.all))
declare(
    "n", many, rank=1, cumsum=running(lax.cumsum), cummax=running(lax.cummax, lax.cummin), sort=with_axis(jnp.sort)
)
declare("n", lambda s: 6 * s, rank=1, cumprod=running(lax.cumprod, most=6))
declare("f", one_more, rank=1, cumlogsumexp=running(lax.cumlogsumexp), log_softmax=with_axis(jax.nn.log_softmax))
plain("f", many, rank=1, fft=lambda x: jnp.real(jnp.fft.fft(x)))


# ---- products and solves ----
def contract(p, c, a, b=None):
    """An einsum with a constant, or of two values: each axis is summed, shared or free, in any order."""
    mine, other, value = "abcd"[: a.ndim], "", None
    if b is None:
        other = ("".join(p([l, ""]) for l in mine) + p(["z", ""]))[:: p((1, -1))]
        value = c(tuple(3 if l == "z" else a.shape[mine.index(l)] for l in other), a)
    else:
        for n, l in zip(b.shape, "uvwxyz", strict=False):
            other += p([m for m, size in zip(mine, a.shape, strict=True) if size == n and m not in other] + [l])
    kept = [l for l in sorted({*mine, *other}) if p((l not in mine or l not in other, False, True))]
    spec = f"{mine},{other}->{''.join(kept[:: p((1, -1))])}"
    return partial(jnp.einsum, spec) if b is not None else lambda x: jnp.einsum(spec, x, value)


def matmul(p, c, a):
    left = p((False, True))
    value = c((3, a.shape[-2 if a.ndim > 1 else -1]) if left else (a.shape[-1], 3), a)
    return lambda x: value @ x if left else x @ value


def solve(p, c, a):
    left, lower, turned, unit = p((True, False)), p((True, False)), p((True, False)), p((False, True))
    shape = a.shape if a.ndim > 1 else (a.shape[0], 1) if left else (1, a.shape[0])
    n = shape[-2 if left else -1]
    L = jnp.tril(c((*shape[:-2], n, n), a)) / 4 + jnp.eye(n, dtype=a.dtype)
    L = L if lower else jnp.swapaxes(L, -1, -2)
    settings = {"left_side": left, "lower": lower, "transpose_a": turned, "unit_diagonal": unit}
    return lambda x: lax.linalg.triangular_solve(L, x.reshape(shape), **settings)


declare("n", many, contract=contract)
declare("n", many, rank=1, matmul=matmul)
declare("f", many, rank=1, solve=solve)
declare("nn", many, contract_pair=contract, outer=lambda p, c, a, b: jnp.outer)
form = lambda x, A: jnp.einsum("...i,ij,...j->...", x, A, x)
declare("n", lambda s: 2 * s + 1.2, rank=1, quadratic=lambda p, c, a: using(form, c((a.shape[-1],) * 2, a)))


# ---- latent indices ----
def lookup(p, c, z):
    table, mode = c((STATES, *p([(), (3,), (2, 2)]))), p((None, "promise_in_bounds", "fill", "clip"))
    return lambda z: table.at[number(z)].get(mode=mode)


def lookup_outside(p, c, z):
    table, mode = c((2, *p([(), (3,)]))), p(("clip", "fill"))
    return lambda z: table.at[z].get(mode=mode, fill_value=0.5)


def chain(p, c, z):
    """Pairs of neighbours in the last axis; a single one is paired with state 1."""
    J = c((STATES, STATES))
    return lambda z: J[number(z[..., :-1]), number(z[..., 1:])] if z.shape[-1] > 1 else J[number(z), 1]


def of_class(p, c, z):
    """The log-probability of a class, as distributions write it."""
    logits = c((*z.shape, STATES))
    return lambda z: jnp.take_along_axis(jax.nn.log_softmax(logits), number(z)[..., None], -1)[..., 0]


first = lambda z: number(z).reshape(-1)[0]
window = lambda x, z, n: lax.dynamic_slice_in_dim(x, first(z), n)
write = lambda x, z, row: lax.dynamic_update_slice_in_dim(x, row.astype(x.dtype), first(z), 0)
pair = lambda z, y, J: J[number(z), number(y)]
declare("z", bounded, lookup=lookup, of_class=of_class)
declare("z", bounded, segments=lambda p, c, z: using(lambda z, v: jnp.zeros(STATES).at[number(z)].add(v), c(z.shape)))
plain("z", bounded, one_hot=lambda z: jax.nn.one_hot(number(z), STATES))
declare("z", bounded, rank=1, chain=chain)
declare("i", bounded, lookup_outside=lookup_outside)
declare("zz", bounded, same=True, lookup_pair=lambda p, c, z, y: using(pair, c((STATES, STATES, *p([(), (2,)])))))
declare("nz", rank=1, window=lambda p, c, a, z: using(window, p(range(1, a.shape[0] + 1))))
declare("nz", rank=1, write=lambda p, c, a, z: using(write, c((1, *a.shape[1:]))))
plain("nz", rank=1, take=lambda x, z: x[jnp.clip(number(z), 0, len(x) - 1)])


# ---- masks and small rates ----
closed = lambda x, m, big: jnp.where(m, x, -np.asarray(big, x.dtype)).astype(x.dtype)


def mask(p, c, a, z):
    """Numbers that count only where a latent says so, as the logits of a mixture."""
    big, value = c.large(), p((0, 1))
    return lambda x, z: closed(x, jnp.equal(number(z), value).reshape(-1)[0], big)


def masked_lse(p, c, z):
    """A mixture whose components are switched on and off by a latent's last axis."""
    ll, big = c((5, *z.shape[-1:])), c.large()
    body = lambda z, ll: jnp.where(number(z)[..., None, :] == 1, 0.0, -np.asarray(big, ll.dtype)) + ll
    return lambda z: jax.nn.logsumexp(body(z, ll), axis=-1)


def log_rate(p, c, z):
    """Counts whose rate is a sum of causes and a small leak."""
    W, eps = jnp.abs(c((z.shape[-1], 4))), c.small()
    return lambda z: jnp.log(number(z).astype(W.dtype) @ W + np.asarray(eps, W.dtype))


def log_sum(p, c, a):
    i, eps = axis(p, a), c.small()
    return lambda x: jnp.log(jnp.sum(jnp.square(x), axis=i) + np.asarray(eps, x.dtype))


def over(p, c, a):
    eps = c.small()
    return lambda x: 1 / (jnp.abs(x) + np.asarray(eps, x.dtype))


HARD = ("mask", "masked_lse", "log_rate", "log_sum", "over")
declare("fz", mask=mask)
declare("z", rank=1, masked_lse=masked_lse, log_rate=log_rate)
declare("f", rank=1, log_sum=log_sum)
declare("f", over=over)


# ---- nested programs ----
def scan(p, c, a):
    start, part, backwards = c(a.shape[1:]), p((0, 1)), p((False, True))
    body = lambda carry, row: (jnp.tanh(carry + row), carry * row)
    return lambda x: lax.scan(body, start, x * 1.0, reverse=backwards)[part]


def scan_carry(p, c, a):
    rows, part = c((3, *a.shape)), p((0, 1))
    return lambda x: lax.scan(lambda v, row: (v * 0.5 + row, jnp.sum(v)), x.astype(float), rows)[part]


def forward(p, c, a):
    """The forward pass of a hidden Markov chain over the last axis's states."""
    A = c((a.shape[-1],) * 2, a)
    body = lambda v, row: (jax.nn.logsumexp(v[..., None] + A, axis=-2) + row, None)
    return lambda x: lax.scan(body, x[0], x)[0]


def loop(p, c, a):
    rows, times = c((3,)), p((3, 1))
    return lambda x: lax.fori_loop(0, times, lambda i, v: jnp.tanh(v + rows[i]) * x, x.astype(float))


def while_(p, c, a):
    go = lambda s: (s[0] < 5) & (jnp.sum(jnp.abs(s[1])) > 1.2345)
    return lambda x: lax.while_loop(go, lambda s: (s[0] + 1, s[1] * 0.6), (0, x.astype(float)))[1]


def cond(p, c, a):
    level, known = c(), p((None, True, False))
    test = lambda x: jnp.sum(x) > level if known is None else known
    return lambda x: lax.cond(test(x), lambda v: jnp.tanh(v), lambda v: v[::-1] * 1.5 if v.ndim else v * 1.5, x * 1.0)


def switch(p, c, a, z):
    branches = [using(lambda v, w: jnp.sin(v * w), w) for w in c((STATES,), a)]
    return lambda x, z: lax.switch(first(z).astype(np.int32), branches, x * 1.0)


declare("n", one_more, rank=1, scan=scan)
plain("n", many, rank=1, map=partial(lax.map, lambda row: jnp.sin(row * 1.0) * jnp.sum(row)))
declare("n", one_more, scan_carry=scan_carry, loop=loop, while_=while_, cond=cond)
declare("f", one_more, rank=2, forward=forward)
declare("nz", bounded, switch=switch)
