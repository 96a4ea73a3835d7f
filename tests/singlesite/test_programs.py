"""Every method of `single_site` equals brute force on hundreds of random programs.

A program is plain data: a list of steps over a pool of values. The latent leaves come first, each step appends one
value: it names a row of `programs.OPS`, the values it takes and the choices it made. Constants, pivot and candidates
are drawn from the program's seed. A failing program is printed as text that can be pasted into `check(...)`, and
`SHRINK=1 pytest -k ...` makes it short.
"""

import collections
import functools
import itertools
import os
import random
import zlib
from typing import NamedTuple

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

import legrad
from legrad.singlesite.plan import Plan
from programs import HARD, OPS, STATES, Const

EACH, FEW = 3, 1  # programs around each instruction, and of them those that every change must pass
SHRINK = "SHRINK" in os.environ  # make failing programs short: minutes for each
BYTES = 120  # a program's choices
LARGEST, MOST = 4.0, 64  # magnitudes up to 10^4, arrays of up to 64 numbers
WRAPS = ("", "", "", "", "", "jit", "checkpoint", "custom_jvp", "custom_vjp")
RESULTS = ("scalar", "weighted", "scalars", "terms", "array", "mixed")
DTYPES = ("float64", "float64", "float64", "int32", "int32", "bool", "uint8")
SHAPES = ((3,), (4,), (2, 3), (), (1,), (3, 3), (3, 1), (6,), (1, 4), (2, 3, 2), (4, 2), (2, 1, 3))
KINDS = {"f": "f", "i": "iu", "b": "b", "n": "fiu", "z": "iub", "a": "fiub"}  # as letters of dtype.kind


class Step(NamedTuple):
    op: str
    args: tuple[int, ...]  # numbers of values
    picks: tuple  # what the op chose
    wrap: str


class Program(NamedTuple):
    leaves: tuple[tuple, ...]  # shapes and dtypes of x0, x1, ..: values 0, 1, ..
    K: int
    seed: int
    result: str
    steps: tuple[Step, ...]
    hard: bool = False  # whether its constants are of any magnitude

    @property
    def has_float32(self):
        return any(dtype == "float32" for _, dtype in self.leaves)

    @property
    def has_values(self):
        """Whether values are compared too: they are the differences plus f(x), and as slow to compile again."""
        return self.seed % 5 == 0

    def is_common(self, axis):
        """Whether all elements along an axis of a leaf have the same candidates."""
        return self.seed % 3 == 0 or (self.seed % 3 == 1 and axis == 1)

    def __repr__(self):
        leaves = "".join(f"    {leaf},  # value {i}: x{i}\n" for i, leaf in enumerate(self.leaves))
        steps = "".join(f"    Step{tuple(s)},  # value {i}\n" for i, s in enumerate(self.steps, len(self.leaves)))
        head = f"Program(K={self.K}, seed={self.seed}, result={self.result!r}, leaves=(\n{leaves}), steps=(\n"
        return f"{head}{steps}))"


class Value(NamedTuple):
    """What the generator knows of a value."""

    spec: jax.ShapeDtypeStruct
    bound: float  # of its magnitude, as a power of ten
    index: bool  # whether it lies in 0..STATES-1

    def fits(self, kind):
        return self.spec.dtype.kind in KINDS[kind] and (kind != "z" or self.index)


@functools.lru_cache(maxsize=10_000)
def bind(op, picks, seed, position, operands, hard=False):
    """A step as a function, and the shape of its result. Its constants are made here, outside any trace."""
    picks = iter(picks)
    function = OPS[op].make(lambda options: next(picks), Const(seed, position, hard=hard), *operands)
    return function, jax.eval_shape(function, *operands)


class Unfit(Exception):
    """The op has no choice that suits its operands."""


