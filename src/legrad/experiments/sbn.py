"""The paper's third experiment: a sigmoid belief net with a recognition model, on binarized digits.

    p(y, x) = p(x) Π_d σ(ỹ_d (Wᵀx + b)_d),  p(x) uniform;    q(x | y) = Π_k Bernoulli(x_k | σ((Vᵀy + c)_k))

`layers` may name several hidden layers, which the paper leaves to future work: p(x_L) uniform, then
p(x_l | x_{l+1}) downwards, and q(x_1 | y) q(x_2 | x_1) ... upwards. The lower layers then have children in q, and
LeGrad weighs their candidates by the Markov blanket.
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
from legrad.experiments.measure import Bench, MeasurePlan, points
from legrad.experiments.record import trajectory
from legrad.experiments.stages import Arrays, Results, Stage
from legrad.model.problem import Noise, Problem

METHODS = ("LeGrad", "DisARM", "leave-one-out", "LdGrad")
BEST_RATES = {
    "LeGrad": 1e-2,
    "DisARM": 3e-3,
    "leave-one-out": 3e-3,
    "LdGrad": 3e-3,
}  # what the trial finds at full size


@dataclass(frozen=True)
class Settings:
    """What the paper states, and below it what it leaves open."""

    layers: tuple[int, ...] = (200,)
    digits_per_class: int = 100

    pixels: str = "binarized: 1 where the grey value is above 127"
    batch: int = 100
    seconds: float = 40.0  # for each method and seed, compiling left out
    most_steps: int = 100_000
    steps: tuple[int, ...] = ()  # for each of METHODS, in place of seconds: the same on a busy machine
    early: int = 100  # the step early in the fit at which variances are measured
    seeds: int = 5
    learning_rates: tuple[float, ...] = (1e-3, 3e-3, 1e-2)  # for the trial; without any, those it finds at full size
    trial_seconds: float = 15.0
    optimizer: str = "Adam, constant step; each method has the best of the learning rates in a trial"
    start: str = "W, V small and random; b the logit of each pixel's mean; c = 0"
    pivots: int = 1
    leave_one_out_samples: int = 4  # 0: leave it out
    ldgrad_samples: int = 10
    evaluation_draws: int = 100
    variance_draws: int = 60


QUICK = Settings(
    digits_per_class=20,
    steps=(250, 500, 0, 250),  # somewhat more time for the others than for LeGrad
    seeds=1,
    early=20,
    learning_rates=(),
    leave_one_out_samples=0,
    evaluation_draws=5,
    variance_draws=4,
)


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
        x = numpyro.subsample(Y, event_dim=1).astype(float)
        for depth in range(1, len(sizes)):
            V = numpyro.param(f"V{depth}", partial(_small, shape=(sizes[depth - 1], sizes[depth]), scale=0.05))
            c = numpyro.param(f"c{depth}", jnp.zeros(sizes[depth]))
            x = numpyro.sample(f"x{depth}", dist.Bernoulli(logits=x @ V + c).to_event(1))


def _small(key: jax.Array, shape: tuple[int, ...], scale: float) -> jax.Array:
    return scale * jax.random.normal(key, shape)


def methods(s: Settings) -> list[str]:
    """The names of the methods that are compared."""
    return [name for name in METHODS if name != "leave-one-out" or s.leave_one_out_samples]


def steps_of(s: Settings, name: str) -> int:
    """The steps of a method, where the settings count steps."""
    return s.steps[METHODS.index(name)]


def estimators(s: Settings) -> dict[str, Any]:
    """LeGrad, and what it is compared with."""
    samples = s.leave_one_out_samples
    found = {
        "LeGrad": legrad.LocalExpectation(num_pivots=s.pivots, exact_terms=False),
        "DisARM": legrad.DisARM(surrogates=False),
        "leave-one-out": legrad.ScoreFunction(samples, baseline="leave_one_out") if samples else None,
        "LdGrad": LdGrad(s.ldgrad_samples, over="images"),
    }
    return {name: found[name] for name in methods(s)}


def inputs(s: Settings, digits: datasets.Digits) -> np.ndarray:
    """The binarized digits, class by class."""
    return (datasets.per_class(digits, s.digits_per_class).images > 127).astype(np.int8)


def stages(s: Settings, Y: np.ndarray) -> dict[str, Stage]:
    """What is computed, in order."""
    args = (jnp.asarray(Y), s.layers, s.batch)
    known = estimators(s)
    fit = partial(trajectory, model, guide, args, pick=lambda g: g["V1"][0, 0])

    def trial(results: Results, label: str) -> Arrays:
        """The learning rate of each method: what reaches most in a short fit, with a seed of its own."""
        reached: Arrays = {}
        for name in methods(s):
            for rate in s.learning_rates:
                what = f"{label}, {name}, {rate:g}"
                length: dict[str, Any] = {"steps": s.most_steps, "seconds": s.trial_seconds}
                run = fit(known[name], optax.adam(rate), seed=s.seeds, **length, keep=(), label=what)
                reached[f"{name} {rate:g}"] = evaluate(s, final(run), Y, s.seeds)["bound"]
        rates = {
            n: max(s.learning_rates, key=lambda r: float(reached[f"{n} {r:g}"]), default=BEST_RATES[n])
            for n in methods(s)
        }
        return reached | {name: np.asarray(rate) for name, rate in rates.items()}

    def fitted(name: str, seed: int, results: Results, label: str) -> Arrays:
        rate = float(results["learning rates"][name])
        whole = seed == 0 and name == "LeGrad"
        keep = (0, s.early) if whole else ()
        steps, seconds = (steps_of(s, name), None) if s.steps else (s.most_steps, s.seconds)
        run = fit(known[name], optax.adam(rate), steps=steps, seed=seed, seconds=seconds, keep=keep, label=label)
        found = {"elbo": run["elbo"], "seconds": run["seconds"]} | evaluate(s, final(run), Y, seed)
        # Weights are large: those of the first seed serve the figures, the points kept serve the variances.
        return found | (run if whole else {})

    def variances(results: Results, label: str) -> Arrays:
        plans = {name: MeasurePlan(method, s.variance_draws) for name, method in known.items()}
        first = results["LeGrad, seed 0"]
        # None of the parameters is constrained, so those at the end are of the same kind as those that were kept.
        found = Bench(model, guide, args).variances(plans, [*points(first), final(first)], label)
        # Means over the weights of the recognition model: the whole arrays are large and say no more.
        return {
            f"{name} {depth + 1}": found[f"variance {name} V{depth + 1}"].mean(axis=(1, 2))
            for name in plans
            for depth in range(len(s.layers))
        }

    runs = {f"{name}, seed {seed}": partial(fitted, name, seed) for seed in range(s.seeds) for name in methods(s)}
    return {
        "closed form": lambda results, label: closed_form(Y[: s.batch], s.layers[0]),
        "learning rates": trial,
        **runs,
        "variance at fixed parameters": variances,
    }


def final(run: Arrays) -> dict[str, np.ndarray]:
    """The fitted parameters of a trajectory."""
    return {name.removeprefix("final "): value for name, value in run.items() if name.startswith("final ")}


def evaluate(s: Settings, params: dict[str, Any], Y: np.ndarray, seed: int) -> Arrays:
    """The bound per example over many draws, and the share of pixels that a reconstruction has wrong."""
    keys = jax.random.split(jax.random.key(1000 + seed), s.evaluation_draws)
    bound, wrong = _evaluate(keys, params, jnp.asarray(Y), s.layers)
    return {"bound": np.asarray(bound.mean() / len(Y)), "wrong": np.asarray(wrong.mean())}


@partial(jax.jit, static_argnames="layers")
def _evaluate(keys: jax.Array, params: Any, Y: jax.Array, layers: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    def one(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        bound = -legrad.ScoreFunction().loss(key, params, model, guide, Y, layers)
        return bound, jnp.mean(jnp.abs(Y - (reconstruct(key, params, Y) > 0.5)))

    return jax.lax.map(one, keys)


def reconstruct(key: jax.Array, params: Any, Y: Any) -> jax.Array:
    """The pixels' probabilities given one draw of the first hidden layer."""
    Y = jnp.asarray(Y, float)
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
        return -legrad.LocalExpectation(exact_terms=False).loss(key, params | {"V1": V, "c1": c}, model, guide, *args)

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
