"""Small models with discrete latents, generated from seeds: 260 of them, in 65 families."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from zlib import crc32

import numpy as np

from sums import chains, counts, groups, plates, scaled
from sums.case import Case

FAMILIES = plates.FAMILIES | chains.FAMILIES | groups.FAMILIES | counts.FAMILIES | scaled.FAMILIES
SEEDS = 4
NAMES = [f"{family}-{seed}" for family in FAMILIES for seed in range(SEEDS)]
# One of each kind, for every run of the tests; the rest is long.
FEW = [
    f"{family}-0"
    for family in [
        "mixture",
        "nested_plates",
        "global_above_members",
        "missing_data",
        "array_chain",
        "loop_chain",
        "scan_batch",
        "switching_walk",
        "agreements",
        "tree",
        "change_point",
        "poisson_counts",
        "n_mixture",
        "subsampled_chains",
    ]
]


@cache
def case(name: str) -> Case:
    """Generate the model of that name; the same name gives the same numbers on every machine."""
    family, seed = name.rsplit("-", 1)
    rng = np.random.default_rng([crc32(family.encode()), int(seed)])
    return replace(FAMILIES[family](rng), name=name)