def draw_step(choose, seed, pool, name=None, hard=False):
    """A step and its value, or None where the drawn op does not suit its operands."""
    fit = [n for n, op in OPS.items() if all(any(v.fits(k) for v in pool) for k in op.kinds)]
    name = name or choose([n for n in fit if hard or n not in HARD])
    op, args, picks = OPS[name], [], []

    def pick(options):
        options = list(options)
        if not options:
            raise Unfit
        picks.append(options[0] if len(options) == 1 else choose(options))
        return picks[-1]

    try:
        for kind in op.kinds:
            fit = [i for i, v in enumerate(pool) if v.fits(kind) and (args or v.spec.ndim >= op.rank)]
            if op.same and args:
                fit = [i for i in fit if broadcasts(*(pool[j].spec.shape for j in (*args, i)))]
            latest = fit[-1:] * (1 if args else len(fit))  # likelier, for deep programs
            args.append(pick(latest + fit))
        picks.clear()
        operands = tuple(pool[i].spec for i in args)
        op.make(pick, Const(seed, len(pool)), *operands)
    except Unfit:
        return None
    bound = op.grow(*(pool[i].bound for i in args))
    _, spec = bind(name, tuple(picks), seed, len(pool), operands, hard)
    wraps = spec.dtype.kind == "u" and spec.dtype != np.uint8  # -1 would be 10^19, and swallow all else
    if (bound > LARGEST and not hard) or not 0 < spec.size <= MOST or wraps:
        return None
    moved = op.kinds[0] == "a" and all(pool[i].index for i in args)
    index = spec.dtype == bool or (spec.dtype.kind in "iu" and (moved or name == "mod"))
    if spec.dtype.kind == "u" and not index:  # minus one is the largest of all
        bound = np.log10(np.iinfo(spec.dtype).max)
    return Step(name, tuple(args), tuple(picks), choose(WRAPS)), Value(spec, bound, index)


def broadcasts(*shapes):
    return all(len({*n} - {1}) <= 1 for n in itertools.zip_longest(*(s[::-1] for s in shapes), fillvalue=1))


def program_from(data, around, real="float64", hard=False):
    """The program that some bytes stand for, with one op for sure: each byte makes a choice, zero the first."""
    seed, data, op = int.from_bytes(data[:2]), iter(data[2:]), OPS[around]

    def choose(options):
        byte = next(data, 0)
        return options[random.Random(256 * seed + byte).randrange(len(options)) if byte else 0]

    def leaf(kind, rank=0):
        dtypes = [d for d in (real, *DTYPES) if np.dtype(d).kind in KINDS[kind]]
        return choose([s for s in SHAPES if len(s) >= rank]), choose(dtypes)

    kinds = list(dict.fromkeys(op.kinds)) + choose(([], [], [], [], ["a"], ["a", "a"]))
    leaves = tuple(leaf(kind, op.rank if i == 0 else 0) for i, kind in enumerate(kinds[:3]))
    pool = [Value(jax.ShapeDtypeStruct(*leaf), 0.5, np.dtype(leaf[1]).kind in "iub") for leaf in leaves]
    steps, count = [], choose((1, 2, 3, 4, 5))
    turn = choose(range(count))
    for i in range(count):
        made = draw_step(choose, seed, pool, around if i == turn else None, hard)
        if made is not None:
            steps.append(made[0])
            pool.append(made[1])
    return Program(leaves, choose((1, 2, 3)), seed, choose(RESULTS), tuple(steps), hard)


def wrapped(function, wrap):
    """The same function as a nested program."""
    if wrap == "custom_jvp":
        inner = jax.custom_jvp(lambda *a: function(*a))  # JAX would trace the defaults of other arguments
        inner.defjvp(lambda primals, tangents: (function(*primals), function(*tangents)))
        return inner
    if wrap == "custom_vjp":
        inner = jax.custom_vjp(lambda *a: function(*a))
        inner.defvjp(lambda *a: (function(*a), a), lambda saved, g: saved)
        return inner
    return {"": lambda f: f, "jit": jax.jit, "checkpoint": jax.checkpoint}[wrap](function)


