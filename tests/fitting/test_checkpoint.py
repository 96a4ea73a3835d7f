"""Checkpoints: a fit that was ended goes on to the same result, and no damaged file is taken for a good one."""

import errno
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest

import legrad
import small_fit
from legrad.fitting import file_format as container
from small_fit import fit, fit_rows, numbers, same

AUTO = {"stop": legrad.AutoStop(tolerance=0.2), "steps": 4000}


@pytest.fixture(scope="module", autouse=True)
def compiled_once(tmp_path_factory):
    """The same fits are compiled again and again here: let JAX keep what it compiled."""
    folder = tmp_path_factory.mktemp("compiled")
    jax.config.update("jax_compilation_cache_dir", str(folder))
    yield
    jax.config.update("jax_compilation_cache_dir", None)


class Killed(BaseException):
    """Stands for a kill inside one process."""


def killed_at(step):
    def callback(snapshot):
        if snapshot.step == step:
            raise Killed

    return {"callback": callback, "callback_every": 10}


@pytest.mark.parametrize(
    ("run", "settings"),
    [
        pytest.param(fit, {"steps": 200}, id="fixed"),
        pytest.param(fit, AUTO, id="auto", marks=pytest.mark.long),
        pytest.param(fit, {**AUTO, "restarts": 3}, id="restarts", marks=pytest.mark.long),
        pytest.param(fit_rows, {"steps": 200}, id="minibatches", marks=pytest.mark.long),
    ],
)
def test_a_killed_fit_ends_the_same(tmp_path, run, settings):
    whole = numbers(run(**settings))
    for step in (70, 130):
        with pytest.raises(Killed):
            run(**settings, checkpoint=tmp_path, checkpoint_every=30, **killed_at(step))
    resumed = run(**settings, checkpoint=tmp_path, checkpoint_every=30)
    assert same(numbers(resumed), whole)
    again = run(**settings, checkpoint=tmp_path, checkpoint_every=30)  # there is nothing left to do
    assert same(numbers(again), whole)
    assert again.status == resumed.status


def test_a_fit_can_be_made_longer(tmp_path):
    fit(steps=100, checkpoint=tmp_path)
    assert same(numbers(fit(steps=150, checkpoint=tmp_path)), numbers(fit(steps=150)))
    with pytest.raises(legrad.CheckpointError, match="150 steps into the fit, but steps=20: give at least steps=150"):
        fit(steps=20, checkpoint=tmp_path)


@pytest.mark.long
def test_sigkill(tmp_path):
    """The same with real processes; `benchmarks/survival.py` does it fifty times."""
    script = Path(small_fit.__file__)

    def start(name):
        command = [sys.executable, str(script), str(tmp_path / name), str(tmp_path / f"{name}.npz")]
        return subprocess.Popen(command, env=os.environ | {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache")})

    assert start("whole").wait() == 0
    killed = start("killed")
    file = tmp_path / "killed" / "checkpoint.legrad"
    while not file.exists() and killed.poll() is None:
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    assert start("killed").wait() == 0
    with np.load(tmp_path / "whole.npz") as whole, np.load(tmp_path / "killed.npz") as resumed:
        assert same([whole[k] for k in whole.files], [resumed[k] for k in resumed.files])


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"estimator": legrad.LocalExpectation()}, "its estimator is legrad.DisARM"),
        ({"optimizer": optax.adam(0.02)}, "its optimizer is"),
        ({"optimizer": optax.adam(0.01, b2=0.9)}, "its optimizer is"),
        ({"optimizer": optax.adam(optax.piecewise_constant_schedule(0.01, {500: 0.1}))}, "its optimizer is"),
        ({"restarts": 2}, "its number of starts is 1, here it is 2"),
        ({"stop": "auto"}, "its stopping rule is None"),
    ],
)
def test_the_checkpoint_of_another_fit(tmp_path, other, what):
    fit(steps=5, checkpoint=tmp_path)
    before = (tmp_path / "checkpoint.legrad").read_bytes()
    with pytest.raises(legrad.CheckpointError, match=what):
        fit(**{"steps": 5, "checkpoint": tmp_path, "optimizer": optax.adam(0.01), **other})
    assert (tmp_path / "checkpoint.legrad").read_bytes() == before


