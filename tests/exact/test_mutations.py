"""Programs in which numbers share elements, or are not what they seem: wrong exactness would show in each.

What is not proved must stay sampled. So whatever a program's terms are taken for, the loss averaged over what is
drawn is the sum over a dense grid of all latents, and so is its gradient.
"""

import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from expected.averaged import found
from expected.case import BY_QUADRATURE, Builder
from sums.oracle import close

MUTATIONS = {}


def mutation(fast=False, tolerance=None, above=None):
    """Enter a program: the decorated function gives the latents, and a function of their values to be summed up."""

    def enter(make):
        MUTATIONS[make.__name__] = (make, fast, tolerance, above)
        return make

    return enter


def case(name, seed=0):
    make, _, tolerance, above = MUTATIONS[name]
    b = Builder(np.random.default_rng([zlib.crc32(name.encode()), seed]))
    latents, f = make(b)
    add = b.factor()
    b.terms.append(lambda v: add(jnp.sum(f(*(v[n] for n in latents)))))
    b.tolerance = tolerance or b.tolerance
    return b.case(name, parents=bool(above))


def agrees(row, expected=None):
    ours = found(row)
    expected = row.expected() if expected is None else expected
    return close((ours.value, ours.gradient), expected, max(row.tolerance, ours.tolerance))


# --- an element used twice ------------------------------------------------------------------------------------------


@mutation(fast=True)
def twice_in_a_product(b):
    return [
        b.binary(3),
        b.normal(2),
    ], lambda z, x: jnp.sum(z * z * 0.7) + jnp.sum(x * x * x) - 0.1 * x[0] * x[0] * x[1]


@mutation(fast=True)
def a_member_and_its_complement(b):
    return [b.binary(3)], lambda z: 1.3 * z * (1 - z) + z * (z - 0.5) - (1 - z) * z[::-1]


@mutation(fast=True)
def a_cause_listed_twice(b):
    causes = jnp.asarray([[0, 0, 1], [2, 1, 2], [1, 1, 1], [0, 1, 2]])
    return [b.binary(3)], lambda z: jnp.log(-jnp.expm1(-0.1 - jnp.sum(0.7 * z[causes], axis=1)))


@mutation(fast=True)
def a_roll_by_the_length(b):
    return [
        b.binary(3),
        b.normal(2),
    ], lambda z, x: jnp.sum(z * jnp.roll(z, 3)) + jnp.sum(z * jnp.roll(z, -4)) - 0.4 * jnp.sum(x * jnp.roll(x, 2))


@mutation(fast=True)
def one_vector_through_two_matrices(b):
    X, Z = jnp.asarray(b.rng.normal(size=(3, 2))), jnp.asarray(b.rng.normal(size=(3, 2)))
    return [b.normal(2)], lambda x: -((X @ x + Z @ x - 0.4) ** 2) - 0.3 * (X @ x - X @ x + x[0]) ** 2


@mutation()
def one_vector_through_two_matrices_bent(b):
    X, Z = jnp.asarray(b.rng.normal(size=(3, 2))), jnp.asarray(b.rng.normal(size=(3, 2)))
    b.tolerance = BY_QUADRATURE
    return [b.normal(2)], lambda x: -jax.nn.softplus(X @ x + Z @ x) - jnp.exp(0.3 * (X @ x) + 0.3 * x[0])


@mutation()
def copies(b):
    i = jnp.asarray([0, 0, 1])
    return (
        [b.normal(2), b.binary(2)],
        lambda x, z: (
            -(jnp.concatenate([x, x]).sum() ** 2)
            - (jnp.tile(x, 2) @ jnp.arange(4.0) - z[i].sum()) ** 2
            + 0.2 * jnp.sum(x[i] * x[i[::-1]])
        ),
    )


@mutation(fast=True)
def indices_out_of_bounds(b):
    """JAX clips them: two that are beyond the end are the last element."""
    i, j = jnp.asarray([2, 5, -1]), jnp.asarray([7, 2, 2])
    return [b.binary(3)], lambda z: z[i] * z[j] + 0.5 * jnp.take(z, j, mode="wrap") * z[::-1]


