"""The problems of the peers table at a small size: estimators have the same mean gradient; fits, limits, the page."""

import contextlib
import importlib.util
import json
from functools import cache
from pathlib import Path

import estimators
import jax
import pytest
import table
from limits import BIASED, limits
from measure import Draws, Gradients
from numpyro import handlers
from problems import PROBLEMS

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
CHEAP = (estimators.LEGRAD, estimators.REGRAD, estimators.GRAPH)
SAME = 4.5  # standard errors, in the worst of 8 directions


@cache
def small(name):
    return PROBLEMS[name](small=True)


@pytest.mark.parametrize("name", PROBLEMS)
def test_models_have_no_scales(name):
    """NumPyro's TraceGraph_ELBO scales the score as well: it is unbiased without scales only."""
    peer, declared = small(name), set()
    forms = [(peer.model, peer.guide)] + ([peer.unrolled] if peer.unrolled else [])
    for model, guide in forms:
        with handlers.seed(rng_seed=0), handlers.trace() as of_guide:
            guide(*peer.args)
        with handlers.seed(rng_seed=0), handlers.trace() as of_model, handlers.replay(trace=of_guide):
            model(*peer.args)
        sites = [*of_guide.values(), *of_model.values()]
        assert all(site["scale"] is None for site in sites if site["type"] == "sample")
        declared |= {site["name"] for site in sites if site["type"] == "param"}
        if model is peer.model:
            assert set(peer.latents) == {n for n, site in of_guide.items() if site["type"] == "sample"}
    assert set(peer.params) == declared


@pytest.mark.parametrize("name", ["sbn_random", "sbn_two_layers", "logistic", "spike_and_slab", "ising", "mixture"])
def test_estimators_agree(name):
    peer, drawn = small(name), {}
    for method, make in estimators.methods(peer).items():
        if method in CHEAP or method.endswith("by hand"):
            with contextlib.suppress(ValueError):  # not for latents of this kind
                drawn[method] = Gradients(peer, make()).draws(peer.guide_parameters(), 300, 300, 0.0)
    assert len(drawn) >= 2
    for method, draws in drawn.items():
        assert draws.bias_z(drawn[estimators.LEGRAD]) < SAME, method


@pytest.mark.parametrize("name", [estimators.DISARM, estimators.LOO])
def test_a_peer_has_the_variance_of_one_written_by_hand(name):
    peer = PROBLEMS["sbn_trained"](small=True)
    found = {
        method: Gradients(peer, estimators.methods(peer)[method]()).draws(peer.guide_parameters(), 3000, 3000, 0.0)
        for method in (name, f"{name} by hand")
    }
    ours, theirs = (draws.variance() for draws in found.values())
    assert 1 / 1.15 < ours / theirs < 1.15


def test_a_biased_gradient_is_seen():
    peer, wrong = small("ising"), Draws(["logits"])
    program = Gradients(peer, estimators.methods(peer)[estimators.LEGRAD]())
    right = program.draws(["logits"], 300, 300, 0.0)
    for i in range(300):
        wrong.add({"logits": 1.5 * program.last(jax.random.key(i))["logits"]})
    assert program.draws(["logits"], 300, 300, 0.0, seed=1).bias_z(right) < SAME
    assert wrong.bias_z(right) > BIASED


def test_a_row_of_the_table_and_its_page(tmp_path, monkeypatch):
    """What cannot run gives its reason; limits are computed; the page and the figure can be made of it."""
    only = (estimators.LEGRAD, estimators.REGRAD, estimators.GRAPH)
    every = table.methods
    monkeypatch.setattr(table, "methods", lambda peer: {n: m for n, m in every(peer).items() if n in only})
    row = table.row(small("noisy_or"), table.Effort(10, 20, 0.0, 1, 0.001, 2, 8))
    assert "discrete" in row["refused"][estimators.REGRAD]
    assert row["estimators"][estimators.LEGRAD]["to_elbo"]["seconds"] > 0
    assert row["estimators"][estimators.GRAPH]["variance"] > row["estimators"][estimators.LEGRAD]["variance"] > 0
    rows = {"noisy_or": row}
    found = limits(rows)
    assert [r["what"].split(",")[0] for r in found] == [
        "efficiency",
        "seconds to the same ELBO",
        "seconds to the ELBO",
    ]
    kept = {"versions": {}, "quick": True, "data": {}, "limits": found, "rows": rows}
    (tmp_path / "images").mkdir()
    (tmp_path / "peers.json").write_text(json.dumps(kept))
    torch = {"Pyro": {"variance": 1e-9, "seconds": 1e-9}, "Storchastic": {"cannot": "it has no a|b"}}
    (tmp_path / "torch.json").write_text(json.dumps({"versions": {}, "rows": {"noisy_or": torch}}))
    page = _page()
    monkeypatch.setattr(page, "KEPT", tmp_path / "peers.json")
    monkeypatch.setattr(page, "TORCH", tmp_path / "torch.json")
    monkeypatch.setattr(page, "HERE", tmp_path)
    text = page.page()
    assert "Another is more efficient: Pyro" in text, "who wins is said"
    assert "| Pyro † | **1e-09** |" in text
    assert "- Storchastic: it has no a" in text
    page.draw()
    assert (tmp_path / "images" / "peers.png").stat().st_size > 10_000


def _page():
    spec = importlib.util.spec_from_file_location("peers_page", ROOT / "docs" / "peers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
