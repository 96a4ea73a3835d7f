"""Families of programs whose latents are discrete: neighbours, look-ups, tables, linear predictors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from expected.case import Builder, Values


def signs(z: jax.Array) -> jax.Array:
    return 2.0 * z - 1.0


def pairs(b: Builder) -> None:
    """Neighbours in a chain, in a field of their own."""
    n = int(b.rng.integers(3, 6))
    z, J, h = b.binary(n, learned=bool(b.rng.integers(2))), b.matrix(n - 1), b.matrix(n)
    add = b.factor()

    def term(v: Values) -> None:
        s = signs(v[z])
        add(jnp.sum(v[J] * s[1:] * s[:-1]) + v[h] @ s)

    b.terms.append(term)


def roll(b: Builder) -> None:
    """A ring, or an array against itself where the shift is the length."""
    n = int(b.rng.integers(2, 5))
    z, J, by = b.binary(n), b.matrix(n), int(b.rng.integers(1, n + 1))
    add = b.factor()
    b.terms.append(lambda v: add(v[J] @ (signs(v[z]) * jnp.roll(signs(v[z]), by))))


def grid(b: Builder) -> None:
    """Neighbours on both axes of a grid."""
    shape = (2, int(b.rng.integers(2, 4)))
    z, J = b.binary(*shape), b.matrix(*shape)
    add = b.factor()

    def term(v: Values) -> None:
        s = signs(v[z])
        down, right = jnp.sum((s[1:] * s[:-1]) * v[J][1:]), jnp.sum(s[:, 1:] * s[:, :-1])
        add(0.4 * down + 0.3 * right)

    b.terms.append(term)


def same_neighbours(b: Builder) -> None:
    """`where` on whether neighbours are equal, as a chain's transitions are written."""
    n = int(b.rng.integers(3, 5))
    z, stay = b.binary(n, 2), b.array("stay", b.rng.uniform(0.6, 0.9, 2))
    add = b.factor()

    def term(v: Values) -> None:
        change = jnp.where(v[z][1:] == v[z][:-1], jnp.log(v[stay]), jnp.log1p(-v[stay]))
        add(jnp.sum(change))

    b.terms.append(term)


def transitions(b: Builder) -> None:
    """A table of neighbours' states, `A[c[:-1], c[1:]]`."""
    K = int(b.rng.integers(2, 4))
    c, A = b.choice(int(b.rng.integers(2, 5)), K), b.array("table", np.log(b.rng.dirichlet(np.ones(K), K)))
    add = b.factor()
    b.terms.append(lambda v: add(jnp.sum(v[A][v[c][:-1], v[c][1:]])))


def emissions(b: Builder) -> None:
    """Observations that a state chooses the law of, `M[c]`."""
    n, K = int(b.rng.integers(2, 4)), 3
    c, logits, kind = b.choice(n, K), b.matrix(K, 4), int(b.rng.integers(3))
    rate = b.array("rate", b.rng.uniform(0.5, 3.0, K))
    y = b.array("y", b.rng.integers(0, 4, n))
    observe = b.observed(n)

    def term(v: Values) -> None:
        if kind == 0:
            law = dist.Categorical(logits=v[logits][v[c]])
        elif kind == 1:
            law = dist.Poisson(v[rate][v[c]])
        else:
            law = dist.StudentT(4.0, v[rate][v[c]], 0.5 + 0.2 * v[c])
        observe(law, v[y])

    b.terms.append(term)


def slope_of_members(b: Builder) -> None:
    """A linear predictor of binary or count latents with a Normal likelihood."""
    n, m = int(b.rng.integers(2, 4)), int(b.rng.integers(2, 5))
    z = b.binary(n) if b.rng.integers(2) else b.count(n, 2)
    A, y = b.matrix(m, n), b.array("y", b.rng.normal(size=m))
    sd = noise(b)
    observe = b.observed(m)

    def term(v: Values) -> None:
        observe(dist.Normal(v[A] @ v[z], sd(v)), v[y])

    b.terms.append(term)


def correlated_noise(b: Builder) -> None:
    """A multivariate Normal likelihood of a linear predictor."""
    m, observe = 3, b.observed(plate=False)
    z, y = b.binary(3), b.array("y", b.rng.normal(size=m))
    A, root = b.matrix(m, 3), np.linalg.cholesky(np.eye(m) + 0.4 * np.ones((m, m)))
    kind = int(b.rng.integers(3))

    def term(v: Values) -> None:
        cov = jnp.asarray(root @ root.T)
        form = [
            {"covariance_matrix": cov},
            {"precision_matrix": jnp.linalg.inv(cov)},
            {"scale_tril": jnp.asarray(root)},
        ][kind]
        observe(dist.MultivariateNormal(v[A] @ v[z], **form), v[y])

    b.terms.append(term)


def noisy_or(b: Builder) -> None:
    """Findings with a few causes each, of which one may be listed twice."""
    n, m, few = 4, int(b.rng.integers(2, 5)), int(b.rng.integers(1, 4))
    z, causes = b.binary(n), b.array("causes", b.rng.integers(0, n, (m, few)))
    weight, y = b.array("weight", b.rng.exponential(size=(m, few))), b.array("y", b.rng.integers(0, 2, m))
    observe = b.observed(m)

    def term(v: Values) -> None:
        off = -0.05 - jnp.sum(v[weight] * v[z][v[causes]], axis=1)
        observe(dist.Bernoulli(logits=jnp.log(-jnp.expm1(off)) - off), v[y])

    b.terms.append(term)


