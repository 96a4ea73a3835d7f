"""The report: one page that needs nothing else, and strict JSON beside it."""

import builtins
import dataclasses
import errno
import getpass
import json
import math
import os
import platform
import re
from html.parser import HTMLParser
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from browser import check_page
from legrad.experiments import report, style, symbols
from legrad.experiments.section import Claim, Picture, Section, Table

matplotlib = pytest.importorskip("matplotlib", reason="the report needs matplotlib")
figures = pytest.importorskip("matplotlib.figure")
pytest.importorskip("jinja2", reason="the report needs jinja2")

AWKWARD = '<b>&"quoted"\' </script> σ² ≤ 10⁻³, naïve, 変分, ' + "pneumono" * 20
COMMAND = "legrad reproduce all --quick --out out"


def draw():
    figure = figures.Figure(figsize=(7, 3), layout="constrained")
    for axes in figure.subplots(1, 2):
        for i, (name, colour) in enumerate(style.COLOURS.items()):
            axes.plot([0, 1], [i, i + 1], color=colour, linestyle=style.LINES[name], label=name)
        axes.set(xlabel="step", title="σ²", yscale="symlog")
    axes.legend()
    return figure


def sections():
    @dataclasses.dataclass
    class Nested:
        path: Path = Path.home() / "data"
        values: tuple = (np.float32(0.5), np.inf)

    one = Section(
        name="gaussian",
        title="Gaussian <em> & co",
        headline="It has\n less noise.",
        text="First.\n\nSecond\nwith a line.\n \n\nThird: " + AWKWARD,
        claims=[
            Claim("G1", AWKWARD, "0.1 < 0.2 & more " + AWKWARD, np.True_, "legrad reproduce gaussian --out 'a b'"),
            Claim("G2", "b", "m", jnp.array(False), "legrad reproduce gaussian", short="b", number="mu_1 < -1"),
        ],
        pictures=[
            Picture("variance", AWKWARD, draw),
            Picture("small-1.0", "small", lambda: figures.Figure(figsize=(3, 2))),
        ],
        tables=[
            Table("Times " + AWKWARD, tuple("abcdefg"), [("x", "1", "−2.5", "3 ± 1", "—", AWKWARD, "7")], "note <i>"),
        ],
        settings={"steps": np.int64(3), "rate": 1e-3, "bad": math.nan, "array": jnp.arange(3.0), "nested": Nested()},
        data="made up <here>",
    )
    two = Section("sbn", "Sigmoid belief network", "", [Claim("S1", "c", "not run", None, "legrad reproduce sbn")])
    return [one, two]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    out = tmp_path_factory.mktemp("report") / "new" / "out"
    before = dict(matplotlib.rcParams)
    page = report.write(out, sections(), command=COMMAND, quick=True, seconds=np.float64(192.4))
    assert dict(matplotlib.rcParams) == before
    assert page == out / "index.html"
    return page


def results(page):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(page.with_name("results.json").read_text(encoding="utf-8"), parse_constant=refuse)