def test_the_checkpoint_of_another_model(tmp_path, monkeypatch):
    fit(steps=5, checkpoint=tmp_path)
    monkeypatch.setattr("small_fit.Y", np.ones(8, np.float32))
    with pytest.raises(legrad.CheckpointError, match="its data is"):
        fit(steps=5, checkpoint=tmp_path)
    monkeypatch.undo()

    def other(y):
        m = numpyro.sample("m", dist.Normal(0.0, 2.0))
        with numpyro.plate("N", len(y)):
            z = numpyro.sample("z", dist.Bernoulli(0.3))
            numpyro.sample("y", dist.Normal(m + 2.0 * z, 1.0), obs=y)

    monkeypatch.setattr(small_fit, "model", other)
    with pytest.raises(legrad.CheckpointError, match="its ELBO of the first draw is"):
        fit(steps=5, checkpoint=tmp_path)


def mutations(content, number):
    """Bits flipped, pieces cut, swapped, repeated, zeroed; other files; nothing at all."""
    rng = np.random.default_rng(0)
    yield b""
    yield b"\x00" * len(content)
    yield b"PK\x03\x04" + content
    for i in range(number - 3):
        damaged = bytearray(content)
        at, end = sorted(rng.integers(0, len(content), 2))
        match i % 5:
            case 0:
                damaged[at] ^= 1 << rng.integers(8)
            case 1:
                del damaged[at:]
            case 2:
                damaged[at:end] = b"\x00" * (end - at)
            case 3:
                damaged[at:at] = damaged[at:end]
            case _:
                damaged[at : at + 4] = rng.bytes(4)
        yield bytes(damaged)


def test_damaged_checkpoints(tmp_path):
    """200 mutations: each is a clear error that leaves the file alone, or the same fit."""
    whole = numbers(fit(steps=20, checkpoint=tmp_path))
    file = tmp_path / "checkpoint.legrad"
    content = file.read_bytes()
    meant = container.read(file, "checkpoint")
    errors = 0
    for i, damaged in enumerate(mutations(content, 200)):
        file.write_bytes(damaged)
        try:
            if i % 40 == 0:  # the whole way, now and then: a fit takes seconds
                assert same(numbers(fit(steps=20, checkpoint=tmp_path)), whole)
            else:
                found = container.read(file, "checkpoint")
                assert found[0] == meant[0]
                assert same(list(found[1].values()), list(meant[1].values()))
        except (legrad.CheckpointError, container.FileError) as error:
            errors += str(file) in str(error)  # it names the file
        assert file.read_bytes() == damaged
    assert errors > 190


@pytest.mark.long
def test_a_full_disk_loses_nothing(tmp_path, monkeypatch):
    whole = numbers(fit(steps=200))
    calls = iter(range(100))
    fsync = os.fsync

    def full(descriptor):
        if next(calls) >= 4:  # two checkpoints: a file and its folder each
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr("legrad.fitting.file_format.os.fsync", full)
    with pytest.warns(legrad.FitWarning, match="the disk is full.*the one of step 60 is whole"):
        result = fit(steps=200, checkpoint=tmp_path, checkpoint_every=30)
    assert result.steps == 90
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint.legrad"]
    monkeypatch.undo()
    assert same(numbers(fit(steps=200, checkpoint=tmp_path)), whole)


def test_ctrl_c_returns_the_result_so_far(tmp_path):
    def interrupt(snapshot):
        if snapshot.step == 40:
            raise KeyboardInterrupt

    with pytest.warns(legrad.FitWarning, match="stopped at step 40: it was interrupted"):
        result = fit(steps=200, checkpoint=tmp_path, callback=interrupt, callback_every=20)
    assert result.steps == len(result.elbo) == 40
    assert same(numbers(fit(steps=200, checkpoint=tmp_path)), numbers(fit(steps=200)))


