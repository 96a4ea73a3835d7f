"""The problems of the trust table: is a fit right, or flagged?

Each is a function that makes a `TrustProblem`, in `continuous.py` or `discrete.py`; data come from fixed NumPy seeds.
`references.py` finds their posteriors by other means.
"""

from __future__ import annotations

from collections.abc import Callable

import continuous
import discrete
from row import TrustProblem

PROBLEMS: dict[str, Callable[[], TrustProblem]] = {
    make.__name__: make
    for make in (
        continuous.gaussian,
        continuous.gaussian_mean_field,
        continuous.logistic,
        continuous.poisson,
        continuous.misspecified,
        continuous.eight_schools,
        continuous.horseshoe,
        continuous.heavy_tails,
        continuous.two_modes,
        discrete.mixture,
        discrete.spike_and_slab,
        discrete.hmm,
        discrete.noisy_or,
        discrete.noisy_or_mean_field,
        discrete.belief_net,
    )
}
