"""The pages say what the code does."""

import importlib.util
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "name", ["distributions", "messages", "mnist", "paper", "peers", "scikit_learn", "solvers", "trust"]
)
def test_a_page_that_is_written_by_a_program_is_up_to_date(name):
    spec = importlib.util.spec_from_file_location(f"{name}_page", ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs" / f"{name}.md").read_text() == module.page(), f"run python docs/{name}.py"


def test_the_list_of_messages_leaves_out_what_nobody_is_told():
    text = (ROOT / "docs" / "messages.md").read_text()
    for message in (
        "decides in Python by the value of a latent, but a model is compiled",  # raised
        "not converged after …",  # a status
        "try a guide with the dependence between latents that this one lacks",  # a part of a diagnosis
        "a table of … numbers",  # what explain says, several functions away from where it is put together
        "rows lack a value and are left out",  # printed by a command
        "a classifier needs at least two",  # raised by an estimator for scikit-learn
    ):
        assert message in text, message
    for other in (
        "color-scheme", "<p class", "<table", "</tr>", "->", "\\w", "discrete sites|models",
        "variance, time and efficiency of each estimator", "gradient variance by parameter", "Fit a NumPyro model to",
    ):  # fmt: skip
        assert other not in text, other
    assert not any(line.startswith("## ") and line[3].islower() for line in text.splitlines()), "a bare folder"


def test_the_example_of_explain_is_up_to_date(capsys):
    runpy.run_path(str(ROOT / "docs" / "explain_example.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert printed in (ROOT / "docs" / "single_site.md").read_text(), printed


@pytest.mark.long
def test_the_readme_runs_as_it_stands(capsys):
    first = (ROOT / "README.md").read_text().split("```python\n")[1].split("```")[0]
    exec(compile(first, "README.md", "exec"), names := {})
    shares = names["result"].sample(0, 1000)["included"].mean(0)
    assert {int(j) for j in (shares > 0.5).nonzero()[0]} == {3, 8}
    assert "converged" in capsys.readouterr().out


def test_architecture_names_every_file():
    text = (ROOT / "docs" / "architecture.md").read_text()
    for path in (ROOT / "src" / "legrad").rglob("*.py"):
        if path.name != "__init__.py":
            assert path.name in text or f"`{path.parent.name}/`" in text, f"{path.name} is not on the map"


def test_no_file_is_long():
    for path in [*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]:
        assert len(path.read_text().splitlines()) <= 500, f"{path.name} has more than 500 lines"


@pytest.mark.long
def test_the_examples_of_marginalize_run(capsys, tmp_path):
    """All code of the page, in order, in one file; and what it prints is what the page shows."""
    text = (ROOT / "docs" / "marginalize.md").read_text()
    blocks = [part.split("```")[0] for part in text.split("```python\n")[1:]]
    *before, last = blocks
    exec(compile("\n".join(before), "before.py", "exec"), names := {})
    (file := tmp_path / "model.py").write_text(last)
    exec(compile(last, str(file), "exec"), names)
    assert names["found"].draws["z"].shape == names["path"].draws["z"].shape == (300, 8)
    assert f"```text\n{capsys.readouterr().out}```" in text