class Page(HTMLParser):
    """All elements with their attributes, and the text."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.text = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def test_results(written):
    found = results(written)
    assert [c["id"] for c in found["claims"]] == ["G1", "G2", "S1"]
    assert [c["holds"] for c in found["claims"]] == [True, False, None]
    assert list(found["claims"][0]) == ["id", "claim", "measured", "holds", "command", "ours", "short", "number"]
    assert found["claims"][0]["claim"] == AWKWARD
    nested = {"path": "~/data", "values": [0.5, "inf"]}
    expected = {"steps": 3, "rate": 1e-3, "bad": "nan", "array": [0.0, 1.0, 2.0], "nested": nested}
    assert found["settings"] == {"gaussian": expected, "sbn": {}}
    assert found["data"] == {"gaussian": "made up <here>", "sbn": ""}
    assert found["tables"][0]["section"] == "gaussian"
    assert found["tables"][0]["rows"][0][2] == "−2.5"
    assert (found["command"], found["quick"], found["seconds"]) == (COMMAND, True, 192.4)
    assert {"python", "legrad", "jax", "jaxlib", "numpyro", "optax", "numpy", "matplotlib"} <= set(found["versions"])
    assert found["machine"]["cores"] >= 1


def test_the_machine_has_no_name(written):
    machine = json.dumps(results(written)["machine"])
    for secret in (platform.node(), getpass.getuser(), str(Path.home())):
        assert not re.search(rf"(?<!\w){re.escape(secret)}(?!\w)", machine), machine


def test_the_page_needs_nothing_else(written):
    page = Page(written.read_text(encoding="utf-8"))
    addresses = [
        v for _, a in page.elements for k, v in a.items() if k in ("src", "href", "srcset", "poster", "action")
    ]
    assert addresses
    assert all(a.startswith(("data:", "#")) for a in addresses), [a[:80] for a in addresses]
    assert not {"script", "iframe", "object", "embed", "base"} & {tag for tag, _ in page.elements}
    assert not re.search(r"url\(|@import", written.read_text(encoding="utf-8"))
    ids = [a["id"] for _, a in page.elements if "id" in a]
    assert len(ids) == len(set(ids))
    assert {a[1:] for a in addresses if a.startswith("#")} <= set(ids)


def test_the_page_says_it(written):
    page = Page(written.read_text(encoding="utf-8"))
    assert "1 of the 3 claims of the paper was reproduced; 1 was not measured at this size." in page.text
    assert "Not reproduced: “b”" in page.text
    assert "It has less noise." in page.text
    assert "3 min 12 s" in page.text
    assert "This is the quick size" in page.text
    assert "path: ~/data; values: 0.5, inf" in page.text
    assert "Figure 2." in page.text
    assert "Table 1." in page.text
    assert AWKWARD in page.text
    assert not [tag for tag, _ in page.elements if tag in ("b", "i", "em")], "text became elements"
    assert [a["alt"] for tag, a in page.elements if tag == "img"] == [AWKWARD, "small"]
    assert all("scope" in a for tag, a in page.elements if tag == "th")
    assert ("html", {"lang": "en"}) in page.elements
    assert sorted(p.name for p in (written.parent / "figures").iterdir()) == ["small-1.0.png", "variance.png"]
    assert not list(written.parent.rglob("*.part"))


@pytest.mark.long
def test_the_page_in_a_browser(written):
    check_page(written, results(written)["claims"])


def test_a_full_run_says_so(tmp_path):
    page = report.write(tmp_path, sections()[1:], command="c\udcff", quick=False, seconds=4000)
    text = page.read_text(encoding="utf-8")
    assert "quick size" not in text
    assert "1 h 06 min" in text
    report.write(tmp_path, [], command="c", quick=False, seconds=0.5)  # replaces, and needs no section
    assert "No claims were checked." in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("verdicts", "words"),
    [
        ([True] * 12, "All 12 claims of the paper were reproduced"),
        (
            [True, True, False, False, None, None],
            "2 of the 6 claims of the paper were reproduced; 2 were not measured at this size",
        ),
        ([None], "The paper's claim was not measured at this size"),
    ],
)
def test_the_summary_is_a_sentence(verdicts, words):
    assert report.summary([Claim(str(i), "", "", v, "") for i, v in enumerate(verdicts)]) == words


def test_names_are_used_once(tmp_path):
    one, two = sections()
    for change, name in [
        (dataclasses.replace(two, claims=[one.claims[1]]), "claim 'G2'"),
        (dataclasses.replace(two, name="gaussian"), "section 'gaussian'"),
        (dataclasses.replace(two, pictures=[Picture("Variance", "", draw)]), "picture 'variance'"),
    ]:
        with pytest.raises(ValueError, match=name):
            report.write(tmp_path / "out", [one, change], command="", quick=True, seconds=1)
    assert not (tmp_path / "out").exists()


def test_a_picture_that_fails_leaves_the_numbers(tmp_path):
    section = dataclasses.replace(sections()[1], pictures=[Picture("p", "c", lambda: 1 / 0)])
    with pytest.raises(ZeroDivisionError):
        report.write(tmp_path, [section], command="", quick=True, seconds=1)
    assert results(tmp_path / "index.html")["claims"][0]["id"] == "S1"


@pytest.mark.parametrize("below", ["", "deeper/out"])
def test_a_file_in_the_way(tmp_path, below):
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(report.ReportError, match=r"taken.* file.*--out"):
        report.prepare(tmp_path / "taken" / below)
    assert (tmp_path / "taken").read_text() == "mine"


def test_a_directory_in_the_way(tmp_path):
    (tmp_path / "index.html").mkdir()
    with pytest.raises(report.ReportError, match=r"index.html: .*a directory is in the way"):
        report.write(tmp_path, sections()[1:], command="", quick=True, seconds=1)


@pytest.mark.parametrize(
    ("code", "step"),
    [(errno.ENOSPC, "free some space"), (errno.EROFS, "may write to"), (errno.EACCES, "may write to")],
)
def test_a_disk_that_refuses(tmp_path, monkeypatch, code, step):
    report.write(tmp_path, sections()[1:], command="old", quick=True, seconds=1)

    def refuse(part, path):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(report.ReportError, match=f"{re.escape(str(tmp_path))}: .*{step}") as caught:
        report.write(tmp_path, sections()[1:], command="new", quick=True, seconds=1)
    assert caught.value.errno == code
    assert results(tmp_path / "index.html")["command"] == "old"
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_a_missing_package(tmp_path, monkeypatch, package):
    real = builtins.__import__

    def without(name, *rest):
        if name.partition(".")[0] == package:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=re.escape(f"{package}: pip install 'legrad[experiments]'")):
        report.write(tmp_path, [], command="", quick=True, seconds=1)


def test_sections_refuse_what_a_page_cannot_show():
    with pytest.raises(TypeError, match="claim A1: `holds` is 0.5"):
        Claim("A1", "", "", 0.5, "")
    with pytest.raises(ValueError, match="becomes a file"):
        Picture("../up", "", draw)
    with pytest.raises(ValueError, match="table 't': a row has 1 cells, the header 2"):
        Table("t", ("a", "b"), [("1",)])


def test_any_setting_becomes_json():
    odd = {"f": draw, "key": jax.random.key(3), (1, 2): {3, 1}, "o": object(), "t": np.dtype("f4"), "c": jnp.int32}
    found = report.plain({**odd, "nan": np.array([[np.nan, -np.inf]])})
    expected = {"f": "draw", "key": [0, 3], "[1, 2]": [1, 3], "o": "<object object>", "t": "float32", "c": "int32"}
    assert found == {**expected, "nan": [["nan", "-inf"]]}


def luminance(colour):
    channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4) @ [
        0.2126,
        0.7152,
        0.0722,
    ]


@pytest.mark.parametrize("palette", [style.LIGHT, style.DARK])
def test_colours_are_legible(palette):
    def contrast(colour, paper):
        low, high = sorted((luminance(colour), luminance(paper)))
        return (high + 0.05) / (low + 0.05)

    assert all(contrast(colour, palette.paper) >= 3 for colour in style.COLOURS.values())
    for paper in (palette.paper, palette.panel):
        words = (palette.ink, palette.muted, palette.link, palette.good, palette.bad)
        assert all(contrast(colour, paper) >= 4.5 for colour in words)
    assert set(style.LINES) == set(style.COLOURS)


def test_what_the_paper_does_not_say_is_counted_apart():
    def claim(name, holds, **more):
        return Claim(name, "it is so", "it was 3", holds, "legrad", **more)

    claims = [claim("a", True), claim("b", False, criterion="it is 4"), claim("c", False, ours=True)]
    assert claims[1].measured == "it was 3. (Counts as holding if it is 4.)"
    assert claims[2].claim == "Not in the paper: it is so"
    assert (
        report.summary(claims)
        == "1 of the 2 claims of the paper was reproduced. Answers to 1 question that the paper leaves open: 1 no"
    )
    section = Section(name="s", title="Two digits", text="", claims=claims)
    assert report.missed([section]) == [("it is so", "Two digits")]


def test_pictures_come_first_and_prose_is_folded(written):
    """The first figure of a section, then the claims, and what is long behind a fold."""
    text = written.read_text(encoding="utf-8")
    figure, claims, more = (text.index(mark) for mark in ('id="figure-1"', 'id="claims"', 'id="more"'))
    assert figure < claims < more < text.index('id="figure-2"')
    outside = re.sub(r"<details.*?</details>", "", text, flags=re.DOTALL)
    assert "Measured:" in text
    assert not any(word in outside for word in ("Measured:", 'id="table-1"', "Settings"))


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("log l_i² of mu_1", "log <var>ℓ</var><sub><var>i</var></sub>² of <var>μ</var><sub>1</sub>"),
        ("1/Λ_ii to 7.2e-05%", '1/<var class="upright">Λ</var><sub><var>ii</var></sub> to 7.2 × 10<sup>−5</sup>%'),
        ("n(K−1)+1, 2K − 1", "<var>n</var>(<var>K</var>−1)+1, 2<var>K</var> − 1"),
        ("from -329 to 10^7", "from −329 to 10<sup>7</sup>"),
        ("LeGrad's q <b>", "LeGrad&#x27;s <var>q</var> &lt;b&gt;"),
        ("full, p.m., l.txt, --layers 6, 5-10, a/f", "full, p.m., l.txt, --layers 6, 5-10, a/f"),
    ],
)
def test_symbols_are_typeset(text, html):
    assert symbols.typeset(text) == html


@pytest.mark.parametrize(
    ("value", "words"), [(0.0, "0"), (1460.4, "1,460"), (-97.44, "−97.4"), (0.0172, "0.0172"), (2e-7, "2e-07")]
)
def test_numbers_are_written_out(value, words):
    assert symbols.number(value) == words
