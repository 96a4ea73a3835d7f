"""MeanField on a catalogue of models: sites, shapes, plates, replay, initial values, windows, errors."""

import copy
import pickle
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.infer import SVI, Trace_ELBO
from numpyro.optim import Adam

from guide_models import (
    CATALOGUE,
    OBSERVED,
    SIMPLEX,
    Y,
    bernoulli,
    binomial,
    constrained,
    discrete_uniform,
    hierarchical_count,
    masked,
    normal,
    obs_mask,
    observe,
    poisson,
    subsampled,
    subsampled_twice,
)
from legrad.distributions.offset_categorical import OffsetCategorical
from legrad.guides.mean_field import MeanField
from legrad.model.log_density import log_density


@cache
def guide_of(model):
    """A guide per model for all tests: setting one up compiles the model's prior."""
    return MeanField(model)


def guide_trace(guide, seed=0, args=(), params=None):
    substituted = handlers.substitute(guide, data=params or {})
    return handlers.trace(handlers.seed(substituted, seed)).get_trace(*args)


def sample_sites(trace):
    return {
        name: site
        for name, site in trace.items()
        if site["type"] == "sample" and not site["is_observed"] and not site["infer"].get("is_auxiliary")
    }


def params_of(trace):
    return {name: site["value"] for name, site in trace.items() if site["type"] == "param"}


def initial(model, guide, *args):
    """Parameters at full plate size: what the param statements see before the plates subsample them."""
    trace = guide_trace(guide, args=args)
    return {n: site["fn"](*site["args"]) for n, site in trace.items() if site["type"] == "param"}


@pytest.mark.parametrize("name", CATALOGUE)
def test_guide_matches_model(name):
    model = CATALOGUE[name]
    guide = guide_of(model)
    guide_trace(guide)

    @jax.jit
    def run():
        q = guide_trace(guide)
        p = handlers.trace(handlers.replay(handlers.seed(model, 1), trace=q)).get_trace()
        own, wanted = sample_sites(q), sample_sites(p)
        assert list(own) == list(wanted)
        for site in own:
            sample_shape = (3,) if site == "s" else ()
            assert own[site]["value"] is wanted[site]["value"] or "_control_flow_done" in wanted[site]
            assert own[site]["fn"].batch_shape == sample_shape + wanted[site]["fn"].batch_shape
            assert own[site]["fn"].event_shape == wanted[site]["fn"].event_shape
            assert own[site]["fn"].support.is_discrete == wanted[site]["fn"].support.is_discrete
        values = [{name: site["value"] for name, site in sites.items()} for sites in (own, wanted)]
        return *values, Trace_ELBO().loss(jax.random.key(0), {}, model, guide)

    own, wanted, loss = run()
    jax.tree.map(np.testing.assert_array_equal, own, wanted)
    assert np.isfinite(loss)


@pytest.mark.parametrize("name", ["subsampled", "poisson", "hmm", "masked"])
def test_gradient_is_finite_under_jit_and_vmap(name):
    model = CATALOGUE[name]
    guide = guide_of(model)
    params = initial(model, guide)

    def loss(params, key):
        return Trace_ELBO().loss(key, params, model, guide)

    keys = jax.random.split(jax.random.key(1), 3)
    gradients = jax.jit(jax.vmap(jax.grad(loss), (None, 0)))(params, keys)
    assert all(np.all(np.isfinite(g)) for g in jax.tree.leaves(gradients))


