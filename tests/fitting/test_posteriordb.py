"""Twelve posteriors of posteriordb with `legrad.fit(model, args=..., key=...)` alone; needs LEGRAD_DATA."""

import importlib.util
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location(
    "posteriordb_benchmark", Path(__file__).parents[2] / "benchmarks" / "posteriordb.py"
)
BENCH = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(BENCH)

REGRESSIONS = (
    "kidscore_momiq",
    "earn_height",
    "logearn_interaction_z",
    "logmesquite",
    "kilpisjarvi",
    "wells_dist",
    "arK",
)
OTHERS = ("garch11", "gp_regr", "low_dim_gauss_mix")
needs_data = pytest.mark.skipif(BENCH.folder() is None, reason="LEGRAD_DATA does not name a folder with posteriordb")


@pytest.mark.long
@needs_data
@pytest.mark.parametrize("name", REGRESSIONS + OTHERS)
def test_right(name):
    models = BENCH.load()
    row = BENCH.fit_one(models, models.POSTERIORS[name])
    assert row["right"], row
    if name in REGRESSIONS:
        assert row["model"] <= 300
        assert row["objective"] <= 60


@pytest.mark.long
@needs_data
def test_eight_schools_is_right_or_flagged():
    models = BENCH.load()
    row = BENCH.fit_one(models, models.POSTERIORS["eight_schools_noncentered"])
    assert row["right"] or row["flagged"], row