def values_of(program):
    """The function from the leaves to all values."""
    specs, functions = [jax.ShapeDtypeStruct(*leaf) for leaf in program.leaves], []
    for step in program.steps:
        operands = tuple(specs[i] for i in step.args)
        function, spec = bind(step.op, step.picks, program.seed, len(specs), operands, program.hard)
        specs.append(spec)
        functions.append(wrapped(function, step.wrap))

    def values(x):
        pool = [x[f"x{i}"] for i in range(len(program.leaves))]
        for function, step in zip(functions, program.steps, strict=True):
            pool.append(function(*(pool[i] for i in step.args)))
        return pool

    return values


def function_of(program):
    """The program's f, made of the values that no step took, so that every step counts; and the numbers' sizes."""
    values, weights = values_of(program), Const(program.seed)((MOST,))
    taken = {i for step in program.steps for i in step.args}

    def f(x):
        pool = values(x)
        last = [v for i, v in enumerate(pool) if i >= len(x) and i not in taken]
        last = [v.astype(float) if v.dtype.kind in "ub" else v for v in last]
        total = sum(jnp.sum(v) for v in last)
        results = {
            "scalar": lambda: total,
            "weighted": lambda: sum(jnp.sum(v * weights[: v.size].reshape(v.shape)) for v in last),
            "scalars": lambda: {f"sum{i}": jnp.sum(v) for i, v in enumerate(last)},
            "terms": lambda: {f"terms{i}": v for i, v in enumerate(last)},
            "array": lambda: jnp.concatenate([v.ravel() for v in last]),
            "mixed": lambda: (total, last[0]),
        }
        largest = [jnp.max(jnp.abs(v.astype(float))) for v in pool if program.has_float32]
        return results[program.result](), jnp.array([1.0, *largest])

    return f


def data_of(program):
    """The pivot and its candidates: generic reals, and states of tables; those of some axes are common to all."""
    rng = np.random.default_rng([program.seed, 12345])
    x, candidates = {}, {}
    for i, (shape, dtype) in enumerate(program.leaves):
        real = np.clip(rng.normal(size=(program.K + 1, *shape)), -2.5, 2.5)
        drawn = real if dtype.startswith("float") else rng.integers(0, 2 if dtype == "bool" else STATES, real.shape)
        common = (slice(1, None), *(slice(1 if program.is_common(j) else None) for j in range(len(shape))))
        x[f"x{i}"], candidates[f"x{i}"] = jnp.asarray(drawn[0], dtype), jnp.asarray(drawn[common], dtype)
    return x, candidates


def rows_of(x, candidates):
    """A batch of the pivot and then every change of one element."""
    pivot, choices = jax.tree.map(np.asarray, (x, candidates))
    rows = {name: [v] for name, v in pivot.items()}
    for name, c in choices.items():
        for k, e in np.ndindex(len(c), pivot[name].size):
            changed = pivot[name].copy()
            changed.flat[e] = c[k].flat[e]
            for n in rows:
                rows[n].append(changed if n == name else pivot[n])
    return {name: np.stack(v) for name, v in rows.items()}


def from_rows(terms, candidates):
    """Differences and values of each leaf, from f's terms at each row."""
    terms, start = jax.tree.map(np.asarray, terms), 1
    differences, values = {}, {}
    for name, c in candidates.items():
        rows = slice(start, start + c.size)
        total = lambda v, c=c: v.reshape(c.size, -1).sum(1).reshape(c.shape)
        differences[name] = jax.tree.map(lambda v, rows=rows, total=total: total(v[rows] - v[:1]), terms)
        values[name] = jax.tree.map(lambda v, rows=rows, total=total: total(v[rows]), terms)
        start += c.size
    return [differences, values]


def compare(got, expected, tolerance):
    """Equal up to `tolerance`, relative to the scale of the result where that is above one."""
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for (path, a), b in zip(jax.tree.leaves_with_path(got), jax.tree.leaves(expected), strict=True):
        place, a, b = jax.tree_util.keystr(path), np.asarray(a), np.asarray(b)
        assert np.all(np.isfinite(b)), f"brute force is not finite at {place}"
        assert (a.shape, a.dtype) == (b.shape, b.dtype), f"{place}: {a.dtype}{a.shape}, expected {b.dtype}{b.shape}"
        error = np.max(np.abs(a.astype(float) - b.astype(float)), initial=0)
        scale = np.max(np.abs(b), initial=1)
        assert error <= tolerance * scale, f"{place}: off by {error / scale:.3g} of {scale:.3g}:\n{a}\nexpected\n{b}"