@mutation()
def scattered_on_one_another(b):
    i, b.points = jnp.asarray([0, 1, 0]), 29
    return (
        [b.binary(3), b.normal(3)],
        lambda z, x: (
            -(jnp.zeros(2).at[i].add(x) ** 2) + jnp.ones(2).at[i].multiply(1.0 * z) + jnp.zeros(2).at[i].max(1.0 * z)
        ),
    )


@mutation(fast=True)
def outer_product_with_itself(b):
    return [
        b.binary(3),
        b.normal(2),
    ], lambda z, x: jnp.sum(0.3 * z[:, None] * z[None, :]) - 0.2 * jnp.sum(jnp.outer(x, x)) + jnp.sum(x @ x[:, None])


@mutation()
def axes_of_length_one(b):
    return (
        [b.binary(1), b.normal(1)],
        lambda z, x: (
            z * jnp.roll(z, 1)
            + jnp.sum(z[:, None] * z[None])
            - jnp.sum(x * jnp.broadcast_to(x, (3,)))
            + (x @ x) * z[0]
        ),
    )


@mutation()
def a_square_site_against_its_transpose(b):
    return [b.binary(2, 2)], lambda z: jnp.sum(0.7 * z * z.T) + jnp.sum(z @ z) + jnp.sum(z[:, :1] * z[:1])


@mutation(fast=True)
def one_element_for_all_of_a_plate(b):
    y = jnp.asarray(b.rng.normal(size=4))
    u = b.normal(1)
    return [u, b.binary(4)], lambda u, z: -((y - u * z) ** 2) - 0.1 * jnp.sum(u * jnp.ones(4)) ** 2


@mutation()
def sums_of_overlapping_windows(b):
    b.points = 29
    return (
        [b.normal(3), b.binary(3)],
        lambda x, z: (
            -jnp.sum(jnp.cumsum(x) * jnp.cumsum(x)[::-1])
            - (x[1:].sum() + x[:-1].sum()) ** 2
            + jnp.cumprod(z - 0.5).sum()
        ),
    )


@mutation()
def distances(b):
    return [
        b.normal(3)
    ], lambda x: -0.1 * jnp.sum((x[:, None] - x[None, :]) ** 2) - jnp.var(x) + 0.2 * jnp.mean(x) ** 2


# --- two numbers of the same elements -------------------------------------------------------------------------------


@mutation(fast=True, tolerance=BY_QUADRATURE)
def two_projections_in_one_number(b):
    X, Z = jnp.asarray(b.rng.normal(size=(2, 2))), jnp.asarray(b.rng.normal(size=(2, 2)))
    return [b.normal(2)], lambda x: 0.3 * jnp.exp(0.5 * (X @ x)) * (Z @ x) - jax.nn.softplus(X @ x) * (X @ x)


@mutation(tolerance=BY_QUADRATURE)
def uncorrelated_but_one_element(b):
    return [b.normal(1)], lambda x: x**2 * jnp.cos(x) + jnp.exp(0.2 * x) * x


@mutation(tolerance=BY_QUADRATURE)
def a_larger_of_two(b):
    return [b.normal(2)], lambda x: -jnp.logaddexp(x[0] + x[1], x[0] - 2.0 * x[1]) - jax.nn.logsumexp(x)


@mutation(tolerance=BY_QUADRATURE)
def a_predictor_of_what_is_not_normal(b):
    """A sum of positive elements has a mean and a variance, and is no Gaussian."""
    return [b.positive(2, gamma=True)], lambda t: jnp.exp(-0.3 * (t[0] + 2.0 * t[1])) - 0.1 * (t[0] - t[1]) ** 2


@mutation()
def a_switch_in_a_predictor(b):
    b.tolerance = BY_QUADRATURE
    return [b.binary(2), b.normal(2)], lambda z, x: -jax.nn.softplus(jnp.sum(z * x) + 0.3) - (z @ x) ** 2


@mutation(fast=True)
def where_on_a_latent(b):
    return [
        b.binary(3),
        b.normal(2),
    ], lambda z, x: jnp.where(z == 1, x[0], x[1] * x[0]) + jnp.where(z > jnp.roll(z, 1), x[0] ** 2, 0.3)


# --- a guide with dependences ---------------------------------------------------------------------------------------


@mutation(fast=True, above=True)
def a_parent_in_the_guide(b):
    return [
        b.binary(2),
        b.latent("c", "choice", 2, K=2, probs=np.asarray([0.4, 0.6])),
    ], lambda z, c: 1.3 * z * c - 0.5 * (z.sum() - c.sum()) ** 2


