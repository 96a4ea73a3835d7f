"""REBAR and RELAX, for guides whose discrete latents are Bernoulli and do not depend on each other.

With b = [z > 0], z = φ + logistic noise, and z̃ a draw of z given b, for any smooth c:

    ∇ E[f(b)] = E[ (f(b) − c(z̃)) ∇ log q(b) + ∇ c(z) − ∇ c(z̃) ]
    REBAR: c(z) = η f(σ(z / λ))        RELAX: c(z) = η f(σ(z / λ)) + r(z), with λ, η and the net r learned

∇ c(z̃) goes through z̃ as a function of φ at a fixed b and fixed noise. The two are tied as by Tucker et al.: b is
drawn first and z̃ after it, and z has the noise that makes it equal to z̃. So c is evaluated and differentiated once.

f at a relaxed value is log p − log q with numbers between 0 and 1 in the place of b. A model that compares latents
with each other or with a number inside (0, 1) has a c that jumps. That is not seen, and makes the estimate biased.

The terms of f that an element does not touch are left out of its score, as in `legrad.ScoreFunction`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import optax
from jax.lax import stop_gradient
from numpyro.distributions import BernoulliLogits, BernoulliProbs

from legrad.distributions.densities import softplus
from legrad.distributions.unwrap import unwrap
from legrad.estimators.base import Estimator, draws, over_draws, require_positive
from legrad.estimators.costs import Costs, fixed_parents
from legrad.model.problem import Evaluation, Noise, Problem
from legrad.model.sites import Factor

_OWN_NOISE = 1 << 30  # folded into the key of a draw; statements of the guide fold in their position


class _Relaxed(Estimator):
    """What both share. `control` holds log λ, η, and a net for each site that has one."""

    def __init__(self, control: Mapping[str, Any], num_samples: int) -> None:
        require_positive(num_samples=num_samples)
        super().__init__(num_particles=num_samples)
        self.control, self.num_samples = dict(control), num_samples

    def estimate(self, problem: Problem, key: jax.Array) -> jax.Array:
        """See `Estimator.estimate`."""
        return over_draws(partial(_one, problem, self.control), draws(key, self.num_samples)).mean()


class Rebar(_Relaxed):
    """REBAR with a fixed temperature and strength, which `tune` can find; continuous latents are reparameterized.

    Args:
        temperature: λ.
        eta: η; 0 gives the score function.
        num_samples: draws averaged in one estimate.

    References:
        Tucker, Mnih, Maddison, Lawson, Sohl-Dickstein (2017), "REBAR: Low-variance, unbiased gradient estimates for
        discrete latent variable models".
    """

    def __init__(self, temperature: float = 0.5, eta: float = 1.0, num_samples: int = 1) -> None:
        if not temperature > 0:
            raise ValueError(f"temperature={temperature!r}: it must be positive")
        super().__init__({"log_temperature": jnp.log(temperature), "eta": eta, "nets": {}}, num_samples)
        self.temperature, self.eta = temperature, eta

    def __repr__(self) -> str:
        return f"Rebar(temperature={self.temperature}, eta={self.eta}, num_samples={self.num_samples})"


class Relax(_Relaxed):
    """RELAX with a given control variate, which `train` finds for fixed parameters.

    The estimator is unbiased with any control variate. It has no state: in a fit the control variate stays what it
    was when it was trained, where Grathwohl et al. train it along.

    Args:
        control: what `start` or `train` gives: log λ, η, and for each site the net r, which maps the elements of one
            event of the site to a number, the same for all members of its plates.
        num_samples: draws averaged in one estimate.

    References:
        Grathwohl, Choi, Wu, Roeder, Duvenaud (2018), "Backpropagation through the void".
    """

    def __init__(self, control: Mapping[str, Any], num_samples: int = 1) -> None:
        super().__init__(control, num_samples)

    def __repr__(self) -> str:
        return f"Relax(control of {sorted(self.control['nets'])}, num_samples={self.num_samples})"


def start(
    key: jax.Array,
    params: Mapping[str, Any],
    model: Callable[..., Any],
    guide: Callable[..., Any],
    *args: Any,
    hidden: int = 10,
    **kwargs: Any,
) -> dict[str, Any]:
    """A control variate to start from: REBAR's, and nets whose last layer is zero."""
    noise = draws(key, 1)
    pivot = Problem(model, guide, params, args, kwargs).draw(Noise(noise.sites[0], noise.plates))
    nets = {}
    for i, name in enumerate(_bernoulli_sites(pivot)):
        shape, dtype = jnp.shape(pivot[name].coordinate), _logits(pivot[name]).dtype
        inputs = math.prod(shape[len(shape) - pivot[name].fn.event_dim :])
        W = jax.random.normal(jax.random.fold_in(key, i), (inputs, hidden), dtype) / math.sqrt(inputs)
        nets[name] = {"W": W, "b": jnp.zeros(hidden, dtype), "v": jnp.zeros(hidden, dtype)}
    return {"log_temperature": jnp.log(0.5), "eta": jnp.ones(()), "nets": nets}


