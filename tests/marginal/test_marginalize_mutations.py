"""Models that look as if their elements were independent, or a first-order chain, and are not.

Each must be summed exactly or left as it is. Every test first shows that the sum which the look suggests is wrong.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.scipy.special import logsumexp
from numpyro import handlers
from numpyro.infer.util import log_density

import legrad
from sums.case import Case
from sums.oracle import close, discrete_latents

Y = jnp.array([0.3, -1.0, 1.4, 0.8, -0.2])
N = len(Y)
X = {"c": jnp.array(0.9)}
SMALL, LARGE = 4096, 8  # limits: above and below the joint support of 32


def rolled(y):
    """z * roll(z) inside a plate."""
    c = numpyro.sample("c", dist.Normal(0.0, 1.0))
    with numpyro.plate("points", N):
        z = numpyro.sample("z", dist.Bernoulli(0.4))
        numpyro.sample("y", dist.Normal(c * z * jnp.roll(z, 1), 1.0), obs=y)


def one_factor(y):
    """Two elements of a plate in one factor."""
    c = numpyro.sample("c", dist.Normal(0.0, 1.0))
    with numpyro.plate("points", N):
        z = numpyro.sample("z", dist.Bernoulli(0.4))
        numpyro.sample("y", dist.Normal(c * z, 1.0), obs=y)
    numpyro.factor("pair", 1.5 * c * z[0] * z[3])


def mean_seen(y):
    """Each datum sees the mean of all elements."""
    c = numpyro.sample("c", dist.Normal(0.0, 1.0))
    with numpyro.plate("points", N):
        z = numpyro.sample("z", dist.Bernoulli(0.4))
        numpyro.sample("y", dist.Normal(c * z - jnp.mean(z), 1.0), obs=y)


def sorted_elements(y):
    """Elements that meet in a sort."""
    c = numpyro.sample("c", dist.Normal(0.0, 1.0))
    with numpyro.plate("points", N):
        z = numpyro.sample("z", dist.Bernoulli(0.4))
        numpyro.sample("y", dist.Normal(c * jnp.sort(z), 1.0), obs=y)


def second_order(y):
    """A chain with a link to the element before the last."""
    c = numpyro.sample("c", dist.Normal(0.0, 1.0))
    table = jnp.sin(jnp.arange(8.0)).reshape(2, 2, 2) * c
    with numpyro.plate("time", N):
        z = numpyro.sample("z", dist.Bernoulli(0.4))
        numpyro.sample("y", dist.Normal(z, 1.0), obs=y)
    numpyro.factor("chain", table[z[:-2], z[1:-1], z[2:]])


def closed_chain(y):
    """A chain whose last element sees its first."""
    c = numpyro.sample("c", dist.Normal(0.0, 1.0))
    table = jnp.array([[0.5, -0.3], [-0.8, 1.0]]) * c
    z = numpyro.sample("z", dist.Bernoulli(0.4).expand([N]).to_event(1))
    numpyro.factor("chain", table[z[:-1], z[1:]].sum() + table[z[-1], z[0]])
    numpyro.sample("y", dist.Normal(z, 1.0).to_event(1), obs=y)


def far_link(y):
    """A chain with one link from its first to its third element."""
    c = numpyro.sample("c", dist.Normal(0.0, 1.0))
    table = jnp.array([[0.5, -0.3], [-0.8, 1.0]]) * c
    z = numpyro.sample("z", dist.Bernoulli(0.4).expand([N]).to_event(1))
    numpyro.factor("chain", table[z[:-1], z[1:]].sum() + c * z[0] * z[2])
    numpyro.sample("y", dist.Normal(z, 1.0).to_event(1), obs=y)


def carried(y):
    """A scan whose data see the sum of all states so far, which is in the carry."""
    from numpyro.contrib.control_flow import scan

    c = numpyro.sample("c", dist.Normal(0.0, 1.0))

    def step(carry, seen):
        z, total = carry
        z = numpyro.sample("z", dist.Bernoulli(jnp.array([0.3, 0.8])[z]))
        total = total + z
        numpyro.sample("y", dist.Normal(c * total, 1.0), obs=seen)
        return (z, total), None

    scan(step, (0, 0), y)


def scale_on_the_data_alone(y):
    """A scale around the data of a member, but not around its latent: the joint is summed as it is."""
    c = numpyro.sample("c", dist.Normal(0.0, 1.0))
    with numpyro.plate("points", N):
        z = numpyro.sample("z", dist.Bernoulli(0.4))
        with handlers.scale(scale=2.5):
            numpyro.sample("y", dist.Normal(c * z, 1.0), obs=y)


MODELS = [rolled, one_factor, mean_seen, sorted_elements, second_order, closed_chain, far_link, carried]


def elementwise(row):
    """Sum each element alone, the others at zero: f(0) + Σ_e log Σ_k exp(f(0 with z_e = k) − f(0))."""

    def f(z):
        return log_density(row.model, row.args, {}, row.x | {"z": z})[0]

    zero = jnp.zeros(N, int)
    base = f(zero)
    ones = jax.vmap(f)(jnp.eye(N, dtype=int)) - base
    return base + logsumexp(jnp.stack([jnp.zeros(N), ones]), 0).sum()


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.__name__)
def test_the_sum_that_it_looks_like_is_wrong(model):
    row = Case(model, (Y,), X)
    assert abs(elementwise(row) - row.expected()[0]) > 1e-3


@pytest.mark.parametrize("limit", [pytest.param(SMALL, marks=pytest.mark.long), LARGE])
@pytest.mark.parametrize("model", [*MODELS, scale_on_the_data_alone], ids=lambda m: m.__name__)
def test_it_is_summed_exactly_or_left(model, limit):
    """Left: the marginal then has z as a latent, and its density is the model's at every z."""
    row = Case(model, (Y,), X)
    marginal = legrad.marginalize(model, limit=limit)
    summed = set(marginal.summed(Y))
    assert summed <= {"z"}
    if summed:
        assert close(row.of(marginal), row.expected(), 1e-10)
        return
    trace = handlers.trace(handlers.seed(marginal, jax.random.key(0))).get_trace(Y)
    assert "z" in trace
    assert not trace["z"]["is_observed"]
    exact = row.enumeration()
    left = jax.vmap(lambda z: log_density(marginal, (Y,), {}, X | {"z": z})[0])(exact.values["z"])
    np.testing.assert_allclose(left, exact.joint(X), rtol=1e-12)


