"""What the estimators promise beyond being unbiased: NumPyro's interface, exactness, counts, the theorem."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.contrib.module import flax_module, random_flax_module
from numpyro.distributions import constraints
from numpyro.infer import SVI, TraceGraph_ELBO
from numpyro.infer.autoguide import AutoDiagonalNormal, AutoMultivariateNormal, AutoNormal
from numpyro.infer.elbo import ELBO

import legrad
from catalogue import Row, named
from checking import ESTIMATORS, draw_until, flat, gradient_of
from pivots import gradients, pivots_of

KEY, LONG = jax.random.key(0), pytest.mark.long


def some(estimator):
    return ("reparam" in estimator and named("normal_guide")) or named("independent_bernoullis")


@pytest.mark.parametrize("name", [*ESTIMATORS, "exact"])
def test_drop_in_for_svi(name):
    row = some(name)
    estimator = legrad.Exact() if name == "exact" else ESTIMATORS[name]()
    assert isinstance(estimator, ELBO)
    assert estimator.can_infer_discrete
    assert estimator.num_particles >= 1
    svi = SVI(row.model, row.guide, numpyro.optim.Adam(0.05), loss=estimator)
    result = svi.run(KEY, 300, progress_bar=False)
    assert np.mean(result.losses[-50:]) < np.mean(result.losses[:10])
    assert float(svi.evaluate(result.state)) < float(result.losses[0]) + 1.0


@pytest.mark.parametrize("name", ESTIMATORS)
def test_under_jit_and_vmap(name):
    row, estimator = some(name), ESTIMATORS[name]()
    gradient = gradient_of(estimator, row)
    keys = jax.random.split(KEY, 3)
    compiled = jax.jit(gradient)
    one_by_one = [flat(compiled(key)) for key in keys]
    together = jax.jit(jax.vmap(gradient))(keys)
    for i, single in enumerate(one_by_one):
        np.testing.assert_allclose(flat(jax.tree.map(lambda a, i=i: a[i], together)), single, rtol=1e-9, atol=1e-12)


@pytest.mark.long
@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_value_is_an_estimate_of_the_elbo(name):
    row, estimator = some(name), ESTIMATORS[name]()
    losses = jax.jit(jax.vmap(lambda key: estimator.loss(key, row.params, row.model, row.guide)))(
        jax.random.split(KEY, 4000)
    )
    error = np.std(losses) / np.sqrt(len(losses))
    assert abs(np.mean(losses) - row.loss(row.params)) <= 5 * error + 1e-9


@pytest.mark.long
@pytest.mark.parametrize(
    ("one", "many"),
    [
        (legrad.LocalExpectation(), legrad.LocalExpectation(num_pivots=8)),
        (legrad.DisARM(), legrad.DisARM(num_pairs=8)),
        (legrad.ScoreFunction(), legrad.ScoreFunction(8)),
    ],
)
def test_averaging_lowers_the_variance(one, many):
    row = named("chain")
    assert many.num_particles == 8

    def variance(estimator):
        draws = jax.jit(jax.vmap(gradient_of(estimator, row)))(jax.random.split(KEY, 2000))
        return flat(jax.tree.map(lambda g: g.var(0), draws)).mean()

    assert variance(many) < variance(one) / 6


def test_a_gradient_with_respect_to_anything_the_model_was_given():
    """Not only parameters: the data, too."""

    def model(y):
        z = numpyro.sample("z", dist.Bernoulli(0.4))
        numpyro.sample("y", dist.Normal(z, 1.0), obs=y)

    def guide(y):
        numpyro.sample("z", dist.Bernoulli(logits=numpyro.param("w", 0.0) * y))

    params, y = {"w": jnp.array(0.7)}, jnp.array(1.3)
    exact = jax.grad(lambda y: legrad.Exact().loss(KEY, params, model, guide, y))(y)
    local = legrad.LocalExpectation()
    draws = jax.jit(jax.vmap(lambda k: jax.grad(lambda y: local.loss(k, params, model, guide, y))(y)))(
        jax.random.split(KEY, 20_000)
    )
    assert abs(draws.mean() - exact) <= 5 * draws.std() / np.sqrt(len(draws)) + 1e-6 * abs(exact)


# --- exactness on one scalar -----------------------------------------------------------------------------------

SCALARS = {
    "bernoulli": (lambda v: dist.Bernoulli(logits=v[0]), 2),
    "categorical": (lambda v: dist.Categorical(logits=v), 4),
    "binomial": (lambda v: dist.Binomial(5, logits=v[0]), 6),
}


@pytest.mark.parametrize("name", SCALARS)
def test_one_finite_scalar_has_no_noise(name):
    make, size = SCALARS[name]
    table = jnp.asarray(np.random.default_rng(2).normal(size=size)) * 10

    def guide(v):
        numpyro.sample("z", make(v))

    @partial(jax.jit, static_argnums=0)
    def loss(estimator, key):
        return jax.grad(
            lambda v: estimator.estimate(
                legrad.model.problem.Problem(legrad.log_density(lambda x: table[x["z"]]), guide, {}, (v,)), key
            )
        )(jnp.array([0.3, -1.0, 0.7, 0.1]))

    exact = loss(legrad.Exact(), KEY)
    for i in range(5):
        np.testing.assert_allclose(loss(legrad.LocalExpectation(), jax.random.key(i)), exact, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("degree", [1, 3, 5, 8])
def test_one_normal_scalar_is_exact_for_polynomials(degree):
    """K nodes are exact to degree 2K−1; the score of the scale adds 2 to the degree of f."""
    c = np.random.default_rng(3).normal(size=degree + 1)

    def guide(loc, scale):
        numpyro.sample("x", dist.Normal(loc, scale))

    def mean(loc, scale):  # E of a polynomial, by a long rule
        z, w = np.polynomial.hermite_e.hermegauss(30)
        return jnp.sum(w / w.sum() * jnp.polyval(jnp.asarray(c), loc + scale * z))

    at = (jnp.array(0.4), jnp.array(0.8))
    exact = jax.grad(mean, argnums=(0, 1))(*at)
    nodes = (degree + 2) // 2 + 1

    def estimate(nodes, key):
        local = legrad.LocalExpectation(nodes=nodes)
        f = lambda x: jnp.polyval(jnp.asarray(c), x["x"])
        one = jax.grad(lambda a: legrad.expectation(f, guide, {}, key=key, estimator=local, args=a))
        return jax.jit(one)(at)

    for i in range(3):
        np.testing.assert_allclose(estimate(nodes, jax.random.key(i)), exact, rtol=1e-6, atol=1e-9)
    if degree > 1:
        assert not np.allclose(estimate(nodes - 2, KEY), exact, rtol=1e-6), "fewer nodes would do"


@pytest.mark.filterwarnings("ignore:.*the quadrature is not accurate")  # of some of them: it is measured here
@pytest.mark.parametrize(
    "family",
    [
        lambda a, b: dist.LogNormal(a, b),
        pytest.param(lambda a, b: dist.Gamma(2 + a, b), marks=LONG),
        pytest.param(lambda a, b: dist.Beta(1 + a, 1 + b), marks=LONG),
        pytest.param(lambda a, b: dist.Logistic(a, b), marks=LONG),
        pytest.param(lambda a, b: dist.Gumbel(a, b), marks=LONG),
    ],
)
def test_other_scalars_are_exact_within_the_reported_quadrature_error(family):
    def guide():
        a, b = numpyro.param("a", 0.4), numpyro.param("b", 0.5, constraint=constraints.positive)
        numpyro.sample("x", family(a, b))

    target = legrad.log_density(lambda x: -(jnp.tanh(x["x"]) ** 2))
    result = legrad.fit(target, guide, key=KEY, steps=1, progress=False)
    reported = legrad.quadrature_error(result, key=KEY, draws=2)

    def gradient(nodes):
        from legrad.diagnostics.gradients import gradient

        one = gradient(legrad.LocalExpectation(nodes=nodes), target, guide, result.params, (), {})
        return jax.jit(one)(KEY)

    ours, fine = gradient(5), gradient(25)
    for name in ("a", "b"):
        assert abs(ours[name] - fine[name]) <= 2 * reported[name] + 1e-6


# --- the claims ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "K"), [(3, 2), (4, 3), (2, 5)])
def test_count_of_evaluations(n, K):
    """Brute force evaluates f at n(K−1)+1 points."""
    count = []

    def counted(x):
        def host(z):
            count.append(z.size // n)
            return np.zeros(z.shape[:-1])

        shape = jax.ShapeDtypeStruct((), float)
        value = jax.pure_callback(host, shape, jax.lax.stop_gradient(x["z"]), vmap_method="broadcast_all")
        return value + jnp.sum(x["z"])

    def guide():
        numpyro.sample("z", dist.Categorical(logits=numpyro.param("l", jnp.zeros((n, K)))).to_event(1))

    local = legrad.LocalExpectation(method="brute", exact_terms=False)
    params = {"l": jnp.zeros((n, K))}
    loss = lambda p: legrad.expectation(counted, guide, p, key=KEY, estimator=local)
    jax.block_until_ready(jax.jit(jax.value_and_grad(loss))(params))
    assert sum(count) == n * (K - 1) + 1


def _targets():
    rng = np.random.default_rng(5)
    n = 4
    L = rng.normal(size=(n, n))
    A = jnp.asarray(L @ L.T + np.eye(n))
    X, y = jnp.asarray(rng.normal(size=(20, n))), jnp.asarray(rng.integers(0, 2, 20))
    return {
        "gaussian": lambda x: -0.5 * (x - 1) @ A @ (x - 1),
        "logistic": lambda x: -jnp.sum(jax.nn.softplus((1 - 2 * y) * (X @ x))) - 0.5 * x @ x,
        "poisson": lambda x: jnp.sum(y * (X @ x) - jnp.exp(0.3 * X @ x)),
        "banana": lambda x: -jnp.sum((x[1:] - x[:-1] ** 2) ** 2) - 0.5 * jnp.sum(x**2),
        "student": lambda x: -2.0 * jnp.sum(jnp.log1p((X @ x - y) ** 2)),
        "product": lambda x: jnp.prod(jnp.cos(x)) - 0.1 * x @ x,
    }


@pytest.mark.long
@pytest.mark.parametrize("name", _targets())
def test_variance_theorem(name):
    """Var(LeGrad) ≤ Var(one-sample ReGrad) for every parameter, factorized Gaussian guides."""
    target = legrad.log_density(lambda x, f=_targets()[name]: f(x["x"]))

    def guide():
        loc = numpyro.param("loc", jnp.array([0.3, -0.2, 0.5, 0.1]))
        log_scale = numpyro.param("log_scale", jnp.array([-0.5, -1.0, -0.2, -0.7]))
        numpyro.sample("x", dist.Normal(loc, jnp.exp(log_scale)).to_event(1))

    params = {"loc": jnp.array([0.3, -0.2, 0.5, 0.1]), "log_scale": jnp.array([-0.5, -1.0, -0.2, -0.7])}
    table = legrad.compare(
        target,
        guide,
        params,
        {"le": legrad.LocalExpectation(nodes=9), "re": legrad.Reparameterized()},
        key=KEY,
        draws=20_000,
    )
    le, re = flat(table["le"].variances), flat(table["re"].variances)
    assert np.all(le <= re * 1.05), (le, re)  # 5%: the noise of two variances of 20,000 draws
    assert table["le"].bias_z < 5


# --- NumPyro's other parts -------------------------------------------------------------------------------------


@pytest.mark.long
def test_tracegraph_scales_the_score_and_we_do_not():
    """NumPyro's TraceGraph_ELBO multiplies the score by the plate's scale; ours is the exact gradient."""
    row = named("scaled")
    exact = flat(jax.grad(row.loss)(row.params))
    theirs = draw_until(
        lambda key: jax.grad(
            lambda p: TraceGraph_ELBO().loss(key, p, handlers.seed(row.model, key), handlers.seed(row.guide, key))
        )(row.params),
        exact,
        0.2,
    )
    assert not theirs.agrees(exact)
    ours = draw_until(gradient_of(legrad.LocalExpectation(), row), exact, 0.05)
    assert ours.agrees(exact)


@pytest.mark.parametrize(
    "auto", [AutoNormal, *(pytest.param(a, marks=LONG) for a in (AutoDiagonalNormal, AutoMultivariateNormal))]
)
def test_autoguides_for_the_continuous_part(auto):
    y = jnp.array([0.3, 1.2, 2.1, 1.9])

    def model():
        mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
        sd = numpyro.sample("sd", dist.HalfNormal(1.0))
        with numpyro.plate("N", 4):
            z = numpyro.sample("z", dist.Bernoulli(0.4))
            numpyro.sample("y", dist.Normal(mu + z, sd), obs=y)

    continuous = auto(handlers.block(handlers.seed(model, 0), hide=["z", "y"]))

    def guide():
        continuous()
        with numpyro.plate("N", 4):
            numpyro.sample("z", dist.Bernoulli(logits=numpyro.param("z_logits", jnp.zeros(4))))

    result = legrad.fit(model, guide, key=KEY, steps=600, progress=False)
    assert result.elbo[-100:].mean() > result.elbo[:20].mean()
    draws = result.sample(jax.random.key(1), 500)
    assert set(draws) == {"mu", "sd", "z"}
    assert draws["z"].shape == (500, 4)


@pytest.mark.long
def test_flax_modules():
    X = jnp.asarray(np.random.default_rng(0).normal(size=(6, 3)))
    y = jnp.array([0.1, 1.0, -0.3, 0.7, 1.3, 0.0])

    def model():
        weights = random_flax_module("net", nn.Dense(1), prior=dist.Normal(0.0, 1.0), input_shape=(1, 3))
        with numpyro.plate("N", 6):
            z = numpyro.sample("z", dist.Bernoulli(0.5))
            numpyro.sample("y", dist.Normal(weights(X)[:, 0] + z, 0.5), obs=y)

    continuous = AutoNormal(handlers.block(handlers.seed(model, 0), hide=["z", "y"]))

    def guide():
        continuous()
        encoder = flax_module("encoder", nn.Dense(1), input_shape=(1, 3))
        with numpyro.plate("N", 6):
            numpyro.sample("z", dist.Bernoulli(logits=encoder(X)[:, 0]))

    result = legrad.fit(model, guide, key=KEY, steps=200, progress=False)
    assert {"encoder$params"} <= set(result.params)
    assert set(result.params["encoder$params"]) == {"kernel", "bias"}
    assert result.elbo[-50:].mean() > result.elbo[:10].mean()


def test_obs_mask_and_enumerate_marks_work():
    y, seen = jnp.array([0.3, 9.0, 1.2]), jnp.array([True, False, True])

    def model():
        with numpyro.plate("N", 3):
            z = numpyro.sample("z", dist.Bernoulli(0.4), infer={"enumerate": "parallel"})
            numpyro.sample("y", dist.Normal(z, 1.0), obs=y, obs_mask=seen)

    result = legrad.fit(model, legrad.MeanField(model), key=KEY, steps=800, progress=False)
    # the element that was not seen keeps its prior
    assert abs(jax.nn.sigmoid(result.params["z_logits"][1]) - 0.4) < 0.05


@pytest.mark.parametrize("sites", [{"a": "score"}, {"b": "score"}, {"x": "score"}, {"x": "reparam"}, {"x": "local"}])
def test_a_choice_per_site(sites):
    def model():
        a = numpyro.sample("a", dist.Bernoulli(0.4))
        b = numpyro.sample("b", dist.Bernoulli(0.6))
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.factor("energy", a * b * x - 0.2 * x**2)

    def guide():
        v = numpyro.param("v", jnp.zeros(5))
        a = numpyro.sample("a", dist.Bernoulli(logits=v[0]))
        numpyro.sample("b", dist.Bernoulli(logits=v[1] + v[2] * a))
        numpyro.sample("x", dist.Normal(v[3], jnp.exp(v[4])))

    row = Row("", model, guide, {"v": jnp.array([0.3, -0.4, 0.9, 0.5, -0.3])})
    steps = pivots_of(row).repeated(1)
    estimators = (legrad.LocalExpectation(sites=s, exact_terms=False) for s in (None, sites))
    default, chosen = (gradients(estimator, row, steps) for estimator in estimators)
    np.testing.assert_allclose(steps.mass @ chosen, steps.mass @ default, rtol=1e-9, atol=1e-9)
    if sites != {"x": "local"}:  # which it is by default
        assert not np.allclose(chosen, default), "the choice makes no difference"


@pytest.mark.long
def test_expectation_of_any_function():
    def guide():
        p = numpyro.param("p", jnp.zeros(3))
        numpyro.sample("z", dist.Bernoulli(logits=p).to_event(1))

    params = {"p": jnp.array([0.3, -0.5, 1.0])}
    f = lambda x: x["z"][0] * x["z"][1] + jnp.exp(x["z"].sum())
    exact = jax.value_and_grad(lambda p: legrad.expectation(f, guide, p, key=KEY, estimator=legrad.Exact()))(params)
    for e in (None, legrad.ScoreFunction(8, "leave_one_out"), legrad.DisARM()):
        values, grads = jax.jit(
            jax.vmap(
                lambda k, e=e: jax.value_and_grad(lambda p: legrad.expectation(f, guide, p, key=k, estimator=e))(
                    params
                )
            )
        )(jax.random.split(KEY, 20_000))
        for draws, truth in ((values, exact[0]), (grads["p"], exact[1]["p"])):
            error = np.std(draws, 0) / np.sqrt(len(draws))
            assert np.all(np.abs(np.mean(draws, 0) - truth) <= 5 * error + 1e-6 * np.linalg.norm(truth))


def test_float32_and_integers_stay_what_they_are():
    with jax.enable_x64(False):
        row = named("independent_bernoullis")
        params = {"logits": jnp.asarray(row.params["logits"], jnp.float32)}

        def model():
            z = numpyro.sample("z", dist.Bernoulli(jnp.full(5, 0.3, jnp.float32)).to_event(1))
            assert jnp.issubdtype(z.dtype, jnp.integer)
            numpyro.factor("energy", jnp.sum(z).astype(jnp.float32))

        g = jax.grad(lambda p: legrad.LocalExpectation().loss(KEY, p, model, row.guide))(params)
        assert g["logits"].dtype == jnp.float32
