"""Fits of a structured guide by stochastic gradients, from a joint mode: rounds of steps that decay to zero.

    a round:   Adam in whitened coordinates, its rate on a cosine from η to 0
    the end:   log Σ w / n − ELBO, an estimate of KL(q ‖ p), is below 0.1 nats;
               or a round of twice as many steps gains less than 0.1 nats

Weighed draws say how close the guide is, so no round must be stationary to be judged.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import optax

from legrad.diagnostics.psis import LIMIT, ElboEstimate
from legrad.fitting.joint_start import Start
from legrad.fitting.result import FitResult
from legrad.fitting.telling import tell
from legrad.model.messages import FitWarning, warn

_STEPS, _ROUNDS = 4_000, 4  # steps of the first round; each of the next has twice as many
_RATES = (0.05, 0.03, 0.02, 0.01)
_LITTLE = 0.1  # nats
_DRAWS = 4_000


def fit_in_rounds(run: Callable[..., FitResult], start: Start, key: jax.Array) -> FitResult:
    """Fit in rounds, until weighed draws or a round without gain say that it is done.

    Args:
        run: takes `key`, `optimizer`, `steps` and `init_params`, and returns a fit.
        start: where the first round begins.
        key: the random key.
    """
    params: Mapping[str, Any] = start.params
    done: list[FitResult] = []
    before: ElboEstimate | None = None
    steps = _STEPS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        for i, rate in enumerate(_RATES[:_ROUNDS]):
            optimizer = optax.adam(optax.cosine_decay_schedule(rate, steps))
            result = run(key=jax.random.fold_in(key, i), optimizer=optimizer, steps=steps, init_params=params)
            done.append(result)
            tell("weighing draws")
            of_judge = jax.random.fold_in(key, _ROUNDS)
            now, khat = result.elbo_estimate(of_judge, _DRAWS), result.khat(of_judge, _DRAWS)
            ending = _ending(now, khat, before)
            if ending or result.steps < steps:
                break
            before, params, steps = now, result.params, 2 * steps
    status, converged = _status(result, now, khat, ending, sum(r.steps for r in done))
    result = replace(
        result,
        status=status,
        converged=converged,
        elbo=np.concatenate([r.elbo for r in done]),
        gradient_variance=np.concatenate([r.gradient_variance for r in done]),
        steps=sum(r.steps for r in done),
        note=start.note,
    )
    if not converged or khat > LIMIT:
        warn(status)
    return result


def _ending(now: ElboEstimate, khat: float, before: ElboEstimate | None) -> str:
    """Say why a fit is done; nothing if it is not."""
    if now.bound is not None and khat <= LIMIT and now.bound - now.elbo <= _LITTLE:
        return f"the guide is within {max(now.bound - now.elbo, 0.001):.1g} nats of the posterior"
    if before is not None and now.elbo - before.elbo <= _LITTLE + 2 * math.hypot(now.error, before.error):
        gained = now.elbo - before.elbo
        return f"the last round, of twice as many steps, gained {max(gained, 0.0):.1g} nats"
    return ""


def _status(result: FitResult, now: ElboEstimate, khat: float, ending: str, steps: int) -> tuple[str, bool]:
    if not np.isfinite(now.elbo) or "not finite" in result.status:
        return result.status, False
    words = f"k-hat is {khat:.2f}"
    if khat > LIMIT:
        words += (
            f", above {LIMIT}: this guide cannot hold the posterior. Check the latents that matter against another "
            "method, or write a guide that follows their dependence"
        )
    if ending:
        return f"converged after {steps:,} steps: {ending}; {words}", True
    return (
        f"not converged after {steps:,} steps: each round still gained more than {_LITTLE} nats; {words}. Go on with "
        "legrad.fit(model, result.guide, init_params=result.params, stop='auto', ...)"
    ), False