def train(
    key: jax.Array,
    params: Mapping[str, Any],
    model: Callable[..., Any],
    guide: Callable[..., Any],
    *args: Any,
    steps: int = 300,
    rate: float = 1e-2,
    hidden: int = 10,
    num_samples: int = 1,
    **kwargs: Any,
) -> Relax:
    """A `Relax` whose control variate was trained at these parameters.

    Args:
        key: of the net's start and of the training's draws.
        params: the parameters, constrained as `loss` takes them.
        model: the model.
        guide: the guide.
        *args: what they take.
        steps: steps of Adam.
        rate: its step size.
        hidden: hidden units of each net.
        num_samples: draws averaged in one estimate of the estimator returned; training takes one.
        **kwargs: what they take.
    """
    of_start, of_steps = jax.random.split(key)
    begin = start(of_start, params, model, guide, *args, hidden=hidden, **kwargs)
    return Relax(_train(begin, of_steps, steps, rate, Problem(model, guide, params, args, kwargs)), num_samples)


def tune(
    key: jax.Array,
    params: Mapping[str, Any],
    model: Callable[..., Any],
    guide: Callable[..., Any],
    *args: Any,
    steps: int = 300,
    rate: float = 1e-2,
    num_samples: int = 1,
    **kwargs: Any,
) -> Rebar:
    """A `Rebar` whose temperature and strength were trained at these parameters; arguments as of `train`."""
    begin = Rebar().control
    found = _train(begin, key, steps, rate, Problem(model, guide, params, args, kwargs))
    return Rebar(float(jnp.exp(found["log_temperature"])), float(found["eta"]), num_samples)


def _train(begin: dict[str, Any], key: jax.Array, steps: int, rate: float, problem: Problem) -> dict[str, Any]:
    """Make ‖gradient‖² small.

    The mean of the gradient is the same for every control variate, so the least mean square is the least variance.
    """
    optimizer = optax.adam(rate)

    def square(control: dict[str, Any], key: jax.Array) -> jax.Array:
        def estimate(params: dict[str, Any]) -> jax.Array:
            return Relax(control).estimate(replace(problem, params=params), key)

        gradient = jax.grad(estimate)(dict(problem.params))
        return sum((jnp.sum(g**2) for g in jax.tree.leaves(gradient)), start=jnp.zeros(()))

    def step(carry: Any, key: jax.Array) -> tuple[Any, None]:
        control, state = carry
        # Adam takes no notice of the size of this gradient, which may be far from 1.
        updates, state = optimizer.update(jax.grad(square)(control, key), state)
        return (optax.apply_updates(control, updates), state), None

    run = jax.jit(lambda control, keys: jax.lax.scan(step, (control, optimizer.init(control)), keys)[0][0])
    return run(jax.tree.map(jnp.asarray, begin), jax.random.split(key, steps))


def _one(problem: Problem, control: Mapping[str, Any], noise: Noise) -> jax.Array:
    pivot = problem.draw(noise)
    sites = _bernoulli_sites(pivot)
    evaluate = partial(problem.evaluate, noise=noise, pivot=pivot)
    b = {name: stop_gradient(pivot[name].coordinate) for name in sites}
    here = evaluate(b)
    value = here.total(stop=b)
    if not b:
        return value
    parents = fixed_parents(b, problem.parents(pivot, noise))
    _reject_dependent(parents)
    costs = Costs(b, parents, evaluate)

    # All that weighs a score is computed from stopped parameters, and is left differentiable in `control`.
    fixed = problem.stopped()
    phi = {name: jnp.broadcast_to(_logits(here.factors[name]), jnp.shape(b[name])) for name in b}
    key = jax.random.fold_in(noise.sites, _OWN_NOISE)
    v = {
        name: jax.random.logistic(jax.random.fold_in(key, i), p.shape, p.dtype)
        for i, (name, p) in enumerate(phi.items())
    }
    given_b = {name: _conditional(v[name], b[name], phi[name]) for name in b}
    z = {name: stop_gradient(value) for name, value in given_b.items()}
    slope, (f, r) = jax.grad(partial(_control_variate, fixed, control, noise, pivot), has_aux=True)(z)

    hard = jax.tree.map(stop_gradient, here.terms())
    total = jnp.zeros(())
    for name in b:
        log_q = here.factors[name].log_prob()
        change = jax.tree.map(lambda t, c: t - control["eta"] * c, hard, f)
        weight = costs.of(name, change) - r.get(name, 0.0)
        total = total + jnp.sum(weight * log_q)
        # z and z̃ are equal; as functions of φ they are not.
        total = total + jnp.sum(slope[name] * (phi[name] - given_b[name]))
    return value + total - stop_gradient(total)