def test_small_groups_are_summed_within_the_limit():
    """Joint support of 32 under the usual limit: there is no reason to leave these."""
    for model in (rolled, one_factor, second_order, closed_chain, far_link):
        assert set(legrad.marginalize(model).summed(Y)) == {"z"}, model.__name__


def test_what_is_left_may_depend_on_what_is_summed():
    """A latent outside reach (too many values meet) beside one that can be summed."""
    n = 14

    def model(y):
        c = numpyro.sample("c", dist.Normal(0.0, 1.0))
        with numpyro.plate("many", n):
            w = numpyro.sample("w", dist.Bernoulli(0.5))
        with numpyro.plate("points", N):
            z = numpyro.sample("z", dist.Bernoulli(0.4))
            numpyro.sample("y", dist.Normal(c * z, 1.0), obs=y)
        numpyro.factor("all", jnp.sin(c + w.sum()) ** 2 + jnp.prod(1.0 + 0.1 * w))

    marginal = legrad.marginalize(model)
    latents = discrete_latents(model, (Y,), {}, X)
    summed = set(marginal.summed(Y))
    assert "z" in summed
    left = {name: site["value"] for name, site in latents.items() if name not in summed}
    row = Case(model, (Y,), X)
    assert close(row.of(marginal, **left), row.enumeration(**left).value_and_gradient(X), 1e-10)
