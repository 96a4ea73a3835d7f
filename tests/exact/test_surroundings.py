"""What surrounds a term: masks, scales, subsamples, impossible values, other guides, arrays that are not known."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from scipy import stats

import legrad
from expected.averaged import found
from expected.case import Case
from expected.dense import Dense
from sums.oracle import close

KEY = jax.random.key(0)
FAR = 1000.0  # a logit whose probability is zero


def normals(name, n):
    loc, scale = (
        numpyro.param(f"{name}_loc", jnp.linspace(-0.3, 0.5, n)),
        numpyro.param(f"{name}_log_scale", jnp.full(n, -0.4)),
    )
    return numpyro.sample(name, dist.Normal(loc, jnp.exp(scale)).to_event(1))


def bits(name, n, **plate):
    logits = numpyro.param(f"{name}_logits", jnp.linspace(-0.5, 0.9, n))
    with numpyro.plate(f"{name}s", n, **plate) as members:
        return numpyro.sample(name, dist.Bernoulli(logits=logits[members]))


def program(model, guide, *args, tolerance=1e-9):
    with handlers.seed(rng_seed=0), handlers.trace() as of_guide:
        guide(*args)
    with handlers.seed(rng_seed=0), handlers.trace() as of_model:
        model(*args)
    params = {n: s["value"] for n, s in (of_guide | of_model).items() if s["type"] == "param"}
    return Case("", model, guide, params, args, tolerance)


def agrees(row, expected=None):
    ours = found(row)
    expected = row.expected() if expected is None else expected
    assert close((ours.value, ours.gradient), expected, max(row.tolerance, ours.tolerance))
    return ours


# --- arrays that are not known --------------------------------------------------------------------------------------


def products(z, i, j):
    return jnp.sum((2.0 * z[i] - 1.0) * z[j])


def test_an_index_array_that_is_not_known_may_repeat():
    def model(i, j):
        with numpyro.plate("zs", 3):
            z = numpyro.sample("z", dist.Bernoulli(0.4))
        numpyro.factor("products", products(z, i, j))

    i, j = jnp.asarray([0, 1, 2, 1]), jnp.asarray([0, 2, 2, 1])
    row = program(model, lambda i, j: bits("z", 3), i, j)
    given = lambda i, j: replace(row, args=(i, j))
    of = jax.jit(lambda i, j, p, key: legrad.LocalExpectation().loss(key, p, model, row.guide, i, j))
    losses = [float(of(i, j, row.params, jax.random.key(s))) for s in range(40)]
    expected = float(given(i, j).expected()[0])
    assert np.std(losses) > 0 or np.allclose(losses, expected, rtol=1e-9)
    assert agrees(row).deterministic  # here it is known


# --- masks, scales, subsamples --------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["law", "handler", "missing"])
def test_a_masked_datum_never_counts(how):
    """Not even one whose density is zero or is not a number."""
    mask = jnp.asarray([True, False, True, False])
    y = jnp.asarray([1.0, -1.0, 0.5, -3.0])
    y = jnp.where(mask, y, 1e300) if how == "missing" else y  # what stands for a missing datum
    X = jnp.asarray(np.random.default_rng(0).normal(size=(4, 2)))

    def model():
        x = numpyro.sample("x", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
        with numpyro.plate("data", 4):
            rate = jnp.exp(0.4 * (X @ x))
            if how == "law":
                numpyro.sample("y", dist.Exponential(rate).mask(mask), obs=y)
            else:
                with handlers.mask(mask=mask):
                    numpyro.sample(
                        "y", dist.Exponential(rate), obs=jnp.where(mask, y, 1.0) if how == "missing" else y
                    )

    agrees(program(model, lambda: normals("x", 2), tolerance=1e-6))


def test_a_scale_belongs_to_the_term_and_not_to_the_latents():
    y = jnp.asarray([0.3, -1.0, 0.8])

    def model():
        with handlers.scale(scale=3.0):
            z = bits_prior("z", 3)
        x = numpyro.sample("x", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
        with handlers.scale(scale=0.5), numpyro.plate("data", 3):
            numpyro.sample("y", dist.Normal(z * x[0] + x[1], 0.7), obs=y)

    def guide():
        with handlers.scale(scale=3.0):
            bits("z", 3)
        normals("x", 2)

    assert agrees(program(model, guide)).deterministic


def bits_prior(name, n, **plate):
    with numpyro.plate(f"{name}s", n, **plate):
        return numpyro.sample(name, dist.Bernoulli(0.4))


def test_a_subsample_keeps_its_noise_and_nothing_else():
    """Members are drawn one at a time: three values of the loss, whose mean is that of all members."""
    y = jnp.asarray([0.3, -1.0, 0.8])

    def model(size):
        x = numpyro.sample("x", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
        with numpyro.plate("zs", 3, subsample_size=size) as members:
            z = numpyro.sample("z", dist.Bernoulli(0.4))
            numpyro.sample("y", dist.Normal(z * x[0] + x[1], 0.7), obs=y[members])

    def guide(size):
        normals("x", 2)
        bits("z", 3, subsample_size=size)

    row = program(model, guide, 3)
    loss = lambda p, key: legrad.LocalExpectation().loss(key, p, model, guide, 1)
    values, gradients = jax.jit(jax.vmap(jax.value_and_grad(loss), in_axes=(None, 0)))(
        row.params, jax.random.split(KEY, 60)
    )
    kept = np.unique(np.round(values, 10), return_index=True)[1]
    assert len(kept) == 3
    mean = jax.tree.map(lambda a: jnp.mean(a[kept], axis=0), (values, gradients))
    assert close(mean, row.expected(), 1e-9)


# --- what is impossible ---------------------------------------------------------------------------------------------


def test_an_impossible_value_counts_for_nothing():
    """q excludes what the model excludes: 0 · (−∞) is 0, in the value and in the gradient."""
    allowed = jnp.asarray([[0.0, -1.0], [0.0, -jnp.inf], [-jnp.inf, 0.5]])

    def model():
        with numpyro.plate("zs", 3):
            z = numpyro.sample("z", dist.Bernoulli(0.4))
        numpyro.factor("allowed", jnp.sum(allowed[jnp.arange(3), z]))
        numpyro.factor("neighbours", jnp.sum(jnp.where((z[1:] == 1) & (z[:-1] == 0), -jnp.inf, 0.3 * z[1:])[:1]))

    def guide():
        free = numpyro.param("free", 0.3)
        with numpyro.plate("zs", 3):
            numpyro.sample("z", dist.Bernoulli(logits=jnp.stack([free, jnp.asarray(-FAR), jnp.asarray(FAR)])))

    assert np.isfinite(agrees(program(model, guide)).value)


def test_a_table_with_minus_infinity_where_a_choice_is_excluded():
    A = jnp.log(jnp.asarray([[0.0, 0.7, 0.3], [0.0, 0.2, 0.8], [0.0, 0.0, 0.0]]))

    def model():
        with numpyro.plate("cs", 2):
            c = numpyro.sample("c", dist.Categorical(jnp.ones(3) / 3))
        numpyro.factor("steps", jnp.sum(A[c[:-1], c[1:]]))

    def guide():
        free = numpyro.param("free", 0.3)
        logits = [[free, 0.0, -FAR], [-FAR, free, 0.0]]
        with numpyro.plate("cs", 2):
            numpyro.sample("c", dist.Categorical(logits=jnp.stack([jnp.stack(row) for row in logits])))

    assert np.isfinite(agrees(program(model, guide)).value)


# --- jumps and kinks of a projection --------------------------------------------------------------------------------

MEAN, SD = 0.3, 1.7
BENT = {
    "jump": (lambda u: jnp.where(u > 0.4, 1.0, 0.0), stats.norm.sf(0.4, MEAN, SD)),
    "sign": (lambda u: jnp.sign(u), 1 - 2 * stats.norm.cdf(0, MEAN, SD)),
    "floor": (
        lambda u: jnp.floor(u),
        sum(k * (stats.norm.cdf(k + 1, MEAN, SD) - stats.norm.cdf(k, MEAN, SD)) for k in range(-30, 31)),
    ),
    "integer": (
        lambda u: u.astype(int) * 1.0,
        sum(np.sign(k) * stats.norm.sf(abs(k), np.sign(k) * MEAN, SD) for k in range(-30, 31)),
    ),
    "kink": (lambda u: jnp.maximum(u, 0.0), MEAN * stats.norm.cdf(MEAN / SD) + SD * stats.norm.pdf(MEAN / SD)),
    "absolute": (
        lambda u: jnp.abs(u),
        MEAN * (1 - 2 * stats.norm.cdf(-MEAN / SD)) + 2 * SD * stats.norm.pdf(MEAN / SD),
    ),
    "clipped": (
        lambda u: jnp.clip(u, -1.0, 1.0),
        stats.norm.sf(1, MEAN, SD)
        - stats.norm.cdf(-1, MEAN, SD)
        + stats.norm.expect(lambda u: u, loc=MEAN, scale=SD, lb=-1, ub=1),
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", BENT)
@pytest.mark.parametrize("elements", [1, 2])
def test_what_has_a_jump_or_a_kink_is_right_or_sampled(name, elements):
    f, expected = BENT[name]
    share = SD / np.sqrt(elements)

    def model():
        x = numpyro.sample("x", dist.Normal(jnp.zeros(elements), 1.0).to_event(1))
        numpyro.factor("bent", f(jnp.ones(elements) @ x if elements > 1 else x[0]))

    def guide():
        numpyro.sample(
            "x", dist.Normal(numpyro.param("loc", 0.0) + jnp.full(elements, MEAN / elements), share).to_event(1)
        )

    def plain():
        numpyro.sample("x", dist.Normal(jnp.zeros(elements), 1.0).to_event(1))

    params = {"loc": jnp.zeros(())}
    loss = jax.jit(jax.vmap(lambda key: legrad.LocalExpectation().loss(key, params, model, guide)))
    losses = np.asarray(loss(jax.random.split(KEY, 100)))
    without = legrad.LocalExpectation().loss(KEY, params, plain, guide)
    if np.ptp(losses) < 1e-12:
        np.testing.assert_allclose(without - losses[0], expected, atol=2e-6)


# --- guides of other kinds ------------------------------------------------------------------------------------------


def test_a_point_mass_in_the_guide():
    y = jnp.asarray([0.3, -1.0, 0.8])

    def model():
        z, m = bits_prior("z", 3), numpyro.sample("m", dist.Normal(0.0, 2.0))
        with numpyro.plate("data", 3):
            numpyro.sample("y", dist.Normal(z * m, 0.7), obs=y)

    def guide():
        bits("z", 3)
        numpyro.sample("m", dist.Delta(numpyro.param("at", 0.4)))

    row = program(model, guide)

    def expected(p):
        def without():
            z = bits_prior("z", 3)
            numpyro.factor("prior", dist.Normal(0.0, 2.0).log_prob(p["at"]))
            numpyro.factor("y", jnp.sum(dist.Normal(z * p["at"], 0.7).log_prob(y)))

        return Dense(without, lambda: bits("z", 3), {"z_logits": row.params["z_logits"]}, ()).loss(p)

    agrees(row, jax.value_and_grad(expected)(row.params))


def test_an_amortized_guide_with_model_parameters():
    y = jnp.asarray([[0.3, -1.0], [0.8, 0.1], [-0.4, 1.2]])

    def model(y):
        W, b = numpyro.param("W", 0.4 * jnp.ones((2, 2))), numpyro.param("b", jnp.zeros(2))
        with numpyro.plate("data", 3):
            h = numpyro.sample("h", dist.Bernoulli(0.4).expand([2]).to_event(1))
            numpyro.sample("y", dist.Normal(h @ W + b, 0.8).to_event(1), obs=y)

    def guide(y):
        V = numpyro.param("V", 0.3 * jnp.eye(2))
        with numpyro.plate("data", 3):
            numpyro.sample("h", dist.Bernoulli(logits=jnp.tanh(y @ V)).to_event(1))

    assert agrees(program(model, guide, y)).deterministic


def test_other_continuous_factors_are_no_gaussians():
    """The linear predictor of Uniform or Laplace factors has a mean and a variance; a nonlinearity needs more."""

    def model(bend):
        u = numpyro.sample("u", dist.Uniform(-2.0, 2.0).expand([2]).to_event(1))
        a = u @ jnp.asarray([1.0, -2.0])
        numpyro.factor("f", jax.nn.softplus(a) if bend else -0.5 * (a - 0.3) ** 2)

    def guide(bend):
        half = jnp.exp(numpyro.param("log_half", jnp.asarray([-0.3, 0.2])))
        numpyro.sample("u", dist.Uniform(-half, half).to_event(1))

    params = {"log_half": jnp.asarray([-0.3, 0.2])}
    nodes, weights = np.polynomial.legendre.leggauss(60)

    def elbo(p, bend):
        half = jnp.exp(p["log_half"])
        a = half[0] * nodes[:, None] - 2.0 * half[1] * nodes
        f = jax.nn.softplus(a) if bend else -0.5 * (a - 0.3) ** 2
        return jnp.sum(0.25 * weights[:, None] * weights * f) - 2 * jnp.log(4.0) + jnp.sum(jnp.log(2 * half))

    for bend in (False, True):
        program = jax.jit(
            lambda p, key, bend=bend: jax.value_and_grad(
                lambda p: legrad.LocalExpectation().loss(key, p, model, guide, bend)
            )(p)
        )
        losses = [program(params, jax.random.key(s)) for s in range(8)]
        if np.ptp([value for value, _ in losses]) < 1e-12:
            expected = jax.value_and_grad(lambda p, bend=bend: -elbo(p, bend))(params)
            assert close(losses[0], expected, 1e-6)


@pytest.mark.parametrize("pivots", [1, 3])
def test_pivots_change_nothing_where_nothing_is_drawn(pivots):
    def model():
        z = bits_prior("z", 3)
        numpyro.factor("pairs", 0.7 * jnp.sum(z[1:] * z[:-1]))

    row = program(model, lambda: bits("z", 3))
    loss = legrad.LocalExpectation(num_pivots=pivots).loss
    found = jax.value_and_grad(lambda p: loss(KEY, p, model, row.guide))(row.params)
    assert close(found, row.expected(), 1e-9)
    keys = jax.vmap(lambda key: loss(key, row.params, model, row.guide))(jax.random.split(KEY, 5))
    assert np.ptp(keys) < 1e-12


def test_the_papers_estimator_is_noisy():
    def model():
        z = bits_prior("z", 3)
        numpyro.factor("pairs", 0.7 * jnp.sum(z[1:] * z[:-1]))

    row = program(model, lambda: bits("z", 3))
    loss = legrad.LocalExpectation(exact_terms=False).loss
    assert np.ptp([float(loss(jax.random.key(s), row.params, model, row.guide)) for s in range(6)]) > 1e-3