@mutation(above=True)
def a_normal_below_a_choice(b):
    return [b.binary(2), b.normal(1)], lambda z, x: -((x - z) ** 2) + 0.3 * x * z


@mutation(fast=True, tolerance=BY_QUADRATURE)
def a_scale_that_is_correlated_in_the_guide(b):
    """Mean and log-scale of one multivariate Normal site."""
    return [b.joint(2)], lambda w: -((0.4 - w[0]) ** 2) * jnp.exp(-w[1])


@mutation(tolerance=BY_QUADRATURE, above=True)
def a_scale_below_its_mean(b):
    return [b.normal(1), b.normal(1, name="s")], lambda x, s: -((0.4 - x) ** 2) * jnp.exp(-s)


@mutation(fast=True)
def elements_of_a_joint_site(b):
    return [b.joint(3)], lambda w: w[0] * w[1] - 0.3 * w[2] ** 2 * w[0] + 0.2 * jnp.prod(w) - jnp.sum(w) ** 2


@mutation(tolerance=BY_QUADRATURE)
def functions_of_elements_of_a_joint_site(b):
    return [b.joint(2)], lambda w: w[0] * jnp.tanh(w[1]) + jnp.exp(0.3 * w[0]) * w[1] - jax.nn.softplus(w[0] - w[1])


# --- operations that are not what they seem -------------------------------------------------------------------------


@mutation()
def remainders_and_narrow_integers(b):
    k = b.count(2, 3)
    return (
        [k, b.binary(2)],
        lambda k, z: (
            (k.astype(jnp.int8) * jnp.int8(90)).astype(float) * 0.01
            + (k % 2) * z
            + (k.astype(int) ^ z.astype(int)) // 2
        ),
    )


@mutation()
def functions_with_rules_of_their_own(b):
    b.tolerance = BY_QUADRATURE

    @jax.custom_jvp
    def cube(x):
        return x**3

    cube.defjvp(lambda p, t: (cube(p[0]), 3 * p[0] ** 2 * t[0]))
    return (
        [b.normal(2), b.binary(2)],
        lambda x, z: (
            cube(x) * 0.1
            + jax.jit(lambda a, c: a * c * a)(x, z)
            - jax.checkpoint(lambda a: jnp.sum(a) ** 2)(x)
            + jax.vmap(lambda a, c: jnp.sin(a) * c)(x, z)
        ),
    )


@mutation()
def loops(b):
    def body(carry, each):
        return 0.5 * carry * each + each, carry

    return (
        [b.binary(3), b.normal(2)],
        lambda z, x: (
            lax.scan(body, 0.3, z - 0.4)[0]
            + lax.fori_loop(0, 2, lambda i, s: s * x[i] + z[i], 1.0)
            + lax.cond(z[0] > 0, lambda: x[0] * z[1], lambda: x[1] * x[0])
        ),
    )


@mutation()
def orders(b):
    return (
        [b.binary(3), b.count(2, 2)],
        lambda z, k: (
            jnp.sort(z) @ jnp.arange(3.0) + 0.3 * jnp.argmax(z) + jnp.max(k) * z[0] - jnp.minimum(z[0], z[1]) * z[0]
        ),
    )


@mutation(tolerance=BY_QUADRATURE)
def matrices_of_latents(b):
    def f(x):
        A = jnp.eye(2) * 3.0 + jnp.outer(jnp.tanh(x), jnp.ones(2))
        return jnp.linalg.slogdet(A)[1] + 0.2 * jnp.sum(jnp.linalg.solve(A @ A.T, x))

    return [b.normal(2)], f


@mutation(tolerance=BY_QUADRATURE)
def divisions(b):
    return [b.normal(2), b.binary(2)], lambda x, z: x / (1.5 + z) + z / (2.0 + jnp.sin(x)) - x**2 / (3.0 + z[::-1])


@pytest.mark.parametrize("name", [n for n, row in MUTATIONS.items() if row[1]])
def test_a_few(name):
    assert agrees(case(name))


@pytest.mark.long
@pytest.mark.parametrize("name", [n for n, row in MUTATIONS.items() if not row[1]])
def test_others(name):
    assert agrees(case(name))
