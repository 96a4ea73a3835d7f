"""`to_arviz`: the groups, their axes and labels, and that the numbers are those of guide and model."""

import sys
from importlib import import_module

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.contrib.control_flow import scan
from numpyro.infer import log_likelihood
from numpyro.infer.autoguide import AutoMultivariateNormal, AutoNormal

import legrad
from legrad import _compat
from legrad.diagnostics.to_arviz import to_arviz
from legrad.model.parameters import Parameters
from legrad.model.problem import Problem

arviz = _compat.arviz()
KEY = jax.random.key(0)
Y = jnp.array([0.2, 1.9, -0.5, 1.1])


def fitted(model, guide=None, args=(), **params):
    """A problem at parameters of our choice: an export does not ask how they were found."""
    guide = legrad.MeanField(model) if guide is None else guide
    initial = Parameters(model, guide, args, {}, KEY).initial
    return Problem(model, guide, initial | params, args)


def shapes(group):
    return {name: dict(zip(v.dims[2:], v.shape[2:], strict=True)) for name, v in group.data_vars.items()}


def mixture(y):
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    numpyro.deterministic("twice", 2 * m)
    with numpyro.plate("N", len(y)):
        z = numpyro.sample("z", dist.Bernoulli(0.3))
        numpyro.deterministic("centre", m + 2.0 * z)
        numpyro.sample("y", dist.Normal(m + 2.0 * z, 1.0), obs=y)


LOGITS = jnp.array([-2.0, 2.0, 0.0, 1.0])


@pytest.fixture(scope="module")
def tree():
    return to_arviz(fitted(mixture, args=(Y,), m_loc=0.7, z_logits=LOGITS), jax.random.key(1), 2000)


def test_groups(tree):
    assert shapes(tree.posterior) == {"m": {}, "twice": {}, "z": {"N": 4}, "centre": {"N": 4}}
    assert shapes(tree.posterior_predictive) == {"y": {"N": 4}}
    assert shapes(tree.log_likelihood) == {"y": {"N": 4}}
    assert tree.observed_data["y"].dims == ("N",)
    np.testing.assert_array_equal(tree.observed_data["y"], Y)
    assert tree.posterior["m"].dims == ("chain", "draw")
    assert tree.posterior["m"].shape == (4, 500)
    assert tree.posterior["z"].dtype.kind == "i"
    assert tree.posterior["N"].values.tolist() == [0, 1, 2, 3]


def test_axes_are_named_as_arviz_does(tree):
    home = "arviz.data.io_numpyro" if arviz.__version__.startswith("0.") else "arviz_base.io_numpyro"
    named = import_module(home).infer_dims(mixture, (Y,), {})
    assert named == {"z": ["N"], "centre": ["N"], "y": ["N"]}
    ours = shapes(tree.posterior) | shapes(tree.log_likelihood)
    assert {name: list(axes) for name, axes in ours.items() if axes} == named


def test_the_posterior_is_the_guides(tree):
    draws = tree.posterior
    assert abs(draws["m"].mean() - 0.7) < 5 * 0.1 / np.sqrt(2000)
    np.testing.assert_allclose(draws["z"].mean(("chain", "draw")), jax.nn.sigmoid(LOGITS), atol=0.05)
    np.testing.assert_allclose(draws["twice"], 2 * draws["m"])
    np.testing.assert_allclose(draws["centre"], draws["m"] + 2.0 * draws["z"])


def test_log_likelihood_and_predictions_are_the_models(tree):
    centre = tree.posterior["centre"].values
    np.testing.assert_allclose(tree.log_likelihood["y"], dist.Normal(centre, 1.0).log_prob(Y), rtol=1e-9)
    noise = tree.posterior_predictive["y"].values - centre
    assert abs(noise.mean()) < 5 / np.sqrt(noise.size)
    assert abs(noise.std() - 1) < 5 / np.sqrt(noise.size)
    latents = {name: jnp.asarray(tree.posterior[name].values[0]) for name in ("m", "z")}
    np.testing.assert_allclose(tree.log_likelihood["y"][0], log_likelihood(mixture, latents, Y)["y"], rtol=1e-9)


def test_arviz_summarizes_it_without_a_warning(tree):
    assert tree.posterior["m"].shape == (4, 500)
    summary = arviz.summary(tree)
    assert set(summary.index) == {"m", "twice", *(f"{name}[{i}]" for name in ("z", "centre") for i in range(4))}
    assert abs(float(summary.loc["m", "mean"]) - 0.7) < 0.05
    assert abs(float(summary.loc["m", "r_hat"]) - 1) < 0.02


@pytest.mark.filterwarnings("ignore")  # of Pareto's k
def test_arviz_computes_loo(tree):
    loo = arviz.loo(tree)
    elpd = loo["elpd_loo"] if "elpd_loo" in dir(loo) else loo.elpd
    assert -20 < float(elpd) < -4


