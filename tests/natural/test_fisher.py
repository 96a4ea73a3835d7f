"""Natural gradients against the exact Fisher information: the expected product of scores, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.distributions import constraints

from legrad.distributions.densities import log_prob
from legrad.distributions.offset_categorical import OffsetCategorical
from legrad.natural import fisher
from legrad.natural.guide_map import GuideMap
from legrad.natural.metric import Metric

N, K = 3, 4
Nodes = tuple[np.ndarray, np.ndarray]  # values (nodes, ...), log of the weights that multiply the density


def integers(high: int, low: int = 0) -> Nodes:
    return np.arange(low, high), np.zeros(high - low)


def on_line() -> Nodes:
    t = np.linspace(-40, 40, 4001)
    return t, np.full(len(t), np.log(t[1] - t[0]))


def positive() -> Nodes:
    t = np.linspace(-60, 12, 6001)
    return np.exp(t), t + np.log(t[1] - t[0])


def unit() -> Nodes:
    t = np.linspace(-34, 34, 6001)
    return 1 / (1 + np.exp(-t)), -np.logaddexp(0, t) - np.logaddexp(0, -t) + np.log(t[1] - t[0])


def param(name: str, shape: tuple[int, ...], constraint: Any = constraints.real, event_dim: int = 0) -> Any:
    like = dist.transforms.biject_to(constraint)
    return numpyro.param(name, like(jnp.zeros(like.inverse_shape(shape))), constraint=constraint, event_dim=event_dim)


P = constraints.positive


class Case(NamedTuple):
    make: Callable[[], Any]
    nodes: Nodes


CASES = {
    "Bernoulli logits": Case(lambda: dist.Bernoulli(logits=param("l", (N,))), integers(2)),
    "Bernoulli, a function of the logits": Case(
        lambda: dist.Bernoulli(logits=jnp.sinh(param("l", (N,)))[::-1]), integers(2)
    ),
    "Bernoulli probs": Case(lambda: dist.Bernoulli(probs=param("p", (N,), constraints.unit_interval)), integers(2)),
    "Bernoulli, one probability for all": Case(
        lambda: dist.Bernoulli(probs=param("p", (), constraints.unit_interval)).expand([N]), integers(2)
    ),
    "Bernoulli, logit from two numbers": Case(
        lambda: dist.Bernoulli(logits=param("a", (N,)) + 2 * param("b", (N,))), integers(2)
    ),
    "Categorical logits": Case(lambda: dist.Categorical(logits=param("l", (N, K))), integers(K)),
    "Categorical logits, scaled": Case(
        lambda: dist.Categorical(logits=jnp.arange(1.0, K + 1) * param("l", (N, K))), integers(K)
    ),
    "Categorical logits, first one zero": Case(
        lambda: dist.Categorical(logits=jnp.concatenate([jnp.zeros((N, 1)), param("l", (N, K - 1))], -1)),
        integers(K),
    ),
    "Categorical probs": Case(
        lambda: dist.Categorical(probs=param("p", (N, K), constraints.simplex, 1)), integers(K)
    ),
    "windowed count": Case(lambda: OffsetCategorical(param("l", (N, K)), low=2), integers(2 + K, 2)),
    "Binomial logits": Case(lambda: dist.Binomial(7, logits=param("l", (N,))), integers(8)),
    "Binomial probs": Case(lambda: dist.Binomial(7, param("p", (N,), constraints.unit_interval)), integers(8)),
    "Geometric logits": Case(lambda: dist.Geometric(logits=param("l", (N,))), integers(600)),
    "Geometric probs": Case(lambda: dist.Geometric(param("p", (N,), constraints.unit_interval)), integers(600)),
    "Poisson": Case(lambda: dist.Poisson(param("r", (N,), P)), integers(100)),
    "Normal, log-scale": Case(lambda: dist.Normal(param("m", (N,)), jnp.exp(param("s", (N,)))), on_line()),
    "Normal, scale": Case(lambda: dist.Normal(param("m", (N,)), param("s", (N,), P)), on_line()),
    "Normal, softplus of the scale": Case(
        lambda: dist.Normal(param("m", (N,)), param("s", (N,), constraints.softplus_positive)), on_line()
    ),
    "Normal, one scale for all": Case(lambda: dist.Normal(param("m", (N,)), param("s", (), P)), on_line()),
    "Normal, precision and mean mixed": Case(
        lambda: dist.Normal(param("h", (N,)) / param("t", (N,), P), param("t", (N,), P) ** -0.5), on_line()
    ),
    "LogNormal": Case(lambda: dist.LogNormal(param("m", (N,)), param("s", (N,), P)), positive()),
    "HalfNormal": Case(lambda: dist.HalfNormal(param("s", (N,), P)), positive()),
    "Exponential": Case(lambda: dist.Exponential(param("r", (N,), P)), positive()),
    "Gamma": Case(lambda: dist.Gamma(param("c", (N,), P), param("r", (N,), P)), positive()),
    "Gamma, mean and shape": Case(
        lambda: dist.Gamma(param("c", (N,), P), param("c", (N,), P) / param("m", (N,), P)), positive()
    ),
    "Beta": Case(lambda: dist.Beta(param("a", (N,), P), param("b", (N,), P)), unit()),
}


def tensor(points: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    z, w = np.polynomial.hermite_e.hermegauss(points)
    grid = np.stack(np.meshgrid(*[z] * size, indexing="ij"), -1).reshape(-1, size)
    return grid, np.prod(np.stack(np.meshgrid(*[w / w.sum()] * size, indexing="ij"), -1).reshape(-1, size), -1)


def guide_of(make: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: numpyro.sample("x", make())


def start(guide: Callable[[], Any], seed: int) -> tuple[GuideMap, dict[str, Any]]:
    found = GuideMap(guide, (), {})
    trace = handlers.trace(handlers.seed(guide, 0)).get_trace()
    zero = {n: jnp.asarray(t.inv(trace[n]["value"])) for n, t in found.transforms.items()}
    rng = np.random.default_rng(seed)
    return found, {n: x + jnp.asarray(0.7 * rng.normal(size=x.shape)) for n, x in zero.items()}


def distribution(guide: Callable[[], Any], found: GuideMap, u: dict[str, Any]) -> Any:
    run = handlers.trace(handlers.seed(handlers.substitute(guide, found.constrain(u)), 0))
    return run.get_trace()["x"]["fn"]


def exact(guide: Callable[[], Any], found: GuideMap, u: dict[str, Any], nodes: Nodes) -> np.ndarray:
    """E[s sᵀ], s the score of the whole site in all unconstrained numbers."""
    flat, back = jax.flatten_util.ravel_pytree(u)
    values = jnp.asarray(nodes[0])[:, None]

    def log_q(flat: Any) -> Any:
        return distribution(guide, found, back(flat)).log_prob(jnp.broadcast_to(values, (len(values), N)))

    scores = np.asarray(jax.jacfwd(log_q)(flat))  # (nodes, elements, numbers)
    weights = np.exp(np.asarray(log_q(flat)) + nodes[1][:, None])
    np.testing.assert_allclose(weights.sum(0), 1.0, rtol=1e-9)
    weighted = np.where(weights[..., None] > 0, weights[..., None] * scores, 0.0)
    return np.einsum("vei,vej->ij", weighted, np.where(weights[..., None] > 0, scores, 0.0))


def disagreement(guide: Callable[[], Any], found: GuideMap, u: dict[str, Any], F: np.ndarray) -> float:
    """How far F x is from g, for the natural gradient x of a g in the range of F; and lengths from √(xᵀ F x)."""
    metric = Metric(found, u)
    assert not metric.ownership.plain
    _, back = jax.flatten_util.ravel_pytree(u)
    g = F @ np.random.default_rng(1).normal(size=len(F))
    natural = jax.jit(metric.solve)(u, back(jnp.asarray(g)))
    x = np.asarray(jax.flatten_util.ravel_pytree(natural.step)[0])
    length = sum(float(np.sum(np.square(n))) for n in natural.length)
    along = sum(float(np.sum(np.square(n))) for n in metric.lengths(u, natural.step).values())
    squared = x @ F @ x
    return max(np.abs(F @ x - g).max() / np.abs(g).max(), abs(length / squared - 1), abs(along / squared - 1))


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_natural_gradient_is_that_of_the_exact_fisher(name):
    guide = guide_of(CASES[name].make)
    found, u = start(guide, 0)
    assert disagreement(guide, found, u, exact(guide, found, u, CASES[name].nodes)) < 1e-7


GAUSSIANS = {
    "scale_tril": lambda: dist.MultivariateNormal(
        param("m", (3,)), scale_tril=param("L", (3, 3), constraints.lower_cholesky)
    ),
    "covariance": lambda: dist.MultivariateNormal(
        param("m", (3,)), covariance_matrix=param("S", (3, 3), constraints.positive_definite)
    ),
    "scale_tril times the mean": lambda: dist.MultivariateNormal(
        param("L", (3, 3), constraints.lower_cholesky) @ param("m", (3,)),
        scale_tril=param("L", (3, 3), constraints.lower_cholesky),
    ),
}


@pytest.mark.parametrize("name", GAUSSIANS)
def test_multivariate_normal(name):
    guide = guide_of(GAUSSIANS[name])
    found, u = start(guide, 0)
    flat, back = jax.flatten_util.ravel_pytree(u)
    z, w = tensor(5, 3)
    d = distribution(guide, found, u)
    values = jnp.asarray(d.loc + z @ d.scale_tril.T)
    scores = jax.jacfwd(lambda f: distribution(guide, found, back(f)).log_prob(values))(flat)
    F = np.asarray(jnp.einsum("v,vi,vj->ij", w, scores, scores))
    assert disagreement(guide, found, u, F) < 1e-8
    kinds = {c.kind for c in Metric(found, u).ownership.clusters}
    assert kinds == ({"gaussian"} if name == "scale_tril" else {"blocks"})


def test_a_wrong_fisher_fails(monkeypatch):
    wrong = fisher.FAMILIES[dist.Normal]._replace(
        root=lambda at, to: jnp.stack([to["loc"], to["scale"]], axis=-1) / at["scale"][..., None]
    )
    monkeypatch.setitem(fisher.FAMILIES, dist.Normal, wrong)
    guide = guide_of(CASES["Normal, scale"].make)
    found, u = start(guide, 0)
    assert disagreement(guide, found, u, exact(guide, found, u, on_line())) > 0.1


SATURATED = (
    "Bernoulli logits",
    "Bernoulli probs",
    "Binomial logits",
    "Categorical logits",
    "Categorical logits, first one zero",
    "Categorical probs",
    "windowed count",
)


@pytest.mark.long
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("name", SATURATED)
def test_saturated(name, double):
    """At ±30 and ±300 every number is finite; logits at ±30 move as far as an unsaturated factor would."""
    with jax.enable_x64(double):
        guide = guide_of(CASES[name].make)
        found, u = start(guide, 0)
        for size in (30.0, 300.0):
            far = {n: jnp.where(jnp.arange(x.size).reshape(x.shape) % 2 == 0, size, -size) for n, x in u.items()}

            def elbo(u):
                fn = distribution(guide, found, u)
                values = fn.enumerate_support() if name != "windowed count" else 2 + jnp.arange(K)[:, None]
                log_q = log_prob(fn, values)
                return jnp.sum(jnp.exp(log_q) * (jnp.cos(1.0 + values) - log_q))

            natural = Metric(found, far).solve(far, jax.grad(elbo)(far))
            for x in jax.tree.leaves((natural.step, natural.length)):
                assert np.isfinite(x).all()
            if name == "Bernoulli logits" and size == 30.0:
                there = np.asarray(jnp.cos(2.0) - jnp.cos(1.0))
                np.testing.assert_allclose(far["l"] + natural.step["l"], there, atol=1e-4)
            if name == "Categorical logits" and size == 30.0:
                moved = np.asarray(far["l"] + natural.step["l"])
                there = np.cos(1.0 + np.arange(K))
                np.testing.assert_allclose(moved - moved[:, :1], np.tile(there - there[0], (N, 1)), atol=1e-3)


def test_large_concentrations_keep_their_digits():
    """Excess of the trigamma function over 1 / x, and the factors that use it, in float32."""
    x = np.array([0.1, 1.0, 9.9, 10.1, 100.0, 1e4, 1e6])
    from scipy.special import polygamma

    there = np.where(x > 1e3, 1 / (2 * x**2) + 1 / (6 * x**3), polygamma(1, x) - 1 / x)
    np.testing.assert_allclose(fisher._excess(jnp.asarray(x, jnp.float32)), there, rtol=3e-5)
