"""The paper's third experiment: a sigmoid belief net with a recognition model, on binarized digits.

    p(y, x) = p(x) Π_d σ(ỹ_d (Wᵀx + b)_d),  p(x) uniform;    q(x | y) = Π_k Bernoulli(x_k | σ((Vᵀy + c)_k))

`layers` may name several hidden layers, which the paper leaves to future work: p(x_L) uniform, then
p(x_l | x_{l+1}) downwards, and q(x_1 | y) q(x_2 | x_1) ... upwards. The lower layers then have children in q, and LeGrad
weighs their candidates by the Markov blanket.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax

import legrad
from legrad.estimators.base import draws
from legrad.experiments import datasets
from legrad.experiments.ldgrad import LdGrad
from legrad.experiments.measure import Bench, Plan, points
from legrad.experiments.record import trajectory
from legrad.experiments.stages import Arrays, Results, Stage
from legrad.problem import Noise, Problem

METHODS = ("LeGrad", "DisARM", "leave-one-out", "LdGrad")


@dataclass(frozen=True)
class Settings:
    """What the paper states, and below it what it leaves open."""

    layers: tuple[int, ...] = (200,)
    digits_per_class: int = 100

    pixels: str = "binarized: 1 where the grey value is above 127"
    batch: int = 100
    seconds: float = 60.0  # for each method and seed
    seeds: int = 5
    learning_rate: float = 3e-3
    optimizer: str = "Adam, constant step, the same for all methods"
    start: str = "W, V small and random; b the logit of each pixel's mean; c = 0"
    pivots: int = 1
    leave_one_out_samples: int = 2
    ldgrad_samples: int = 10
    evaluation_draws: int = 100
    variance_draws: int = 60


QUICK = Settings(digits_per_class=20, seconds=5.0, seeds=1, evaluation_draws=20, variance_draws=20)


def model(Y: Any, layers: tuple[int, ...], batch: int | None = None) -> None:
    """The net, from its top layer down to the pixels."""
    sizes = (Y.shape[1], *layers)
    mean = jnp.clip(Y.mean(axis=0), 0.02, 0.98)
    with numpyro.plate("images", len(Y), subsample_size=batch):
        y = numpyro.subsample(Y, event_dim=1)
        logits = jnp.zeros(layers[-1])
        for depth in range(len(layers), 0, -1):
            x = numpyro.sample(f"x{depth}", dist.Bernoulli(logits=logits).to_event(1))
            W = numpyro.param(f"W{depth}", partial(_small, shape=(sizes[depth], sizes[depth - 1]), scale=0.1))
            b = numpyro.param(f"b{depth}", jnp.zeros(sizes[depth - 1]) if depth > 1 else jnp.log(mean / (1 - mean)))
            logits = x @ W + b
        numpyro.sample("y", dist.Bernoulli(logits=logits).to_event(1), obs=y)


def guide(Y: Any, layers: tuple[int, ...], batch: int | None = None) -> None:
    """The recognition model, from the pixels up."""
    sizes = (Y.shape[1], *layers)
    with numpyro.plate("images", len(Y), subsample_size=batch):
        x = numpyro.subsample(Y, event_dim=1)
        for depth in range(1, len(sizes)):
            V = numpyro.param(f"V{depth}", partial(_small, shape=(sizes[depth - 1], sizes[depth]), scale=0.05))
            c = numpyro.param(f"c{depth}", jnp.zeros(sizes[depth]))
            x = numpyro.sample(f"x{depth}", dist.Bernoulli(logits=x @ V + c).to_event(1))


def _small(key: jax.Array, shape: tuple[int, ...], scale: float) -> jax.Array:
    return scale * jax.random.normal(key, shape)


def estimators(s: Settings) -> dict[str, Any]:
    """LeGrad, and what it is compared with."""
    return {
        "LeGrad": legrad.LocalExpectation(num_pivots=s.pivots),
        "DisARM": legrad.DisARM(),
        "leave-one-out": legrad.ScoreFunction(s.leave_one_out_samples, baseline="leave_one_out"),
        "LdGrad": LdGrad(s.ldgrad_samples, over="images"),
    }


def inputs(s: Settings, digits: datasets.Digits) -> np.ndarray:
    """The binarized digits, class by class."""
    return (datasets.per_class(digits, s.digits_per_class).images > 127).astype(np.float32)


def stages(s: Settings, Y: np.ndarray) -> dict[str, Stage]:
    """What is computed, in order."""
    args = (jnp.asarray(Y), s.layers, s.batch)
    bench = Bench(model, guide, args)
    methods = estimators(s)

    def pilot(results: Results, label: str) -> Arrays:
        """Seconds of a step, from which each method's number of steps is set."""
        loops = {"LeGrad": 4, "DisARM": 12, "leave-one-out": 12, "LdGrad": 4}
        at = bench.parameters.unconstrain(bench.parameters.initial)
        return bench.seconds({name: (methods[name], n) for name, n in loops.items()}, at, label)

    def fitted(name: str, seed: int, results: Results, label: str) -> Arrays:
        steps = max(20, int(s.seconds / float(results["seconds of a step"][name])))
        run = trajectory(
            model, guide, args, methods[name], optax.adam(s.learning_rate), steps=steps, seed=seed,
            pick=lambda g: g["V1"][0, 0], keep=kept(steps), label=label,
        )  # fmt: skip
        final = {n.removeprefix("final "): value for n, value in run.items() if n.startswith("final ")}
        found = {"elbo": run["elbo"], "seconds": run["seconds"]} | evaluate(s, final, Y, seed)
        # Weights are large: those of the first seed serve the figures, the points kept serve the variances.
        return found | (run if seed == 0 and name == "LeGrad" else {})

    def variances(results: Results, label: str) -> Arrays:
        plans = {name: Plan(method, s.variance_draws) for name, method in methods.items()}
        found = bench.variances(plans, points(results["LeGrad, seed 0"]), label)
        # Means over the weights of the recognition model: the whole arrays are large and say no more.
        return {
            f"{name} {depth + 1}": found[f"variance {name} V{depth + 1}"].mean(axis=(1, 2))
            for name in plans
            for depth in range(len(s.layers))
        }

    runs = {f"{name}, seed {seed}": partial(fitted, name, seed) for seed in range(s.seeds) for name in METHODS}
    return {
        "closed form": lambda results, label: closed_form(Y[: s.batch], s.layers[0]),
        "seconds of a step": pilot,
        **runs,
        "variance at fixed parameters": variances,
    }


