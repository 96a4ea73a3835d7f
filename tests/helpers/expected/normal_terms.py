"""Families of programs with Normal latents: regressions of all kinds, forms, noise scales that are latent."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from expected.case import BY_QUADRATURE, Builder, Values
from expected.discrete_terms import noise


def design(b: Builder, d: int) -> tuple[str, str, int]:
    """A small matrix and real observations, with the number of rows."""
    m = int(b.rng.integers(2, 6))
    return b.matrix(m, d), b.array("y", b.rng.normal(size=m)), m


def coefficients(b: Builder) -> tuple[str, int]:
    """A vector of Normal elements: independent, or of a multivariate Normal site."""
    d = int(b.rng.integers(1, 4))
    if d > 1 and b.rng.random() < 0.3:
        return b.joint(d, whole=bool(b.rng.integers(2))), d
    return b.normal(d), d


def regression(b: Builder) -> None:
    """A Normal likelihood of a linear predictor."""
    x, d = coefficients(b)
    X, y, m = design(b, d)
    sd, observe = noise(b), b.observed(m)
    b.terms.append(lambda v: observe(dist.Normal(v[X] @ v[x] + 0.3, sd(v)), v[y]))


def unknown_noise(b: Builder) -> None:
    """A Normal likelihood whose noise has a latent log-scale, perhaps shared with a second site."""
    d = int(b.rng.integers(1, 3))
    x, s = b.normal(d), b.normal(1, name="s")
    X, y, m = design(b, d)
    observe, other, shared = b.observed(m), b.observed(m), bool(b.rng.integers(2))
    b.tolerance = BY_QUADRATURE

    def term(v: Values) -> None:
        sd = jnp.exp(0.5 * v[s][0])
        observe(dist.Normal(v[X] @ v[x], sd), v[y])
        if shared:
            other(dist.Normal(0.4, 2.0 * sd), v[y])

    b.terms.append(term)


def unknown_precision(b: Builder) -> None:
    """The same with a precision that is positive: a Gamma or a LogNormal factor."""
    d = int(b.rng.integers(1, 3))
    x, t = b.normal(d), b.positive(1, gamma=bool(b.rng.integers(2)))
    X, y, m = design(b, d)
    observe = b.observed(m)
    b.tolerance = BY_QUADRATURE
    b.terms.append(lambda v: observe(dist.Normal(v[X] @ v[x], 1 / jnp.sqrt(v[t])), v[y]))


def binary_regression(b: Builder) -> None:
    """Logistic or probit regression; the logistic one by logits or by probabilities."""
    x, d = coefficients(b)
    X, _, m = design(b, d)
    y, observe, kind = b.array("y", b.rng.integers(0, 2, m)), b.observed(m), int(b.rng.integers(3))
    b.tolerance = BY_QUADRATURE

    def term(v: Values) -> None:
        a = v[X] @ v[x]
        law = [
            lambda: dist.Bernoulli(logits=a),
            lambda: dist.Bernoulli(probs=jax.nn.sigmoid(a)),
            lambda: dist.Bernoulli(probs=jnp.clip(jax.scipy.stats.norm.cdf(0.3 * a), 1e-12, 1 - 1e-12)),
        ][kind]
        observe(law(), v[y])

    b.terms.append(term)


def count_regression(b: Builder) -> None:
    """Poisson, Binomial or negative-binomial regression, with an exposure."""
    x, d = coefficients(b)
    X, _, m = design(b, d)
    y, observe, kind = b.array("y", b.rng.integers(0, 5, m)), b.observed(m), int(b.rng.integers(4))
    exposure = b.array("exposure", b.rng.uniform(0.5, 2.0, m))
    b.tolerance = BY_QUADRATURE

    def term(v: Values) -> None:
        a = 0.5 * (v[X] @ v[x])
        law = [
            lambda: dist.Poisson(v[exposure] * jnp.exp(a)),
            lambda: dist.Poisson(jnp.exp(a + jnp.log(v[exposure]))),
            lambda: dist.Binomial(5, logits=a),
            lambda: dist.NegativeBinomial2(jnp.exp(a), 3.0),
        ][kind]
        observe(law(), v[y])

    b.terms.append(term)


def robust_regression(b: Builder) -> None:
    """Student-t or logistic noise around a linear predictor."""
    x, d = coefficients(b)
    X, y, m = design(b, d)
    observe, heavy = b.observed(m), bool(b.rng.integers(2))
    b.tolerance = BY_QUADRATURE

    def term(v: Values) -> None:
        a = 0.6 * (v[X] @ v[x])
        observe(dist.StudentT(5.0, a, 1.5) if heavy else dist.Logistic(a, 1.3), v[y])

    b.terms.append(term)


def positive_response(b: Builder) -> None:
    """Gamma or Exponential responses whose log-rate is a linear predictor."""
    x, d = coefficients(b)
    X, _, m = design(b, d)
    y, observe, kind = b.array("y", b.rng.gamma(2.0, size=m)), b.observed(m), int(b.rng.integers(3))
    b.tolerance = BY_QUADRATURE

    def term(v: Values) -> None:
        a = 0.5 * (v[X] @ v[x])
        law = [
            lambda: dist.Gamma(2.0, jnp.exp(a)),
            lambda: dist.Exponential(jnp.exp(-a)),
            lambda: dist.LogNormal(a, 0.7),
        ][kind]
        observe(law(), v[y])

    b.terms.append(term)


def forms(b: Builder) -> None:
    """Quadratic forms, norms and inner products of Normal elements."""
    d = int(b.rng.integers(2, 4))
    x = b.joint(d) if b.rng.integers(2) else b.normal(d)
    A, add, kind = b.matrix(d, d), b.factor(), int(b.rng.integers(5))

    def term(v: Values) -> None:
        r = v[x] - 0.4
        add(
            -0.3
            * [
                lambda: r @ (v[A] @ v[A].T + jnp.eye(d)) @ r,
                lambda: jnp.sum((v[A] @ r) ** 2),
                lambda: jnp.sum(jnp.diff(r) ** 2),
                lambda: jnp.sum(jnp.square(r.sum())),
                lambda: jnp.vdot(v[A] @ r, r) + jnp.linalg.norm(r) ** 2,
            ][kind]()
        )

    b.terms.append(term)


def correlated_data(b: Builder) -> None:
    """A multivariate Normal likelihood, by covariance, precision or factor."""
    x, d = coefficients(b)
    m, observe, kind = 3, b.observed(plate=False), int(b.rng.integers(3))
    X, y = b.matrix(m, d), b.array("y", b.rng.normal(size=m))
    root = jnp.asarray(np.linalg.cholesky(np.eye(m) + 0.4 * np.ones((m, m))))

    def term(v: Values) -> None:
        cov = root @ root.T
        form = [{"covariance_matrix": cov}, {"precision_matrix": jnp.linalg.inv(cov)}, {"scale_tril": root}][kind]
        observe(dist.MultivariateNormal(v[X] @ v[x], **form), v[y])

    b.terms.append(term)


def two_routes(b: Builder) -> None:
    """One vector through two matrices, and through an index that repeats."""
    x, d = coefficients(b)
    X, y, m = design(b, d)
    Z, index = b.matrix(m, d), b.array("index", b.rng.integers(0, d, m))
    observe, kind = b.observed(m), int(b.rng.integers(3))

    def term(v: Values) -> None:
        a = [
            lambda: v[X] @ v[x] + v[Z] @ v[x],
            lambda: v[X] @ v[x] - 2.0 * v[x][v[index]],
            lambda: v[x][v[index]] + v[x][v[index][::-1]],
        ][kind]()
        observe(dist.Normal(a, 0.9), v[y])

    b.terms.append(term)


def looked_up_predictor(b: Builder) -> None:
    """A linear predictor of elements that an index array names, some of them more than once."""
    x, d = coefficients(b)
    X, y, m = design(b, d + 1)
    index, observe = b.array("index", b.rng.integers(0, d, d + 1)), b.observed(m)
    b.terms.append(lambda v: observe(dist.Normal(v[X] @ v[x][v[index]], 0.9), v[y]))


def two_projections(b: Builder) -> None:
    """Products and nonlinear functions of two predictors of the same vector."""
    d = int(b.rng.integers(2, 4))
    x = b.normal(d)
    X, _, m = design(b, d)
    Z, add, kind = b.matrix(m, d), b.factor(), int(b.rng.integers(4))
    b.tolerance = BY_QUADRATURE

    def term(v: Values) -> None:
        a, c = 0.5 * (v[X] @ v[x]), v[Z] @ v[x]
        add(
            jnp.sum(
                [
                    lambda: jnp.exp(a) * c,
                    lambda: a * c,
                    lambda: jnp.logaddexp(a, c),
                    lambda: -(c**2) * jnp.exp(-a),
                ][kind]()
            )
            * 0.3
        )

    b.terms.append(term)


def bilinear(b: Builder) -> None:
    """Products of different Normal elements: a matrix of rank one, an inner product."""
    x, y = b.normal(3), b.array("y", b.rng.normal(size=2))
    observe, kind = b.observed(2), int(b.rng.integers(3))

    def term(v: Values) -> None:
        e = v[x]
        a = [lambda: e[0] * e[1:], lambda: jnp.outer(e[:1], e[1:])[0], lambda: e[:2] * e[1:]][kind]()
        observe(dist.Normal(a, 0.9), v[y])

    b.terms.append(term)


def changing_noise(b: Builder) -> None:
    """A scale that is the exponential of a linear predictor; the mean has elements of its own, or the same."""
    x, d = b.normal(2), 2
    X, y, m = design(b, d)
    u, observe, kind = b.normal(1, name="s"), b.observed(m), int(b.rng.integers(3))
    b.tolerance = BY_QUADRATURE

    def term(v: Values) -> None:
        a = 0.5 * (v[X] @ v[x])
        mean = [0.3, v[u][0], a][kind]
        observe(dist.Normal(mean, jnp.exp(a)), v[y])

    b.terms.append(term)


def elementwise(b: Builder) -> None:
    """Functions of single elements, alone and multiplied."""
    d = int(b.rng.integers(1, 4))
    x, add, kind = b.normal(d), b.factor(), int(b.rng.integers(4))
    b.tolerance = BY_QUADRATURE

    def term(v: Values) -> None:
        e = v[x]
        what = [
            lambda: jnp.sin(e) + e**3,
            lambda: jnp.exp(-0.5 * e) * e**2,
            lambda: jnp.log1p(e**2 / 6.0),
            lambda: jnp.prod(jnp.cos(0.5 * e)) * jnp.ones(1),
        ][kind]
        add(jnp.sum(what()))

    b.terms.append(term)


FAMILIES = {
    f.__name__: f
    for f in (
        regression,
        unknown_noise,
        unknown_precision,
        binary_regression,
        count_regression,
        robust_regression,
        positive_response,
        forms,
        correlated_data,
        two_routes,
        looked_up_predictor,
        two_projections,
        bilinear,
        changing_noise,
        elementwise,
    )
}