def _conditional(v: jax.Array, b: jax.Array, phi: jax.Array) -> jax.Array:
    """z given b, of logistic noise v: log(1 + e^v / (1 − σ(φ))) for b = 1, and −log(1 + e^v / σ(φ)) for b = 0."""
    return jnp.where(b == 1, softplus(v + softplus(phi)), -softplus(v + softplus(-phi)))


def _control_variate(
    problem: Problem,
    control: Mapping[str, Any],
    noise: Noise,
    pivot: Mapping[str, Factor],
    z: dict[str, jax.Array],
) -> tuple[jax.Array, tuple[dict[str, jax.Array], dict[str, jax.Array]]]:
    """c(z); and of it the terms of f, and r for each element (that of its own event)."""
    relaxed = {name: jax.nn.sigmoid(value * jnp.exp(-control["log_temperature"])) for name, value in z.items()}
    here = _evaluate_relaxed(problem, relaxed, noise, pivot)
    total, by_element = control["eta"] * here.total(), {}
    for name, net in control["nets"].items():
        members = _members(pivot[name], z[name])
        x = jnp.tanh(z[name] / 2).reshape(members, -1)
        r = jnp.tanh(x @ net["W"] + net["b"]) @ net["v"]
        total = total + jnp.sum(r)
        by_element[name] = jnp.broadcast_to(r[:, None], x.shape).reshape(z[name].shape)
    return total, (here.terms(), by_element)


def _evaluate_relaxed(
    problem: Problem, relaxed: dict[str, jax.Array], noise: Noise, pivot: Mapping[str, Factor]
) -> Evaluation:
    try:
        with numpyro.validation_enabled(False):  # which gives −∞ to all that lies between 0 and 1
            return problem.evaluate(relaxed, noise, pivot=pivot)
    except (TypeError, IndexError) as error:
        names = ", ".join(f"'{name}'" for name in relaxed)
        raise ValueError(
            f"the model or guide cannot be evaluated where {names} lies between 0 and 1 ({type(error).__name__}: "
            f"{str(error).splitlines()[0]}): REBAR and RELAX need a relaxed f; use legrad.DisARM() or "
            "legrad.LocalExpectation()"
        ) from error


def _bernoulli_sites(pivot: Mapping[str, Factor]) -> list[str]:
    found = []
    for name, factor in pivot.items():
        bernoulli = isinstance(unwrap(factor.fn).bare, BernoulliLogits | BernoulliProbs)
        if bernoulli and not factor.in_scan:
            found.append(name)
        elif bernoulli or not factor.fn.has_rsample:
            where = " inside scan" if factor.in_scan else ""
            raise ValueError(
                f"site '{name}' of the guide is {factor.family}{where}: REBAR and RELAX are for Bernoulli sites "
                "outside of scan and for reparameterizable ones; use legrad.LocalExpectation()"
            )
    return found


def _reject_dependent(parents: Mapping[str, frozenset[str]]) -> None:
    for name, above in parents.items():
        if above:
            raise ValueError(
                f"site '{name}' of the guide depends on {', '.join(sorted(above))}: this REBAR and RELAX are for "
                "discrete sites that do not depend on each other; use legrad.DisARM() or legrad.LocalExpectation()"
            )


def _logits(factor: Factor) -> jax.Array:
    return unwrap(factor.fn).bare.logits


def _members(factor: Factor, z: jax.Array) -> int:
    """How many events the site has: the net r is applied to each by itself."""
    return math.prod(jnp.shape(z)[: jnp.ndim(z) - factor.fn.event_dim])
