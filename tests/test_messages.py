"""What new users do first: each message names the thing and the next step, and what can be accepted is."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from numpyro.infer.autoguide import AutoNormal

import legrad
from legrad.model.data_checks import check_data
from legrad.model.frames import Names, in_the_order_of, names_by_size, unframed
from legrad.model.keys import as_key

KEY = jax.random.key(0)
X = np.random.default_rng(0).normal(size=(12, 3))
Y = X @ np.array([1.0, 0.0, -1.0])


def regression(X, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([X.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Normal(X @ w, 1.0), obs=y)


def mixture(y):
    with numpyro.plate("N", len(y)):
        z = numpyro.sample("z", dist.Bernoulli(0.3))
        numpyro.sample("y", dist.Normal(2.0 * z, 1.0), obs=y)


def fit(model, guide=None, args=(), **settings):
    guide = legrad.MeanField(model) if guide is None else guide
    return legrad.fit(model, guide, args=args, **{"key": KEY, "steps": 2, "progress": False, **settings})


# --- keys --------------------------------------------------------------------------------------------------------


def test_a_whole_number_is_a_key():
    result, same = fit(mixture, args=(Y,), key=3), fit(mixture, args=(Y,), key=jax.random.key(3))
    np.testing.assert_array_equal(result.elbo, same.elbo)
    assert (result.sample(1, 5)["z"] == result.sample(jax.random.key(1), 5)["z"]).all()
    assert result.elbo_estimate(1, 50) == result.elbo_estimate(jax.random.key(1), 50)
    assert result.diagnose(1, 200).khat == result.diagnose(jax.random.key(1), 200).khat
    table = legrad.compare(
        mixture, result.guide, result.params, {"a": legrad.LocalExpectation()}, key=1, args=(Y,), draws=2
    )
    assert np.isfinite(table["a"].variance)
    value = legrad.expectation(lambda x: x["z"].sum(), result.guide, result.params, key=1, args=(Y,))
    assert np.isfinite(value)


def test_what_is_no_key():
    with pytest.raises(TypeError, match="key='seed' is not a random key: pass jax.random.key"):
        fit(mixture, args=(Y,), key="seed")
    with pytest.raises(ValueError, match=r"array of keys of shape \(2,\): pass one of them"):
        as_key(jax.random.split(KEY, 2))
    assert (as_key(jax.random.PRNGKey(0)) == jax.random.PRNGKey(0)).all()


def test_draws_without_a_key():
    with pytest.raises(TypeError, match=r"is 5 the random key, or the number of draws\? Write"):
        fit(mixture, args=(Y,)).sample(5)


# --- frames ------------------------------------------------------------------------------------------------------

FRAME = pd.DataFrame(X, columns=["age", "height", "weight"])


def test_a_frame_is_its_numbers_and_names():
    result = fit(regression, args=(FRAME, pd.Series(Y)))
    np.testing.assert_array_equal(result.elbo, fit(regression, args=(X, Y)).elbo)
    assert result.names == (Names("X", 1, ("age", "height", "weight")),)
    assert "w[height]" in str(result.summary(0, 10))
    assert "w[b]" in str(result.summary(0, 10, coords={"w_dim_0": list("abc")}))
    diagnosis = result.diagnose(1, 100)
    assert diagnosis.sites["w"].mean.element in ("w[age]", "w[height]", "w[weight]")
    assert any(diagnosis.sites["w"].mean.element in flag for flag in diagnosis.flags)
    posterior = result.to_arviz(2, 8)["posterior"]
    assert list(np.asarray(posterior["w_dim_0"])) == ["age", "height", "weight"]


def test_a_model_that_picks_columns_keeps_the_frame():
    def by_name(frame, y):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(w * frame["age"].to_numpy(), 1.0), obs=y)

    assert unframed(by_name, (FRAME, Y), {}).args[0] is FRAME
    assert np.isfinite(fit(by_name, args=(FRAME, Y)).elbo).all()


def test_a_column_of_text():
    bad = FRAME.assign(city="Rome")
    with pytest.raises(TypeError, match=r"column 'city' of argument 'X' is .*not numbers .*'Rome'.*get_dummies"):
        fit(regression, args=(bad, Y))


def test_missing_values_of_a_frame():
    nullable = pd.DataFrame({"a": pd.array([1, None, 3], dtype="Int64"), "b": [True, False, True]})
    array = unframed(regression, (nullable, Y[:3]), {}).args[0]
    np.testing.assert_array_equal(array, [[1.0, 1.0], [np.nan, 0.0], [3.0, 1.0]])
    frame = FRAME.copy()
    frame.loc[4, "height"] = np.nan
    with pytest.raises(ValueError, match="argument 'X' is nan in row 4, column 'height'.*drop or impute"):
        fit(regression, args=(frame, Y))


def test_names_that_are_not_clear_are_not_used():
    rows, columns = Names("X", 0, ("r", "s")), Names("X", 1, ("a", "b"))
    assert names_by_size([rows, columns]) == {}
    assert names_by_size([columns, columns]) == {2: ("a", "b")}
    square = pd.DataFrame(np.eye(2), columns=["a", "b"])
    assert names_by_size(unframed(regression, (square, Y[:2]), {}).names) == {}
    named = pd.DataFrame(X, columns=list("abc"), index=[f"p{i}" for i in range(12)])
    assert names_by_size(unframed(regression, (named, Y), {}).names)[12][:2] == ("p0", "p1")
    with pytest.raises(ValueError, match="argument 'X' has no column 'height', which the fitted frame has"):
        in_the_order_of((Names("X", 1, ("height",)),), regression, (FRAME[["age"]], None))


# --- models and guides -------------------------------------------------------------------------------------------


def plated(size):
    def model(X, y):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([X.shape[1]]).to_event(1))
        with numpyro.plate("rows", size or len(X)):
            numpyro.sample("y", dist.Normal(X @ w, 1.0), obs=y)

    return model


@pytest.mark.parametrize(
    ("size", "args", "words"),
    [
        (11, (X, Y), r"test_messages.py, line \d+ \(.*\), brings together .*11.*12.*: compare the sizes of plates"),
        (None, (X, Y[:5]), r"the data of site 'y' has shape \(5,\), .* the shape \(12,\) of .*: compare the sizes"),
        (None, (X[:0], Y[:0]), r"makes a plate without members: pass data with at least one row"),
        (None, (X, np.array(["a"] * 12)), r"argument 'y' is an array of <U1, such as .*'a'.*np.unique\(y"),
    ],
    ids=["plate", "data", "empty", "text"],
)
def test_shapes_that_do_not_fit(size, args, words):
    with pytest.raises(ValueError, match=words):
        fit(plated(size), args=args)
    with pytest.raises(ValueError, match=words):
        legrad.fit(plated(size), args=args, key=0)


def test_an_error_of_shapes_that_is_not_the_users_is_left_alone():
    from legrad.model.explained import explained

    with pytest.raises(TypeError, match="^dot_general"), explained(mixture, None, (Y,), {}):
        jnp.zeros(3) @ jnp.zeros(2)


def test_a_model_that_was_called():
    with pytest.raises(TypeError, match="model is None, not a function: pass the function that samples"):
        legrad.fit(None, args=(Y,), key=0)
    with pytest.raises(TypeError, match="guide is a str, not a function"):
        legrad.fit(mixture, "meanfield", args=(Y,), key=0)


def test_predictions_for_other_columns():
    def switched(X, y=None):
        with numpyro.plate("columns", X.shape[1]):
            w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", len(X)):
            numpyro.sample("y", dist.Normal(X @ w, 1.0), obs=y)

    result = fit(switched, args=(X, Y))
    assert result.predict(0, X[:5], n=3)["y"].shape == (3, 5)
    words = "'columns' had 3 members in the fit and has 2 now, so w are drawn from their prior"
    with pytest.warns(legrad.FitWarning, match=words):
        result.predict(0, X[:5, :2], n=3)


def test_a_branch_on_a_latent():
    def branch():
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        if z > 0:
            z = 2 * z
        numpyro.sample("y", dist.Normal(z, 1.0), obs=0.5)

    with pytest.raises(TypeError, match=r"test_messages.py, line \d+ \(`if z > 0:`\), decides in Python.*jnp.where"):
        fit(branch)


def test_numpy_on_a_latent_and_a_latent_as_a_number():
    def numpy():
        numpyro.sample("y", dist.Normal(np.exp(numpyro.sample("z", dist.Normal(0.0, 1.0))), 1.0), obs=0.5)

    with pytest.raises(TypeError, match=r"np.exp.*to NumPy, which needs its numbers: use jax.numpy"):
        fit(numpy)

    def index():
        z = numpyro.sample("z", dist.Bernoulli(0.5))
        numpyro.sample("y", dist.Normal([0.0, 1.0][z], 1.0), obs=0.5)

    with pytest.raises(TypeError, match=r"needs the value of a latent.*index arrays with the latent itself"):
        fit(index)


def test_nan_in_an_argument():
    bad = X.copy()
    bad[4, 1] = np.nan
    place = "argument 'X' is nan in row 4, column 1, and so the "
    for guide, what in ((legrad.MeanField(regression), "loc of Normal at"), (None, "log-density .* is not finite")):
        settings = {} if guide is None else {"steps": 2}
        with pytest.raises(ValueError, match=f"{place}{what}.*drop or impute"):
            legrad.fit(regression, guide, args=(bad, Y), key=KEY, progress=False, **settings)


def test_a_misspelt_parameter():
    with pytest.raises(ValueError, match="'z_logit' is not a parameter.*Did you mean 'z_logits'"):
        fit(mixture, args=(Y,), init_params={"z_logit": 0.0})


@pytest.mark.filterwarnings("ignore:Some algorithms will automatically enumerate:FutureWarning")
def test_a_continuous_guide_for_a_discrete_model():
    def counts():
        numpyro.sample("y", dist.Normal(numpyro.sample("k", dist.Poisson(2.0)), 1.0), obs=1.0)

    with pytest.raises(ValueError, match="AutoNormal cannot hold the discrete latent 'k': use legrad.MeanField"):
        fit(counts, AutoNormal(counts))
    with pytest.raises(ValueError, match="AutoNormal cannot hold the discrete latent 'z': use legrad.MeanField"):
        fit(mixture, AutoNormal(mixture), args=(Y,))


def test_logits_of_minus_infinity():
    def model():
        z = numpyro.sample("z", dist.Categorical(probs=jnp.ones(3) / 3))
        numpyro.sample("y", dist.Normal(z, 1.0), obs=1.0)

    def guide(impossible):
        def guide():
            logits = jnp.where(jnp.array([True, True, False]), numpyro.param("l", jnp.zeros(3)), impossible)
            numpyro.sample("z", dist.Categorical(logits=logits))

        return guide

    with pytest.raises(ValueError, match="the logits of CategoricalLogits at .* are not finite: give .* -1e9"):
        fit(model, guide(-jnp.inf))
    assert np.isfinite(fit(model, guide(-1e9)).elbo).all()  # what the message advises


def test_a_parameter_of_a_distribution_that_is_out_of_range():
    def guide():
        numpyro.sample("z", dist.Bernoulli(probs=numpyro.param("p", 1.5)))

    def model():
        numpyro.sample("y", dist.Normal(numpyro.sample("z", dist.Bernoulli(0.5)), 1.0), obs=1.0)

    with pytest.raises(
        ValueError, match="the probs of BernoulliProbs at test_messages.py, .* outside what it may be"
    ):
        fit(model, guide)


def test_a_warning_points_to_the_line_that_called_fit():
    with pytest.warns(legrad.FitWarning, match="not converged") as seen:
        fit(mixture, args=(Y,), steps=30, stop="auto")
    assert seen[0].filename == __file__


# --- data outside a support --------------------------------------------------------------------------------------


def data(distribution, values, mask=None):
    def model():
        m = numpyro.sample("m", dist.Gamma(2.0, 2.0))
        fn = distribution(m)
        numpyro.sample("y", fn if mask is None else fn.mask(mask), obs=jnp.asarray(values))

    return model


@pytest.mark.parametrize(
    ("distribution", "values", "words"),
    [
        (dist.Poisson, [1, 2, -3], "is -3 in row 2.*support of Poisson: whole numbers from 0 on"),
        (dist.Poisson, [1.0, 2.5], "is 2.5 in row 1.*whole numbers from 0 on"),
        (lambda m: dist.Poisson(m).to_event(0), [3, -1], "is -1 in row 1"),
        (dist.Exponential, [1.0, -1.0], "is -1.0 in row 1.*support of Exponential: numbers from 0.0 on"),
        (lambda m: dist.Categorical(logits=m * jnp.arange(3)), [0, 5], "is 5 in row 1.*whole numbers from 0 to 2"),
        (lambda m: dist.Bernoulli(logits=m), [0, 2], "is 2 in row 1.*support of BernoulliLogits: 0 and 1"),
        (lambda m: dist.Normal(m, 1.0), [[0.0, 1.0], [np.nan, 2.0]], r"is nan in position \[1, 0\]: drop such rows"),
    ],
)
def test_data_outside_a_support(distribution, values, words):
    model = data(distribution, values)
    with pytest.raises(ValueError, match=f"the data of site 'y' {words}"):
        fit(model)


@pytest.mark.parametrize(
    ("distribution", "values", "mask"),
    [
        (dist.Poisson, [1, -3], [True, False]),  # masked
        (lambda m: dist.Normal(m, 1.0), [0.0, np.nan], [True, False]),
        (dist.Exponential, [0.0, 1.0], None),  # on the edge
        (lambda m: dist.Bernoulli(logits=m), [0.3, 1.0], None),  # soft labels
        (lambda m: dist.Uniform(0.0, m), [0.1, 3.0], None),  # a support that depends on a latent
    ],
)
def test_data_that_may_be_right(distribution, values, mask):
    check_data(data(distribution, values, None if mask is None else jnp.asarray(mask)), (), {})


def test_data_are_checked_before_latents_are_summed_out():
    def counts(y):
        with numpyro.plate("N", len(y)):
            z = numpyro.sample("z", dist.Bernoulli(0.5))
            numpyro.sample("y", dist.Poisson(1.0 + 5.0 * z), obs=y)
        numpyro.sample("m", dist.Normal(0.0, 1.0))

    summed = legrad.marginalize(counts)
    with pytest.raises(ValueError, match="the data of site 'y' is -2 in row 1"):
        fit(summed, args=(np.array([1, -2]),))
    assert np.isfinite(fit(summed, args=(np.array([1, 2]),)).elbo).all()
