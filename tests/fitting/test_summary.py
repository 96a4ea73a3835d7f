"""The table of a result, and its predictions: against the draws that they come from, and against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pandas as pd
import pytest
from numpyro.contrib.control_flow import scan

import legrad

KEY = jax.random.key(0)
Y = np.array([0.2, 1.9, -0.5, 2.5])


def model(y, k=3):
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    with numpyro.plate("N", len(y)):
        z = numpyro.sample("z", dist.Bernoulli(0.3))
        c = numpyro.sample("c", dist.Categorical(probs=jnp.ones(k) / k))
        numpyro.sample("y", dist.Normal(m + 2.0 * z + c, 1.0), obs=y)


@pytest.fixture(scope="module")
def result():
    return legrad.fit(model, legrad.MeanField(model), args=(Y,), key=KEY, steps=50, progress=False)


def test_the_numbers_are_those_of_the_draws(result):
    table, draws = result.summary(1, 500), result.sample(1, 500)
    m = np.asarray(draws["m"])
    assert table["m"].mean == pytest.approx(m.mean())
    assert table["m"].sd == pytest.approx(m.std())
    np.testing.assert_allclose(table["m"].quantiles, np.quantile(m, [0.05, 0.5, 0.95]))
    np.testing.assert_allclose(table["z"].probabilities[:, 1], np.mean(draws["z"], 0))
    np.testing.assert_allclose(table["c"].probabilities.sum(-1), 1.0)
    np.testing.assert_allclose(table["c"].probabilities[2, 1], np.mean(np.asarray(draws["c"])[:, 2] == 1))
    with pytest.raises(KeyError, match="'w' is not a latent of the fit, which has: m, z, c"):
        table["w"]


def test_the_forms_of_the_table(result):
    table = result.summary(1, 200, coords={"N": ["ann", "bob", "<cy>", "dan"]}, quantiles=(0.1, 0.9))
    frame = table.to_pandas()
    assert list(frame.columns) == ["site", "mean", "sd", "10%", "90%", "P(0)", "P(1)", "P(2)"]
    assert list(frame.index[:2]) == ["m", "z[ann]"]
    assert frame.loc["z[bob]", "P(1)"] == table["z"].probabilities[1, 1]
    assert np.isnan(frame.loc["m", "P(0)"])
    assert "| z[bob] |" in table.to_markdown()
    html = table._repr_html_()
    assert "z[&lt;cy&gt;]" in html
    assert html.count("<tr>") == 1 + 1 + 1 + 8
    lines = str(table).splitlines()
    assert lines[0].split() == ["latent", "mean", "sd", "10%", "90%"]
    assert len({len(line) for line in lines[:2]}) == 1


def test_many_elements_are_not_all_printed():
    def many():
        numpyro.sample("x", dist.Normal(0.0, 1.0).expand([50]).to_event(1))

    found = legrad.fit(many, legrad.MeanField(many), key=KEY, steps=2, progress=False).summary(0, 50)
    assert "x: 30 more" in str(found)
    assert len(found.to_pandas()) == 50
    assert found.to_markdown().count("\n") == 51


def test_wrong_coords_and_levels(result):
    with pytest.raises(ValueError, match="coords names 'M', which is not an axis of a latent: the axes are N"):
        result.summary(0, 10, coords={"M": "abcd"})
    with pytest.raises(ValueError, match=r"coords\['N'\] has 3 names, and the axis has 4 members"):
        result.summary(0, 10, coords={"N": "abc"})
    with pytest.raises(ValueError, match="levels between 0 and 1"):
        result.summary(0, 10, quantiles=(5, 95))


def test_the_repr_is_short(result):
    text = repr(result)
    assert len(text.splitlines()) == 4
    assert "z_logits (4,)" in text
    assert result.status in text
    assert "<table" in result._repr_html_()
    assert result.model is model
    assert isinstance(result.guide, legrad.MeanField)


def test_names_outlive_a_file(tmp_path):
    def regression(X, y):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([X.shape[1]]).to_event(1))
        numpyro.sample("y", dist.Normal(X @ w, 1.0), obs=y)

    frame = pd.DataFrame(np.eye(4)[:, :3] + 1.0, columns=["a", "b", "c"])
    guide = legrad.MeanField(regression)
    found = legrad.fit(regression, guide, args=(frame, Y), key=KEY, steps=2, progress=False)
    found.save(tmp_path / "fit.legrad")
    again = legrad.load(tmp_path / "fit.legrad", regression, guide, args=(frame, Y))
    assert str(again.summary(0, 20)) == str(found.summary(0, 20))
    assert "w[b]" in str(again.summary(0, 20))
    turned = frame[["c", "b", "a"]]  # the columns are found by their names
    np.testing.assert_array_equal(found.predict(0, turned, n=5)["y"], found.predict(0, frame, n=5)["y"])
    np.testing.assert_array_equal(found.with_args(turned, Y).problem.args[0], frame.to_numpy())


# --- predictions -------------------------------------------------------------------------------------------------


def normal_guide(loc, scale):
    def guide(*args, **kwargs):
        numpyro.sample("m", dist.Normal(numpyro.param("loc", loc), scale))

    return guide


def line(x, y=None):
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(m * x, 0.5), obs=y)


def test_predictions_for_new_rows():
    """y* = m x* + noise, with m ~ N(2, 0.3²) by the guide."""
    tiny = {"steps": 1, "optimizer": optax.sgd(1e-12), "progress": False}
    found = legrad.fit(line, normal_guide(2.0, 0.3), args=(jnp.ones(3), jnp.ones(3)), key=KEY, **tiny)
    x = jnp.array([0.0, 1.0, 10.0, -1.0, 2.0])
    y = found.predict(1, x, n=4000)["y"]
    assert y.shape == (4000, 5)
    sd = np.sqrt(0.25 + (0.3 * x) ** 2)
    np.testing.assert_array_less(np.abs(y.mean(0) - 2.0 * x), 5 * sd / np.sqrt(4000))
    np.testing.assert_array_less(np.abs(y.std(0) / sd - 1), 5 / np.sqrt(2 * 4000))
    np.testing.assert_array_equal(found.predict(1, x, None, n=10)["y"], found.predict(1, x, n=10)["y"])
    np.testing.assert_array_equal(found.predict(1, x, jnp.ones(5), n=10)["y"], found.predict(1, x, n=10)["y"])
    assert found.predict(1, n=10)["y"].shape == (10, 3)


def groups(g, y, size=2):
    with numpyro.plate("groups", size):
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", g.shape[0]):
        z = numpyro.sample("z", dist.Bernoulli(0.25))
        numpyro.sample("y", dist.Normal(a[g] + 100.0 * z, 0.1), obs=y)


@pytest.mark.long
def test_latents_of_new_rows_come_from_the_prior():
    g, y = np.array([0, 0, 1, 1]), np.array([5.0, 5.0, -5.0, 95.0])
    guide = legrad.MeanField(groups, init={"a": np.array([5.0, -5.0]), "z": np.array([0, 0, 0, 1])})
    found = legrad.fit(groups, guide, args=(g, y), key=KEY, steps=1500, optimizer=optax.adam(0.02), progress=False)
    at_fit = found.predict(1, n=400)["y"]
    np.testing.assert_allclose(at_fit.mean(0), y, atol=1.0)  # with the z of these rows
    for rows in (np.array([1, 0, 1, 0]), np.array([1] * 7)):  # as many rows are new rows, too
        new = np.asarray(found.predict(1, rows, np.zeros(len(rows)), n=2000)["y"])
        high = new > 50
        assert abs(high.mean() - 0.25) < 5 * np.sqrt(0.25 * 0.75 / high.size) + 0.01
        np.testing.assert_allclose((new - 100 * high).mean(0), np.where(rows == 1, -5, 5), atol=0.3)  # known groups
    kept = found.predict(1, g, y, n=400, same=["rows"])["y"]
    np.testing.assert_allclose(kept.mean(0), y, atol=1.0)
    with pytest.raises(ValueError, match="same names plate 'rows', which had 4 members in the fit and now has 2"):
        found.predict(1, g[:2], y[:2], same=["rows"])
    with pytest.raises(ValueError, match="same names 'row', which is not a plate of the model: .*groups, rows"):
        found.predict(1, g, y, same=["row"])


def test_new_sequences_of_a_scan():
    def walk(y):
        def step(x, y):
            x = numpyro.sample("x", dist.Normal(x, 0.1))
            return x, numpyro.sample("y", dist.Normal(x, 0.1), obs=y)

        scan(step, numpyro.sample("start", dist.Normal(0.0, 10.0)), y)

    y = np.full(6, 8.0)
    found = legrad.fit(walk, legrad.MeanField(walk, init={"start": 8.0, "x": 8.0}), args=(y,), key=KEY, steps=5,
                       progress=False)  # fmt: skip
    new = np.asarray(found.predict(0, np.zeros(30), n=500)["y"])
    assert new.shape == (500, 30)
    assert new.std(0)[-1] > 1.2 * new.std(0)[0]  # a walk from the fitted start, not the states of the fit


def test_predictions_that_cannot_be_made(result):
    with pytest.raises(ValueError, match=r"does not run with y=None.*pass any array of the right shape"):
        result.predict(0, None)
    target = legrad.log_density(lambda latents: -0.5 * latents["m"] ** 2)
    plain = legrad.fit(target, normal_guide(0.0, 1.0), key=KEY, steps=1, progress=False)
    with pytest.raises(ValueError, match="a legrad.log_density has no observed site to predict"):
        plain.predict(0)
    assert plain.summary(0, 100)["m"].mean.shape == ()

    def nothing():
        numpyro.sample("m", dist.Normal(0.0, 1.0))

    with pytest.raises(ValueError, match="the model has no observed site to predict"):
        legrad.fit(nothing, normal_guide(0.0, 1.0), key=KEY, steps=1, progress=False).predict(0)


def test_a_fit_on_minibatches_predicts_rows_that_are_passed():
    def rows(x, y):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", 64, subsample_size=x.shape[0]):
            numpyro.sample("y", dist.Normal(w * x, 1.0), obs=y)

    x = np.linspace(-1.0, 1.0, 64)
    batches = legrad.Minibatches(x, 3 * x, size=8)
    found = legrad.fit(rows, legrad.MeanField(rows), data=batches, key=KEY, steps=5, progress=False)
    assert found.predict(0, x[:5], None, n=20)["y"].shape == (20, 5)
    with pytest.raises(ValueError, match=r"the fit saw plate 'rows' in parts.*result.predict\(key, X, None\)"):
        found.predict(0)


# --- the page ----------------------------------------------------------------------------------------------------


def test_the_plot_shows_the_posterior(result, tmp_path):
    figure = result.plot(tmp_path / "fit.png")
    assert figure._repr_png_().startswith(b"\x89PNG")  # what a notebook shows
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert "P(z = 1)" in titles
    assert "m: median, 50% and 90% intervals" in titles
    assert "probabilities of the 3 categories of c" in titles
    result.save(tmp_path / "fit.legrad")
    alone = legrad.load(tmp_path / "fit.legrad").plot()  # without the model, the optimization alone
    assert {axes.get_title(loc="left") for axes in alone.axes} == {""}


def test_a_fit_without_steps_says_what_it_does(capsys):
    def tiny():
        numpyro.sample("y", dist.Normal(numpyro.sample("m", dist.Normal(0.0, 1.0)), 1.0), obs=0.5)

    result = legrad.fit(tiny, key=KEY, progress="mine")
    titles = [axes.get_title(loc="left") for axes in result.plot().axes]
    assert titles == ["m: median, 50% and 90% intervals"]  # no axes without a line
    shown = capsys.readouterr().err
    for words in ("reading the model", "looking for the mode", "climbing the ELBO of", "weighing draws"):
        assert f"mine: {words}" in shown, shown
    legrad.fit(tiny, key=KEY, progress=False)
    assert capsys.readouterr().err == ""


def test_the_bar_says_what_happens(capsys):
    def tiny():
        numpyro.sample("y", dist.Normal(numpyro.sample("m", dist.Normal(0.0, 1.0)), 1.0), obs=0.5)

    legrad.fit(tiny, legrad.MeanField(tiny), key=KEY, optimizer=optax.adam(0.05), stop="auto", progress=True)
    shown = capsys.readouterr().err
    assert shown.index("compiling") < shown.index("ELBO")
    assert "phase 2 (step size ×0.25)" in shown
    assert "(tolerance 0.02)" in shown
    assert "inf" not in shown