def test_factors_have_the_families_and_parameters_promised():
    fn = {}
    for name in ("bernoulli", "categorical", "binomial", "discrete_uniform", "poisson", "normal"):
        trace = guide_trace(guide_of(CATALOGUE[name]))
        fn[name] = next(iter(sample_sites(trace).values()))["fn"]
    assert isinstance(fn["bernoulli"], dist.BernoulliLogits)
    assert isinstance(fn["categorical"], dist.CategoricalLogits)
    assert isinstance(fn["binomial"], dist.CategoricalLogits)
    assert fn["binomial"].logits.shape == (5,)
    assert isinstance(fn["discrete_uniform"].base_dist, OffsetCategorical)
    assert fn["discrete_uniform"].base_dist.low == -2
    assert isinstance(fn["poisson"], OffsetCategorical)
    assert isinstance(fn["normal"], dist.Normal)
    trace = guide_trace(guide_of(constrained))
    shapes = {n: v.shape for n, v in params_of(trace).items()}
    assert shapes == {
        f"{n}_{s}": shape
        for n, shape in {"a": (), "b": (2,), "c": (3, 2), "d": (2,)}.items()
        for s in ("loc", "log_scale")
    }
    assert isinstance(trace["c"]["fn"].base_dist, dist.TransformedDistribution)
    np.testing.assert_allclose(params_of(trace)["b_log_scale"], np.log(0.1))


def test_subsampling_gathers_full_parameters_with_the_model_indices():
    guide = guide_of(subsampled)
    params = {
        "z_logits": jnp.arange(18.0).reshape(6, 3) % 7,
        "x_loc": jnp.arange(24.0).reshape(6, 4) / 10,
        "p_loc": jnp.arange(12.0).reshape(6, 2) / 10,
    }
    shapes = {n: v.shape for n, v in initial(subsampled, guide).items()}
    low, high = guide.window("k")
    assert shapes == {
        "w_loc": (),
        "w_log_scale": (),
        "z_logits": (6, 3),
        "k_logits": (6, high - low),
        "x_loc": (6, 4),
        "x_log_scale": (6, 4),
        "p_loc": (6, 2),
        "p_log_scale": (6, 2),
    }
    seen = set()
    for seed in range(5):
        q = guide_trace(guide, seed, params=params)
        p = handlers.trace(handlers.replay(handlers.seed(subsampled, 100 + seed), trace=q)).get_trace()
        rows = q["rows"]["value"]
        seen |= set(rows.tolist())
        np.testing.assert_array_equal(rows, p["rows"]["value"])
        np.testing.assert_array_equal(p["y"]["value"], Y[rows])
        np.testing.assert_array_equal(q["z"]["fn"].logits, params["z_logits"][rows])
        np.testing.assert_array_equal(q["x"]["fn"].base_dist.base_dist.loc, params["x_loc"][rows])
        np.testing.assert_array_equal(q["p_base"]["fn"].base_dist.loc, params["p_loc"][rows])
        assert q["z"]["scale"] == p["z"]["scale"] == 3.0
    assert len(seen) > 2


def test_two_subsampled_plates():
    guide = guide_of(subsampled_twice)
    params = initial(subsampled_twice, guide)
    assert params["a_logits"].shape == (6, 1)
    assert params["b_loc"].shape == (5,)
    assert params["c_logits"].shape == (6, 5, 3)
    params["c_logits"] = jnp.arange(90.0).reshape(6, 5, 3)
    q = guide_trace(guide, 3, params=params)
    rows, columns = q["rows"]["value"], q["columns"]["value"]
    np.testing.assert_array_equal(q["c"]["fn"].logits, params["c_logits"][rows[:, None], columns])


def test_masked_elements_have_no_density():
    q = guide_trace(guide_of(obs_mask))
    for name in ("y_unobserved", "b_unobserved"):
        log_prob = q[name]["fn"].log_prob(q[name]["value"])
        np.testing.assert_array_equal(log_prob == 0, OBSERVED)
    q = guide_trace(guide_of(masked))
    for name in ("v", "p_base", "p"):
        log_prob = q[name]["fn"].log_prob(q[name]["value"])
        np.testing.assert_array_equal(log_prob == 0, [False, True])
    np.testing.assert_allclose(q["e"]["fn"].log_prob(q["e"]["value"]), np.log(0.5))
    assert q["off"]["fn"].log_prob(q["off"]["value"]) == 0


