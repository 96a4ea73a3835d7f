"""`legrad reproduce`: whole runs at the smallest sizes, stages that are kept, and what goes wrong."""

import errno
import json
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import numpy as np
import pytest

import browser

pytest.importorskip("jinja2", reason="the experiments need legrad[experiments]")
pytest.importorskip("mlxtend", reason="the experiments need legrad[experiments]")

from legrad import cli
from legrad.experiments import datasets, gaussian, logistic, method, reproduce, sbn, stages
from legrad.experiments.stages import StageError, Stages

PAPER = {
    "unbiased", "count", "degree", "theorem", "gaussian-order", "gaussian-10k", "gaussian-fit", "logistic-order",
    "logistic-bound", "sbn-fit", "sbn-ld",
}  # fmt: skip
HONEST = {"gaussian-window", "gaussian-equal-cost", "logistic-blank-pixel", "sbn-closed-form", "sbn-equal-time"}


@pytest.fixture(scope="module")
def digits():
    """Digits made by a seed, in the shape of MNIST."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(10), 6)
    images = (rng.random((60, 784)) < 0.1 + 0.02 * labels[:, None]) * rng.integers(1, 256, (60, 784))
    images[:, :40] = 0  # blank, as the corners of MNIST are
    return datasets.Digits(images.astype(np.uint8), labels, "digits made by a seed")


@pytest.fixture
def tiny(monkeypatch, digits):
    """All experiments at sizes that only show that they run."""
    monkeypatch.setattr(method, "QUICK", replace(method.QUICK, hidden=3, n=6, draws=300))
    monkeypatch.setattr(
        gaussian, "QUICK",
        replace(gaussian.QUICK, n=6, samples=50, many_samples=1000, steps=60, many_steps=30, fit_steps=200,
                kept=(0, 59), draws=50),
    )  # fmt: skip
    monkeypatch.setattr(
        logistic, "QUICK", replace(logistic.QUICK, samples=50, steps=40, ldgrad_steps=30, kept=(0, 20, 39), draws=20)
    )
    small = replace(sbn.QUICK, digits_per_class=3, batch=10, steps=(9, 12, 0, 9), seeds=1, early=1, variance_draws=4)
    monkeypatch.setattr(sbn, "QUICK", small)
    monkeypatch.setattr(datasets, "mnist", lambda data, embedded: digits)


@pytest.mark.long
def test_everything_in_one_report(tiny, tmp_path, capsys):
    """Every claim of the paper appears, deep nets too; a browser shows all of it; a second run keeps all stages."""
    words = ["reproduce", "all", "--quick", "--out", str(tmp_path), "--layers", "6", "4", "--digits", "2", "7"]
    assert cli.main(words) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    claims = {claim["id"]: claim for claim in results["claims"]}
    assert PAPER | HONEST | {"sbn-deep"} <= set(claims)
    for claim in claims.values():
        assert claim["holds"] in (True, False)
        assert "nan" not in claim["measured"]
    for certain in ("count", "degree", "sbn-closed-form"):  # true at any size
        assert claims[certain]["holds"], claims[certain]["measured"]
    assert not claims["logistic-blank-pixel"]["holds"]
    assert claims["sbn-fit"]["command"] == "legrad reproduce sbn --quick --layers 6 4"
    assert claims["logistic-order"]["command"] == "legrad reproduce logistic --quick --digits 2 7"
    assert results["settings"]["sbn"]["layers"] == [6, 4]
    assert set(results["data"]) == {"method", "gaussian", "logistic", "sbn"}
    assert {"jax", "numpyro", "legrad"} <= set(results["versions"])

    capsys.readouterr()
    assert cli.main(words) == 0
    printed = capsys.readouterr().out
    assert printed.count("kept from an earlier run") == len(list((tmp_path / "stages").glob("*.npz")))
    assert json.loads((tmp_path / "results.json").read_text())["claims"] == results["claims"]
    browser.check_page(tmp_path / "index.html", results["claims"])


@pytest.mark.long
def test_the_closed_form_is_the_estimator():
    rng = np.random.default_rng(1)
    Y = (rng.random((7, 30)) < 0.4).astype(np.int8)
    assert sbn.closed_form(Y, 5)["error"] < 1e-10


@pytest.mark.long
def test_the_check_of_the_closed_form_can_fail(monkeypatch):
    """A wrong gradient must be seen: half a percent too much."""
    rng = np.random.default_rng(1)
    Y = (rng.random((7, 30)) < 0.4).astype(np.int8)
    right = sbn.legrad.LocalExpectation.loss
    monkeypatch.setattr(sbn.legrad.LocalExpectation, "loss", lambda *args: 1.005 * right(*args))
    assert sbn.closed_form(Y, 5)["error"] > 1e-3


@pytest.mark.long
def test_the_bound_without_noise_is_the_mean_of_the_noisy_one(digits):
    s = replace(logistic.QUICK, prior_scale=0.7)
    args = logistic.inputs(s, digits)
    rng = np.random.default_rng(0)
    at = {"mu": 0.1 * rng.normal(size=785), "l": np.log(0.2) + 0.1 * rng.normal(size=785)}
    params = {"mu": at["mu"], "l": np.exp(at["l"])}
    loss = sbn.legrad.Reparameterized(2000).loss
    noisy = [-float(loss(jax.random.key(i), params, logistic.model, logistic.guide, *args)) for i in range(4)]
    exact = logistic.exact_bound(args, at)
    assert abs(np.mean(noisy) - exact) < 5 * np.std(noisy, ddof=1) / 2
    assert np.std(noisy) < 0.01 * abs(exact)


@pytest.mark.long
def test_quadrature_degrees_are_right_and_can_be_wrong(monkeypatch):
    found = method.degrees(method.QUICK)
    np.testing.assert_array_equal(found["degree"], 2 * found["K"] - 1)
    right = method.must_have_candidates
    monkeypatch.setattr(
        method,
        "must_have_candidates",
        lambda d, K, w: right(d, K, w)._replace(weights=right(d, K, w).weights * 1.001),
    )
    assert (method.degrees(method.QUICK)["degree"] < 2 * found["K"] - 1).any()


# --- stages -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Size:
    n: int = 3


def counting(calls, fail_at=None):
    def stage(name):
        def run(results, label):
            calls.append(name)
            if name == fail_at:
                raise KeyboardInterrupt
            return {"x": np.arange(3.0) + len(results)}

        return run

    return {name: stage(name) for name in ("first", "second", "third")}


def keeper(folder, lines=None, fresh=False):
    return Stages(folder, 3, fresh, (lines if lines is not None else []).append)


def test_an_interrupted_run_goes_on_where_it_was(tmp_path):
    calls, lines = [], []
    with pytest.raises(KeyboardInterrupt):
        keeper(tmp_path).run("e", counting(calls, fail_at="second"), Size(), ())
    again = keeper(tmp_path, lines)
    results = again.run("e", counting(calls), Size(), ())
    assert calls == ["first", "second", "second", "third"]
    assert lines == ["[1/3] e: first: kept from an earlier run"]
    np.testing.assert_array_equal(results["third"]["x"], [2.0, 3.0, 4.0])
    assert again.seconds > 0


def test_other_settings_data_or_fresh_run_again(tmp_path):
    calls, lines = [], []
    keeper(tmp_path).run("e", counting(calls), Size(), ())
    keeper(tmp_path).run("e", counting(calls), Size(4), ())
    assert len(calls) == 6
    keeper(tmp_path).run("e", counting(calls), Size(4), np.ones(2))
    keeper(tmp_path, fresh=True).run("e", counting(calls), Size(4), np.ones(2))
    assert len(calls) == 12
    keeper(tmp_path, lines).run("e", counting(calls), Size(), ())  # what was there first is still there
    assert len(calls) == 12
    assert all("kept from an earlier run" in line for line in lines)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"not an archive"])
def test_a_damaged_stage_runs_again(tmp_path, content):
    calls, lines = [], []
    keeper(tmp_path).run("e", counting(calls), Size(), ())
    (path,) = tmp_path.glob("e-second-*.npz")
    path.write_bytes(content or path.read_bytes()[:-30])
    keeper(tmp_path, lines).run("e", counting(calls), Size(), ())
    assert calls[3:] == ["second", "third"]  # what depends on it runs again too
    assert any(f"{path.name} cannot be read" in line for line in lines)


def test_a_file_in_the_place_of_another_is_not_taken(tmp_path):
    calls, lines = [], []
    keeper(tmp_path).run("e", counting(calls), Size(), ())
    (first,), (second,) = tmp_path.glob("e-first-*.npz"), tmp_path.glob("e-second-*.npz")
    first.write_bytes(second.read_bytes())
    keeper(tmp_path, lines).run("e", counting(calls), Size(), ())
    assert calls[3:] == ["first", "second", "third"]
    assert "is not what it was made as" in lines[0]


def test_a_full_disk_names_the_file_and_keeps_the_rest(tmp_path, monkeypatch):
    keeper(tmp_path).run("e", {"first": counting([])["first"]}, Size(), ())

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(stages.np, "savez", full)
    with pytest.raises(StageError, match=r"e-second-.*npz.*No space left.*another --out"):
        keeper(tmp_path).run("e", counting([]), Size(), ())
    assert [path.name.rsplit("-", 1)[0] for path in tmp_path.iterdir()] == ["e-first"]


# --- the command --------------------------------------------------------------------------------------------


def test_bad_input_is_told_in_one_line(tmp_path, capsys):
    assert cli.main(["reproduce", "sbn", "--data", str(tmp_path / "nowhere"), "--out", str(tmp_path / "out")]) == 1
    assert "nowhere" in capsys.readouterr().err
    assert cli.main(["reproduce", "logistic", "--digits", "3", "3", "--out", str(tmp_path)]) == 1
    assert "two different digits" in capsys.readouterr().err
    assert cli.main(["reproduce", "gaussian", "--layers", "20", "--out", str(tmp_path)]) == 1
    assert "--layers says nothing to the experiment 'gaussian'" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert cli.main(["reproduce", "gaussian", "--out", str(tmp_path / "file")]) == 1
    assert str(tmp_path / "file") in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["reproduce", "poisson"], "invalid choice"),
        (["reproduce", "logistic", "--digits", "1", "12"], "'12' is not a digit"),
        (["reproduce", "sbn", "--layers", "0"], "'0' is not a number of units"),
    ],
)
def test_bad_words(words, message, capsys):
    with pytest.raises(SystemExit):
        cli.main(words)
    assert message in capsys.readouterr().err


def test_help_and_version(capsys):
    assert cli.main([]) == 0
    assert "reproduce" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert "legrad 0." in capsys.readouterr().out


def test_interrupted_says_how_to_go_on(monkeypatch, tmp_path, capsys):
    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(reproduce, "reproduce", stop)
    assert cli.main(["reproduce", "gaussian", "--out", str(tmp_path)]) == 130
    assert "the same command goes on" in capsys.readouterr().out


@pytest.mark.long
def test_the_quick_run_takes_the_digits_of_the_install(monkeypatch, tmp_path):
    """So that `make demo` needs no network, whatever LEGRAD_DATA says; a directory that is named is used."""
    seen = []

    def mnist(data, embedded):
        seen.append((data, embedded))
        raise datasets.DataError("stop here")

    monkeypatch.setattr(datasets, "mnist", mnist)
    for words in (["--quick"], ["--quick", "--data", "there"], []):
        assert cli.main(["reproduce", "sbn", "--out", str(tmp_path), *words]) == 1
    assert seen == [(None, True), (Path("there"), False), (None, False)]
