"""k-hat, the ELBO and the shifts of moments: against what is known exactly, and against what must be noticed."""

import itertools
import subprocess
import sys
import warnings
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer.autoguide import AutoDelta, AutoMultivariateNormal, AutoNormal
from scipy.special import logsumexp

import legrad
from legrad import _compat
from legrad.diagnostics import weights
from legrad.diagnostics.diagnosis import Weighed, _errors, _moments, _worst, diagnose
from legrad.diagnostics.psis import LIMIT, _tied_khat, elbo_estimate, khat, log_weights, smoothed_weights, summary
from legrad.model.messages import FitWarning
from legrad.model.problem import Problem

KEY = jax.random.key(0)


def normal(loc=0.0, scale=1.0, shape=()):
    def guide():
        numpyro.sample("x", dist.Normal(loc, scale).expand(shape))

    return guide


def target(density=dist.Normal(0.0, 1.0)):
    return legrad.log_density(lambda latents: density.log_prob(latents["x"]))


def quiet_khat(*args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        return khat(*args, **kwargs)


# --- k-hat -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("claimed", [0.0, 0.25])
@pytest.mark.parametrize("scale", [0.9, 0.7, 0.5])
def test_the_tail_of_a_narrow_normal(scale, claimed):
    """w = s·exp(x²(1/s² − 1)/2) under N(0, s²) has P(w > t) ~ t^(−1/(1 − s²)): k = 1 − s²; slowly, so n is large."""
    k = quiet_khat(Problem(target(), normal(scale=scale), {}), KEY, 200_000)
    wrong = 1 - scale**2 + claimed  # a claim that is off must be refused
    assert (abs(k - wrong - 0.06) < 0.09) == (claimed == 0)


def test_an_exact_guide_has_equal_weights():
    assert khat(Problem(target(), normal(), {}), KEY, 500) == -np.inf
    report = diagnose(Problem(target(), normal(), {}), KEY, 500)
    assert report.ok
    assert report.sites["x"].mean.value == pytest.approx(0, abs=1e-9)


def test_a_heavy_target_warns_and_says_what_to_try():
    problem = Problem(target(dist.StudentT(1.0)), normal(), {})
    with pytest.warns(FitWarning, match="above 0.7.*richer guide"):
        assert khat(problem, KEY) > LIMIT
    assert not diagnose(problem, KEY).ok


def test_a_wide_guide_has_a_light_tail():
    assert khat(Problem(target(), normal(scale=1.3), {}), KEY) < 0


def test_too_few_draws():
    with pytest.raises(ValueError, match="at least 100"):
        khat(Problem(target(), normal(), {}), KEY, 50)


def test_without_arviz():
    """A plain install has arviz-stats, but neither ArviZ nor xarray."""
    program = """
import sys
sys.modules.update(dict.fromkeys(("arviz", "arviz_base", "xarray", "pandas", "matplotlib"), None))
import jax, numpyro, numpyro.distributions as dist, legrad
def model():
    numpyro.sample("x", dist.Normal(0.0, 1.0))
def guide():
    numpyro.sample("x", dist.Normal(numpyro.param("m", 0.0), 0.9))
result = legrad.fit(model, guide, key=0, steps=2, progress=False)
print(result.khat(0, 2000), result.diagnose(0, 2000), result.summary(0), result)
try:
    result.to_arviz(0)
except ImportError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert 0 < float(said.split()[0]) < 0.7
    assert "pip install 'legrad[arviz]'" in said


def test_psis_is_that_of_arviz():
    log_w = np.random.default_rng(0).standard_t(5, size=4000)
    az = _compat.arviz()
    if not hasattr(az, "psislw"):  # since version 1 ArviZ's is that of arviz-stats
        pytest.skip("ArviZ 1 has no psislw of its own")
    tail = 190
    smoothed, k = _compat.pareto_smoothed(log_w, tail)
    expected, shape = az.psislw(log_w.copy(), reff=9 * len(log_w) / (tail - 0.25) ** 2)
    np.testing.assert_allclose(smoothed, expected, atol=1e-6)
    assert k == pytest.approx(float(shape), abs=1e-6)


def test_the_worst_element_is_not_a_certain_one():
    value, error = np.zeros((2, 2)), np.array([[0.0, 0.01], [0.02, 0.0]])
    assert _worst(value, error) == 2  # nothing is off: the least certain
    value[0, 1] = -0.3
    assert _worst(value, error) == 1
    value[1, 1] = np.inf
    assert _worst(value, error) == 3


# --- discrete guides: few distinct weights -----------------------------------------------------------------------


def tables(elements, size, off, seed=0):
    """All states of a correlated binary target; log p of each, and a factorized q, off its marginals by `off`."""
    rng = np.random.default_rng(seed)
    states = np.array(list(itertools.product([0, 1], repeat=elements)))
    coupling = rng.normal(size=(elements, elements)) * size / np.sqrt(elements)
    log_p = np.einsum("zi,ij,zj->z", states, coupling, states) + states @ rng.normal(size=elements)
    log_p -= logsumexp(log_p)
    marginal = np.exp(log_p) @ states
    q = 1 / (1 + np.exp(-np.log(marginal / (1 - marginal)) - off * rng.normal(size=elements)))
    return states, log_p, states @ np.log(q) + (1 - states) @ np.log1p(-q)


@pytest.mark.parametrize("elements", [1, 2, 4, 8, 12])
@pytest.mark.parametrize(("size", "off"), [(0.0, 0.0), (0.3, 0.1), (1.0, 0.5), (1.0, 1.5), (1.0, 2.0), (2.0, 3.0)])
def test_khat_of_a_discrete_guide_says_whether_reweighting_works(elements, size, off):
    """The effective size n / E[w²], by enumeration: 500 and more must pass; fewer than 100 seen must not."""
    n = 4000
    for seed in range(4):
        states, log_p, log_q = tables(elements, size, off, seed)
        exact = n / np.sum(np.exp(2 * log_p - log_q))
        draws = np.random.default_rng(seed).choice(len(states), size=n, p=np.exp(log_q) / np.exp(log_q).sum())
        log_w = (log_p - log_q)[draws]
        found, k = smoothed_weights(log_w)
        seen = np.exp(2 * logsumexp(log_w) - logsumexp(2 * log_w))
        assert not np.isnan(k)
        assert found.sum() == pytest.approx(1)
        if exact > 500:
            assert k < LIMIT
            mean = np.exp(log_p) @ states
            assert np.max(np.abs(found @ states[draws] - mean) / np.sqrt(mean * (1 - mean))) < 5 / np.sqrt(exact)
        if seen < 100:
            assert k > LIMIT


@pytest.mark.parametrize(("rare", "passes"), [(0.0005, False), (0.2, True)])
def test_a_rare_heavy_state(rare, passes):
    """Half of the posterior where the guide seldom goes: bounded weights, and still not to be trusted."""
    k = quiet_khat(Problem(legrad.log_density(lambda v: jnp.log(0.5)), bernoulli(rare), {}), KEY)
    assert (k < LIMIT) == passes
    assert not diagnose(Problem(legrad.log_density(lambda v: jnp.log(0.5)), bernoulli(rare), {}), KEY).ok


def bernoulli(p):
    def guide():
        numpyro.sample("z", dist.Bernoulli(p))

    return guide


def test_nearly_equal_weights_with_a_rare_slightly_larger_one_are_fine():
    log_w = np.zeros(4000)
    log_w[:4] = 0.01
    blurred = log_w + 1e-13 * np.random.default_rng(0).normal(size=4000)
    assert smoothed_weights(log_w)[1] < 0
    assert smoothed_weights(blurred)[1] < 0


def test_khat_of_ties_meets_itself():
    assert _tied_khat(4000.0, 4000) == -np.inf
    assert _tied_khat(2000.0, 4000) == 0
    assert _tied_khat(4000**0.6 * 0.999, 4000) == pytest.approx(LIMIT, abs=1e-3)
    assert _tied_khat(1.0, 4000) == 1


# --- weights that are not numbers, or not weights ----------------------------------------------------------------


def test_draws_without_probability_are_reported():
    problem = Problem(target(dist.TruncatedNormal(0.0, 1.0, low=-2.0)), normal(), {})
    with pytest.warns(FitWarning, match="of 16000 draws of the guide have no probability"):
        assert khat(problem, KEY) < LIMIT
    estimate = elbo_estimate(problem, KEY)
    assert estimate.elbo == -np.inf
    assert abs(estimate.bound) < 5 * estimate.bound_error
    assert any("no probability" in flag for flag in diagnose(problem, KEY).flags)
    with pytest.raises(ValueError, match="no draw"):
        khat(Problem(target(dist.Uniform(50.0, 51.0)), normal(), {}), KEY, 200)


def test_a_weight_that_is_not_a_number_names_its_term():
    def model():
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(jnp.sqrt(x), 1.0), obs=0.0)

    with pytest.raises(ValueError, match=r"log p\(y\) is nan at draw \d"):
        khat(Problem(model, normal(), {}), KEY)


Y = jnp.array([0.3, -1.0, 2.0, 0.7, 1.5, -0.2])


def rows(y, subsample=None):
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", 6, subsample_size=subsample) as i:
        numpyro.sample("y", dist.Normal(m, 1.0), obs=y[i])


def posterior_of_rows(y, subsample=None):
    numpyro.sample("m", dist.Normal(Y.sum() / 7, 1 / jnp.sqrt(7.0)))


def test_subsampled_plates_have_an_elbo_and_no_weights():
    whole = Problem(rows, posterior_of_rows, {}, (Y,))
    part = Problem(rows, posterior_of_rows, {}, (Y,), {"subsample": 2})
    for function in (khat, diagnose, log_weights):
        with pytest.raises(ValueError, match=r"plate 'rows' takes 2 of 6 .* needs every row.*result\.with_args"):
            function(part, KEY, 200)
    exact, estimate = elbo_estimate(whole, KEY), elbo_estimate(part, KEY, 4000)
    assert estimate.bound is None
    assert "needs every row" in str(estimate)
    assert exact.error < 1e-12  # the guide is the posterior: log w is constant
    assert abs(estimate.elbo - exact.elbo) < 5 * estimate.error


def test_a_guide_without_a_density_is_refused():
    guide = AutoDelta(rows)
    result = legrad.fit(rows, guide, args=(Y,), key=KEY, steps=5, progress=False)
    with pytest.raises(ValueError, match="'m' is a point mass"):
        khat(result.problem, KEY)
    assert elbo_estimate(result.problem, KEY).bound is None


def test_a_guide_that_is_scaled_is_refused_and_a_scaled_likelihood_is_not():
    def scaled(y):
        with handlers.scale(scale=2.0):
            posterior_of_rows(y)

    def model(y):
        m = numpyro.sample("m", dist.Normal(0.0, 1.0))
        with handlers.scale(scale=2.0), numpyro.plate("rows", 6):
            numpyro.sample("y", dist.Normal(m, 1.0), obs=y)

    def guide(y):
        numpyro.sample("m", dist.Normal(2 * Y.sum() / 13, 1 / jnp.sqrt(13.0)))

    with pytest.raises(ValueError, match="'m' of the guide stands under numpyro.handlers.scale"):
        khat(Problem(rows, scaled, {}, (Y,)), KEY)
    assert khat(Problem(model, guide, {}, (Y,)), KEY) == -np.inf


# --- the ELBO and the bound --------------------------------------------------------------------------------------


def mixture(y):
    z = numpyro.sample("z", dist.Categorical(jnp.array([0.2, 0.5, 0.3])))
    b = numpyro.sample("b", dist.Bernoulli(0.4).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(z + b.sum(), 1.0), obs=y)


def factors(y):
    numpyro.sample("z", dist.Categorical(jnp.array([0.3, 0.3, 0.4])))
    numpyro.sample("b", dist.Bernoulli(jnp.array([0.5, 0.3])).to_event(1))


@pytest.fixture(scope="module")
def exact_mixture():
    y, total, elbo = 1.7, [], 0.0
    for z, *b in itertools.product(range(3), range(2), range(2)):
        data = {"z": jnp.array(z), "b": jnp.array(b)}
        log_p, log_q = (
            sum(
                s["fn"].log_prob(s["value"])
                for s in handlers.trace(handlers.substitute(f, data)).get_trace(y).values()
            )
            for f in (mixture, factors)
        )
        total.append(log_p)
        elbo += np.exp(log_q) * (log_p - log_q)
    return float(elbo), float(logsumexp(np.array(total)))


@pytest.mark.parametrize("bias", [0.0, 0.02])
def test_elbo_and_evidence_against_enumeration(exact_mixture, bias):
    elbo, evidence = exact_mixture
    estimate = elbo_estimate(Problem(mixture, factors, {}, (1.7,)), KEY, 100_000)
    assert (abs(estimate.elbo - elbo - bias) < 4 * estimate.error) == (bias == 0)
    assert (abs(estimate.bound - evidence - bias) < 4 * estimate.bound_error) == (bias == 0)
    assert estimate.elbo < estimate.bound
    assert "ELBO" in str(estimate)
    assert "100000 draws" in str(estimate)


@pytest.mark.long
@pytest.mark.parametrize("inflated", [1.0, 1.5, 0.6])
def test_the_standard_errors_are_calibrated(exact_mixture, inflated):
    """Of 1000 estimates the z-scores have variance 1; an error that is off by a half is noticed."""
    _, log_w = log_weights(Problem(mixture, factors, {}, (1.7,)), KEY, 400_000)
    estimates = [summary(part) for part in log_w.reshape(1000, 400)]
    for exact, name, error in zip(exact_mixture, ("elbo", "bound"), ("error", "bound_error"), strict=True):
        z = [(getattr(e, name) - exact) / (inflated * getattr(e, error)) for e in estimates]
        assert (abs(np.var(z) - 1) < 0.25) == (inflated == 1)


# --- shifts of the moments ---------------------------------------------------------------------------------------

SHIFTED = {
    "nothing": (jnp.array([0.0, 0.0, 0.0]), jnp.array([1.0, 1.0, 1.0]), None),
    "a little": (jnp.array([0.0, 0.05, 0.0]), jnp.array([1.0, 0.97, 1.0]), None),
    "mean": (jnp.array([0.0, 0.2, 0.0]), jnp.array([1.0, 1.0, 1.0]), "mean"),
    "sd": (jnp.array([0.0, 0.0, 0.0]), jnp.array([1.0, 0.8, 1.0]), "sd"),
}


@pytest.mark.parametrize("name", SHIFTED)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_an_injected_shift_is_found_and_nothing_else(name, seed):
    loc, scale, wrong = SHIFTED[name]
    loc, scale = loc + 0.01, 1.01 * scale  # so that weights are never all equal
    report = diagnose(Problem(target(), normal(loc, scale, (3,)), {}), jax.random.key(seed))
    assert report.ok == (wrong is None), report
    assert len(report.flags) == (wrong is not None)
    if wrong:
        worst = getattr(report.sites["x"], wrong)
        assert worst.index == (1,)
        assert f"the {wrong} of x[1]" in report.flags[0]
        assert abs(worst.value - {"mean": 0.21, "sd": -0.192}[wrong]) < 5 * worst.error
        assert worst.error < 0.02
    assert f"k-hat {report.khat:.2f}" in str(report)


@pytest.mark.long
@pytest.mark.parametrize("inflated", [1.0, 1.5, 0.6])
def test_the_noise_of_the_shifts_is_calibrated(inflated):
    """Of 200 diagnoses the z-scores of both shifts have variance 1; a wrong standard error is noticed."""
    values, log_w = log_weights(Problem(target(), normal(0.1, 1.1), {}), KEY, 200 * 2000)
    z = []
    for x, part in zip(values["x"].reshape(200, 2000), log_w.reshape(200, 2000), strict=True):
        draws = SimpleNamespace(n=2000, labels={}, chunks=lambda x=x: [{"x": x[:150]}, {"x": x[150:]}])
        found, _ = smoothed_weights(part)
        pool = [Weighed(draws, np.ones(2000), 2000 * found)]
        moments = _moments(pool)
        errors = _errors(pool, moments)["x", None]
        shifts = moments["x", None].mean_shift - 0.1, moments["x", None].sd_shift - 0.1
        z.append(shifts / (inflated * errors))
    for variance in np.var(z, axis=0):
        assert (abs(variance - 1) < 0.3) == (inflated == 1)


def test_labels_are_compared_by_their_probabilities():
    """The mean of the labels is right, and the labels are not."""
    prior = jnp.array([0.3, 0.4, 0.3])

    def guide(p):
        numpyro.sample("z", dist.Categorical(p).expand([2]).to_event(1))

    model = legrad.log_density(lambda v: jnp.log(prior)[v["z"]])
    report = diagnose(Problem(model, guide, {}, (jnp.array([0.4, 0.2, 0.4]),)), KEY)
    assert not report.ok
    shift = report.sites["z"]
    assert shift.sd is None
    assert shift.mean.index[1] == 1  # the category that is off most
    assert abs(shift.mean.value + 0.2 / np.sqrt(0.24)) < 5 * shift.mean.error
    assert diagnose(Problem(model, guide, {}, (prior + jnp.array([0.01, -0.01, 0.0]),)), KEY).ok


def test_too_few_draws_to_tell_is_not_well():
    report = diagnose(Problem(target(), normal(0.0, 0.85, (3,)), {}), KEY, 120)
    assert report.khat < LIMIT
    assert any("cannot tell" in flag and "draws" in flag for flag in report.flags)


def test_a_mixed_guide_and_masked_latents():
    def model():
        z = numpyro.sample("z", dist.Bernoulli(0.3))
        with handlers.mask(mask=jnp.array([True, False])):
            x = numpyro.sample("x", dist.Normal(2.0 * z, 1.0).expand([2]))
        numpyro.sample("y", dist.Normal(x[0], 1.0), obs=1.0)

    def guide(off=0.0):
        evidence = dist.Normal(jnp.array([0.0, 2.0]), jnp.sqrt(2.0)).log_prob(1.0) + jnp.log(jnp.array([0.7, 0.3]))
        z = numpyro.sample("z", dist.Bernoulli(logits=evidence[1] - evidence[0]))
        with handlers.mask(mask=jnp.array([True, False])):
            numpyro.sample("x", dist.Normal(z + 0.5 + off, jnp.sqrt(0.5)).expand([2]))

    values, log_w = log_weights(Problem(model, guide, {}), KEY, 300)
    assert values["z"].shape == (300,)
    assert values["x"].shape == (300, 2)
    np.testing.assert_allclose(
        log_w, logsumexp(np.log([0.7, 0.3]) + dist.Normal(jnp.array([0.0, 2.0]), 2**0.5).log_prob(1.0))
    )
    assert diagnose(Problem(model, guide, {}), KEY).ok
    report = diagnose(Problem(model, lambda: guide(0.3), {}), KEY)
    assert [flag[:16] for flag in report.flags] == ["the mean of x[0]"]


@pytest.mark.parametrize(("family", "ok"), [(AutoMultivariateNormal, True), (AutoNormal, False)])
def test_a_correlated_posterior(family, ok):
    """A Gaussian posterior with correlation 0.9: the full guide is exact, the factorized one too narrow."""

    def model():
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        s = numpyro.sample("s", dist.Normal(0.9 * a, 0.436))
        numpyro.deterministic("twice", 2 * s)

    guide = family(model)
    with handlers.seed(rng_seed=0):
        guide()
    cov = jnp.array([[1.0, 0.9], [0.9, 0.81 + 0.436**2]])
    params = (
        {"auto_loc": jnp.zeros(2), "auto_scale_tril": jnp.linalg.cholesky(cov)}
        if ok
        else {f"{n}_auto_{p}": v for n in "as" for p, v in (("loc", jnp.array(0.0)), ("scale", jnp.array(0.436)))}
    )
    values, _ = log_weights(Problem(model, guide, params), KEY, 100)
    assert set(values) == {"a", "s"}  # no auxiliary site, nothing deterministic
    report = diagnose(Problem(model, guide, params), KEY)
    assert report.ok == ok
    assert set(report.sites) == {"a", "s"}


def test_chunks_change_nothing(monkeypatch):
    problem = Problem(target(), normal(0.3, 0.9, (3,)), {})
    values, log_w = log_weights(problem, KEY, 501)
    whole = diagnose(problem, KEY, 501)
    monkeypatch.setattr(weights, "_MEMORY", 8000)
    assert weights.Draws(problem, KEY, 501)._chunk < 300
    again, log_w_again = log_weights(problem, KEY, 501)
    np.testing.assert_allclose(log_w, log_w_again, rtol=1e-12)
    np.testing.assert_allclose(values["x"], again["x"], rtol=1e-12)
    parts = diagnose(problem, KEY, 501)
    assert parts.sites["x"].mean.value == pytest.approx(whole.sites["x"].mean.value)
    assert parts.sites["x"].sd.error == pytest.approx(whole.sites["x"].sd.error)
