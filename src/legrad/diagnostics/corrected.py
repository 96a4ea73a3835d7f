"""Draws of the posterior from draws of a guide: importance resampling with smoothed weights."""

from __future__ import annotations

import jax
import numpy as np

from legrad.diagnostics.psis import LIMIT, smoothed_weights
from legrad.diagnostics.weights import Values, log_weights
from legrad.estimators.base import require_positive
from legrad.model.problem import Problem

_PROPOSALS = 16_000


def corrected_sample(problem: Problem, key: jax.Array, num_samples: int) -> Values:
    """Draw from the guide, and resample the draws by their weights, smoothed by PSIS.

    Resampling is systematic: a draw of weight w comes ⌊n w⌋ or ⌈n w⌉ times among n.

    Args:
        problem: model, guide, fitted parameters and data.
        key: the random key.
        num_samples: the number of draws to return, from at least four times as many of the guide.

    Raises:
        ValueError: if k-hat is above 0.7, or in the cases listed at `log_weights`.
    """
    require_positive(num_samples=num_samples)
    of_draws, of_choice = jax.random.split(key)
    values, log_w = log_weights(problem, of_draws, max(_PROPOSALS, 4 * num_samples))
    weights, k = smoothed_weights(log_w)
    if k > LIMIT:
        raise ValueError(
            f"k-hat is {k:.3g}, above {LIMIT}: the guide is too far from the posterior for its draws to be "
            "corrected. Call sample without corrected=True, and see result.diagnose(key) for what is wrong"
        )
    rng = np.random.default_rng(np.asarray(jax.random.key_data(of_choice)))
    places = (rng.uniform() + np.arange(num_samples)) / num_samples
    chosen = np.minimum(np.searchsorted(np.cumsum(weights), places), len(weights) - 1)
    rng.shuffle(chosen)
    return {name: value[chosen] for name, value in values.items()}
