"""Families of programs in which discrete and continuous latents meet."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from expected.case import BY_QUADRATURE, Builder, Values
from expected.discrete_terms import noise


def mixture(b: Builder) -> None:
    """Components chosen by states, `mu[c]`; a mean alone, or a line with a common slope."""
    K = int(b.rng.integers(2, 4))
    n, b.points = int(b.rng.integers(2, 5 if K == 2 else 4)), 24 if K == 3 else None  # polynomials need few
    c, mu, y = b.choice(n, K), b.normal(K), b.array("y", b.rng.normal(size=n))
    sd, observe, t = noise(b), b.observed(n), b.array("t", b.rng.normal(size=n))
    slope = b.normal(1, name="s") if K == 2 and n < 4 and b.rng.integers(2) else None
    b.points = 29 if slope else b.points

    def term(v: Values) -> None:
        mean = v[mu][v[c]] if slope is None else v[mu][v[c]] + v[slope][0] * v[t]
        observe(dist.Normal(mean, sd(v)), v[y])

    b.terms.append(term)


def mixture_of_classes(b: Builder) -> None:
    """Components with logits or log-rates that are Normal, chosen by states."""
    n, K = int(b.rng.integers(2, 4)), 2
    c, mu, y = b.choice(n, K), b.normal(K), b.array("y", b.rng.integers(0, 2, n))
    observe, poisson = b.observed(n), bool(b.rng.integers(2))
    b.tolerance = BY_QUADRATURE

    def term(v: Values) -> None:
        a = v[mu][v[c]]
        observe(dist.Poisson(jnp.exp(a)) if poisson else dist.Bernoulli(logits=a), v[y])

    b.terms.append(term)


def slab(b: Builder) -> None:
    """Linear regression on `gamma * beta`."""
    d, m = int(b.rng.integers(1, 4)), int(b.rng.integers(2, 6))
    z, x, X, y = b.binary(d), b.normal(d), b.matrix(m, d), b.array("y", b.rng.normal(size=m))
    sd, observe, b.points = noise(b), b.observed(m), 29 if d == 3 else None
    b.terms.append(lambda v: observe(dist.Normal(v[X] @ (v[z] * v[x]), sd(v)), v[y]))


def slab_of_counts(b: Builder) -> None:
    """The same with a nonlinear likelihood: no projection, as the elements are no longer Normal."""
    d, m = 2, int(b.rng.integers(2, 4))
    z, x, X = b.binary(d), b.normal(d), b.matrix(m, d)
    y, observe = b.array("y", b.rng.integers(0, 2, m)), b.observed(m)
    b.tolerance = BY_QUADRATURE
    b.terms.append(lambda v: observe(dist.Bernoulli(logits=v[X] @ (v[z] * v[x])), v[y]))


def chosen_mean(b: Builder) -> None:
    """`where` on a binary latent, between two Normal elements."""
    n = int(b.rng.integers(2, 4))
    z, x, y = b.binary(n), b.normal(2), b.array("y", b.rng.normal(size=n))
    observe, kind = b.observed(n), int(b.rng.integers(3))

    def term(v: Values) -> None:
        first, second = v[x]
        mean = [
            lambda: jnp.where(v[z] == 1, first, second),
            lambda: v[z] * first + (1 - v[z]) * second,
            lambda: jnp.where(v[z] == 1, first + second, 0.5),
        ][kind]()
        observe(dist.Normal(mean, 0.8), v[y])

    b.terms.append(term)


def side_by_side(b: Builder) -> None:
    """Discrete and Normal elements concatenated, and seen by one matrix."""
    n, d, m = int(b.rng.integers(1, 4)), int(b.rng.integers(1, 3)), int(b.rng.integers(2, 5))
    z, x, A = b.binary(n), b.normal(d), b.matrix(m, n + d)
    y, observe = b.array("y", b.rng.normal(size=m)), b.observed(m)
    b.terms.append(lambda v: observe(dist.Normal(v[A] @ jnp.concatenate([v[z], v[x]]), 0.9), v[y]))


def chosen_scale(b: Builder) -> None:
    """States that choose the noise around a linear predictor."""
    n, d = int(b.rng.integers(2, 4)), int(b.rng.integers(1, 3))
    c, x, X = b.choice(n, 2), b.normal(d), b.matrix(n, d)
    y, observe = b.array("y", b.rng.normal(size=n)), b.observed(n)
    sd = b.array("sd", b.rng.uniform(0.5, 1.5, 2))
    b.terms.append(lambda v: observe(dist.Normal(v[X] @ v[x], v[sd][v[c]]), v[y]))


def switched_on(b: Builder) -> None:
    """A function of a projection that a binary latent switches on, member by member."""
    n, d = int(b.rng.integers(2, 4)), int(b.rng.integers(1, 3))
    z, x, X = b.binary(n), b.normal(d), b.matrix(n, d)
    add, kind = b.factor(), int(b.rng.integers(3))
    b.tolerance = BY_QUADRATURE

    def term(v: Values) -> None:
        a = 0.6 * (v[X] @ v[x])
        add(
            jnp.sum(
                [
                    lambda: v[z] * jax.nn.softplus(a),
                    lambda: jnp.where(v[z] == 1, jnp.tanh(a), 0.2),
                    lambda: jax.nn.log_sigmoid(a + v[z]),
                ][kind]()
            )
        )

    b.terms.append(term)


def positive_latents(b: Builder) -> None:
    """Rates that are Gamma or LogNormal, in Poisson and Exponential likelihoods and in their own prior."""
    n = int(b.rng.integers(1, 3))
    t, kind, observe = b.positive(n, gamma=bool(b.rng.integers(2))), int(b.rng.integers(3)), b.observed(n)
    exposure, y = b.array("exposure", b.rng.uniform(0.5, 2.0, n)), b.array("y", 1 + b.rng.integers(0, 4, n))
    b.tolerance = BY_QUADRATURE

    def term(v: Values) -> None:
        law = [
            lambda: dist.Poisson(v[t] * v[exposure]),
            lambda: dist.Exponential(v[t]),
            lambda: dist.Gamma(1.5, v[t]),
        ][kind]
        observe(law(), v[y])

    b.terms.append(term)


def counts_and_rates(b: Builder) -> None:
    """Binomial latents beside Normal elements in a linear predictor, and multiplied with them."""
    n = int(b.rng.integers(1, 4))
    k, x, y = b.count(n, 2), b.normal(n), b.array("y", np.asarray(b.rng.normal(size=n)))
    observe, kind = b.observed(n), int(b.rng.integers(2))

    def term(v: Values) -> None:
        observe(dist.Normal(v[k] * v[x] if kind else v[k] - v[x], 1.1), v[y])

    b.terms.append(term)


FAMILIES = {
    f.__name__: f
    for f in (
        mixture,
        mixture_of_classes,
        slab,
        slab_of_counts,
        chosen_mean,
        side_by_side,
        chosen_scale,
        switched_on,
        positive_latents,
        counts_and_rates,
    )
}
