"""The base of every estimator: NumPyro's ELBO interface, and the surrogate whose gradient is the estimate.

f(pivot) with log q of the fixed sites stopped  +  Σ_e (s_e − stop_gradient(s_e)),
s_e = Σ_k stop_gradient( w_k · F_k ) · log q(v_k | pa_e)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from numpyro.infer.elbo import ELBO

from legrad.model.problem import Noise, Problem


class Score(NamedTuple):
    """The parts of s_e for all elements of one site, with the axis of candidates first.

    Attributes:
        log_q: log q(v_k | pa_e), bare and differentiable.
        weights: w_k.
        difference: F_k − f(pivot).
        cost: the sum of the terms of f at the pivot that e or its descendants touch; None if all constants drop out.
    """

    log_q: jax.Array
    weights: jax.Array
    difference: jax.Array
    cost: jax.Array | None


class Estimator(ELBO):
    """A negative-ELBO estimate whose `jax.grad` is the gradient estimator."""

    can_infer_discrete = True

    def loss(
        self,
        rng_key: jax.Array,
        param_map: Mapping[str, Any],
        model: Callable[..., Any],
        guide: Callable[..., Any],
        *args: Any,
        **kwargs: Any,
    ) -> jax.Array:
        """Estimate the negative ELBO; see `numpyro.infer.elbo.ELBO.loss`."""
        return -self.estimate(Problem(model, guide, param_map, args, kwargs), rng_key)

    def loss_with_mutable_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Do the same as `loss`; raise for a model or guide with `numpyro.mutable` sites, naming the site."""
        return {"loss": self.loss(*args, **kwargs), "mutable_state": None}

    def estimate(self, problem: Problem, key: jax.Array) -> jax.Array:
        """Estimate E_q[f]; differentiating the estimate gives the gradient estimate."""
        raise NotImplementedError

    def __repr__(self) -> str:
        hidden = {"num_particles", "vectorize_particles", "vectorize_particles_fn"}
        settings = ", ".join(f"{k}={v!r}" for k, v in vars(self).items() if k not in hidden)
        return f"legrad.{type(self).__name__}({settings})"


def draws(key: jax.Array, number: int) -> Noise:
    """Return the noise of `number` pivots of one step, on a leading axis of `sites`; all share one subsample."""
    sites, plates = jax.random.split(key)
    return Noise(jax.random.split(sites, number), plates)


def over_draws(one: Callable[[Noise], Any], noise: Noise) -> Any:
    """Run `one` for each draw; the results have a leading axis of draws."""
    if len(noise.sites) == 1:
        return jax.tree.map(lambda a: a[None], one(Noise(noise.sites[0], noise.plates)))
    return jax.vmap(one, in_axes=(Noise(0, None),))(noise)  # type: ignore[arg-type]


@jax.custom_jvp
def gradient_alone(s: jax.Array) -> jax.Array:
    """Return zero with the derivative of s, like s − stop_gradient(s) but without computing s."""
    return jnp.zeros_like(s)


@gradient_alone.defjvp
def _gradient_alone_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    return jnp.zeros_like(primals[0]), tangents[0]


def surrogate(value: jax.Array, scores: Mapping[str, Score], leave_one_out: bool) -> jax.Array:
    """Return the mean over draws (the leading axis of all arrays) of value and surrogates.

    Args:
        value: f at each draw, differentiable where it should be.
        scores: the score of each site; axes are (draw, candidate, *elements), those of `cost` (draw, *elements).
        leave_one_out: whether to subtract from each draw's cost the mean over the *other* draws, a constant for this
            draw.
    """
    total = value
    for score in scores.values():
        F, cost = score.difference, score.cost
        if cost is not None:
            if leave_one_out:
                cost = cost - (jnp.sum(cost, axis=0, keepdims=True) - cost) / (len(cost) - 1)
            F = F + cost[:, None]
        # weight zero times an infinite F (or log q) is zero, in the value and in the gradient
        weighted = jnp.where(score.weights > 0, score.weights * F, 0.0)
        s = jnp.sum(stop_gradient(weighted) * score.log_q, axis=tuple(range(1, score.log_q.ndim)))
        total = total + gradient_alone(s)
    return jnp.mean(total)


def require_positive(**numbers: Any) -> None:
    """Raise for a count that is not a positive whole number, naming it."""
    for name, number in numbers.items():
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise ValueError(f"{name}={number!r}: it must be a whole number of at least 1")
