"""The problems of the peers table, each a function of `small` that makes a `Peer`; data come from fixed seeds."""

from __future__ import annotations

from collections.abc import Callable

import continuous
import discrete
import networks
from row import Peer

PROBLEMS: dict[str, Callable[..., Peer]] = {
    make.__name__: make
    for make in (
        networks.sbn_random,
        networks.sbn_trained,
        networks.sbn_two_layers,
        continuous.logistic,
        continuous.gaussian_100,
        continuous.gaussian_1000,
        discrete.spike_and_slab,
        discrete.ising,
        discrete.mixture,
        discrete.factorial_hmm,
        discrete.noisy_or,
    )
}
