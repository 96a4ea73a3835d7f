"""fit without a guide: right against closed forms, whatever the units, precision, start and posterior."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

import legrad
from legrad.fitting.fixed_draws import moment_matched
from legrad.fitting.mode import curvature

RNG = np.random.default_rng(0)
X = np.stack([np.ones(50), RNG.normal(size=50), RNG.normal(size=50)], 1)
Y = X @ [1.0, -2.0, 0.5] + RNG.normal(size=50)


def known_noise(X, y):
    """A regression with flat priors and unit noise: the posterior is N(least squares, (XᵀX)⁻¹)."""
    beta = numpyro.sample("beta", dist.ImproperUniform(constraints.real, (), (X.shape[1],)))
    numpyro.sample("y", dist.Normal(X @ beta, 1.0), obs=y)


def regression(X, y):
    beta = numpyro.sample("beta", dist.ImproperUniform(constraints.real, (), (X.shape[1],)))
    sigma = numpyro.sample("sigma", dist.ImproperUniform(constraints.positive, (), ()))
    numpyro.sample("y", dist.Normal(X @ beta, sigma), obs=y)


def is_gaussian(result, mean, cov, tolerance):
    """Whether the fitted Gaussian is the given one, to a part of its standard deviations."""
    loc, tril = (np.asarray(result.params[name], np.float64) for name in ("latents_loc", "latents_scale_tril"))
    white = np.linalg.solve(np.linalg.cholesky(cov), tril)
    shift = np.linalg.solve(np.linalg.cholesky(cov), loc - mean)
    return bool(np.abs(shift).max() < tolerance and np.abs(white @ white.T - np.eye(len(loc))).max() < tolerance)


@pytest.mark.parametrize("x64", [False, True])
def test_gaussian_posterior_is_exact(x64):
    with jax.enable_x64(x64):
        result = legrad.fit(known_noise, args=(X, Y), key=jax.random.key(0))
        cov = np.linalg.inv(X.T @ X)
        mean = cov @ X.T @ Y
        assert result.converged, result.status
        assert is_gaussian(result, mean, cov, 1e-4)
        assert not is_gaussian(result, mean + 1e-3 * np.sqrt(np.diag(cov)), cov, 1e-4)  # the check sees a small bias
        assert not is_gaussian(result, mean, 1.001 * cov, 1e-4)
        assert result.params["latents_loc"].dtype == (np.float64 if x64 else np.float32)
        assert result.sample(jax.random.key(1), 10)["beta"].dtype == (np.float64 if x64 else np.float32)
        assert result.khat(jax.random.key(2), 500) < 0.5
        assert result.diagnose(jax.random.key(3)).ok


@pytest.mark.parametrize(
    ("scale", "shift"),
    [(1e4, 0.0), pytest.param(1e-4, 0.0, marks=pytest.mark.long), pytest.param(1.0, 2000.0, marks=pytest.mark.long)],
)
def test_units_do_not_matter(scale, shift):
    """Dollars or thousands of dollars, years or centred years: the posterior of sigma and of the fit is the same."""
    here = X.copy()
    here[:, 1] += shift
    result = legrad.fit(regression, args=(here, scale * Y), key=jax.random.key(0))
    assert result.converged, result.status
    assert result.gradients["model"] <= 300
    assert result.gradients["objective"] <= 60
    beta, rest, *_ = np.linalg.lstsq(here, scale * Y, rcond=None)
    freedom = len(Y) - 3
    sd = np.sqrt(rest[0] / (freedom - 2) * np.diag(np.linalg.inv(here.T @ here)))  # of a Student-t
    draws = result.sample(jax.random.key(1), 8000, corrected=True)
    shifts = (np.asarray(draws["beta"], np.float64).mean(0) - beta) / sd
    assert np.abs(shifts).max() < 0.05
    assert np.abs(np.asarray(draws["beta"], np.float64).std(0) / sd - 1).max() < 0.05


def test_a_long_program_is_compiled_once_and_is_right_too(monkeypatch):
    """A Python loop over time: gradients of points are padded to those of many, Hessians are differences."""
    monkeypatch.setattr("legrad.fitting.density._LONG", 0)
    result = legrad.fit(known_noise, args=(X, Y), key=jax.random.key(0))
    cov = np.linalg.inv(X.T @ X)
    assert result.converged, result.status
    assert is_gaussian(result, cov @ X.T @ Y, cov, 1e-4)


def correlated():
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    numpyro.sample("b", dist.Normal(a, 0.01))


def test_strong_correlation_is_held():
    result = legrad.fit(correlated, key=jax.random.key(0))
    assert is_gaussian(result, np.zeros(2), np.array([[1.0, 1.0], [1.0, 1.0001]]), 1e-6)


@pytest.mark.long
def test_a_funnel_is_tried_noncentered_and_said():
    def neal():
        v = numpyro.sample("v", dist.Normal(0.0, 3.0))
        numpyro.sample("x", dist.Normal(0.0, jnp.exp(v / 2)).expand([4]).to_event(1))

    result = legrad.fit(neal, key=jax.random.key(0))
    assert "x non-centred" in result.method
    assert "x non-centred" in result.status
    draws = result.sample(jax.random.key(1), 4000)
    assert draws["x"].shape == (4000, 4)
    assert abs(np.std(draws["v"]) - 3.0) < 0.2
    ratio = draws["x"] / np.exp(draws["v"] / 2)[:, None]  # standard Normal, as in the model
    assert abs(np.std(ratio) - 1.0) < 0.05
    assert result.khat(jax.random.key(2), 1000) < 0.5


def test_a_start_that_is_not_finite_is_replaced_and_said():
    def model(y):
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        numpyro.factor("inside", jnp.where(a > 0.5, 0.0, -jnp.inf) - 30.0 * (a - 1.5) ** 2)
        numpyro.sample("y", dist.Normal(a, 1.0), obs=y)

    result = legrad.fit(model, args=(1.0,), key=jax.random.key(0))
    assert "was replaced" in result.status
    precision = 1 + 1 + 60
    assert abs(result.params["latents_loc"][0] - (1 + 90) / precision) < 0.02


def test_no_finite_start_raises_with_a_remedy():
    def model():
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        numpyro.factor("never", jnp.where(a == a, -jnp.inf, 0.0))

    with pytest.raises(ValueError, match="not finite at any of 100 starts"):
        legrad.fit(model, key=jax.random.key(0))


@pytest.mark.long
def test_what_no_gaussian_holds_is_flagged():
    def cauchy():
        numpyro.sample("a", dist.Cauchy(0.0, 1.0))

    with pytest.warns(legrad.FitWarning, match="this posterior is not Gaussian"):
        result = legrad.fit(cauchy, key=jax.random.key(0))
    assert not result.diagnose(jax.random.key(1)).ok


@pytest.mark.long
def test_what_no_gaussian_reaches_is_found_by_draws_that_move():
    def spikes():
        numpyro.sample("a", dist.Normal(0.0, 1.0).expand([8]).to_event(1))
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.factor("far", 100.0 * jax.nn.sigmoid(50.0 * (x - 4.0)))

    with pytest.warns(legrad.FitWarning, match="k-hat is"):
        result = legrad.fit(spikes, key=jax.random.key(0))
    assert not result.diagnose(jax.random.key(1)).ok
    drawn = np.asarray(result.sample(jax.random.key(2), 2000, corrected=True)["x"])
    x = np.linspace(-8.0, 9.0, 200_001)
    weight = np.exp(-x * x / 2 + 100 / (1 + np.exp(-50 * (x - 4))) - 92)
    mean = (weight * x).sum() / weight.sum()
    assert abs(drawn.mean() - mean) < 0.03  # its standard deviation is 0.21, and the Gaussian's mean 0


def test_a_guide_too_far_from_the_posterior_is_not_corrected():
    def sum_is_known():
        x = numpyro.sample("x", dist.Normal(0.0, 1.0).expand([20]).to_event(1))
        numpyro.sample("y", dist.Normal(x.sum(), 0.01), obs=1.0)

    result = legrad.fit(sum_is_known, legrad.MeanField(sum_is_known), key=jax.random.key(0))
    with pytest.raises(ValueError, match="too far from the posterior"):
        result.sample(jax.random.key(2), 100, corrected=True)


def skewed():
    numpyro.sample("a", dist.Gamma(3.0, 1.0))


def test_corrected_draws_are_those_of_the_posterior():
    result = legrad.fit(skewed, key=jax.random.key(0))
    plain = np.asarray(result.sample(jax.random.key(1), 20_000)["a"])
    corrected = np.asarray(result.sample(jax.random.key(1), 20_000, corrected=True)["a"])
    assert abs(corrected.mean() - 3.0) < 0.03
    assert abs(corrected.std() - 3.0**0.5) < 0.05
    assert abs(plain.std() - 3.0**0.5) > 0.05  # the same check sees the Gaussian's own error


@pytest.mark.long
def test_draws_where_the_model_is_not_a_number_have_no_weight():
    def model(edge):
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        numpyro.factor("solver", jnp.where(a > edge, jnp.nan, 0.0))  # as of a differential equation's solver

    result = legrad.fit(model, args=(4.0,), key=0)
    report = result.diagnose(1)
    assert report.ok
    assert "the log-density is not a number" in str(report)
    assert np.isfinite(report.elbo.elbo)
    assert np.isfinite(result.sample(2, 100, corrected=True)["a"]).all()
    many = result.with_args(1.0).diagnose(1)
    assert any("is not a number at" in flag for flag in many.flags)


@pytest.mark.long
def test_float32_written_into_the_model():
    def model(y):
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        _, mean = jax.lax.scan(lambda c, x: (0.5 * c + a, c), jnp.zeros((), jnp.float32), y)
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    with jax.enable_x64(False):
        result = legrad.fit(model, args=(np.ones(5),), key=jax.random.key(0))
    assert result.converged
    assert "single precision" in result.method


def test_restarts_find_another_mode():
    def two():
        a = numpyro.sample("a", dist.Normal(0.0, 4.0))
        numpyro.factor("modes", jnp.logaddexp(-8.0 * (a - 1.5) ** 2, -8.0 * (a + 1.5) ** 2))

    with pytest.warns(legrad.FitWarning, match="several modes"):
        result = legrad.fit(two, key=jax.random.key(0), restarts=6)
    assert len(result.restarts) == 6
    assert result.other_modes


def test_a_result_is_saved_and_loaded(tmp_path):
    result = legrad.fit(known_noise, args=(X, Y), key=jax.random.key(0))
    result.save(tmp_path / "fit")
    again = legrad.load(tmp_path / "fit", known_noise, legrad.Structured(known_noise), args=(X, Y))
    assert again.method == result.method
    assert again.gradients == result.gradients
    np.testing.assert_array_equal(
        again.sample(jax.random.key(1), 5)["beta"], result.sample(jax.random.key(1), 5)["beta"]
    )


def test_the_same_key_gives_the_same_fit():
    a, b = (legrad.fit(regression, args=(X, Y), key=jax.random.key(3)) for _ in range(2))
    np.testing.assert_array_equal(a.params["latents_scale_tril"], b.params["latents_scale_tril"])


def test_draws_have_the_moments_of_a_standard_normal():
    e = moment_matched(128, 5, 0)
    np.testing.assert_allclose(e.mean(0), 0.0, atol=1e-12)
    np.testing.assert_allclose(e.T @ e / 128, np.eye(5), atol=1e-12)


def test_whitening_keeps_the_digits_of_an_ill_conditioned_hessian():
    sd, rho = np.array([1e-4, 1e4]), 1 - 1e-9
    cov = sd[:, None] * sd * np.array([[1.0, rho], [rho, 1.0]])
    precision = np.array([[1.0, -rho], [-rho, 1.0]]) / (1 - rho**2) / (sd[:, None] * sd)
    tril = curvature(precision).tril()
    np.testing.assert_allclose(tril @ tril.T, cov, rtol=1e-6)