def test_the_same_draws_as_the_fits_own_sample():
    result = legrad.fit(mixture, legrad.MeanField(mixture), args=(Y,), key=KEY, steps=2, progress=False)
    drawn, tree = result.sample(KEY, 5), to_arviz(result.problem, KEY, 5)
    for name, values in drawn.items():
        np.testing.assert_allclose(tree.posterior[name][0], values)


def test_coords_and_dims_of_the_user():
    names = ["a", "b", "c", "d"]
    tree = to_arviz(fitted(mixture, args=(Y,)), KEY, 3, coords={"N": names, "row": [5, 6, 7, 8]}, dims={"z": ["row"]})
    assert tree.posterior["z"].dims == ("chain", "draw", "row")
    assert tree.posterior["row"].values.tolist() == [5, 6, 7, 8]
    assert tree.log_likelihood["N"].values.tolist() == names
    assert float(tree.observed_data["y"].sel(N="b")) == pytest.approx(1.9)
    with pytest.raises(ValueError, match="dims names 'q', which is not a site: the sites are centre, m, twice, y, z"):
        to_arviz(fitted(mixture, args=(Y,)), KEY, 3, dims={"q": ["row"]})


def plates(y):
    with numpyro.plate("rows", 3, dim=-2):
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        with numpyro.plate("columns", 2, dim=-1):
            b = numpyro.sample("b", dist.Categorical(jnp.array([0.2, 0.5, 0.3])))
            numpyro.sample("one", dist.Normal(0.0, 1.0), obs=0.5)  # one datum for all
            w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([4]).to_event(1), infer={"event_dims": ["part"]})
            numpyro.sample("y", dist.Normal(a[..., None] + b[..., None] + w, 1.0).to_event(1), obs=y)
    numpyro.sample("p", dist.Dirichlet(jnp.ones(3)))


def test_nested_plates_and_events():
    """Plates by their position: where one is missing between, or an axis is no plate, it has a name of its own."""
    tree = to_arviz(fitted(plates, args=(jnp.ones((3, 2, 4)),)), KEY, 5)
    assert shapes(tree.posterior) == {
        "a": {"rows": 3, "a_dim_1": 1},
        "b": {"rows": 3, "columns": 2},
        "w": {"rows": 3, "columns": 2, "part": 4},
        "p": {"p_dim_0": 3},
    }
    assert shapes(tree.posterior_predictive)["y"] == {"rows": 3, "columns": 2, "y_dim_2": 4}
    assert shapes(tree.log_likelihood) == {"one": {"rows": 3, "columns": 2}, "y": {"rows": 3, "columns": 2}}
    assert tree.observed_data["y"].shape == (3, 2, 4)
    assert tree.observed_data["one"].shape == (3, 2)
    np.testing.assert_allclose(tree.posterior["p"].sum("p_dim_0"), 1.0)


def test_a_gap_between_plates():
    def model():
        with numpyro.plate("far", 2, dim=-3), numpyro.plate("near", 3, dim=-1):
            numpyro.sample("x", dist.Normal(0.0, 1.0))
            numpyro.deterministic("scalar", 1.0)

    tree = to_arviz(fitted(model), KEY, 5)
    assert shapes(tree.posterior) == {"x": {"far": 2, "x_dim_1": 1, "near": 3}, "scalar": {}}


