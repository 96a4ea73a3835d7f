"""Bad input: each message names the thing and says what to do."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.primitives import mutable

import legrad

KEY = jax.random.key(0)


def model():
    z = numpyro.sample("z", dist.Bernoulli(0.4))
    numpyro.sample("y", dist.Normal(z, 1.0), obs=0.7)


def guide():
    numpyro.sample("z", dist.Bernoulli(logits=numpyro.param("l", 0.1)))


def normal_guide():
    numpyro.sample("x", dist.Normal(numpyro.param("m", 0.0), 1.0))


def fit(model=model, guide=guide, **settings):
    return legrad.fit(model, guide, key=KEY, progress=False, **{"steps": 2, **settings})


def loss(estimator, guide, model=model, params=None):
    return estimator.loss(KEY, params or {}, model, guide)


def test_a_latent_that_the_guide_lacks():
    def two():
        numpyro.sample("w", dist.Bernoulli(0.5))
        model()

    for estimator in (legrad.LocalExpectation(), legrad.ScoreFunction(), legrad.Exact(), legrad.DisARM()):
        with pytest.raises(ValueError, match="latent site 'w' of the model is missing from the guide: sample 'w'"):
            loss(estimator, guide, two)


def test_a_latent_marked_for_enumeration_that_the_guide_lacks():
    def two():
        numpyro.sample("w", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
        model()

    with pytest.raises(ValueError, match="'w' of the model is marked for enumeration.*give it a factor in the guide"):
        fit(two)


def test_a_latent_that_the_model_lacks():
    def two():
        guide()
        numpyro.sample("extra", dist.Bernoulli(0.5))

    with pytest.raises(ValueError, match=r"site 'extra' of the guide does not exist.*latent of the model \(z\)"):
        fit(guide=two)

    def auxiliary():
        guide()
        numpyro.sample("extra", dist.Normal(0.0, 1.0), infer={"is_auxiliary": True})

    assert np.isfinite(fit(guide=auxiliary).elbo).all()


def test_a_guide_site_that_is_observed_in_the_model():
    def observes():
        numpyro.sample("z", dist.Bernoulli(0.4), obs=1)

    with pytest.raises(ValueError, match="site 'z' of the guide is observed in the model"):
        fit(observes)


def test_shapes_that_differ():
    def wide():
        numpyro.sample("z", dist.Bernoulli(logits=numpyro.param("l", jnp.zeros(3))))

    with pytest.raises(ValueError, match=r"site 'z' has shape \(\) in the model and \(3,\) in the guide: give"):
        fit(guide=wide)


def test_a_site_with_no_scalar_elements_where_one_is_needed():
    def target():
        numpyro.sample("x", dist.MultivariateNormal(jnp.zeros(2), jnp.eye(2)))

    def q():
        m = numpyro.param("m", jnp.zeros(2))
        numpyro.sample("x", dist.MultivariateNormal(m, jnp.eye(2)))

    with pytest.raises(ValueError, match="site 'x' of the guide is MultivariateNormal, which has no scalar elements"):
        loss(legrad.LocalExpectation(sites={"x": "local"}), q, target)
    assert np.isfinite(fit(target, q).elbo).all()  # reparameterized by itself


def test_a_discrete_site_with_no_candidates():
    def q():
        numpyro.sample("k", dist.Multinomial(3, jnp.ones(2) / 2))

    with pytest.raises(ValueError, match='site \'k\' of the guide is Multinomial.*"k": "score"'):
        loss(legrad.LocalExpectation(), q, q)
    score = legrad.LocalExpectation(sites={"k": "score"})
    assert np.isfinite(loss(score, q, q))


def test_reparameterized_on_a_discrete_site():
    with pytest.raises(
        ValueError, match="site 'z' of the guide is BernoulliLogits, which is discrete: use legrad.Local"
    ):
        loss(legrad.Reparameterized(), guide)
    with pytest.raises(ValueError, match='\'z\' of the guide is BernoulliLogits, which is discrete.*"z": "local"'):
        loss(legrad.LocalExpectation(sites={"z": "reparam"}), guide)


def test_disarm_on_a_categorical():
    def q():
        numpyro.sample("c", dist.Categorical(logits=jnp.zeros(3)))

    with pytest.raises(ValueError, match="site 'c' of the guide is CategoricalLogits: DisARM is for Bernoulli"):
        loss(legrad.DisARM(), q, q)


def test_disarm_inside_scan():
    def q():
        def step(z, _):
            return numpyro.sample("z", dist.Bernoulli(0.3 + 0.4 * z)), None

        scan(step, jnp.array(0), None, length=3)

    with pytest.raises(ValueError, match="site 'z' of the guide is inside scan"):
        loss(legrad.DisARM(), q, q)


def test_exact_on_a_continuous_site_and_on_too_many():
    with pytest.raises(ValueError, match="site 'x' of the guide is Normal, whose support cannot be enumerated"):
        loss(legrad.Exact(), normal_guide, normal_guide)

    def many():
        numpyro.sample("z", dist.Bernoulli(0.5).expand((21,)).to_event(1))

    with pytest.raises(ValueError, match=r"with site 'z' the guide has more than 2\^20 joint configurations"):
        loss(legrad.Exact(), many, many)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_data_that_is_not_finite(bad):
    def with_data(y):
        with numpyro.plate("N", 3):
            z = numpyro.sample("z", dist.Bernoulli(0.4))
            numpyro.sample("y", dist.Normal(z, 1.0), obs=y)

    y = jnp.array([0.1, bad, 0.5])
    with pytest.raises(ValueError, match="the data of site 'y' is (nan|inf) in row 1: drop"):
        fit(with_data, legrad.MeanField(with_data), args=(y,))

    def masked(y):
        with numpyro.plate("N", 3):
            z = numpyro.sample("z", dist.Bernoulli(0.4))
            with handlers.mask(mask=jnp.isfinite(y)):
                numpyro.sample("y", dist.Normal(z, 1.0), obs=y)

    assert np.isfinite(fit(masked, legrad.MeanField(masked), args=(y,)).elbo).all()


def test_parameters_that_are_not_finite():
    with pytest.raises(ValueError, match="parameter 'l' starts with 1 of 1 values not finite"):
        fit(init_params={"l": jnp.nan})

    def edge():
        s = numpyro.param("s", 0.0, constraint=dist.constraints.positive)
        numpyro.sample("z", dist.Bernoulli(logits=s))

    with pytest.raises(ValueError, match="parameter 's' starts outside, or on the edge, of its constraint"):
        fit(guide=edge)


def test_an_initial_elbo_that_is_not_finite():
    def impossible():
        z = numpyro.sample("z", dist.Bernoulli(0.4))
        numpyro.factor("penalty", jnp.log(0.0 * z))

    with pytest.raises(ValueError, match=r"initial ELBO is not finite: log p\(penalty\) is -inf at the first draw"):
        fit(impossible)


@pytest.mark.parametrize("steps", [0, -3, 2.5, True])
def test_steps(steps):
    with pytest.raises(ValueError, match="a fit needs a whole number of at least 1"):
        fit(steps=steps)


def test_no_latents():
    def nothing():
        numpyro.sample("y", dist.Normal(numpyro.param("m", 0.0), 1.0), obs=0.7)

    with pytest.raises(ValueError, match="no latent site"):
        fit(nothing, lambda: None)
    with pytest.raises(ValueError, match="no latent sites"):
        fit(nothing, legrad.MeanField(nothing))


def test_no_parameters():
    def fixed():
        numpyro.sample("z", dist.Bernoulli(0.5))

    with pytest.raises(ValueError, match=r"neither model nor guide has a numpyro.param"):
        fit(guide=fixed)


def test_mutable_state_raises_by_name():
    def q():
        mutable("count", {"value": 0})
        guide()

    with pytest.raises(NotImplementedError, match="site 'count' of the guide is mutable state"):
        legrad.LocalExpectation().loss_with_mutable_state(KEY, {}, model, q)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: legrad.LocalExpectation(num_pivots=0), "num_pivots=0: it must be a whole number"),
        (lambda: legrad.LocalExpectation(nodes=0), "nodes=0"),
        (lambda: legrad.LocalExpectation(continuous="magic"), '"quadrature" or "reparam"'),
        (lambda: legrad.LocalExpectation(method="fast"), "choose one of"),
        (lambda: legrad.LocalExpectation(sites={"z": "global"}), '"local", "reparam" or "score"'),
        (lambda: legrad.ScoreFunction(baseline="leave_one_out"), "set num_samples to at least 2"),
        (lambda: legrad.ScoreFunction(baseline="nvil"), 'None or "leave_one_out"'),
        (lambda: legrad.DisARM(0), "num_pairs=0"),
        (lambda: legrad.Reparameterized(1.5), "num_samples=1.5"),
        (
            lambda: loss(legrad.LocalExpectation(sites={"q": "local"}), guide),
            "'q', which is not a latent of the guide",
        ),
        (
            lambda: fit(init_params={"nope": 1.0}),
            "'nope' is not a parameter of the model or guide, which have: l",
        ),
        (lambda: legrad.compare(model, guide, {}, {}, key=KEY), "there is no estimator to compare"),
        (lambda: legrad.compare(model, guide, {}, {"a": legrad.Exact()}, key=KEY, draws=1), "at least 2"),
        (lambda: legrad.MeanField(legrad.log_density(lambda x: 0.0)), "write the guide by hand"),
    ],
)
def test_settings(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fit(estimator="legrad"), "is not an estimator: pass an object such as"),
        (lambda: fit(optimizer="adam"), "is not an optax optimizer"),
        (lambda: fit(args=jnp.ones(3)), "pass the model's arguments as a tuple"),
        (lambda: legrad.log_density(lambda x: 0.0)(), "is not a NumPyro model"),
        (
            lambda: legrad.quadrature_error(fit(estimator=legrad.Exact())),
            "the fit was made with Exact, which has no quadrature",
        ),
    ],
)
def test_types(make, message):
    with pytest.raises(TypeError, match=message):
        make()


def test_a_window_that_leaves_mass_out_warns():
    def q():
        numpyro.sample("n", dist.Poisson(numpyro.param("rate", 30.0, constraint=dist.constraints.positive)))

    def target():
        numpyro.sample("n", dist.Poisson(20.0))

    narrow = legrad.LocalExpectation(window=8)
    with pytest.warns(UserWarning, match="site 'n': the window of counts leaves out .* use LocalExpectation.window"):
        jax.block_until_ready(jax.jit(lambda r: narrow.loss(KEY, {"rate": r}, target, q))(30.0))
        jax.effects_barrier()


def test_scan_with_fixed_and_recomputed_sites():
    def q():
        def step(x, _):
            z = numpyro.sample("z", dist.Bernoulli(logits=x))
            return numpyro.sample("x", dist.Normal(x + z, 1.0)), None

        scan(step, jnp.array(0.0), None, length=3)

    with pytest.raises(ValueError, match="sites 'z' and 'x' share a scan.*sample them outside scan"):
        loss(legrad.LocalExpectation(), q, q)
    assert np.isfinite(loss(legrad.LocalExpectation(sites={"x": "score"}), q, q))


def test_optimizer_and_steps_are_taken():
    assert fit(optimizer=optax.sgd(0.1), steps=7).steps == 7
