"""Draws of a guide with their importance weights: log w = log p(x, z) − log q(z).

The mean of log w is the ELBO, log E[w] the log evidence; w/Σw turns draws of the guide into draws of the posterior.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.distributions import BernoulliLogits, BernoulliProbs, CategoricalLogits, CategoricalProbs, Delta
from numpyro.primitives import Messenger

from legrad import _compat
from legrad._compiled import jit
from legrad.distributions.unwrap import unwrap
from legrad.guides.protocol import HeavyTails
from legrad.model.arrays import map_in_batches, split_arrays
from legrad.model.problem import Evaluation, Noise, Problem
from legrad.model.threads import one_at_a_time

_MEMORY = 1 << 26  # bytes of intermediate values of draws made together, and of the draws held on the host
_LONG, _CHEAP = 1500, 100_000  # operations and numbers: a long program of little work is compiled for compile time
_TOGETHER = 1024  # draws made together: XLA's threads can wait for each other forever in larger batches of Cholesky
Values = dict[str, np.ndarray]


def log_weights(problem: Problem, key: jax.Array, n: int) -> tuple[Values, np.ndarray]:
    """Return draws of the guide and their log-weights log p(x, z) − log q(z).

    Args:
        problem: model, guide, fitted parameters and data.
        key: the random key.
        n: the number of draws.

    Returns:
        For each latent of the model its draws, with a leading axis of `n`; and the `n` log-weights.

    Raises:
        ValueError: if the weights are not the ratio of two densities at the draws (with subsampled plates, a guide
            that scales its log-density, or a guide with point masses), or if a weight is NaN, unless the guide has
            heavy tails: then such a draw, where the model cannot be computed, has weight zero.
    """
    draws = Draws(problem, key, n)
    draws.require_ratio()
    parts = list(draws.chunks())
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, draws.f()


class Draws:
    """A set of `n` draws of the guide, with f = log p − log q at each draw; made anew in chunks at each access.

    Attributes:
        no_ratio: why f is not the log of a ratio of densities, and what to do; empty if it is.
        labels: for each latent that is a label (Bernoulli, Categorical), the number of its categories.
    """

    def __init__(self, problem: Problem, key: jax.Array, n: int) -> None:
        if not isinstance(n, int) or isinstance(n, bool) or n < 2:
            raise ValueError(f"the number of draws is {n!r}: it must be a whole number of at least 2")
        self.problem, self.n = problem, n
        self._unknown: dict[int, int] = {}
        self._keys = jax.random.split(key, n)
        plates, trace = _Plates(), handlers.trace()
        with one_at_a_time, plates:
            program, shapes = jax.make_jaxpr(lambda k: _one(problem, k, trace), return_shape=True)(self._keys[0])
        latents = {name: site for name, site in trace.trace.items() if _is_latent(site)}
        self.labels = {name: k for name, site in latents.items() if (k := categories(site))}
        self.no_ratio = _subsampled(plates.sizes) or _scaled(latents)

        largest = max((v.aval.size * 8 for eqn in program.eqns for v in eqn.outvars), default=8)
        held = sum(math.prod(s.shape) * 8 for s in jax.tree.leaves(shapes))
        self._together = max(1, min(_TOGETHER, _MEMORY // (8 * largest)))
        self._chunk = max(2, math.ceil(n / math.ceil(n * held / _MEMORY)))
        self._run = lru_cache(maxsize=1)(self._run_chunk)  # if one chunk holds all draws, they are made once
        work = sum(v.aval.size for eqn in program.eqns for v in eqn.outvars if hasattr(v.aval, "size"))
        self._compiled = _compiled(problem, self._together, len(program.eqns) > _LONG and work < _CHEAP)
        if not self.no_ratio:
            self.no_ratio = _point_mass(self._run(0)[0], latents)

    def require_ratio(self) -> None:
        """Raise if weights are undefined."""
        if self.no_ratio:
            raise ValueError(self.no_ratio)

    def f(self) -> np.ndarray:
        """Return f at each draw, in float64."""
        return np.concatenate([self._run(start)[1] for start in range(0, self.n, self._chunk)])

    @property
    def unknown(self) -> int:
        """How many draws have weight zero, as their log-density is not a number."""
        return sum(self._unknown.values())

    def chunks(self) -> Iterator[Values]:
        """Yield the latents of the model, some draws at a time, in the order of `f`."""
        for start in range(0, self.n, self._chunk):
            yield self._run(start)[0]

    def _run_chunk(self, start: int) -> tuple[Values, np.ndarray]:
        values, f = jax.device_get(self._compiled(self._keys[start : start + self._chunk]))
        f = np.asarray(f, np.float64)
        if isinstance(self.problem.guide, HeavyTails):
            self._unknown[start] = int(np.isnan(f).sum())
            f = np.where(np.isnan(f), -np.inf, f)
        bad = np.isnan(f) | (f == np.inf)
        if bad.any():
            self._refuse(start + int(np.argmax(bad)))
        return values, f

    def _refuse(self, i: int) -> None:
        terms = jit(lambda k: jax.tree.map(jnp.sum, _evaluate(self.problem, k).terms()))(self._keys[i])
        first = next((name for name, total in terms.items() if not np.isfinite(total)), "the sum of all terms")
        total = float(terms[first]) if first in terms else math.nan
        raise ValueError(
            f"{first} is {total} at draw {i} of the guide, so its weight is not a number: check the fitted "
            "parameters and the data of that site, and that the guide's support lies inside the model's"
        )


class _Plates(Messenger):
    """A messenger that records every plate of guide and model: its size, and how many members were taken."""

    def __init__(self) -> None:
        super().__init__(None)
        self.sizes: dict[str, tuple[int, int]] = {}

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "plate":
            self.sizes[msg["name"]] = (msg["args"][0], len(msg["value"]))


def _noise(key: jax.Array) -> Noise:
    return Noise(*jax.random.split(key))


def _evaluate(problem: Problem, key: jax.Array) -> Evaluation:
    return problem.evaluate({}, _noise(key), pivot=problem.draw(_noise(key)))


def _one(problem: Problem, key: jax.Array, trace: handlers.trace) -> tuple[dict[str, jax.Array], jax.Array]:
    noise = _noise(key)
    pivot = problem.draw(noise, trace)
    values = {name: jnp.asarray(site["value"]) for name, site in trace.trace.items() if _is_latent(site)}
    return values, problem.evaluate({}, noise, pivot=pivot).total()


def _compiled(problem: Problem, together: int, quick: bool) -> Any:
    arrays, rebuild = split_arrays((dict(problem.params), problem.args, dict(problem.kwargs)))

    def run(keys: jax.Array, arrays: list[Any]) -> Any:
        params, args, kwargs = rebuild(arrays)
        here = Problem(problem.model, problem.guide, params, args, kwargs, problem.entropy)
        return map_in_batches(lambda k: _one(here, k, handlers.trace()), keys, together)

    compiled = jit(run, quick)
    return lambda keys: compiled(keys, arrays)


def _is_latent(site: Mapping[str, Any]) -> bool:
    return site["type"] == "sample" and not site["is_observed"] and not site["infer"].get("is_auxiliary", False)


def categories(site: Mapping[str, Any]) -> int:
    """Return how many categories a site has that is a label (Bernoulli, Categorical); 0 for other sites."""
    bare = unwrap(site["fn"]).bare
    if isinstance(bare, BernoulliProbs | BernoulliLogits):
        return 2
    # Read only what the distribution was given: its lazy attributes would belong to a trace that is over.
    if isinstance(bare, CategoricalProbs):
        return bare.probs.shape[-1]
    return bare.logits.shape[-1] if isinstance(bare, CategoricalLogits) else 0


def _subsampled(sizes: Mapping[str, tuple[int, int]]) -> str:
    for name, (size, taken) in sizes.items():
        if taken < size:
            return (
                f"plate '{name}' takes {taken} of {size} members at a time, and an importance weight needs every "
                "row: a scaled subsample is unbiased for log w, but not for w. Call result.with_args(...) with the "
                "full data and a model without subsample_size, and use that result"
            )
    return ""


def _scaled(latents: Mapping[str, Any]) -> str:
    for name, site in latents.items():
        scale = site["scale"]
        if scale is not None and (isinstance(scale, _compat.Tracer) or np.any(np.asarray(scale) != 1)):
            return (
                f"site '{name}' of the guide stands under numpyro.handlers.scale, so the ELBO counts a multiple of "
                "its log-density, and the weights are not a ratio of two densities: scale only the model's terms"
            )
    return ""


def _point_mass(values: Values, latents: Mapping[str, Any]) -> str:
    """Report a Delta that is not a function of something random: one whose elements are the same in every draw."""
    for name, site in latents.items():
        draws = values[name]
        if isinstance(unwrap(site["fn"]).bare, Delta) and draws.dtype.kind == "f" and (draws == draws[:1]).all():
            return (
                f"site '{name}' is a point mass in the guide, which has no density to weigh against the model's: use "
                "a guide with a density for it (legrad.MeanField, AutoNormal)"
            )
    return ""
