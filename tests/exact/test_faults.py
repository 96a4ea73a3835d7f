"""Faults put in on purpose: a proof that always says yes must be noticed by the programs of the other tests."""

from unittest import mock

import numpy as np
import pytest

from expected.averaged import found
from expected.generated import case
from legrad.exact import sight
from sums.oracle import close

PROOFS = {
    "sums of distinct elements": (
        mock.patch.object(sight.Sight, "distinct_along", return_value=True),
        ("looked_up_predictor-1", "looked_up_predictor-2"),
    ),
    "numbers that share no element": (
        mock.patch.object(sight.Sight, "disjoint", return_value=np.True_),
        ("two_routes-0", "two_projections-0", "forms-0"),
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("fault", PROOFS)
def test_a_proof_that_says_yes_to_all_is_noticed(fault):
    patch, names = PROOFS[fault]
    noticed = []
    for name in names:
        row = case(name)
        with patch:
            ours = found(row)
        noticed.append(not close((ours.value, ours.gradient), row.expected(), max(row.tolerance, ours.tolerance)))
    assert any(noticed)
