"""Diagnoses name components without members, and components that were never told apart."""

import re
import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest

import legrad
from legrad.diagnostics.components import component_concerns


class Both(NamedTuple):
    mean_q: np.ndarray
    sd_q: np.ndarray


def moments(p, mu):
    """The moments of a label z with probabilities p (elements, K), and of K Normals at mu."""
    number = p.shape[1]
    kept = range(1 if number == 2 else 0, number)
    found = {("z", k): Both(p[:, k], np.sqrt(p[:, k] * (1 - p[:, k]))) for k in kept}
    return found | {("mu", None): Both(np.asarray(mu, float), np.ones(number))}


TOLD_APART = np.eye(3)[[0, 1, 2] * 4]


@pytest.mark.parametrize(
    ("p", "mu", "said"),
    [
        (TOLD_APART, [0.0, 1.0, 2.0], None),
        (np.eye(3)[[0, 2] * 6], [0.0, 1.0, 2.0], "component 1 of 3 .*'mu'.* has no members.* a model with 2"),
        (np.eye(3)[[0] * 9], [0.0, 1.0, 2.0], "components 1, 2 of 3"),
        (np.eye(3)[[0]], [0.0, 1.0, 2.0], None),  # a single element is in one component only
        (np.full((9, 3), 1 / 3), [1.0, 1.0, 1.0], "'z' has the same probabilities.* 'mu' are all alike.*symmetric"),
        (np.full((9, 2), 1 / 2), [1.0, 1.0], "symmetric"),
        (np.full((9, 3), 1 / 3), [0.0, 1.0, 2.0], None),  # the data say nothing about z, but mu is known
        (TOLD_APART, [1.0, 1.0, 1.0], None),
        (np.eye(2)[[0, 1] * 3], [0.0, 3.0], None),
    ],
)
def test_concerns(p, mu, said):
    found = component_concerns(moments(p, mu), {"z": p.shape[1]}, 10_000)
    assert len(found) == (said is not None)
    if said is not None:
        assert re.search(said, found[0]), found


def test_a_label_that_numbers_no_latent_has_no_components():
    p = np.eye(3)[[0] * 9]
    other = {("mu", None): Both(np.zeros(4), np.ones(4))}
    assert component_concerns(moments(p, [0.0] * 3) | other, {"z": 3}, 9) == []


@pytest.mark.long
def test_a_fit_that_stays_at_its_symmetric_start_is_flagged():
    y = jnp.asarray(np.random.default_rng(0).normal(size=8) + np.repeat([-4.0, 4.0], 4))

    def model():
        mu = numpyro.sample("mu", dist.Normal(0.0, 5.0).expand([2]).to_event(1))
        with numpyro.plate("points", 8):
            z = numpyro.sample("z", dist.Categorical(jnp.ones(2) / 2))
            numpyro.sample("y", dist.Normal(mu[z], 1.0), obs=y)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", legrad.FitWarning)
        result = legrad.fit(model, legrad.MeanField(model), key=0, steps=1, optimizer=optax.sgd(1e-9))
        flags = result.diagnose(jax.random.key(1), 400).flags
    assert any("symmetric point" in flag for flag in flags), flags
