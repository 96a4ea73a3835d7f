"""Small programs generated from seeds: 300 in 42 families, half of them with terms of a second family."""

from __future__ import annotations

import copy
from functools import cache
from zlib import crc32

import numpy as np

from expected import discrete_terms, mixed_terms, normal_terms
from expected.case import Builder, Case

FAMILIES = discrete_terms.FAMILIES | normal_terms.FAMILIES | mixed_terms.FAMILIES
NUMBER = 300
TOO_LARGE = {"counts_and_rates-3"}  # for the dense sum that it would be compared with
NAMES = [name for seed in range(NUMBER) for family in FAMILIES if (name := f"{family}-{seed}") not in TOO_LARGE]
NAMES = NAMES[:NUMBER]
FEW = [f"{family}-0" for family in FAMILIES][::3]
SMALL = 60_000  # points, for a program of two families


@cache
def case(name: str) -> Case:
    """Generate the program of that name; the same name gives the same numbers on every machine."""
    family, seed = name.rsplit("-", 1)
    rng = np.random.default_rng([crc32(family.encode()), int(seed)])
    builder = Builder(rng)
    FAMILIES[family](builder)
    if rng.random() < 0.5:
        both = copy.deepcopy(builder)
        FAMILIES[str(rng.choice(list(FAMILIES)))](both)
        builder = both if both.size() <= SMALL else builder
    return builder.case(name, parents=rng.random() < 0.2)
