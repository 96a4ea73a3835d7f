"""Minibatches: the right rows at the right step, the right scale, from memory and from disk."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest

import legrad
from legrad.fitting.data import Feed
from small_fit import fit, fit_rows, numbers, rows, rows_model, same

KEY = jax.random.key(0)


def test_an_epoch_takes_every_row_once():
    batches = legrad.Minibatches(np.arange(23.0), size=4)
    epochs = [[batches.at(7, step) for step in range(5 * e, 5 * e + 5)] for e in range(2)]
    for epoch in epochs:
        taken = np.concatenate(epoch)
        assert len(np.unique(taken)) == len(taken) == 20
    assert not np.array_equal(epochs[0], epochs[1])
    np.testing.assert_array_equal(batches.at(7, 3), epochs[0][3])  # going back is the same again
    assert not np.array_equal(batches.at(8, 3), epochs[0][3])
    counts = np.bincount(np.concatenate([batches.at(7, step) for step in range(5 * 400)]), minlength=23)
    assert np.abs(counts / 400 - 20 / 23).max() < 0.1  # no row waits more often than others
    ordered = legrad.Minibatches(np.arange(23.0), size=4, shuffle=False)
    np.testing.assert_array_equal(ordered.at(0, 5), [0, 20, 21, 22])  # it goes round


def test_each_step_reads_its_rows(tmp_path, monkeypatch):
    monkeypatch.setattr("legrad.fitting.data._BUFFER_STEPS", 3)
    np.save(tmp_path / "x.npy", np.arange(40, dtype=np.float32).reshape(20, 2))
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    batches = legrad.Minibatches(x, np.arange(20), size=6)
    feed = Feed((jnp.ones(3),), {"scale": 2.0}, batches, seed=5)
    try:
        for step in (0, 1, 2, 3, 7, 2, 100):
            wanted = batches.at(5, step)
            args, kwargs, _ = feed.at(feed.load(step), step)
            np.testing.assert_array_equal(args[1], x[wanted])
            np.testing.assert_array_equal(args[2], wanted)
            assert kwargs == {"scale": 2.0}
    finally:
        feed.close()


@pytest.mark.long
def test_a_fit_on_minibatches_finds_the_posterior_of_all_rows(tmp_path):
    for name, array in zip("xy", rows(), strict=True):
        np.save(tmp_path / f"{name}.npy", array)
    x, y = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "xy")
    result = legrad.fit(
        rows_model, legrad.MeanField(rows_model), key=KEY, data=legrad.Minibatches(x, y, size=8),
        stop=legrad.AutoStop(tolerance=0.1), steps=30_000, progress=False,
    )  # fmt: skip
    precision = x.T @ x + np.eye(3)
    mean, scale = np.linalg.solve(precision, x.T @ y), np.diag(precision) ** -0.5  # of the best factorized q
    assert result.converged
    assert np.max(np.abs(result.params["w_loc"] - mean) / scale) < 0.3
    np.testing.assert_allclose(np.exp(result.params["w_log_scale"]), scale, rtol=0.15)
    assert same(numbers(fit_rows(steps=30)), numbers(fit_rows(steps=30)))


@pytest.mark.long
def test_rows_choose_their_own_parameters():
    """The indices of the plate are the rows' numbers: a local latent's parameters are found in the right place."""
    y = np.where(np.arange(12) % 2 == 0, 3.0, -1.0)

    def model(y):
        with numpyro.plate("N", 12, subsample_size=len(y)):
            z = numpyro.sample("z", dist.Bernoulli(0.5))
            numpyro.sample("y", dist.Normal(2.0 * z, 1.0), obs=y)

    result = legrad.fit(
        model, legrad.MeanField(model), key=KEY, data=legrad.Minibatches(y, size=4), optimizer=optax.adam(0.1),
        steps=300, progress=False,
    )  # fmt: skip
    np.testing.assert_array_equal(result.params["z_logits"] > 0, y > 0)
    assert result.sample(KEY, 3)["z"].shape == (3, 12)
    with pytest.warns(UserWarning, match="minibatch|rows|data"):  # predictions need all rows; the posterior does not
        assert result.to_arviz(KEY, 3).posterior["z"].shape == (1, 3, 12)
    # the result still knows which rows its last minibatch had
    assert abs(result.elbo_estimate(KEY, 300).elbo - result.elbo[-50:].mean()) < 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: legrad.Minibatches(size=3), "there are no arrays"),
        (lambda: legrad.Minibatches(np.ones(3), np.ones(4), size=2), r"shapes \(3,\), \(4,\): give them the same"),
        (lambda: legrad.Minibatches(np.ones(3), size=4), "size=4: a minibatch has between 1 and all 3 rows"),
        (lambda: legrad.Minibatches(np.ones(3), size=0), "size=0"),
        (lambda: legrad.Minibatches(np.array(["a", "b"]), size=1), "an array of <U1 is among the minibatches"),
        (lambda: fit(data=np.ones(3)), r"data is a ndarray: pass data=legrad.Minibatches\(X, y, size=100\)"),
    ],
)
def test_wrong_minibatches(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_a_model_that_does_not_scale_its_rows():
    def unscaled(x, y):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        with numpyro.plate("few", len(y)):
            numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    with pytest.raises(ValueError, match=r"would not be scaled.*numpyro.plate\('rows', 64, subsample_size=8\)"):
        legrad.fit(unscaled, legrad.MeanField(unscaled), key=KEY, data=legrad.Minibatches(*rows(), size=8))


def test_a_row_that_is_not_finite_is_named():
    x, y = rows()
    y[37] = np.nan
    batches = legrad.Minibatches(x, y, size=8)
    guide = legrad.MeanField(rows_model)
    with pytest.warns(legrad.FitWarning, match=r"the data of site 'y' holds 1 values .*, in row 37 of the data"):
        result = legrad.fit(rows_model, guide, key=jax.random.key(1), data=batches, steps=20, progress=False)
    assert 0 < result.steps < 8
    assert np.isfinite(result.params["w_loc"]).all()


def test_callbacks_see_the_fit(tmp_path):
    seen = []
    log = legrad.JsonLines(tmp_path / "log.jsonl")
    result = fit(steps=60, callback=[seen.append, log], callback_every=25)
    assert [s.step for s in seen] == [25, 50]
    assert seen[1].elbo == pytest.approx(np.mean(result.elbo[25:50]))
    assert seen[1].gradient_variance == pytest.approx(np.mean(result.gradient_variance[25:50]))
    assert seen[1].params().keys() == result.params.keys()
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [25, 50]
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"step": 75, "el')  # a kill cut it
    fit(steps=60, callback=legrad.JsonLines(tmp_path / "log.jsonl"), callback_every=50)
    assert [json.loads(line)["step"] for line in (tmp_path / "log.jsonl").read_text().splitlines()] == [25, 50]
    with pytest.warns(legrad.FitWarning, match="stopped at step 30: a callback ended it"):
        assert fit(steps=60, callback=lambda s: np.bool_(s.step >= 30), callback_every=10).steps == 30
    with pytest.warns(legrad.FitWarning, match="step 50 could not be logged"):
        fit(steps=60, callback=legrad.JsonLines(tmp_path), callback_every=50)  # a folder, not a file
    with pytest.raises(TypeError, match="callback='loud' cannot be called"):
        fit(callback=["loud"])


def test_data_that_cannot_be_read_any_more(tmp_path, monkeypatch):
    class Vanishing(np.ndarray):
        reads = 0

        def __getitem__(self, index):
            if isinstance(index, np.ndarray):
                Vanishing.reads += 1
                if Vanishing.reads > 4:
                    raise OSError(5, "Input/output error")
            return super().__getitem__(index)

    monkeypatch.setattr("legrad.fitting.data._BUFFER_STEPS", 5)
    x, y = rows()
    batches = legrad.Minibatches(x.view(Vanishing), y, size=8)
    with pytest.warns(legrad.FitWarning, match=r"the data could not be read \(minibatches from step 20 on: .*error"):
        result = legrad.fit(
            rows_model, legrad.MeanField(rows_model), key=KEY, data=batches, steps=50, progress=False,
            checkpoint=tmp_path,
        )  # fmt: skip
    assert result.steps == 20
    assert (tmp_path / "checkpoint.legrad").exists()