def check(program, method="auto", compiled=True, **settings):
    """The method equals brute force to 1e-9; with float32 latents, to 1e-5 of the largest number on the way."""
    f, (x, given) = function_of(program), data_of(program)
    candidates = {name: np.broadcast_to(c, (len(c), *x[name].shape)) for name, c in given.items()}
    rows, methods = rows_of(x, candidates), [legrad.single_site_differences]
    if program.has_values:
        methods.append(legrad.single_site)

    def by_method(x, candidates):
        return [run(lambda x: f(x)[0], x, candidates, method, **settings) for run in methods]

    if compiled:  # both at once: half of the time is what a compilation costs at least
        got, (terms, sizes) = jax.jit(lambda x, c, rows: (by_method(x, c), jax.vmap(f)(rows)))(x, given, rows)
    else:
        got, (terms, sizes) = by_method(x, given), jax.jit(jax.vmap(f))(rows)
    expected = from_rows(terms, candidates)[: len(methods)]
    compare(got, expected, 1e-5 * np.max(sizes) if program.has_float32 else 1e-9)


def each_program(around, count, use, **settings):
    """Call `use` with `count` programs around one op: the same ones each time."""
    drawn = st.binary(min_size=BYTES, max_size=BYTES).map(lambda data: program_from(data, around, **settings))

    @hypothesis.seed(zlib.crc32(around.encode()))
    @hypothesis.settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[hypothesis.Phase.generate, *([hypothesis.Phase.shrink] if SHRINK else [])],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(drawn.filter(lambda p: p.seed and any(step.op == around for step in p.steps)))  # no zeros
    def run(program):
        use(program)

    run()


def check_hard(program, double=False):
    """Wherever brute force is accurate in float32, so is the method: the truth is brute force in float64."""
    exact = program._replace(
        leaves=tuple((s, d.replace("32", "64") if d == "float32" else d) for s, d in program.leaves)
    )
    program = exact if double else program
    (x, given), (y, also) = data_of(program), data_of(exact)
    y, also = jax.tree.map(lambda a, like: jnp.asarray(a, like.dtype), (x, given), (y, also))

    f, g = function_of(program), function_of(exact)

    def by(f, x, candidates, method):
        return legrad.single_site_differences(lambda x: f(x)[0], x, candidates, method)

    run = jax.jit(lambda x, c, y, d: [*(by(f, x, c, m) for m in ("auto", "brute")), by(g, y, d, "brute")])
    found = run(x, given, y, also)
    for (path, a), b, e in zip(
        *map(jax.tree.leaves_with_path, found[:1]), *map(jax.tree.leaves, found[1:]), strict=True
    ):
        a, b, e = (np.asarray(v, float) for v in (a, b, e))
        allowed = (1e-7 if double else 1e-3) * (1 + np.abs(e))
        with np.errstate(invalid="ignore"):
            right = np.abs(a - e) <= np.maximum(4 * np.abs(b - e), allowed)
        right |= (a == e) | (a == b) | np.isnan(e) | np.isnan(b) | ~np.isfinite(b - e)
        place = jax.tree_util.keystr(path)
        assert right.all(), f"{place}: found {a[~right]}, brute force {b[~right]}, exactly {e[~right]}"


@pytest.fixture
def followed(monkeypatch):
    """Changes are followed through small programs too, where brute force would do."""
    monkeypatch.setattr(Plan, "brute", False)


@pytest.mark.usefixtures("followed")
@pytest.mark.parametrize("around", [op for op in OPS if op not in HARD])
def test_programs(around):
    each_program(around, FEW, check)