def test_random_keys_in_an_optimizer_are_kept(tmp_path):
    noisy = {"optimizer": optax.noisy_sgd(1e-3, key=0)}
    fit(steps=10, checkpoint=tmp_path, **noisy)
    assert same(numbers(fit(steps=20, checkpoint=tmp_path, **noisy)), numbers(fit(steps=20, **noisy)))


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(NotADirectoryError, match="is a file: give the name of a folder"):
        fit(steps=5, checkpoint=tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def _mixed(y, n=6):
    mu = numpyro.sample("mu", dist.Normal(np.array([-2.0, 2.0]), 1.0).to_event(1))
    with numpyro.plate("points", n):
        z = numpyro.sample("z", dist.Bernoulli(0.5))
        numpyro.sample("y", dist.Normal(mu[z], 1.0), obs=y)


def _labels(y, n=6):
    with numpyro.plate("points", n):
        z = numpyro.sample("z", dist.Bernoulli(0.5))
        numpyro.sample("y", dist.Normal(2.0 * z, 1.0), obs=y)


@pytest.mark.parametrize(
    "model",
    [pytest.param(_mixed, id="a Gaussian and labels", marks=pytest.mark.long), pytest.param(_labels, id="exact")],
)
def test_a_fit_without_a_guide_is_loaded_without_one(model, tmp_path):
    y = np.array([-2.3, -1.8, 1.9, 2.4, -2.0, 2.2])
    result = legrad.fit(model, args=(y,), key=0)
    result.save(tmp_path / "fit.legrad")
    loaded = legrad.load(tmp_path / "fit.legrad", model, args=(y,))
    mine, other = result.sample(1, 20), loaded.sample(1, 20)
    assert set(mine) == set(other)
    assert all(np.array_equal(mine[name], other[name]) for name in mine)
    assert str(loaded.summary(2, n=50)) == str(result.summary(2, n=50))
    assert loaded.diagnose(3, 200).ok == result.diagnose(3, 200).ok
    assert loaded.predict(4, y, n=3)["y"].shape == (3, 6)


def test_results_are_saved_and_loaded(tmp_path):
    result = fit(**AUTO, restarts=2)
    result.save(tmp_path / "fit.legrad")
    guide = legrad.MeanField(small_fit.model)
    loaded = legrad.load(tmp_path / "fit.legrad", small_fit.model, guide, args=(small_fit.Y,))
    assert same(numbers(loaded), numbers(result))
    assert (loaded.status, loaded.converged, loaded.steps) == (result.status, result.converged, result.steps)
    assert str(loaded.phases) == str(result.phases)  # a NaN is not equal to itself
    assert len(loaded.restarts) == 2
    key = jax.random.key(3)
    np.testing.assert_array_equal(loaded.sample(key, 5)["z"], result.sample(key, 5)["z"])
    loaded.plot(tmp_path / "fit.png")
    alone = legrad.load(tmp_path / "fit.legrad")
    assert same(numbers(alone), numbers(result))
    with pytest.raises(ValueError, match=r"loaded without its guide.*legrad.load\("):
        alone.sample(key)
    (tmp_path / "fit.legrad").write_bytes((tmp_path / "fit.legrad").read_bytes()[:-5])
    with pytest.raises(ValueError, match="is damaged"):
        legrad.load(tmp_path / "fit.legrad")
    fit(steps=2, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="is not a result but a 'checkpoint'"):
        legrad.load(tmp_path / "checkpoint.legrad")


def test_a_result_is_loaded_only_with_its_own_model_and_guide(tmp_path):
    result = small_fit.fit(steps=5)
    path = tmp_path / "fit.legrad"
    result.save(path)

    def guide_of(**shapes):
        def guide(y):
            for name, shape in shapes.items():
                numpyro.param(name, jnp.zeros(shape))

        return guide

    def other(y):
        small_fit.model(y)
        numpyro.sample("w", dist.Normal(0.0, 1.0))

    own = {name: np.shape(value) for name, value in result.params.items()}
    z = next(name for name, shape in own.items() if shape)
    load = partial(legrad.load, path, args=(small_fit.Y,))
    load(small_fit.model, guide_of(**own))
    with pytest.raises(ValueError, match=r"fit\.legrad' is not of this model and guide: it has no parameter 'w_loc'"):
        load(other, legrad.MeanField(other))
    with pytest.raises(ValueError, match=f"it has a parameter '{z}', which they do not have.*pass the model"):
        load(small_fit.model, guide_of(**{k: v for k, v in own.items() if k != z}))
    with pytest.raises(ValueError, match=rf"'{z}' has the shape \(8,\) in it, and \(9,\) here"):
        load(small_fit.model, guide_of(**own | {z: (9,)}))
    with pytest.raises(ValueError, match="no parameter 'w_loc'"):
        load(guide=legrad.MeanField(other))
    later = legrad.load(path, other, legrad.MeanField(other))  # without data there is nothing to compare yet
    with pytest.raises(ValueError, match="no parameter 'w_loc'"):
        later.with_args(small_fit.Y)
    right = legrad.load(path, small_fit.model, legrad.MeanField(small_fit.model)).with_args(small_fit.Y)
    key = jax.random.key(1)
    np.testing.assert_array_equal(right.sample(key, 3)["z"], result.sample(key, 3)["z"])


def test_a_file_of_a_newer_version_says_so(tmp_path):
    path = tmp_path / "fit.legrad"
    small_fit.fit(steps=5).save(path)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"legrad 1 ", b"legrad 12 ", 1))
    with pytest.raises(
        ValueError, match=r"newer version of legrad \(format 12; this version reads up to 1\): upgrade"
    ):
        legrad.load(path)
    path.write_bytes(content.replace(b"legrad 1 ", b"legrad x ", 1))
    with pytest.raises(ValueError, match="not a file that legrad wrote"):
        legrad.load(path)
