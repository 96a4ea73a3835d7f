"""The command line as people type it: what it writes, what it says about bad input, and its exit codes."""

import itertools
import json
import re

import numpy as np
import pandas as pd
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from legrad import cli
from legrad.commands import program, select, table
from legrad.commands.output import CommandError

MODELS = """
import numpyro
import numpyro.distributions as dist


def line(age, y):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(b * age, 0.5), obs=y)


def spike(X, y):
    with numpyro.plate("features", X.shape[1]):
        included = numpyro.sample("included", dist.Bernoulli(0.2))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Normal(X @ included, 0.5), obs=y)


def counts(age, y):
    numpyro.sample("b", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Poisson(2.0), obs=y)


def branch(y):
    z = numpyro.sample("z", dist.Normal(0.0, 1.0))
    if z > 0:
        numpyro.sample("y", dist.Normal(z, 1.0), obs=y)


notes = "no model"
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models.py").write_text(MODELS)
    rng = np.random.default_rng(0)
    age, shoe = rng.normal(size=(2, 40))
    y = 1.0 * age + 0.5 * rng.normal(size=40)
    lines = [f"{a:.4f},{s:.4f},{v:.4f}" for a, s, v in zip(age, shoe, y, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["age,shoe,y", *lines]) + "\n")
    return tmp_path


def said(capsys, *words):
    code = cli.main([str(word) for word in words])
    both = capsys.readouterr()
    return code, both.out, both.err


@pytest.mark.long
def test_fit_writes_everything(here, capsys):
    code, out, _ = said(capsys, "fit", "models.py:line", "--data", "t.csv", "--out", "o")
    assert code in (0, 3)
    assert "data: age (40); y (40)" in out
    assert "no problem found" in out or code == 3
    files = {path.name for path in (here / "o").iterdir()}
    assert {"index.html", "summary.csv", "result.json", "fit.legrad", "fit.png", "posterior.nc"} <= files
    found = json.loads((here / "o" / "result.json").read_text())
    age, y = np.genfromtxt("t.csv", delimiter=",", skip_header=1)[:, [0, 2]].T
    precision = 1 + age @ age / 0.25  # the posterior of b is Normal
    (row,) = found["summary"]
    assert row["mean"] == pytest.approx((age @ y / 0.25) / precision, abs=5 * precision**-0.5 / np.sqrt(4000))
    assert row["sd"] == pytest.approx(precision**-0.5, rel=0.1)
    page = (here / "o" / "index.html").read_text()
    assert not re.search(r'(src|href)="(?!data:)', page)  # nothing outside of the page
    assert "data:image/png" in page
    assert page.split("<h2>Summary</h2>")[1].startswith("<div class='scroll'>")  # not the page


@pytest.mark.long
def test_fit_with_steps_resumes_and_prints_json(here, capsys):
    words = ["fit", "models.py:spike", "--data", "t.csv", "--guide", "meanfield", "--out", "o", "--json", "--quiet"]
    code, out, _ = said(capsys, *words)
    found = json.loads(out)
    names = [row["latent"] for row in found["summary"]]
    assert names == ["included[age]", "included[shoe]"]
    assert found["summary"][0]["P(1)"] > 0.95
    assert found["summary"][1]["P(0)"] > 0.95
    assert code == (0 if found["ok"] else 3)
    assert (here / "o" / "checkpoint" / "checkpoint.legrad").exists()
    again = json.loads(said(capsys, *words)[1])
    assert again["summary"] == found["summary"]


@pytest.mark.long
def test_compare(here, capsys):
    words = [
        "compare",
        "models.py:spike",
        "--data",
        "t.csv",
        "--out",
        "o",
        "--steps",
        "20",
        "--draws",
        "20",
        "--json",
    ]
    code, out, _ = said(capsys, *words, "--estimators", "LeGrad", "ReGrad", "LdGrad")
    found = json.loads(out)
    assert code == 0
    assert set(found["estimators"]) == {"LeGrad", "LdGrad"}
    assert "discrete" in found["left_out"]["ReGrad"]
    assert found["estimators"]["LeGrad"]["variance"] < found["estimators"]["LdGrad"]["variance"]
    assert "LeGrad" in (here / "o" / "index.html").read_text()


# --- select ------------------------------------------------------------------------------------------------------


def enumerated(X, y, prior):
    """The probabilities of inclusion by a sum over all subsets, and over a grid of the noise."""
    grid = np.linspace(0.02, 3.0, 150)
    log_p = {}
    for subset in itertools.product([0, 1], repeat=X.shape[1]):
        chosen = X[:, np.array(subset, bool)]
        cov = 4.0 + chosen @ chosen.T
        parts = [multivariate_normal(cov=s**2 * np.eye(len(y)) + cov).logpdf(y) - s**2 / 2 for s in grid]
        log_p[subset] = logsumexp(parts) + sum(np.log(prior if i else 1 - prior) for i in subset)
    total = logsumexp(list(log_p.values()))
    return np.sum([np.exp(v - total) * np.array(k) for k, v in log_p.items()], axis=0)


def test_select_finds_what_enumeration_finds(here, capsys):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(40, 3))
    y = X @ np.array([1.0, 0.0, 0.22]) + 0.7 * rng.normal(size=40)
    np.savez("t.npz", a=X[:, 0], b=X[:, 1], c=X[:, 2], same=np.ones(40), y=y)
    code, out, err = said(capsys, "select", "t.npz", "--target", "y", "--out", "o", "--json", "--quiet",
                          "--restarts", "1")  # fmt: skip
    assert "column 'same' is the same in every row and is left out" in err
    found = {row["column"]: row["probability"] for row in json.loads(out)["columns"]}
    standard = (X - X.mean(0)) / X.std(0)
    exact = enumerated(standard, (y - y.mean()) / y.std(), 0.2)
    assert exact[0] > 0.99
    np.testing.assert_allclose([found[name] for name in "abc"], exact, atol=0.01)
    assert {path.name for path in (here / "o").iterdir()} >= {"selection.csv", "selection.png", "index.html"}
    assert code == 0


def test_the_target_and_its_family(here):
    text = table.Table(here, {"y": np.array(["no", "yes", "no"], object), "n": np.array([0, 1, 2])})
    y, family, words = select.target_of(text, "y", "auto")
    assert (y.tolist(), family) == ([0.0, 1.0, 0.0], "bernoulli")
    assert "1 for 'yes'" in words
    assert select.target_of(text, "n", "auto")[1] == "gaussian"
    with pytest.raises(CommandError, match="row 3, column 'n': 2 is not 0 or 1, which --family bernoulli needs"):
        select.target_of(text, "n", "bernoulli")
    constant = table.Table(here, {"y": np.ones(3), "t": np.array(["a", "b", "c"], object)})
    with pytest.raises(CommandError, match="is 1 in every row: there is nothing to explain"):
        select.target_of(constant, "y", "auto")
    with pytest.raises(CommandError, match="column 't' is text with 3 values"):
        select.target_of(constant, "t", "auto")
    with pytest.raises(CommandError, match="has no column besides 'y'"):
        select.features_of(constant.without(["t"]), "y")


# --- bad input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no rows"),
        ("a,b\n", "holds no rows"),
        ("a,a\n1,2\n", "several columns 'a'"),
        ("a,\n1,2\n", "a column without a name"),
        ("1,2\n3,4\n", "begins with numbers .*names above them"),
        ("a;b\n1;2\n", "separated by semicolons: save it with commas"),
        ("a,b\n1,2\n1\n", "row 2: 1 values for 2 columns"),
    ],
)
def test_bad_tables(tmp_path, text, words):
    (tmp_path / "bad.csv").write_text(text)
    with pytest.raises(CommandError, match=f"bad.csv.*{words}"):
        table.read_table(tmp_path / "bad.csv")


def test_types_and_missing_values(tmp_path):
    (tmp_path / "t.csv").write_text("a,b,c\n1,0.5,x\n2,NA,y\n3,,x\n")
    found = table.read_table(tmp_path / "t.csv")
    assert found.columns["a"].dtype.kind == "i"
    np.testing.assert_array_equal(found.columns["b"], [0.5, np.nan, np.nan])
    with pytest.raises(
        CommandError,
        match=r"t.csv, row 2, column 'b': the value is missing \(2 of 3 rows have .*--drop-mis",
    ):
        found.numbers("b", "")
    with pytest.raises(CommandError, match="t.csv, row 1, column 'c': 'x' is not a number.*--drop c"):
        found.numbers("c", "")
    with pytest.raises(CommandError, match=r"has no column 'd' \(--target\): its columns are a, b, c"):
        found.column("d", "--target")
    complete, lost = found.complete()
    assert (lost, complete.columns["a"].tolist()) == (2, [1])


def test_parquet(tmp_path):
    pytest.importorskip("pyarrow", reason="parquet files need pyarrow")
    frame = pd.DataFrame({"a": [1, 2], "b": [0.5, np.nan], "c": ["x", None]})
    frame.assign(d=pd.array([1, None], dtype="Int64")).to_parquet(tmp_path / "t.parquet")
    found = table.read_table(tmp_path / "t.parquet").columns
    assert found["a"].tolist() == [1, 2]
    assert found["c"].tolist() == ["x", None]
    np.testing.assert_array_equal(found["b"], [0.5, np.nan])
    np.testing.assert_array_equal(found["d"], [1, np.nan])


def test_files_that_are_no_tables(tmp_path):
    for name, content in (
        ("t.npz", b"nothing"),
        ("t.csv", b"\xff\xfe\x00"),
        ("t.xlsx", b""),
        ("t.parquet", b"no"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(CommandError, match=name):
            table.read_table(tmp_path / name)
    np.save(tmp_path / "one.npy", np.ones(3))
    (tmp_path / "one.npy").rename(tmp_path / "one.npz")
    with pytest.raises(CommandError, match=r"one array, not an npz file: save it with np.savez"):
        table.read_table(tmp_path / "one.npz")
    np.savez(tmp_path / "text.npz", a=np.array(["x"]))
    with pytest.raises(CommandError, match="array 'a' is .*not numbers"):
        table.read_table(tmp_path / "text.npz")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fit", "nowhere.py:m", "--data", "t.csv"], "nowhere.py does not exist"),
        (["fit", "models.py", "--data", "t.csv"], "write FILE.py:FUNCTION"),
        (["fit", "models.py:lime", "--data", "t.csv"], "has no function 'lime': did you mean models.py:line"),
        (["fit", "models.py:notes", "--data", "t.csv"], "is a str, not a function"),
        (["fit", "broken.py:m", "--data", "t.csv"], r"broken.py does not run: NameError.*\(line 2\)"),
        (["fit", "models.py:line", "--data", "u.csv"], "u.csv does not exist"),
        (
            ["fit", "models.py:line", "--data", "t.csv", "--drop", "y"],
            "argument 'y' has no column in t.csv",
        ),
        (["fit", "models.py:spike", "--data", "t.csv", "--arg", "X=age,hat"], "has no column 'hat'"),
        (["fit", "models.py:spike", "--data", "t.csv", "--arg", "Z=age"], "the model has no argument 'Z'"),
        (["fit", "models.py:spike", "--arg", "X=age"], "name it with --data FILE"),
        (["fit", "models.py:spike"], "the model models.py:spike takes X, y: name a table .*--data FILE"),
        (["fit", "leaves.py:m", "--data", "t.csv"], "leaves.py does not run: SystemExit: 7"),
        (["fit", "models.py:spike", "--data", "l.npz"], "'a' has 4 rows, 'b' has 3: give columns of one length"),
        (["fit", "models.py:spike", "--data", "l.npz", "--drop", "b", "--drop", "n"], "row 2, .*'a'.* is infinite"),
        (["fit", "models.py:line", "--data", "e.npz"], "e.npz, array 'age' is empty"),
        (
            ["select", "l.npz", "--target", "y", "--drop", "m", "--drop", "n", "--drop", "a"],
            "'y' has 4 rows, 'b' has 3: give columns of one",
        ),
        (["select", "l.npz", "--target", "m", "--drop", "a"], "array 'm' has 2 axes"),
        (["fit", "models.py:counts", "--data", "t.csv"], "models.py:counts: the data of site 'y' is .* of Poisson"),
        (["fit", "models.py:branch", "--data", "t.csv"], r"models.py, line \d+ \(`if z > 0:`\)"),
        (["select", "t.csv", "--target", "size"], r"has no column 'size' \(--target\): its columns are age, shoe, y"),
        (["select", "t.csv", "--target", "y", "--out", "t.csv"], "--out t.csv: .*choose another folder"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(here, capsys, words, message):
    (here / "broken.py").write_text("x = 1\nundefined\n")
    (here / "leaves.py").write_text("raise SystemExit(7)\n")
    np.savez("l.npz", a=np.array([0.0, np.inf, 1.0, 2.0]), b=np.arange(3), m=np.eye(4), y=np.arange(4.0), n=3)
    np.savez("e.npz", age=np.empty(0), y=np.ones(3))
    code, _, err = said(capsys, *words)
    assert code == 1
    assert re.search(message, err), err
    assert "Traceback" not in err
    assert err.startswith("legrad: ")


def test_usage_errors_have_their_own_code(capsys):
    for words in (
        ["fit"],
        ["select", "t.csv"],
        ["fit", "m.py:m", "--steps", "0"],
        ["select", "t.csv", "--prior", "2"],
    ):
        with pytest.raises(SystemExit) as ended:
            cli.main(words)
        assert ended.value.code == 2
    capsys.readouterr()


def test_arguments_take_the_columns_of_their_names(here):
    data = table.read_table(here / "t.csv")

    def model(X, y, scale=2.0):
        pass

    bound = program.bind(model, data)
    assert list(bound.kwargs) == ["X", "y"]
    assert bound.kwargs["X"].shape == (40, 2)
    assert bound.names[0].values == ("age", "shoe")
    chosen = program.bind(model, data, ["X=shoe"])
    np.testing.assert_array_equal(chosen.kwargs["X"][:, 0], data.columns["shoe"])

    def two(A, B, y):
        pass

    with pytest.raises(CommandError, match="argument 'A' has no column in .*t.csv.*--arg A=column,column"):
        program.bind(two, data)
    with pytest.raises(CommandError, match=r"takes \*args, which have no names"):
        program.bind(lambda *args: None, data)
