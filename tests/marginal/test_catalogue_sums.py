"""The models of the catalogue of estimators: their sums against joint enumeration, value and gradient."""

import jax
import numpy as np
import pytest
from numpyro import handlers

import legrad
from catalogue import ROWS
from catalogue_row import CONTINUOUS
from sums.case import Case
from sums.oracle import close, discrete_latents


def latents(row):
    """The model's latents at a draw of the prior: the continuous ones by value, the discrete ones by site."""
    seeded = handlers.seed(handlers.substitute(row.model, data=row.params), jax.random.key(0))
    trace = handlers.trace(seeded).get_trace(*row.args)
    x = {
        name: site["value"]
        for name, site in trace.items()
        if site["type"] == "sample" and not site["is_observed"] and not site["fn"].support.is_discrete
    }
    fixed = {name: site["value"] for name, site in trace.items() if site["type"] in ("plate", "param")}
    return x, fixed


def is_finite(site):
    return site["fn"].has_enumerate_support


@pytest.mark.long
@pytest.mark.parametrize("row", [row for row in ROWS if row.estimators != CONTINUOUS], ids=lambda row: row.name)
def test_the_sum_is_exact(row):
    x, fixed = latents(row)
    discrete = discrete_latents(row.model, row.args, {}, x | fixed)
    if not discrete or not all(map(is_finite, discrete.values())):
        pytest.skip("no discrete latent that can be enumerated")
    scaled = any(np.any(np.asarray(site["scale"]) != 1) for site in discrete.values() if site["scale"] is not None)
    if scaled:
        pytest.skip("a scale surrounds a latent: the enumeration of the joint is no reference")
    case = Case(row.model, row.args, x, fixed=fixed)
    marginal = legrad.marginalize(row.model)
    assert set(marginal.summed(*row.args)) == set(discrete)
    assert close(case.of(marginal), case.expected(), 1e-10)
