"""fit without a guide on models as people write them: sizes read from data, flat scales, priors without draws."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

import legrad
from legrad.fitting.density import Density
from legrad.fitting.scale_start import scale_start
from legrad.guides.structured import Structured
from legrad.model.arrays import map_in_batches
from legrad.model.precision import as_double, in_double

RNG = np.random.default_rng(0)
GROUP = np.arange(30) % 5
Y = RNG.normal(size=5)[GROUP] + RNG.normal(size=30)


def of_groups(group, y):
    """Normal means of groups, with the closed posterior of `exact_means`."""
    with numpyro.plate("groups", len(np.unique(group))):
        mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
    for g in range(5):
        numpyro.sample(f"y_{g}", dist.Normal(mean[g], 1.0), obs=y[group == g])


def exact_means(group, y):
    precision = np.bincount(group) + 0.25
    return np.bincount(group, y) / precision, precision**-0.5


@pytest.mark.long
def test_a_model_may_read_its_arguments():
    result = legrad.fit(of_groups, args=(GROUP, Y), key=0)
    draws = np.asarray(result.sample(1, 4000)["mean"])
    mean, sd = exact_means(GROUP, Y)
    assert np.abs(draws.mean(0) - mean).max() < 0.1 * sd.min()
    np.testing.assert_allclose(draws.std(0), sd, rtol=0.1)
    assert result.model is of_groups or result.model.__wrapped__ is of_groups


def test_what_a_model_reads_of_its_latents_is_still_an_error():
    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(np.exp(mean), 1.0), obs=y)

    with pytest.raises(TypeError, match=r"passes a latent.*to NumPy"):
        legrad.fit(model, args=(Y,), key=0)


@pytest.mark.long
def test_a_numpy_table_may_be_indexed_by_a_latent():
    levels = np.array([-3.0, 0.0, 3.0])

    def model(levels, y):
        share = numpyro.sample("share", dist.Dirichlet(jnp.ones(3)))
        with numpyro.plate("data", len(y)):
            z = numpyro.sample("z", dist.Categorical(share))
            numpyro.sample("y", dist.Normal(levels[z], 0.3), obs=y)

    y = levels[np.repeat([0, 1, 2], [4, 8, 12])] + 0.1 * RNG.normal(size=24)
    result = legrad.fit(model, args=(levels, y), key=0)
    share = np.asarray(result.sample(1, 4000)["share"]).mean(0)
    np.testing.assert_allclose(share, np.array([5, 9, 13]) / 27, atol=0.02)


@pytest.mark.long
def test_priors_without_draws():
    def model(y):
        low = numpyro.sample("low", dist.ImproperUniform(constraints.real, (), ()))
        spread = numpyro.sample("spread", dist.LeftTruncatedDistribution(dist.StudentT(3.0, 0.0, 10.0), 0.0))
        numpyro.sample("y", dist.Normal(low, spread), obs=y)

    result = legrad.fit(model, args=(Y,), key=0)
    assert "low" in str(result.summary(1))
    assert abs(float(np.asarray(result.sample(2, 4000)["low"]).mean()) - Y.mean()) < 0.05


def flat_scale(y):
    """A hierarchy whose density rises without end as the scale falls, and without end on the other side."""
    centre = numpyro.sample("centre", dist.Normal(0.0, 100.0))
    scale = numpyro.sample("scale", dist.ImproperUniform(constraints.positive, (), ()))
    with numpyro.plate("groups", len(y)):
        theta = numpyro.sample("theta", dist.Normal(centre, scale))
        numpyro.sample("y", dist.Normal(theta, 1.0), obs=y)


def test_scales_of_a_funnel_without_a_mode():
    y = 100 + 5 * RNG.normal(size=20)

    def start():
        args = as_double((y,))
        space = Structured(flat_scale).space(*args)
        scales = space.funnel_scales(args, {})
        assert list(scales) == [space.parts["scale"].start]
        return scale_start(Density(space, args, {}), space.start, scales), scales

    found, scales = in_double(start)
    # the marginal likelihood of a scale s: residuals are Normal(0, s² + 1), one of them for the centre; ds = s dlog s
    grid = np.linspace(-2, 4, 2001)
    total = np.exp(2 * grid) + 1
    exact = -0.5 * 19 * np.log(total) - 0.5 * np.sum((y - y.mean()) ** 2) / total + grid
    assert abs(float(found.loc[scales][0]) - grid[np.argmax(exact)]) < 0.3


def test_another_mode_is_found_and_said():
    def model(y):
        x = numpyro.sample("x", dist.Normal(0.3, 1.0))
        numpyro.sample("y", dist.Normal(jnp.abs(x), 0.1), obs=y)

    with pytest.warns(legrad.FitWarning, match="ended at another guide"):
        result = legrad.fit(model, args=(jnp.array(1.5),), key=0)
    assert len(result.other_modes) == 1


@pytest.mark.parametrize(("rows", "most"), [(5, 8), (8, 8), (23, 8), (24, 8), (7, 1)])
def test_batches_of_rows_are_what_vmap_gives(rows, most):
    x = {"a": jnp.arange(rows * 3.0).reshape(rows, 3), "key": jax.random.split(jax.random.key(0), rows)}

    def f(row):
        return jnp.sum(row["a"]) + jax.random.uniform(row["key"])

    np.testing.assert_allclose(map_in_batches(f, x, most), jax.vmap(f)(x), rtol=1e-6)
