"""Models that users write, at small size, by `legrad.fit(model, args=..., key=...)` and nothing else.

Each is right against an exact answer or against the values that its data came from; benchmarks/trust/user_table.py
has them at full size.
"""

import importlib.util
import sys
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest

import legrad

# On its way a chain or a search may visit rates at which a window of counts leaves something out.
pytestmark = pytest.mark.filterwarnings("ignore:site '.*' is a count")

_FOLDER = Path(__file__).parents[2] / "benchmarks" / "trust"


def _load(name):
    spec = importlib.util.spec_from_file_location(f"trust_{name}", _FOLDER / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MODELS, ANSWERS = _load("user_models"), _load("user_answers")
QUICK = {
    "change_point": lambda: MODELS.change_point(),
}
LONGER = {
    "occupancy": lambda: MODELS.occupancy(80, 4),
    "mixture": lambda: MODELS.mixture(150),
    "hmm_loop": lambda: MODELS.hmm_loop(25),
    "hmm_scan": lambda: MODELS.hmm_scan(100),
    "n_mixture": lambda: MODELS.n_mixture(15, 3),
    "block_model": lambda: MODELS.block_model(40, 2),
    "spike_and_slab": lambda: MODELS.spike_and_slab(200, 6),
    "topics": lambda: MODELS.topics(10, 40, 2, 8),
}


def _judged(name, user):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", legrad.FitWarning)
        result = legrad.fit(user.model, args=user.args, key=jax.random.key(0), progress=False)
    try:
        draws = result.sample(jax.random.key(1), 4_000, corrected=True)
    except ValueError:  # k-hat is too large
        draws = result.sample(jax.random.key(1), 4_000)
    return ANSWERS.judge(name, user, draws)


@pytest.mark.parametrize("name", QUICK)
def test_right(name):
    judgement = _judged(name, QUICK[name]())
    assert judgement.right, judgement.said


@pytest.mark.long
@pytest.mark.parametrize("name", LONGER)
def test_right_and_longer(name):
    judgement = _judged(name, LONGER[name]())
    assert judgement.right, judgement.said


def test_the_check_sees_a_wrong_answer():
    user = MODELS.change_point()
    rng = np.random.default_rng(0)
    wanted = ANSWERS.change_point(*user.args)
    draws = {name: m["mean"] + m["sd"] * rng.normal(size=20_000) for name, m in wanted.items()}
    assert ANSWERS.judge("change_point", user, draws).right
    assert not ANSWERS.judge("change_point", user, draws | {"early": draws["early"] + 0.06}).right
    assert not ANSWERS.judge("change_point", user, draws | {"t": 39.8 + 1.2 * (draws["t"] - 39.8)}).right
    blocks = MODELS.block_model(40, 2)
    one_block = {"z": np.zeros((10, 40), int), "B": np.full((10, 2, 2), 0.2)}
    assert not ANSWERS.judge("block_model", blocks, one_block).right
    planted = {"z": np.tile(1 - blocks.planted["z"], (10, 1)), "B": np.tile(blocks.planted["B"], (10, 1, 1))}
    assert ANSWERS.judge("block_model", blocks, planted).right
