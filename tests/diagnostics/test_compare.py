"""`compare` by parameter: its tables, its picture, and that a biased parameter is found."""

import builtins

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.lax import stop_gradient
from matplotlib.backends.backend_agg import FigureCanvasAgg

import legrad
from legrad.diagnostics.compare import Comparison, Measured, ParameterMeasured

KEY = jax.random.key(0)
PARAMS = {"loc": jnp.array([0.3, -0.2]), "net": {"w": jnp.array(0.4), "b": jnp.array([0.1])}}
TARGET = legrad.log_density(lambda v: -0.5 * jnp.sum((v["x"] - 1.0) ** 2) - jnp.sum(v["x"] ** 4) / 24)


def guide():
    loc = numpyro.param("loc", jnp.zeros(2))
    net = numpyro.param("net", {"w": jnp.array(0.0), "b": jnp.zeros(1)})
    numpyro.sample("x", dist.Normal(loc + net["b"], jnp.exp(net["w"])).to_event(1))


class Biased(legrad.LocalExpectation):
    """Right in all but the gradient of net.w."""

    def loss(self, key, params, *rest):
        w = params["net"]["w"]
        return super().loss(key, params, *rest) + 2.0 * (w - stop_gradient(w))


@pytest.fixture(scope="module")
def table():
    estimators = {"LeGrad": legrad.LocalExpectation(), "ReGrad": legrad.Reparameterized(), "biased": Biased()}
    return legrad.compare(TARGET, guide, PARAMS, estimators, key=KEY, draws=100)


def test_each_parameter_has_its_figures(table):
    for r in table.rows.values():
        assert list(r.parameters) == ["loc", "net.b", "net.w"]
        assert r.parameters["loc"].components == 2
        np.testing.assert_allclose(r.parameters["loc"].variance, np.mean(r.variances["loc"]))
        np.testing.assert_allclose(r.parameters["net.w"].variance, r.variances["net"]["w"])
        sizes = {name: p.components for name, p in r.parameters.items()}
        mean = sum(p.variance * sizes[name] for name, p in r.parameters.items()) / sum(sizes.values())
        np.testing.assert_allclose(r.variance, mean, atol=1e-30)
        assert r.bias_z == max(p.bias_z for p in r.parameters.values())
        assert table["ReGrad"].parameters["loc"].efficiency == pytest.approx(
            1 / (table["ReGrad"].parameters["loc"].variance * table["ReGrad"].seconds)
        )


def test_the_biased_parameter_is_found_and_no_other(table):
    z = {name: p.bias_z for name, p in table["biased"].parameters.items()}
    assert z["net.w"] > 5
    assert max(z["loc"], z["net.b"]) < 5


class Constant(legrad.LocalExpectation):
    """An honest gradient that is the same at every draw, up to rounding."""

    def loss(self, key, params, *rest):
        return super().loss(jax.random.key(0), params, *rest) * (1 + 1e-12 * jax.random.normal(key))


def test_without_noise_variances_are_not_negative_and_rounding_is_no_bias():
    """At the optimum of 10,000 data in float32 the gradient is all rounding, of terms that cancel."""
    with jax.enable_x64(False):
        y = jnp.asarray(3.0 + 100.0 * np.random.default_rng(0).normal(size=10_000), jnp.float32)
        target = legrad.log_density(lambda v: -0.5 * (y - v["m"]) ** 2)

        def guide():
            numpyro.sample("m", dist.Normal(numpyro.param("loc", 0.0), jnp.exp(numpyro.param("log_scale", 0.0))))

        def compared(loc, **other):
            params = {"loc": loc, "log_scale": jnp.asarray(np.log(0.01), jnp.float32)}
            exact = {"LeGrad": legrad.LocalExpectation(), "nodes": legrad.LocalExpectation(nodes=7)}
            return legrad.compare(target, guide, params, exact | other, key=KEY, draws=50)

        at_optimum = compared(y.mean())
        assert max(r.bias_z for r in at_optimum.rows.values()) < 2
        for r in at_optimum.rows.values():
            assert all(np.min(v) >= 0 for v in jax.tree.leaves(r.variances))

        class Off(legrad.LocalExpectation):
            def loss(self, key, params, *rest):
                return super().loss(key, params, *rest) * 1.01

        assert compared(y.mean() + 1.0, off=Off())["off"].bias_z > 5  # 1% of a gradient that is no rounding


