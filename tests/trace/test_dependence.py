"""What each number of a program sees, against the Jacobian's pattern: sound always, exact where it should be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from legrad.trace.concrete import compiled_for
from legrad.trace.dependence import EMPTY, RULES, members, own_boxes, own_sets, reach
from legrad.trace.program import Program

pytestmark = pytest.mark.usefixtures("strict_ranks")

A = jnp.asarray(np.random.default_rng(0).normal(size=(3, 5)))

PROGRAMS = {
    # name: (program of x with shape (4, 3), whether what is found is the exact pattern: always, or for sets alone)
    "elementwise": (lambda x: jnp.sin(x) * 2 + x**2, True),
    "scalar broadcast": (lambda x: x + x.sum(), True),
    "reduce": (lambda x: x.sum(axis=1), True),
    "row of a matrix": (lambda x: x @ A, True),
    "transpose and reshape": (lambda x: x.T.reshape(2, 6), True),
    "roll": (lambda x: x * jnp.roll(x, 1, axis=0), "sets"),  # two rows: an interval
    "gather of several": (lambda x: x[jnp.array([[3, 0], [0, 2]])].sum(axis=1), "sets"),
    "slice and concatenate": (lambda x: jnp.concatenate([x[1:3], jnp.ones((1, 3)), x[:1]]), True),
    "reverse": (lambda x: x[::-1], True),
    "pad": (lambda x: jnp.pad(x, ((1, 0), (0, 2))), True),
    "gather": (lambda x: x[jnp.array([3, 0, 0])], True),
    "gather out of bounds": (lambda x: x.at[jnp.array([7, 1])].get(mode="fill", fill_value=0.0), True),
    "take along axis": (lambda x: jnp.take_along_axis(x, jnp.array([[0], [2], [1], [1]]), axis=1), True),
    "cumsum": (lambda x: jnp.cumsum(x, axis=1), True),
    "reverse cumsum": (lambda x: jax.lax.cumsum(x, axis=0, reverse=True), True),
    "sort": (lambda x: jnp.sort(x, axis=1), False),
    "logsumexp": (lambda x: jax.nn.logsumexp(x, axis=1), True),
    "softmax": (lambda x: jax.nn.softmax(x, axis=0), True),
    "where": (lambda x: jnp.where(x > 0, x, 0.0), True),
    "split": (lambda x: jnp.split(x, 2)[1], True),
    "batched product": (lambda x: jnp.einsum("ij,ij->i", x, x), True),
    "product with itself": (lambda x: x @ x.T, "sets"),
    "triangular solve": (
        lambda x: jax.scipy.linalg.solve_triangular(jnp.eye(4) + jnp.tril(jnp.ones((4, 4))), x, lower=True),
        False,
    ),
    "scan": (lambda x: jax.lax.scan(lambda c, r: (c + r, c), jnp.zeros(3), x)[1], False),
    "cond": (lambda x: jax.lax.cond(x[0, 0] > 0, lambda y: y, lambda y: 2 * y, x), False),
    "fft": (lambda x: jnp.abs(jnp.fft.fft(x, axis=1)), False),  # no rule: everything
    "custom gradient": (lambda x: jax.nn.relu(x) + jax.nn.softplus(x), True),
    "checkpoint": (lambda x: jax.checkpoint(jnp.exp)(x), True),
    "ignores x": (lambda x: jnp.ones(3), True),
}


def pattern_of(program, x):
    jacobian = jax.jacobian(program)(x)
    return np.asarray(jacobian != 0)  # (*out, 4, 3)


def pattern_of_boxes(boxes, shape, out):
    if boxes is None:
        return np.zeros((*out, *shape), bool)
    lo, hi = boxes[: len(shape)], -boxes[len(shape) :]
    inside = np.ones((*out, *shape), bool)
    for axis, size in enumerate(shape):
        index = np.arange(size).reshape([-1 if a == axis else 1 for a in range(len(shape))])
        fit = lambda b: b.reshape(b.shape + (1,) * len(shape))
        inside &= (fit(lo[axis]) <= index) & (index <= fit(hi[axis]))
    return inside & (lo[0] != EMPTY).reshape(*out, *(1,) * len(shape))


def pattern_of_sets(sets, shape, out):
    if sets is None:
        return np.zeros((*out, *shape), bool)
    return members(sets)[..., : np.prod(shape)].reshape(*out, *shape)


FORMS = {"boxes": (own_boxes, pattern_of_boxes), "sets": (own_sets, pattern_of_sets)}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_seen_holds_the_jacobian(name, form):
    (program, exact), (own, pattern) = PROGRAMS[name], FORMS[form]
    x = jnp.asarray(np.random.default_rng(1).normal(size=(4, 3)))
    found = reach(Program(program, x), own(x.shape))
    truth = pattern_of(program, x)
    claimed = pattern(found, x.shape, truth.shape[:-2])
    assert not np.any(truth & ~claimed), "a dependence was missed"
    if exact in (True, form):
        # what lies inside a box but is not touched (relu of a negative number) would be touched elsewhere
        anywhere = truth | pattern_of(program, -x) | pattern_of(program, x + 3)
        assert np.array_equal(claimed, anywhere)


def test_a_latent_index_is_seen_by_what_it_picks():
    mu = jnp.arange(5.0)
    z = jnp.array([3, 1, 4])
    boxes = reach(Program(lambda z: mu[z], z), own_boxes(z.shape))
    assert np.array_equal(boxes[0], [0, 1, 2])
    assert np.array_equal(-boxes[1], [0, 1, 2])


def test_index_arrays_behind_jit_are_not_trusted():
    """A traced index array could hold anything: every output may see every element."""

    def count_points(index):
        boxes = reach(Program(lambda x: x[index], jnp.zeros(3)), own_boxes((3,)))
        found.append(boxes)
        return index

    found = []
    jax.jit(count_points)(jnp.array([2, 1]))
    assert np.array_equal(found[0], [[0, 0], [-2, -2]])


def test_index_arrays_that_are_known_behind_jit_are_read():
    """As `fit` knows its data: also what the program computes from them, floating-point numbers among them."""

    def look_up(index, shift):
        def program(x):
            place = jnp.where(index > 1, index, 0) - jnp.floor(shift).astype(int)
            return x[place]

        with compiled_for([index, shift], [np.array([2, 1]), np.float32(0.5)]):
            found.append(reach(Program(program, jnp.zeros(3)), own_boxes((3,))))
        return index

    found = []
    jax.jit(look_up)(jnp.array([2, 1]), jnp.float32(0.5))
    assert np.array_equal(found[0], [[2, 0], [-2, 0]])


def test_two_latents_are_followed_side_by_side():
    """The leading axis is nobody's business: each latent has rows of its own there."""
    x, z = jnp.zeros(3), jnp.zeros(2)
    of_x, of_z = own_sets(x.shape), own_sets(z.shape)
    seen = {"x": np.concatenate([of_x, 0 * of_x]), "z": np.concatenate([0 * of_z, of_z])}
    found = reach(Program(lambda t: t["x"][:2] * t["z"], {"x": x, "z": z}), seen)
    assert np.array_equal(found, [[1, 2], [1, 2]])


@pytest.mark.parametrize("count", [1, 63, 64, 65, 200])
def test_sets_of_many_elements(count):
    assert np.array_equal(members(own_sets((count,)))[:, :count], np.eye(count, dtype=bool))


def test_a_scalar_latent_is_seen():
    assert reach(Program(lambda x: 2 * x, jnp.zeros(())), own_boxes(())) is not None


def test_a_missing_rule_would_be_noticed(monkeypatch):
    """The comparison can fail: claim that a cumulative sum is elementwise."""
    monkeypatch.setitem(RULES, "cumsum", RULES["sin"])
    with pytest.raises(AssertionError, match="missed"):
        test_what_is_seen_holds_the_jacobian("cumsum", "sets")
