"""Distances between two sets of parameters, in units that mean the same for every guide.

For an element x of a latent, with q_a and q_b the guide at the two sets,

    distance = sqrt( 2 KL(q_b(x | pa) ‖ q_a(x | pa)) ),    the mean of KL over draws of the parents

For a Normal the distance is the shift of the mean in standard deviations, for a Bernoulli the shift of its mean in
standard deviations; a logit that drifts to infinity covers no distance. The gain is the difference of the two ELBOs,
with the same noise and minibatches in both. The module also checks the quadrature of the gradient where a fit ended.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from legrad._compiled import jit, jit_once
from legrad.estimators.base import draws
from legrad.estimators.local_expectation import LocalExpectation
from legrad.estimators.quadrature_accuracy import concern, concern_of_terms, errors, sums_over_nodes, worst
from legrad.fitting.compiled_loop import CompiledLoop
from legrad.fitting.data import Loaded
from legrad.fitting.iterates import most
from legrad.model.problem import Noise, Problem

_DRAWS = 32
_GAIN_DRAWS = 64
_QUADRATURE_DRAWS = 4


class GuideComparison:
    """A comparison of two sets of parameters of one fit, compiled once.

    Args:
        program: the compiled steps of the fit.
    """

    def __init__(self, program: CompiledLoop) -> None:
        self.program = program
        self._distances, self._elbos = jit(self._all_distances), jit(self._all_elbos)

    def distance(self, a: Any, b: Any, key: jax.Array, loaded: Loaded) -> float:
        """Return the largest of the `distances` between the guides at two sets of unconstrained parameters."""
        return max(self.distances(a, b, key, loaded).values(), default=0.0)

    def distances(self, a: Any, b: Any, key: jax.Array, loaded: Loaded) -> dict[str, float]:
        """Return for each site the distance that 95% of its elements do not exceed."""
        return {name: float(d[0]) for name, d in jax.device_get(self._distances(a, b, key, loaded)).items()}

    def spread(self, a: Any, b: Any, key: jax.Array, loaded: Loaded) -> float:
        """Return the root mean square distance over the elements of a site, for the site where it is largest."""
        return max((float(d[1]) for d in jax.device_get(self._distances(a, b, key, loaded)).values()), default=0.0)

    def gain(self, a: Any, b: Any, key: jax.Array, loaded: Loaded, number: int = _GAIN_DRAWS) -> tuple[float, float]:
        """Return the ELBO at b minus the ELBO at a, and the standard error of the difference."""
        keys = jax.random.split(key, number)
        differences = self._elbos(b, keys, loaded) - self._elbos(a, keys, loaded)
        return float(jnp.mean(differences)), float(jnp.std(differences, ddof=1) / number**0.5)

    def elbo(self, a: Any, key: jax.Array, loaded: Loaded, number: int = _GAIN_DRAWS) -> float:
        """Estimate the ELBO at unconstrained parameters; the same key gives the same noise."""
        return float(jnp.mean(self._elbos(a, jax.random.split(key, number), loaded)))

    def quadrature(self, a: Any, key: jax.Array, loaded: Loaded) -> str:
        """Return a sentence if more quadrature nodes would change the gradient at these parameters; else nothing."""
        estimator = self.program.estimator
        if not isinstance(estimator, LocalExpectation):
            return ""
        sites, terms = sums_over_nodes(estimator, lambda u, draw: self._problem(u, loaded, draw), a, key)
        said = ""
        if sites:
            found = jit_once(self._quadrature)(a, jax.random.split(key, _QUADRATURE_DRAWS), loaded)
            said = concern(estimator, worst(*jax.device_get(found)))
        if terms and not said:
            said = concern_of_terms(jax.device_get(jit_once(self._term_errors)(a, key, loaded)))
        return said

    def _term_errors(self, a: Any, key: jax.Array, loaded: Loaded) -> dict[str, jax.Array]:
        with self.program.feed.tracing(loaded):
            return self.program.estimator.term_errors(self._problem(a, loaded, 0), key)

    def _quadrature(self, a: Any, keys: jax.Array, loaded: Loaded) -> tuple[Any, Any]:
        with self.program.feed.tracing(loaded):
            return errors(self.program.estimator, lambda u, draw: self._problem(u, loaded, draw), a, keys)

    def _problem(self, unconstrained: Any, loaded: Loaded, draw: Any) -> Problem:
        program = self.program
        step = loaded.first + draw % program.feed.capacity if program.feed.data is not None else 0
        return program.objective.problem(unconstrained, program.feed.at(loaded, step))

    def _all_distances(
        self, a: Any, b: Any, key: jax.Array, loaded: Loaded
    ) -> dict[str, tuple[jax.Array, jax.Array]]:
        with self.program.feed.tracing(loaded):
            here, there = self._problem(b, loaded, 0), self._problem(a, loaded, 0)

            def divergence(noise: Noise) -> dict[str, jax.Array]:
                return here.divergence(there, noise)

            noise = draws(key, _DRAWS)
            each = jax.vmap(divergence, in_axes=(Noise(0, None),))(noise)  # type: ignore[arg-type]
        means = {name: jnp.mean(jnp.where(jnp.isfinite(k), k, jnp.inf), axis=0) for name, k in each.items()}
        squares = {name: 2.0 * jnp.maximum(k, 0.0) for name, k in means.items()}
        return {name: (most(jnp.sqrt(s)), jnp.sqrt(jnp.mean(s))) for name, s in squares.items()}

    def _elbo(self, unconstrained: Any, key: jax.Array, loaded: Loaded, draw: Any) -> jax.Array:
        problem, noise = self._problem(unconstrained, loaded, draw), Noise(*jax.random.split(key))
        return problem.evaluate({}, noise, pivot=problem.draw(noise)).total()

    def _all_elbos(self, a: Any, keys: jax.Array, loaded: Loaded) -> jax.Array:
        with self.program.feed.tracing(loaded):
            return jax.lax.map(lambda x: self._elbo(a, x[0], loaded, x[1]), (keys, jnp.arange(len(keys))))
