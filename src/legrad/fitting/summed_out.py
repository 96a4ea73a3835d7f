"""The result of a model of which every latent is summed out: nothing is fitted, and its posterior is exact."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers

from legrad.diagnostics.diagnosis import Diagnosis
from legrad.diagnostics.psis import ElboEstimate
from legrad.estimators import Exact
from legrad.fitting.recipe import no_latents
from legrad.fitting.result import FitResult
from legrad.marginal.marginalize import Marginal
from legrad.model.keys import Key
from legrad.model.precision import as_double, in_double
from legrad.model.problem import Problem
from legrad.model.sites import sample_sites, site_log_prob
from legrad.model.threads import one_at_a_time


class ExactResult(FitResult):
    """A posterior that is known exactly; `elbo` holds the log evidence."""

    def khat(self, key: Key, num_samples: int = 16_000) -> float:
        """Return -inf: all weights are equal."""
        return -np.inf

    def elbo_estimate(self, key: Key, n: int = 1000) -> ElboEstimate:
        """Return the log evidence, which has no error."""
        evidence = float(self.elbo[-1])
        return ElboEstimate(evidence, 0.0, evidence, 0.0, n)

    def diagnose(self, key: Key, n: int = 16_000) -> Diagnosis:
        """Return a diagnosis without a flag."""
        return Diagnosis(self.khat(key), self.elbo_estimate(key, n), {}, [], n)


def exact_result(marginal: Marginal, args: tuple[Any, ...], kwargs: Mapping[str, Any], begun: float) -> ExactResult:
    """Return the exact posterior of a model whose latents are all summed out."""
    evidence = _log_evidence(marginal, args, kwargs)
    names = ", ".join(marginal.summed(*args, **kwargs))
    took = time.perf_counter() - begun
    return ExactResult(
        params={},
        converged=True,
        status=f"exact: {names} summed out, and nothing is left to fit; the log evidence is {evidence:.6g}",
        elbo=np.asarray([evidence]),
        steps=0,
        seconds=took,
        gradient_variance=np.zeros(1),
        phases=(),
        error=None,
        clock=np.asarray([[0, took]]),
        problem=Problem(marginal, no_latents, {}, args, dict(kwargs)),
        estimator=Exact(),
        optimizer_state=None,
        how=f"summed {names} out: the posterior is exact",
    )


@one_at_a_time
def _log_evidence(marginal: Marginal, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> float:
    def total(args: Any, kwargs: Any) -> jax.Array:
        with handlers.trace() as trace, handlers.seed(rng_seed=0):
            marginal(*args, **kwargs)
        return sum((jnp.sum(site_log_prob(site)) for _, site in sample_sites(trace)), start=jnp.zeros(()))

    return in_double(lambda: float(total(*as_double((args, dict(kwargs))))))