def kept(steps: int) -> tuple[int, ...]:
    """The steps whose parameters are kept: the start, a tenth of the way, and the end."""
    return (0, steps // 10, steps - 1)


def evaluate(s: Settings, params: dict[str, Any], Y: np.ndarray, seed: int) -> Arrays:
    """The bound per example over many draws, and the share of pixels that a reconstruction has wrong."""
    args = (jnp.asarray(Y), s.layers)
    params = {name: jnp.asarray(value) for name, value in params.items()}

    def one(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        bound = -legrad.ScoreFunction().loss(key, params, model, guide, *args) / len(Y)
        return bound, jnp.mean(jnp.abs(args[0] - (reconstruct(key, params, args[0]) > 0.5)))

    keys = jax.random.split(jax.random.key(1000 + seed), s.evaluation_draws)
    bound, wrong = jax.jit(lambda keys: jax.lax.map(one, keys))(keys)
    return {"bound": np.asarray(bound.mean()), "wrong": np.asarray(wrong.mean())}


def reconstruct(key: jax.Array, params: Any, Y: Any) -> jax.Array:
    """The pixels' probabilities given one draw of the first hidden layer."""
    x = jax.random.bernoulli(key, jax.nn.sigmoid(Y @ params["V1"] + params["c1"])).astype(Y.dtype)
    return jax.nn.sigmoid(x @ params["W1"] + params["b1"])


def closed_form(Y: np.ndarray, hidden: int, seed: int = 0) -> Arrays:
    """The gradient of V that the paper derives for one layer, beside the estimator's with the same pivot.

    ∇_{v_k} = Σ_i σ_ik (1 − σ_ik) [ Σ_d log (1 + e^{−ỹ_id w_dᵀ(x_i, x_ik=0)}) / (1 + e^{−ỹ_id w_dᵀ(x_i, x_ik=1)})
                                    + log (1 − σ_ik)/σ_ik ] y_i
    """
    of_params, key = jax.random.split(jax.random.key(seed))
    args: tuple[Any, ...] = (jnp.asarray(Y), (hidden,))
    bench = Bench(model, guide, args)
    params = {
        name: value + 0.3 * jax.random.normal(jax.random.fold_in(of_params, i), value.shape)
        for i, (name, value) in enumerate(bench.parameters.initial.items())
    }

    def bound(V: jax.Array, c: jax.Array) -> jax.Array:
        return -legrad.LocalExpectation().loss(key, params | {"V1": V, "c1": c}, model, guide, *args)

    by_estimator = jax.jit(jax.grad(bound, argnums=(0, 1)))(params["V1"], params["c1"])
    noise = draws(key, 1)
    pivot = Problem(model, guide, params, args).draw(Noise(noise.sites[0], noise.plates))["x1"].coordinate
    y, W, b = np.asarray(Y, np.float64), *(np.asarray(params[n], np.float64) for n in ("W1", "b1"))
    x, V, c = np.asarray(pivot, np.float64), *(np.asarray(params[n], np.float64) for n in ("V1", "c1"))
    sigma = 1 / (1 + np.exp(-(y @ V + c)))
    signed, logits = 2 * y - 1, x @ W + b
    weight = np.empty_like(sigma)
    for k in range(hidden):
        off = logits - x[:, [k]] * W[k]
        on = off + W[k]
        likelihood = (np.logaddexp(0, -signed * off) - np.logaddexp(0, -signed * on)).sum(axis=1)
        weight[:, k] = sigma[:, k] * (1 - sigma[:, k]) * (likelihood + np.log((1 - sigma[:, k]) / sigma[:, k]))
    paper = y.T @ weight, weight.sum(axis=0)
    errors = [np.abs(np.asarray(e) - p).max() / np.abs(p).max() for e, p in zip(by_estimator, paper, strict=True)]
    return {"error": np.asarray(max(errors))}
