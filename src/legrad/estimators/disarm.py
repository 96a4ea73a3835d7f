"""DisARM: the antithetic estimator for Bernoulli latents (Dong, Mnih, Tucker 2020; Yin et al. 2020).

With u uniform, b = [u < σ(φ)] and its antithetic partner b' = [1 − u < σ(φ)]:

    ∇_φ E[f] ≈ ½ · (f(b) − f(b')) · (−1)^{b'} · [b ≠ b'] · σ(|φ|)

In a guide with several sites, one site at a time takes its antithetic value: both partners share the ancestors of the
site, and its descendants are sampled again with the same noise. f(b) − f(b') contains the terms of the element's
learning signal (`costs`). Quadratic surrogates of Bernoulli likelihoods (`quadratic_surrogates`) take out the
part of f that is a quadratic of the logits, and add the gradient of its expectation.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from numpyro.distributions import BernoulliLogits, BernoulliProbs
from numpyro.primitives import Messenger

from legrad.distributions.unwrap import unwrap
from legrad.estimators.base import Estimator, draws, gradient_alone, over_draws, require_positive
from legrad.estimators.costs import Costs, fixed_parents
from legrad.estimators.exact_terms import free_sites, surrogates_of
from legrad.estimators.quadratic_surrogates import Surrogates
from legrad.model.problem import Evaluation, Noise, Problem
from legrad.model.sites import Draw, Factor


class DisARM(Estimator):
    """Antithetic pairs, for guides whose discrete latents are all Bernoulli; continuous latents are reparameterized.

    Args:
        num_pairs: the number of antithetic pairs averaged in one estimate.
        surrogates: whether a quadratic with a known expectation takes noise out of Bernoulli likelihoods whose logits
            are sums over independent latents; with False it is the published estimator.

    References:
        Dong, Mnih, Tucker (2020), "DisARM: An Antithetic Gradient Estimator for Binary Latent Variables".
    """

    def __init__(self, num_pairs: int = 1, surrogates: bool = True) -> None:
        require_positive(num_pairs=num_pairs)
        super().__init__(num_particles=num_pairs)
        self.num_pairs, self.surrogates = num_pairs, bool(surrogates)

    def estimate(self, problem: Problem, key: jax.Array) -> jax.Array:
        """See `Estimator.estimate`."""
        return over_draws(partial(self._one, problem), draws(key, self.num_pairs)).mean()

    def _one(self, problem: Problem, noise: Noise) -> jax.Array:
        first = _Uniforms()
        pivot = problem.draw(noise, first)
        binary = _bernoulli_sites(pivot, first)
        x = {name: stop_gradient(pivot[name].coordinate) for name in binary}
        evaluate = partial(problem.evaluate, noise=noise, pivot=pivot)
        here = problem.evaluate_draw(pivot, x, noise)
        graph = problem.parents(pivot, noise)
        quiet = self._surrogates(problem, pivot, noise, here, x, graph)
        g = {} if quiet is None else quiet.terms(x)
        costs = Costs(x, fixed_parents(x, graph), evaluate, company=quiet is None)
        total, values = jnp.zeros(()), [here.total(stop=x) + (0.0 if quiet is None else quiet.value)]
        for name in x:
            if any(name in parents for parents in graph.values()):
                partner = problem.draw(noise, _Uniforms(flipped=name))
            else:
                partner = pivot.moved({name: first.partners[name]})
            y = {n: stop_gradient(partner[n].coordinate) for n in x}
            there = problem.evaluate_draw(partner, y, noise)
            differences = jax.tree.map(jnp.subtract, costs.values(here), costs.values(there))
            value = there.total(stop=x)
            if quiet is not None:
                taken = jax.tree.map(jnp.subtract, g, quiet.terms(y))
                value = value + quiet.value + sum(jnp.sum(t) for t in taken.values())
                differences |= {n: differences[n] - stop_gradient(t) for n, t in taken.items()}
            values.append(value)
            cost = costs.of(name, differences)
            natural, slope = _natural(here.factors[name])
            weight = jnp.where(x[name] != y[name], 0.5 * cost * (1 - 2 * y[name]) * slope, 0.0)
            s = jnp.sum(stop_gradient(weight) * natural)
            total = total + gradient_alone(s)
        return total + sum(values) / len(values)  # every partner is a draw from q as well

    def _surrogates(
        self,
        problem: Problem,
        pivot: Draw,
        noise: Noise,
        here: Evaluation,
        x: dict[str, jax.Array],
        graph: Mapping[str, frozenset[str]],
    ) -> Surrogates | None:
        """Return the quadratics that take noise out of Bernoulli likelihoods; None where there are none."""
        if not self.surrogates:
            return None
        names = [name for name in here.terms() if name.startswith("log p")]
        return surrogates_of(problem, pivot, noise, here, x, free_sites(pivot, graph), names)


class _Uniforms(Messenger):
    """A messenger that samples Bernoulli sites by comparing a uniform u with the probability; one may take 1 − u.

    The values with u and 1 − u exchanged are kept as the sites' `partners`.
    """

    def __init__(self, flipped: str | None = None) -> None:
        super().__init__(None)
        self.flipped, self.partners = flipped, dict[str, jax.Array]()

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] != "sample" or msg["value"] is not None:
            return
        bare = unwrap(msg["fn"]).bare
        if isinstance(bare, BernoulliLogits | BernoulliProbs):
            shape, name = msg["kwargs"].get("sample_shape", ()) + msg["fn"].shape(), msg["name"]
            u = jax.random.uniform(msg["kwargs"]["rng_key"], shape, jnp.result_type(bare.probs))
            pair = [(v < bare.probs).astype(jnp.result_type(int)) for v in (u, 1 - u)]
            msg["value"], self.partners[name] = reversed(pair) if name == self.flipped else pair


def _bernoulli_sites(pivot: dict[str, Factor], sampled: _Uniforms) -> list[str]:
    found = []
    for name, factor in pivot.items():
        if name in sampled.partners:
            found.append(name)
        elif factor.in_scan and factor.fn.is_discrete:
            raise ValueError(
                f"site '{name}' of the guide is inside scan, where DisARM cannot pair its values: use "
                "legrad.LocalExpectation()"
            )
        elif not factor.fn.has_rsample:
            raise ValueError(
                f"site '{name}' of the guide is {factor.family}: DisARM is for Bernoulli and reparameterizable sites "
                "only; use legrad.LocalExpectation(), which takes any support"
            )
    return found


def _natural(factor: Factor) -> tuple[jax.Array, jax.Array]:
    """Return the parameter that the guide gives (logit or probability), and σ(|φ|) · dφ/dparameter."""
    bare = unwrap(factor.fn).bare
    if isinstance(bare, BernoulliLogits):
        return bare.logits, jax.nn.sigmoid(jnp.abs(bare.logits))
    return bare.probs, 1.0 / jnp.minimum(bare.probs, 1.0 - bare.probs)