def test_window_covers_the_prior():
    guide = guide_of(poisson)
    guide_trace(guide)
    low, high = guide.window("z")
    assert low == 0
    assert dist.Poisson(3.0).log_prob(jnp.arange(high, 60)).max() < np.log(1e-6)
    outside = np.exp(dist.Poisson(3.0).log_prob(jnp.arange(high, 60))).sum()
    assert outside <= 1e-6 < outside + np.exp(dist.Poisson(3.0).log_prob(jnp.asarray(high - 1))) * 2

    def large():
        observe(numpyro.sample("z", dist.Poisson(400.0)))

    guide = guide_of(large)
    q = guide_trace(guide)
    low, high = guide.window("z")
    assert 280 < low < 320
    assert 480 < high < 520
    assert low <= q["z"]["value"] < high

    guide = MeanField(poisson, window={"z": (1, 4)}, init={"z": [1, 3]})
    q = guide_trace(guide)
    assert guide.window("z") == (1, 4)
    np.testing.assert_allclose(q["z"]["fn"].probs[0], [0.9, 0.05, 0.05])
    np.testing.assert_allclose(q["z"]["fn"].probs[1], [0.05, 0.05, 0.9])


def test_window_follows_the_prior_of_the_rate():
    guide = guide_of(hierarchical_count)
    guide_trace(guide)
    at_the_median = MeanField(handlers.condition(hierarchical_count, data={"rate": 1.8}))
    guide_trace(at_the_median)
    assert guide.window("z")[1] > at_the_median.window("z")[1]


def test_initial_values():
    def continuous():
        numpyro.sample("a", dist.HalfNormal(1.0).expand([2]))
        numpyro.sample("b", dist.Uniform(-1.0, 3.0).expand([3, 2]).to_event(1))
        numpyro.sample("p", SIMPLEX.expand([2]).to_event(1))

    simplex = np.array([0.2, 0.3, 0.5])
    init = {"a": [1.0, 4.0], "b": 0.25, "p": simplex}
    q = guide_trace(MeanField(continuous, init, init_scale=1e-9))
    np.testing.assert_allclose(q["a"]["value"], [1.0, 4.0], rtol=1e-6)
    np.testing.assert_allclose(q["b"]["value"], np.full((3, 2), 0.25), rtol=1e-6)
    np.testing.assert_allclose(q["p"]["value"], [simplex, simplex], rtol=1e-6)

    rows = np.arange(6) % 3
    guide = MeanField(subsampled, {"z": rows, "x": np.ones((6, 4))})
    q = guide_trace(guide)
    np.testing.assert_allclose(jax.nn.softmax(q["z"]["fn"].logits)[np.arange(2), rows[q["rows"]["value"]]], 0.9)

    q = guide_trace(MeanField(bernoulli, {"z": [0, 1, 0, 1, 1]}))
    np.testing.assert_allclose(q["z"]["fn"].probs, [0.1, 0.9, 0.1, 0.9, 0.9])
    q = guide_trace(MeanField(bernoulli, {"z": np.tile([0.3, 0.7], (5, 1))}))
    np.testing.assert_allclose(q["z"]["fn"].probs, 0.7)
    q = guide_trace(MeanField(binomial, {"z": [0.1, 0.2, 0.3, 0.3, 0.1]}))
    np.testing.assert_allclose(q["z"]["fn"].probs, [0.1, 0.2, 0.3, 0.3, 0.1])
    q = guide_trace(MeanField(discrete_uniform, {"z": -2}))
    np.testing.assert_allclose(q["z"]["fn"].base_dist.probs[:, 0], 0.9)
    q = guide_trace(guide_of(binomial))
    np.testing.assert_allclose(q["z"]["fn"].probs, 0.2)
    q = guide_trace(guide_of(normal))
    assert abs(q["mu_loc"]["value"] - 3.0) < 2.0


def no_latent():
    observe(0.0)


