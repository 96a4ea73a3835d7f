"""Generated programs: the loss, averaged over what stays sampled, is the negative ELBO, and so is its gradient."""

import pytest

from expected.averaged import found
from expected.generated import FAMILIES, FEW, NAMES, case
from sums.oracle import close


def test_there_are_three_hundred_programs():
    assert len(set(NAMES)) >= 300
    assert set(FEW) <= set(NAMES)
    assert {name.rsplit("-", 1)[0] for name in NAMES} == set(FAMILIES)


def agrees(name):
    row = case(name)
    ours = found(row)
    value, gradient = row.expected()
    return close((ours.value, ours.gradient), (value, gradient), max(row.tolerance, ours.tolerance))


@pytest.mark.parametrize("name", FEW)
def test_a_few_programs(name):
    assert agrees(name)


@pytest.mark.long
@pytest.mark.parametrize("name", [n for n in NAMES if n not in FEW])
def test_all_programs(name):
    assert agrees(name)
