"""The site: a strict build of its pages, and the cells of its tutorials with what their text claims.

`make docs`, which CI runs too, builds the same pages with all cells and examples executed.
"""

import importlib
import pickle
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

DOCS = Path(__file__).parents[2] / "docs"
CELL = re.compile(r"```\{code-cell\} ipython3\n(.*?)```", re.DOTALL)
CLAIMS = {
    "start": lambda v: (
        v["result"].converged
        and "z summed out" in v["result"].method
        and v["fitted"].converged
        and np.abs(v["draws"].mean(0) - np.asarray(v["target"][:3])).max() < 1.5
    ),
    "tutorials/discrete_latents": lambda v: (
        np.abs(v["corrected"] - v["exact"]).max() < 0.01
        and v["result"].khat(3) < 0.7
        and v["table"].rows["LeGrad"].variance
        < min(r.variance for n, r in v["table"].rows.items() if n != "LeGrad") / 10
    ),
    "tutorials/from_numpyro": lambda v: (
        np.abs(v["draws"]["mu"].mean(0) - np.array([-4.0, 0.0, 4.0])).max() < 0.6
        and v["runs"]["LocalExpectation"].losses[-200:].mean() < v["runs"]["TraceGraph_ELBO"].losses[-200:].mean()
        and v["result"].converged
    ),
    "tutorials/from_pyro_and_pymc": lambda v: 35 <= np.median(v["draws"]["change"]) <= 45,
    "tutorials/minibatches": lambda v: (
        v["same"].max(1).min() > 0.7
        and np.abs(v["fitted"].params["slope_loc"] - np.array([1, -0.5, 0.2])).max() < 0.05
    ),
    "tutorials/is_my_fit_right": lambda v: (
        not v["narrow"].diagnose(1).ok
        and v["narrow"].khat(2) < 0.7
        and v["result"].diagnose(1).ok
        and v["both"].other_modes
        and "too narrow" in str(v["found"])
    ),
}


def test_every_page_with_cells_has_its_claims():
    pages = {str(p.relative_to(DOCS).with_suffix("")) for p in DOCS.rglob("*.md") if CELL.search(p.read_text())}
    assert pages == set(CLAIMS)


def test_the_workflow_builds_the_site():
    root = DOCS.parent
    assert "make docs" in (root / ".github" / "workflows" / "docs.yml").read_text()
    assert "sphinx -W" in (root / "Makefile").read_text()


def test_the_configuration_can_be_kept_in_a_file(monkeypatch):
    """Sphinx pickles it, and warns of a function in it; the one that it names must be found by its name."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "")
    settings = runpy.run_path(str(DOCS / "conf.py"))["sphinx_gallery_conf"]
    assert pickle.loads(pickle.dumps(settings)) == settings
    module, function = settings["reset_modules"][-1].split(".")
    monkeypatch.syspath_prepend(DOCS)
    assert callable(getattr(importlib.import_module(module), function))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CLAIMS)
def test_claims(name, capsys):
    import matplotlib.pyplot as plt

    values = {"__name__": "__main__"}
    for number, cell in enumerate(CELL.findall((DOCS / f"{name}.md").read_text())):
        code = "\n".join(line for line in cell.splitlines() if not line.startswith(":"))
        exec(compile(code, f"{name}, cell {number}", "exec"), values)
    plt.close("all")
    assert CLAIMS[name](values), capsys.readouterr().out


@pytest.mark.long
def test_a_strict_build_of_all_pages(tmp_path):
    """Cells and examples are not run here; links, the reference and the table of contents are checked."""
    pytest.importorskip("sphinx_gallery", reason="the site needs the extra 'docs'")
    root = DOCS.parent
    shutil.copytree(DOCS, tmp_path / "docs", ignore=shutil.ignore_patterns("gallery", "__pycache__"))
    shutil.copytree(root / "examples", tmp_path / "examples")
    for name in ("CHANGELOG.md", "CONTRIBUTING.md"):
        shutil.copy(root / name, tmp_path)
    (tmp_path / "src").symlink_to(root / "src")
    fast = ["-D", "plot_gallery=0", "-D", "nb_execution_mode=off", "-D", "suppress_warnings=myst-nb.lexer"]
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-b", "html", *fast]
    found = subprocess.run([*command, tmp_path / "docs", tmp_path / "site"], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr[-3000:]
    for page in ("index", "how_it_works", "sharp_bits", "gallery/index", "api/fit", *CLAIMS):
        assert (tmp_path / "site" / f"{page}.html").exists(), page
