"""Runs each script of examples/gallery and checks what its text claims, by the variables that it ends with."""

import runpy
from pathlib import Path

import pytest

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

_FOLDER = Path(__file__).parents[2] / "examples" / "gallery"
CLAIMS = {
    "block_model": lambda v: v["right"] >= 32 and v["same"] > 3 * v["other"],
    "change_point": lambda v: v["diagnosis"].ok and v["error"] < 0.03 and 1885 < v["low"] <= v["high"] < 1898,
    "discrete_vae": lambda v: (
        v["right"] > 0.88 > v["most_frequent"] and v["from_bits"] > 0.7 and v["of_test"] > v["independent"] + 4
    ),
    "first_fit": lambda v: v["result"].diagnose(key=1).ok,
    "hmm": lambda v: v["diagnosis"].ok and v["right"] > 0.9 and abs(v["from_scan"] - v["from_loop"]) < 1e-3,
    "ising": lambda v: v["wrong_after"] < v["wrong_before"] / 4 and not v["diagnosis"].ok,
    "lda": lambda v: v["right_package"] > 0.8 and "filter" in v["vocabulary"][v["typical"][1].argsort()[-9:]],
    "missing_data": lambda v: v["accuracy"] > v["by_column"] + 0.05 and v["calibration"] < 0.2,
    "mixture": lambda v: v["diagnosis"].ok and v["accuracy"] > 0.9 and v["accuracy_when_sure"] > 0.97,
    "n_mixture": lambda v: v["covered"] > 0.8 and v["correlation"] < -0.8,
    "noisy_or": lambda v: v["error"] < 0.1 and v["exact"][[4, 11]].min() > 0.9,
    "occupancy": lambda v: v["diagnosis"].ok and v["naive"] < v["low"] < v["true_share"] < v["high"],
    "sbn_digits": lambda v: (
        v["right"] > 0.9 > v["most_frequent"]
        and v["score"] > v["independent"] + 4
        and abs(v["score"] - v["on_train"]) < 1.5
    ),
    "spike_and_slab": lambda v: (
        set(v["X"].columns[v["exact"] > 0.9]) == {"sex", "bmi", "bp", "s5"}
        and v["some"] > 0.95
        and v["exact"][v["shuffled"]].max() < 0.3
        and v["error"] < 0.06
        and v["error_weighed"] < 0.05
        and v["error_tied"] > 0.3  # the text says that the plain fit is wrong here, and that its diagnosis says so
        and not v["diagnosis"].ok
    ),
    "spike_and_slab_logistic": lambda v: v["accuracy"] > 0.9 and v["loss"] < v["guess"] / 2,
}


def test_every_script_has_its_claims():
    assert {f"plot_{name}.py" for name in CLAIMS} == {path.name for path in _FOLDER.glob("plot_*.py")}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CLAIMS)
def test_claims(name):
    import matplotlib.pyplot as plt

    values = runpy.run_path(str(_FOLDER / f"plot_{name}.py"))
    assert plt.get_fignums(), "the example draws nothing"
    plt.close("all")
    assert CLAIMS[name](values)
