"""Models with every kind of latent, for the tests of MeanField."""

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.contrib.control_flow import scan

Y = jnp.array([0.3, -1.0, 2.0, 0.7, 1.5, -0.2])
OBSERVED = jnp.array([True, False, True, True, False, True])


# A distribution on the simplex that compiles faster than the Dirichlet.
SIMPLEX = dist.TransformedDistribution(
    dist.Normal(jnp.zeros(2), 1.0).to_event(1), dist.transforms.StickBreakingTransform()
)


def observe(mean):
    numpyro.sample("y", dist.Normal(mean, 1.0), obs=1.0)


def bernoulli():
    z = numpyro.sample("z", dist.Bernoulli(0.3 * jnp.ones(5)))
    observe(z.sum())


def categorical():
    with numpyro.plate("n", 6):
        z = numpyro.sample("z", dist.Categorical(jnp.ones(4) / 4), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(z, 1.0), obs=Y)


def binomial():
    observe(numpyro.sample("z", dist.Binomial(4, 0.3)))


def discrete_uniform():
    observe(numpyro.sample("z", dist.DiscreteUniform(-2, 3).expand([2]).to_event(1)).sum())


def poisson():
    observe(numpyro.sample("z", dist.Poisson(jnp.array([0.5, 3.0]))).sum())


def hierarchical_count():
    rate = numpyro.sample("rate", dist.LogNormal(0.6, 0.5))
    with numpyro.plate("n", 3):
        z = numpyro.sample("z", dist.Poisson(rate))
    observe(z.sum())


def geometric():
    z = numpyro.sample("z", dist.Geometric(0.4))
    k = numpyro.sample("k", dist.NegativeBinomial2(3.0, 10.0))
    observe(z + k)


def normal():
    mu = numpyro.sample("mu", dist.Normal(3.0, 2.0))
    numpyro.param("unused", 1.0)
    numpyro.deterministic("twice", 2 * mu)
    numpyro.factor("tilt", -(mu**2))
    observe(mu)


def constrained():
    a = numpyro.sample("a", dist.HalfNormal(1.0))
    b = numpyro.sample("b", dist.Gamma(jnp.array([2.0, 3.0]), 1.0))
    c = numpyro.sample("c", dist.Beta(2.0, 2.0).expand([3, 2]).to_event(1))
    d = numpyro.sample("d", dist.Uniform(-1.0, jnp.array([1.0, 2.0])))
    observe(a + b.sum() + c.sum() + d.sum())


def vectors():
    p = numpyro.sample("p", dist.Dirichlet(jnp.ones(3)).expand([2]).to_event(1))
    L = numpyro.sample("L", dist.ImproperUniform(dist.constraints.corr_cholesky, (), (2, 2)))
    v = numpyro.sample("v", dist.MultivariateNormal(jnp.zeros(2), jnp.eye(2)))
    observe(p.sum() + L.sum() + v.sum())


def nested_plates():
    with numpyro.plate("outer", 3, dim=-2):
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        with numpyro.plate("inner", 2, dim=-1):
            z = numpyro.sample("z", dist.Bernoulli(0.5))
            p = numpyro.sample("p", SIMPLEX)
    observe((a * z + p[..., 0]).sum())


def subsampled():
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", 6, subsample_size=2) as rows:
        z = numpyro.sample("z", dist.Categorical(jnp.ones(3) / 3))
        k = numpyro.sample("k", dist.Poisson(2.0))
        x = numpyro.sample("x", dist.HalfNormal(1.0).expand([4]).to_event(1))
        p = numpyro.sample("p", SIMPLEX)
        mean = w + z + k + x.sum(-1) + p[..., 0]
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=Y[rows])


def subsampled_twice():
    rows = numpyro.plate("rows", 6, subsample_size=2, dim=-2)
    columns = numpyro.plate("columns", 5, subsample_size=3, dim=-1)
    with rows:
        a = numpyro.sample("a", dist.Bernoulli(0.4))
    with columns:
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with rows, columns:
        c = numpyro.sample("c", dist.Categorical(jnp.ones(3) / 3))
        numpyro.sample("y", dist.Normal(a + b + c, 1.0), obs=jnp.zeros((2, 3)))


def to_event():
    z = numpyro.sample("z", dist.Bernoulli(0.5 * jnp.ones((2, 3))).to_event(1))
    c = numpyro.sample("c", dist.Categorical(jnp.ones((2, 4)) / 4).to_event(1))
    s = numpyro.sample("s", dist.Normal(0.0, 1.0), sample_shape=(3,))
    observe(z.sum() + c.sum() + s.sum())


def obs_mask():
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("n", 6):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=Y, obs_mask=OBSERVED)
        numpyro.sample("b", dist.Bernoulli(0.5), obs=Y > 0, obs_mask=OBSERVED)


def masked():
    with handlers.mask(mask=jnp.array([True, False])):
        v = numpyro.sample("v", dist.HalfNormal(1.0).expand([2, 3]).to_event(1))
        p = numpyro.sample("p", SIMPLEX.expand([2]))
    e = numpyro.sample("e", dist.Bernoulli(0.5 * jnp.ones(2)).mask(jnp.array([True, False])).to_event(1))
    with handlers.mask(mask=False):
        off = numpyro.sample("off", dist.Normal(0.0, 1.0))
    observe(v.sum() + p.sum() + e.sum() + off)


def hmm():
    transition = jnp.array([[0.9, 0.1], [0.2, 0.8]])

    def step(z, y):
        z = numpyro.sample("z", dist.Categorical(transition[z]))
        with numpyro.plate("channels", 2):
            e = numpyro.sample("e", dist.Bernoulli(0.5))
        numpyro.sample("y", dist.Normal(z + e.sum(), 1.0), obs=y)
        return z, None

    scan(step, 0, jnp.asarray(Y))


def conditioned():
    handlers.condition(nested_plates, data={"a": jnp.ones((3, 1))})()


CATALOGUE = {
    f.__name__: f
    for f in (
        bernoulli,
        categorical,
        binomial,
        discrete_uniform,
        poisson,
        hierarchical_count,
        geometric,
        normal,
        constrained,
        vectors,
        nested_plates,
        subsampled,
        subsampled_twice,
        to_event,
        obs_mask,
        masked,
        hmm,
        conditioned,
    )
}