def multinomial():
    numpyro.sample("c", dist.Multinomial(3, jnp.ones(3) / 3))


def wide_count():
    numpyro.sample("z", dist.Poisson(1e5))


def random_support():
    a = numpyro.sample("a", dist.HalfNormal(1.0))
    numpyro.sample("u", dist.Uniform(0.0, a))


def random_range():
    n = numpyro.sample("n", dist.Poisson(5.0))
    numpyro.sample("k", dist.Binomial(n, 0.5))


def uneven_range():
    numpyro.sample("k", dist.Binomial(jnp.array([2, 3]), 0.5))


def masked_minibatch():
    with numpyro.plate("n", 6, subsample_size=2) as i:
        numpyro.sample("y", dist.Normal(0.0, 1.0), obs=Y[i], obs_mask=OBSERVED[i])


def rates_by_row():
    with numpyro.plate("n", 6, subsample_size=2) as i:
        numpyro.sample("z", dist.Poisson(jnp.arange(1.0, 7.0)[i]))


def random_mask():
    b = numpyro.sample("b", dist.Bernoulli(0.5 * jnp.ones(8)))
    with handlers.mask(mask=b == 1):
        numpyro.sample("x", dist.Normal(jnp.zeros(8), 1.0))


def colliding():
    loc = numpyro.sample("x_loc", dist.Normal(0.0, 1.0))
    numpyro.sample("x", dist.Normal(loc, 1.0))


def subsampled_scan():
    def step(carry, _):
        with numpyro.plate("n", 4, subsample_size=2):
            numpyro.sample("z", dist.Bernoulli(0.5))
        return carry, None

    scan(step, 0.0, None, length=3)


ERRORS = [
    (no_latent, {}, "has no latent sites"),
    (multinomial, {}, r"'c' \(MultinomialProbs\).*by hand"),
    (wide_count, {}, r"'z' \(Poisson\).*window=\{'z': \(low, high\)\}"),
    (random_support, {}, "'u'.*depends on other latents"),
    (random_range, {}, "'k'.*depends on other latents"),
    (uneven_range, {}, "'k'.*different supports"),
    (masked_minibatch, {}, "'y_unobserved'.*masked inside a subsampled plate"),
    (rates_by_row, {}, "'z'.*varies inside a subsampled plate: pass MeanField"),
    (random_mask, {}, "'x'.*mask that depends on other latents"),
    (colliding, {}, "'x'.*needs the name 'x_loc'.*prefix"),
    (subsampled_scan, {}, "'z'.*inside scan"),
    (normal, {"init": {"nu": 1.0}}, r"init names \['nu'\].*\['mu'\]"),
    (normal, {"window": {"nu": (0, 2)}}, r"window names \['nu'\]"),
    (normal, {"window": {"mu": (0, 2)}}, "'mu'.*takes no window"),
    (normal, {"init": {"mu": [1.0, 2.0]}}, r"'mu'.*has shape \(\).*\(2,\)"),
    (normal, {"init_scale": 0.0}, "init_scale must be positive"),
    (random_support, {"init": {"a": -1.0}}, "'a'.*outside"),
    (subsampled, {"init": {"x": np.ones((2, 4))}}, r"'x'.*has shape \(6, 4\)"),
    (binomial, {"init": {"z": 5}}, r"'z'.*integers 0 to 4"),
    (binomial, {"init": {"z": 1.5}}, r"'z'.*integers 0 to 4"),
    (binomial, {"init": {"z": np.ones(5)}}, "'z'.*sum to 1"),
    (binomial, {"window": {"z": (2, 9)}}, "'z'.*0 <= low < high <= 5"),
    (poisson, {"window": {"z": (-1, 9)}}, "'z'.*0 <= low < high"),
]


@pytest.mark.parametrize(("model", "options", "message"), ERRORS)
def test_errors_name_the_site_and_the_remedy(model, options, message):
    with pytest.raises(ValueError, match=message):
        guide_trace(MeanField(model, **options))