@pytest.mark.long
@pytest.mark.usefixtures("followed")
@pytest.mark.parametrize("around", [op for op in OPS if op not in HARD])
def test_more_programs(around):
    each_program(around, EACH, check)


@pytest.mark.usefixtures("followed")
@pytest.mark.parametrize("around", ["mul", "cumsum", "lookup", "contract"])
@pytest.mark.parametrize("count", [FEW, pytest.param(EACH, marks=pytest.mark.long)])
def test_float32(around, count):
    each_program(around, count, check, real="float32")


@pytest.mark.usefixtures("followed")
@pytest.mark.parametrize("around", [*HARD, "logsumexp", "matmul", "where_const", "log_softmax", "softplus"])
def test_hard_constants(around):
    """Constants from 1e-30 to 1e30 and infinite ones, masks and small rates, in float32 against float64."""
    each_program(around, 2, check_hard, real="float32", hard=True)


@pytest.mark.usefixtures("followed")
@pytest.mark.parametrize("around", ["div", "lookup_pair"])
def test_blocks(around):
    """Little memory: elements and candidates run in blocks."""
    each_program(around, EACH, lambda program: check(program, memory=100))


@pytest.mark.usefixtures("followed")
def test_outside_jit():
    each_program("square", 2, lambda program: check(program, compiled=False))


def test_brute_force():
    """What the programs are compared with is brute force."""
    each_program("gather", 4, lambda program: check(program, "brute"))


def test_every_kind_occurs():
    """At least 300 programs in float64, each instruction in three of them or more, and all kinds of leaves."""
    met, kinds, wanted_ops = set(), collections.Counter(), [op for op in OPS if op not in HARD]
    for around in wanted_ops:
        each_program(around, EACH, met.add)
    for program in met:
        taken = [i for step in program.steps for i in step.args]
        kinds.update(step.op for step in program.steps)
        kinds.update(f"in {step.wrap}" for step in program.steps)
        kinds.update(f"{dtype} leaf of rank {len(shape)}" for shape, dtype in program.leaves)
        kinds.update([f"returns {program.result}", f"{len(program.leaves)} leaves", f"{program.K} candidates"])
        kinds["ignored leaf"] += any(i not in taken for i in range(len(program.leaves)))
        kinds["with values"] += program.has_values
        kinds["leaf used twice"] += any(taken.count(i) > 1 for i in range(len(program.leaves)))
    wanted = {
        *wanted_ops,
        *(f"in {w}" for w in WRAPS),
        *(f"returns {r}" for r in RESULTS),
        "ignored leaf",
        "leaf used twice",
    }
    rare = {k: kinds[k] for k in sorted(wanted) if kinds[k] < 3}
    assert not rare, rare
    assert all(kinds[f"{dtype} leaf of rank {rank}"] for dtype in DTYPES for rank in range(4)), kinds
    assert all(kinds[f"{n} {of}"] for n in (1, 2, 3) for of in ("leaves", "candidates")), kinds
    assert len(met) >= 300
    assert kinds["with values"] >= 30


@pytest.mark.parametrize("wrong", ["differences", "values"])
def test_a_wrong_result_is_noticed(monkeypatch, wrong):
    """The comparison can fail: a millionth of the result in one number of one latent is too much."""
    program = Program(
        leaves=(((3,), "float64"), ((2,), "int32")),
        K=2,
        seed=5,
        result="scalars",
        steps=(Step("tanh", (0,), (), ""), Step("lookup", (1,), ((3,), None), "jit")),
    )
    check(program)
    name = {"differences": "single_site_differences", "values": "single_site"}[wrong]
    right = getattr(legrad, name)

    def slightly_off(*args):
        result = right(*args)
        error = 1e-6 * jnp.maximum(1, jnp.max(jnp.abs(result["x1"]["sum1"])))
        return {**result, "x1": {**result["x1"], "sum1": result["x1"]["sum1"].at[0, 1].add(error)}}

    monkeypatch.setattr(legrad, name, slightly_off)
    with pytest.raises(AssertionError, match=r"x1.*sum1.*off by"):
        check(program)