def leaky_product(b: Builder) -> None:
    """The logarithm of one minus a product over members."""
    n = int(b.rng.integers(2, 5))
    z, fail = b.binary(n), b.array("fail", b.rng.uniform(0.2, 0.8, n))
    power = bool(b.rng.integers(2))
    add = b.factor()

    def term(v: Values) -> None:
        parts = v[fail] ** v[z] if power else jnp.where(v[z] == 1, v[fail], 0.9)
        add(jnp.log1p(-0.9 * jnp.prod(parts)))

    b.terms.append(term)


def looked_up_members(b: Builder) -> None:
    """Products of members that index arrays name; an index may name the same member in both."""
    n, m = int(b.rng.integers(2, 5)), int(b.rng.integers(2, 5))
    z, i, j = b.binary(n), b.array("i", b.rng.integers(0, n, m)), b.array("j", b.rng.integers(0, n, m))
    y, kind = b.array("y", b.rng.normal(size=m)), int(b.rng.integers(3))
    observe = b.observed(m)

    def term(v: Values) -> None:
        first, second = signs(v[z])[v[i]], signs(v[z])[v[j]]
        mean = [first * second, first + 0.5 * second, jnp.maximum(first, second)][kind]
        observe(dist.Normal(mean, 0.8), v[y])

    b.terms.append(term)


def one_hot(b: Builder) -> None:
    """States as indicator vectors, in a bilinear form of neighbours."""
    K = 3
    c, M = b.choice(3, K), b.matrix(K, K)
    add = b.factor()

    def term(v: Values) -> None:
        h = jax.nn.one_hot(v[c], K)
        add(jnp.einsum("ik,kl,il->", h[:-1], v[M], h[1:]) + jnp.sum(h @ v[M][:, 0]))

    b.terms.append(term)


def windows(b: Builder) -> None:
    """A nonlinear function of three neighbours, by slices and concatenation."""
    z, w = b.binary(4), b.matrix(3, zeros=False)
    add = b.factor()

    def term(v: Values) -> None:
        s = signs(v[z])
        wide = jnp.concatenate([jnp.ones(1), s, -jnp.ones(1)])
        add(jnp.sum(jnp.tanh(v[w][0] * wide[:-2] + v[w][1] * wide[1:-1] + v[w][2] * wide[2:])))

    b.terms.append(term)


def running_sums(b: Builder) -> None:
    """A path of binary steps, observed with noise."""
    n = int(b.rng.integers(2, 5))
    z, y = b.binary(n), b.array("y", b.rng.normal(size=n))
    observe = b.observed(n)

    def term(v: Values) -> None:
        observe(dist.Normal(jnp.cumsum(signs(v[z])), 1.2), v[y])

    b.terms.append(term)


def sub_blocks(b: Builder) -> None:
    """Blocks of a matrix of latents: a product of two, sums along axes, a square of a sum."""
    z, kind = b.binary(2, 3), int(b.rng.integers(4))
    add = b.factor()

    def term(v: Values) -> None:
        s = signs(v[z])
        what = [
            lambda: jnp.sum(s[:, :2] @ s[:, 1:].T),
            lambda: jnp.sum(s.sum(0) ** 2),
            lambda: jnp.sum(s[0] * s[1, ::-1]),
            lambda: jnp.trace(s @ s.T) + jnp.sum(s.reshape(3, 2)[:, 0] * s.reshape(3, 2)[:, 1]),
        ][kind]
        add(0.3 * what())

    b.terms.append(term)


def counts_of_members(b: Builder) -> None:
    """Binomial latents in a function of one element, and in a Binomial likelihood that they are the total of."""
    n = int(b.rng.integers(1, 4))
    k, y, total = b.count(n, 3), b.array("y", b.rng.integers(0, 5, n)), int(b.rng.integers(2))
    add = b.factor()
    observe = b.observed(n)

    def term(v: Values) -> None:
        if total:
            add(jnp.sum(jnp.log1p(v[k]) * jnp.cos(1.0 * v[k])))
        else:
            observe(dist.Poisson(0.3 + v[k]), v[y])

    b.terms.append(term)


def broadcast_member(b: Builder) -> None:
    """One element spread over all data of a plate, beside one for each datum."""
    m = int(b.rng.integers(2, 4))
    one, many = b.latent("u", "binary", 1, probs=0.4), b.binary(m)
    y, kind = b.array("y", b.rng.normal(size=m)), int(b.rng.integers(2))
    observe = b.observed(m)

    def term(v: Values) -> None:
        mean = v[one] * v[many] if kind else 2.0 * v[one] - v[many]
        observe(dist.Normal(mean, 0.9), v[y])

    b.terms.append(term)


def noise(b: Builder) -> Callable[[Values], Any]:
    """Return a noise scale as a function of the values: a constant, or a parameter of the model."""
    if b.rng.integers(2):
        return lambda v: 0.8
    return lambda v: jnp.exp(numpyro.param("model_scale", 0.0))


FAMILIES = {
    f.__name__: f
    for f in (
        pairs,
        roll,
        grid,
        same_neighbours,
        transitions,
        emissions,
        slope_of_members,
        correlated_noise,
        noisy_or,
        leaky_product,
        looked_up_members,
        one_hot,
        windows,
        running_sums,
        sub_blocks,
        counts_of_members,
        broadcast_member,
    )
}