def test_log_density_and_early_window_are_refused():
    with pytest.raises(ValueError, match="by hand"):
        MeanField(log_density(lambda latents: 0.0))
    with pytest.raises(RuntimeError, match="first call"):
        MeanField(poisson).window("z")
    guide = guide_of(normal)
    guide_trace(guide)
    with pytest.raises(ValueError, match="not a discrete"):
        guide.window("mu")


def test_prefix_avoids_a_collision():
    q = guide_trace(MeanField(colliding, prefix="q_"))
    assert set(params_of(q)) == {"q_x_loc", "q_x_log_scale", "q_x_loc_loc", "q_x_loc_log_scale"}
    assert set(sample_sites(q)) == {"x_loc", "x"}


def regression(x, y):
    w = numpyro.sample("w", dist.Normal(jnp.zeros(2), 1.0))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)


def test_first_call_under_jit_and_other_data_later():
    x = np.random.default_rng(0).normal(size=(8, 2))
    guide = MeanField(regression)
    traced = jax.jit(lambda x, y: handlers.seed(guide, 0)(x, y)["w"])(x, x[:, 0])
    np.testing.assert_allclose(traced, handlers.seed(guide, 0)(x, x[:, 0])["w"])
    assert np.isfinite(Trace_ELBO().loss(jax.random.key(0), {}, regression, guide, x[:3], x[:3, 0]))

    def data_dependent(x):
        numpyro.sample("w", dist.Normal(x, 1.0))

    guide = MeanField(data_dependent)
    with pytest.raises(RuntimeError, match="'w' depends on traced arguments"):
        jax.jit(lambda x: handlers.seed(guide, 0)(x))(1.0)
    handlers.seed(guide, 0)(1.0)
    jax.jit(lambda x: handlers.seed(guide, 0)(x))(1.0)


def test_setup_leaves_the_callers_handlers_alone():
    """No site of the model leaks out, and the first call draws what later calls draw."""
    guide = MeanField(normal)
    first = guide_trace(guide, 7)
    assert set(first) == {"mu", "mu_loc", "mu_log_scale"}
    second = guide_trace(guide, 7)
    for name in sample_sites(first):
        np.testing.assert_array_equal(first[name]["value"], second[name]["value"])


@pytest.mark.parametrize("name", ["subsampled", "constrained", "vectors", "poisson"])
def test_copy_and_pickle(name):
    guide = guide_of(CATALOGUE[name])
    expected = guide_trace(guide)
    for clone in (copy.deepcopy(guide), pickle.loads(pickle.dumps(guide))):
        q = guide_trace(clone)
        for site in sample_sites(q):
            np.testing.assert_array_equal(q[site]["value"], expected[site]["value"])
    new = pickle.loads(pickle.dumps(MeanField(normal, init={"mu": 2.0})))
    assert guide_trace(new)["mu_loc"]["value"] == 2.0


def test_fit_recovers_a_conjugate_posterior():
    rng = np.random.default_rng(0)
    x, _ = np.linalg.qr(rng.normal(size=(20, 2)))
    y = x @ np.array([1.0, -2.0]) + 0.1 * rng.normal(size=20)
    svi = SVI(regression, MeanField(regression), Adam(0.01), Trace_ELBO(num_particles=16))
    result = svi.run(jax.random.key(0), 1500, x, y, progress_bar=False)
    precision = 1.0 + 4.0
    np.testing.assert_allclose(result.params["w_loc"], 4 * x.T @ y / precision, atol=0.06)
    np.testing.assert_allclose(np.exp(result.params["w_log_scale"]), precision**-0.5, rtol=0.1)


@pytest.mark.parametrize("name", ["poisson", "normal"])
def test_float32(name):
    with jax.enable_x64(False):
        q = guide_trace(MeanField(CATALOGUE[name]))
        assert all(v.dtype == jnp.float32 for v in params_of(q).values())
