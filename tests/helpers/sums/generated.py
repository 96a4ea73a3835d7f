"""Small models with discrete latents, generated from seeds: 240 of them, in 60 families."""

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
        "forms_of_use",
        "nested_plates",
        "two_in_a_member",
        "table_of_latent_and_data",
        "groups_and_members",
        "global_above_members",
        "missing_data",
        "imputed_data",
        "impossible_values",
        "vectors",
        "no_plate",
        "array_chain",
        "spins",
        "array_batch",
        "loop_chain",
        "scan_chain",
        "scan_batch",
        "factorial_arrays",
        "factorial_scan",
        "left_to_right",
        "noisy_or",
        "separate_sites",
        "ring",
        "tree",
        "change_point",
        "binomial",
        "occupancy",
        "poisson_counts",
        "n_mixture",
        "scaled_members",
        "subsample",
        "subsampled_groups",
        "subsampled_chains",
    ]
]


@cache
def case(name: str) -> Case:
    """Generate the model of that name; the same name gives the same numbers on every machine."""
    family, seed = name.rsplit("-", 1)
    rng = np.random.default_rng([crc32(family.encode()), int(seed)])
    return replace(FAMILIES[family](rng), name=name)