def regression(x, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    s = numpyro.sample("s", dist.LogNormal(0.0, 0.1))
    mean = numpyro.deterministic("mean", x @ w)
    with numpyro.plate("N", len(y)), numpyro.handlers.mask(mask=~jnp.isnan(y)):
        numpyro.sample("y", dist.Normal(mean, s), obs=y)


@pytest.mark.parametrize("auto", [AutoNormal, pytest.param(AutoMultivariateNormal, marks=pytest.mark.long)])
def test_automatic_guides_and_masked_observations(auto):
    x, y = jnp.eye(4)[:, :2] + 1.0, Y.at[2].set(jnp.nan)
    tree = to_arviz(fitted(regression, auto(regression), args=(x, y)), KEY, 7)
    assert set(tree.posterior.data_vars) == {"w", "s", "mean"}
    assert (tree.posterior["s"] > 0).all()
    expected = dist.Normal(tree.posterior["mean"].values, tree.posterior["s"].values[..., None]).log_prob(Y)
    np.testing.assert_allclose(tree.log_likelihood["y"], np.where(np.isnan(y), 0.0, expected), rtol=1e-9)
    assert np.isfinite(tree.posterior_predictive["y"]).all()  # predicted where it was not observed
    assert np.isnan(tree.observed_data["y"]).values.tolist() == [False, False, True, False]


def structured(y):
    z = numpyro.sample("z", dist.Bernoulli(logits=numpyro.param("odds", 0.3)).expand([len(y)]).to_event(1))
    centre = numpyro.deterministic("own", numpyro.param("a", 0.5) * z.sum())
    numpyro.sample("noise", dist.Normal(0.0, 1.0), infer={"is_auxiliary": True})
    numpyro.sample("m", dist.Normal(centre, 0.1))


def with_parameters(y):
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    z = numpyro.sample("z", dist.Bernoulli(0.3).expand([len(y)]).to_event(1))
    numpyro.deterministic("total", m + z.sum())
    numpyro.factor("penalty", -(m**2))
    numpyro.sample("y", dist.Normal(m + z, numpyro.param("sd", 1.0)).to_event(1), obs=y)


def test_a_structured_guide_parameters_of_the_model_and_a_factor():
    tree = to_arviz(fitted(with_parameters, structured, (Y,), sd=2.0, a=0.7), KEY, 50)
    assert set(tree.posterior.data_vars) == {"m", "z", "total"}
    count = tree.posterior["z"].sum("z_dim_0")
    np.testing.assert_allclose(tree.posterior["total"], tree.posterior["m"] + count)
    assert (abs(tree.posterior["m"] - 0.7 * count) < 0.6).all()  # of the same draw
    assert set(tree.log_likelihood.data_vars) == set(tree.observed_data.data_vars) == {"y"}
    centre = tree.posterior["m"].values[..., None] + tree.posterior["z"].values
    np.testing.assert_allclose(tree.log_likelihood["y"], dist.Normal(centre, 2.0).log_prob(Y).sum(-1), rtol=1e-9)


def test_inside_scan():
    def chain(y):
        def step(before, now):
            with numpyro.plate("pair", 2):
                z = numpyro.sample("z", dist.Bernoulli(0.2 + 0.6 * before))
                numpyro.sample("y", dist.Normal(10.0 * z, 1.0), obs=now)
            return z, None

        scan(step, jnp.zeros(2, int), y)

    tree = to_arviz(fitted(chain, args=(jnp.zeros((3, 2)),)), KEY, 20)
    assert shapes(tree.posterior) == {"z": {"z_dim_0": 3, "pair": 2}}
    assert shapes(tree.log_likelihood) == {"y": {"y_dim_0": 3, "pair": 2}}
    assert (abs(tree.posterior_predictive["y"].values - 10 * tree.posterior["z"].values) < 6).all()


def indexed(y):
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    with numpyro.plate("N", 4, subsample_size=2) as i:
        z = numpyro.sample("z", dist.Bernoulli(0.3))
        numpyro.sample("y", dist.Normal(m + z, 1.0), obs=y[i])


def test_a_plate_that_subsamples_is_exported_whole():
    tree = to_arviz(fitted(indexed, args=(Y,)), KEY, 5)
    assert shapes(tree.posterior) == {"m": {}, "z": {"N": 4}}
    np.testing.assert_array_equal(tree.observed_data["y"], Y)
    centre = tree.posterior["m"].values[..., None] + tree.posterior["z"].values
    np.testing.assert_allclose(tree.log_likelihood["y"], dist.Normal(centre, 1.0).log_prob(Y), rtol=1e-9)


def minibatch(y):
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    numpyro.deterministic("twice", 2 * m)
    with numpyro.plate("N", 4, subsample_size=len(y)):
        z = numpyro.sample("z", dist.Bernoulli(0.3))
        numpyro.sample("y", dist.Normal(m + z, 1.0), obs=y)


def local(y):
    numpyro.sample("m", dist.Normal(numpyro.param("a", 0.0), 1.0))
    with numpyro.plate("N", 4, subsample_size=len(y)):
        numpyro.sample("z", dist.Bernoulli(logits=numpyro.param("slope", 1.0) * y))


@pytest.mark.parametrize(
    ("guide", "kept", "size"), [(None, {"m": {}, "z": {"N": 4}}, 2), (local, {"m": {}}, 2), (local, {"m": {}}, 1)]
)
def test_a_minibatch_gives_only_what_is_not_about_it(guide, kept, size):
    problem = fitted(minibatch, guide, (Y[:size],))
    with pytest.warns(UserWarning, match="plate 'N' subsamples, and the model does not run with all its members"):
        tree = to_arviz(problem, KEY, 5)
    assert shapes(tree.posterior) == kept
    assert not any(hasattr(tree, group) for group in ("posterior_predictive", "log_likelihood", "observed_data"))


def test_a_plain_log_density():
    def guide():
        with numpyro.plate("parts", 2):
            numpyro.sample("x", dist.Normal(numpyro.param("loc", jnp.array([1.0, -1.0])), 0.1))

    target = legrad.log_density(lambda x: -jnp.sum(x["x"] ** 2))
    tree = to_arviz(fitted(target, guide), KEY, 100)
    assert shapes(tree.posterior) == {"x": {"parts": 2}}
    np.testing.assert_allclose(tree.posterior["x"].mean(("chain", "draw")), [1.0, -1.0], atol=0.05)


def test_errors(monkeypatch):
    problem = fitted(mixture, args=(Y,))
    with pytest.raises(ValueError, match="num_samples=0"):
        to_arviz(problem, KEY, 0)
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(ImportError, match=r"pip install 'legrad\[arviz\]'"):
        to_arviz(problem, KEY)