def test_equal_draws_have_no_variance():
    table = legrad.compare(TARGET, guide, PARAMS, {"a": Constant(), "b": Constant(nodes=7)}, key=KEY, draws=300)
    for r in table.rows.values():
        assert all(np.min(v) >= 0 and np.max(v) < 1e-20 for v in jax.tree.leaves(r.variances))
        assert r.bias_z < 1


def test_markdown(table):
    short, long = table.to_markdown().splitlines(), table.to_markdown(per_parameter=True).splitlines()
    assert str(table) == "\n".join(short)
    assert short[0] == "| estimator | gradient variance | bias z | ms per gradient | 1/(variance × seconds) |"
    assert short[1] == "|---|---|---|---|---|"
    assert len(short) == 2 + 3
    assert long[0].startswith("| estimator | parameter | gradient variance |")
    assert len(long) == 2 + 3 * 4
    assert {line.count("|") for line in long} == {7}
    assert long[3].startswith("| LeGrad | loc |")


def test_pandas(table, monkeypatch):
    frame = table.to_pandas()
    assert list(frame.columns) == [
        "estimator", "parameter", "components", "variance", "bias_z", "seconds", "efficiency",
    ]  # fmt: skip
    assert len(frame) == 3 * 4
    total = frame[(frame.estimator == "ReGrad") & (frame.parameter == "all")].iloc[0]
    assert total.variance == table["ReGrad"].variance
    assert total.components == 4

    def importing(name, *args, **kwargs):
        if name == "pandas":
            raise ImportError(name)
        return original(name, *args, **kwargs)

    original = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", importing)
    with pytest.raises(ImportError, match="pip install pandas"):
        table.to_pandas()


def made(estimators, parameters, noiseless=()):
    """A comparison with made-up figures."""
    rng, rows = np.random.default_rng(0), {}
    for name in estimators:
        seconds = 10 ** rng.uniform(-4, -1)
        found = {}
        for p in parameters:
            variance = 0.0 if name in noiseless else 10 ** rng.uniform(-3, 3)
            found[p] = ParameterMeasured(variance, 1.0, 1 / (variance * seconds) if variance else np.inf, 3)
        mean = float(np.mean([p.variance for p in found.values()]))
        rows[name] = Measured(mean, 1.0, seconds, 1 / (mean * seconds) if mean else np.inf, {}, {}, found)
    return Comparison(rows, 200)


@pytest.mark.long
@pytest.mark.parametrize(
    ("estimators", "parameters", "noiseless"),
    [(1, 1, 1), (2, 2, 0), (3, 4, 3), (8, 12, 1), (8, 30, 2)],
)
def test_no_label_of_the_picture_overlaps_another(tmp_path, estimators, parameters, noiseless):
    names = ["a rather long name of an estimator" if i == 5 else f"estimator {i}" for i in range(estimators)]
    comparison = made(names, [f"net.Dense_{i}.kernel" for i in range(parameters)], names[:noiseless])
    figure = comparison.plot(tmp_path / "compare.png")
    assert (tmp_path / "compare.png").stat().st_size > 5000
    renderer = FigureCanvasAgg(figure).get_renderer()
    inside = figure.bbox.padded(2)
    for axes in figure.findobj(lambda artist: hasattr(artist, "get_xticklabels")):
        texts = [*axes.texts, *axes.get_xticklabels(), *axes.get_yticklabels(), axes.title, axes._left_title]
        texts = [t for t in texts if t.get_text() and t.get_visible()]
        boxes = [t.get_window_extent(renderer) for t in texts]
        for i, box in enumerate(boxes):
            assert inside.containsx(box.x0)
            assert inside.containsx(box.x1)
            hidden = [
                t.get_text() for t, other in zip(texts[i + 1 :], boxes[i + 1 :], strict=True) if box.overlaps(other)
            ]
            assert not hidden, (texts[i].get_text(), hidden)
    below = figure.subfigs[1].axes[0]
    assert len(below.get_yticks()) == min(parameters, 12)
    assert (f"{parameters - 12} more" in below.get_title(loc="left")) == (parameters > 12)


@pytest.mark.long
def test_a_real_comparison_is_drawn(table, tmp_path):
    figure = table.plot(tmp_path / "compare.svg")
    assert (tmp_path / "compare.svg").exists()
    shown = [text.get_text() for text in figure.subfigs[0].axes[0].texts]
    assert len(shown) == 3 + 1  # a number each, and which way is better
