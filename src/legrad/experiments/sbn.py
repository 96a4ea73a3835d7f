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
from matplotlib.figure import Figure

import legrad
from legrad.estimators.base import draws
from legrad.experiments import datasets, draw
from legrad.experiments.ldgrad import LdGrad
from legrad.experiments.measure import Bench, MeasurePlan, points
from legrad.experiments.record import trajectory
from legrad.experiments.section import Claim, Picture, Section, Table
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
    seconds=2.5,
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


def estimators(s: Settings) -> dict[str, Any]:
    """LeGrad, and what it is compared with."""
    samples = s.leave_one_out_samples
    found = {
        "LeGrad": legrad.LocalExpectation(num_pivots=s.pivots),
        "DisARM": legrad.DisARM(),
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
    fit = partial(trajectory, model, guide, args, steps=s.most_steps, pick=lambda g: g["V1"][0, 0])

    def trial(results: Results, label: str) -> Arrays:
        """The learning rate of each method: what reaches most in a short fit, with a seed of its own."""
        reached: Arrays = {}
        for name in methods(s):
            for rate in s.learning_rates:
                what = f"{label}, {name}, {rate:g}"
                run = fit(known[name], optax.adam(rate), seed=s.seeds, seconds=s.trial_seconds, keep=(), label=what)
                reached[f"{name} {rate:g}"] = evaluate(s, _final(run), Y, s.seeds)["bound"]
        rates = {
            n: max(s.learning_rates, key=lambda r: float(reached[f"{n} {r:g}"]), default=BEST_RATES[n])
            for n in methods(s)
        }
        return reached | {name: np.asarray(rate) for name, rate in rates.items()}

    def fitted(name: str, seed: int, results: Results, label: str) -> Arrays:
        rate = float(results["learning rates"][name])
        whole = seed == 0 and name == "LeGrad"
        keep = (0, s.early) if whole else ()
        run = fit(known[name], optax.adam(rate), seed=seed, seconds=s.seconds, keep=keep, label=label)
        found = {"elbo": run["elbo"], "seconds": run["seconds"]} | evaluate(s, _final(run), Y, seed)
        # Weights are large: those of the first seed serve the figures, the points kept serve the variances.
        return found | (run if whole else {})

    def variances(results: Results, label: str) -> Arrays:
        plans = {name: MeasurePlan(method, s.variance_draws) for name, method in known.items()}
        first = results["LeGrad, seed 0"]
        # None of the parameters is constrained, so those at the end are of the same kind as those that were kept.
        found = Bench(model, guide, args).variances(plans, [*points(first), _final(first)], label)
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


def _final(run: Arrays) -> dict[str, np.ndarray]:
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


TEXT = """Each image has binary hidden units (200 in the paper) with a uniform prior, and a recognition model reads
them off the pixels. The bound includes the constant log p(x) of each image (−200 log 2 for 200 units), which the
paper's printed bound leaves out; LdGrad's f has it too.

Every method has the same net, start and optimizer, minibatches of the same size, the learning rate that served it
best in a trial at full size, and the same number of seconds on the same machine; how many steps it makes in them
depends on what a step costs. LdGrad multiplies the score of an image's units by the whole of that image's f. DisARM
and leave-one-out are younger than the paper: they are what one would use today."""
DEEP = """With more than one hidden layer, a unit of a lower layer has children in q: its candidates are weighed by
its Markov blanket, and the value of f cannot simply be measured from that of the pivot. Two pivots, each the other's
baseline, take most of that noise away."""
RECONSTRUCTIONS = """The same digits reconstructed by LeGrad's fit (seed 0): the pixels' probabilities given one draw
of the hidden units."""
BOUND = """The bound per example (minibatch estimates, smoothed; mean of the seeds in a band from the least to the
largest), by step as in the paper, and by wall time, which the paper does not show. Compiling is left out."""
VARIANCE = """The variance of the gradient of the recognition weights at fixed parameters, those of LeGrad's fit (mean
over weights)."""


def section(s: Settings, results: Results, Y: np.ndarray, source: str, command: str) -> Section:
    """The figures, and the paper's claims beside them."""
    first = results["LeGrad, seed 0"]
    params = _final(first)
    shown = np.linspace(0, len(Y) - 1, 100).astype(int)
    probabilities = np.asarray(reconstruct(jax.random.key(0), params, Y[shown]))
    found = tables(s, results)
    digits = f"100 of {len(Y):,} training digits, binarized."
    weights = f"The learned weights W of the {s.layers[0]} units next to the pixels, each as an image (red: ink)."
    return Section(
        name="sbn",
        title="A sigmoid belief net with a recognition model",
        text=TEXT + ("\n\n" + DEEP if len(s.layers) > 1 else ""),
        claims=claims(s, results, float(Y.mean()), command),
        pictures=[
            Picture("sbn-digits", digits, partial(draw_images, Y[shown], 10)),
            Picture("sbn-reconstructions", RECONSTRUCTIONS, partial(draw_images, probabilities, 10)),
            Picture("sbn-weights", weights, partial(draw_images, params["W1"], 20, weights=True)),
            Picture("sbn-bound", BOUND, partial(draw_bounds, s, results, len(Y))),
            Picture("sbn-variance", VARIANCE, partial(draw_variances, s, results)),
            Picture("sbn-efficiency", draw.EFFICIENT, partial(draw.efficiencies, found[1])),
        ],
        tables=found,
        settings=draw.settings(s)
        | {f"learning rate, {name}": float(results["learning rates"][name]) for name in methods(s)},
        data=source,
    )


def over_seeds(s: Settings, results: Results, name: str, what: str) -> np.ndarray:
    """One number for each seed."""
    return np.array([float(results[f"{name}, seed {seed}"][what]) for seed in range(s.seeds)])


def places(results: Results) -> list[str]:
    """The points of LeGrad's first fit at which variances were measured."""
    steps = results["LeGrad, seed 0"]["kept steps"]
    return [f"at step {step}" if step else "at the start" for step in steps] + ["at the end"]


def label(s: Settings, name: str) -> str:
    """The method with its number of samples."""
    samples = {"leave-one-out": s.leave_one_out_samples, "LdGrad": s.ldgrad_samples}
    pivots = f", {s.pivots} pivots" if name == "LeGrad" and s.pivots > 1 else ""
    return f"{name}, {samples[name]} samples" if name in samples else name + pivots


def claims(s: Settings, results: Results, ink: float, command: str) -> list[Claim]:
    """The claims of the paper's Section 4.3, and what it could not compare with."""
    bound = {name: over_seeds(s, results, name, "bound") for name in methods(s)}
    mean = {name: float(b.mean()) for name, b in bound.items()}
    wrong = {name: float(over_seeds(s, results, name, "wrong").mean()) for name in methods(s)}
    first = results["LeGrad, seed 0"]["elbo"] / (10 * s.digits_per_class)
    smooth = draw.smooth(first, max(1, len(first) // 20))
    half = int(np.argmax(smooth >= 0.5 * (smooth[0] + smooth[-1]))) + 1
    others = [name for name in methods(s) if name != "LeGrad"]
    theirs = "; ".join(f"{label(s, name)} {mean[name]:.2f}" for name in others)
    best = max(others, key=lambda name: mean[name])
    ahead = "ahead of" if mean["LeGrad"] > mean[best] else "behind"
    lead = abs(mean["LeGrad"] - mean[best])
    won = int((bound["LeGrad"] > bound[best]).sum())
    of_seeds = f"; LeGrad is the better one in {won} of {s.seeds} seeds" if s.seeds > 1 else ""
    layers = ", ".join(map(str, s.layers))
    error = float(results["closed form"]["error"])
    found = [
        Claim(
            "sbn-fit",
            """the model is able to provide very good reconstruction of the training data and exhibits also a fast
            and very stable convergence""",
            f"""in {s.seconds:g} seconds the bound per example rises from {first[0]:.0f} to {mean["LeGrad"]:.1f} nats;
            half of the way is done after {half} of {len(first):,} steps; {100 * wrong["LeGrad"]:.2f}% of the pixels
            are reconstructed wrongly, where a blank image would have {100 * ink:.0f}% wrong""",
            wrong["LeGrad"] < 0.05 and smooth[-1] >= smooth.max() - 2.0,
            command,
            "fewer than 5% of the pixels are wrong and the smoothed bound ends within 2 nats of its best",
        ),
        Claim(
            "sbn-ld",
            "LdGrad is unable to make good progress and has a severe tendency to get stuck",
            f"""in the same {s.seconds:g} seconds LdGrad ({s.ldgrad_samples} samples) reaches {mean["LdGrad"]:.1f}
            nats, LeGrad {mean["LeGrad"]:.1f}; wrong pixels {100 * wrong["LdGrad"]:.2f}% against
            {100 * wrong["LeGrad"]:.2f}%""",
            mean["LdGrad"] < mean["LeGrad"] - 10,
            command,
            "LdGrad ends more than 10 nats below LeGrad",
        ),
        Claim(
            "sbn-closed-form",
            "the gradient of the recognition weights has the closed form that the paper derives",
            f"""in a net of one hidden layer, the estimator's gradient differs from it by {error:.1e} of its largest
            component, with the same pivot, in float32""",
            error < 1e-5,
            command,
            "the difference is below 1e-5",
        ),
        Claim(
            "sbn-equal-time",
            "at equal wall time LeGrad reaches a better bound than what one would use today",
            f"""bound per example after {s.seconds:g} seconds: LeGrad {mean["LeGrad"]:.2f}; {theirs}. LeGrad is
            {ahead} the best of them by {lead:.2f} nats{of_seeds}""",
            mean["LeGrad"] > mean[best],
            command,
            ours=True,
        ),
    ]
    if len(s.layers) > 1:
        found.append(
            Claim(
                "sbn-deep",
                "LeGrad fits nets with several layers, the paper's future work, at least as well as DisARM",
                f"""layers of {layers} units: LeGrad with the weights of the Markov blanket reaches
                {mean["LeGrad"]:.2f} nats per example; {theirs}""",
                mean["LeGrad"] >= mean["DisARM"],
                command,
                ours=True,
            )
        )
    return found


def tables(s: Settings, results: Results) -> list[Table]:
    """What each method reached in the same time, and the variance and time of its gradients."""
    at = ("variance at the start", *places(results)[1:])
    reached: list[tuple[str, ...]] = []
    efficiency: list[tuple[str, ...]] = []
    for name in methods(s):
        bound, wrong = (over_seeds(s, results, name, what) for what in ("bound", "wrong"))
        spread = [f" ± {v.std(ddof=1):.2g}" if s.seeds > 1 else "" for v in (bound, 100 * wrong)]
        runs = [results[f"{name}, seed {seed}"] for seed in range(s.seeds)]
        steps = np.mean([len(run["elbo"]) for run in runs])
        took = np.mean([run["seconds"][-1] for run in runs])
        row = f"{bound.mean():.2f}{spread[0]}", f"{100 * wrong.mean():.3f}{spread[1]}", f"{steps:,.0f}", f"{took:.1f}"
        reached.append((label(s, name), *row))
        seconds = float(np.mean([run["seconds"][-1] / len(run["elbo"]) for run in runs]))
        variance = [results["variance at fixed parameters"][f"{name} {d + 1}"] for d in range(len(s.layers))]
        mean = [float(np.mean([v[i] for v in variance])) for i in range(len(at))]
        numbers = (f"{v:.3g}" for v in (*mean, seconds))
        efficiency.append((label(s, name), *numbers, draw.efficiency(mean[-1], seconds)))
    note = f"Mean and standard deviation of {s.seeds} seeds." if s.seeds > 1 else "One seed."
    trial = results["learning rates"]
    rates = [f"{rate:g}" for rate in s.learning_rates]
    edge = [
        n
        for n in methods(s)
        if s.learning_rates and float(trial[n]) in (min(s.learning_rates), max(s.learning_rates))
    ]
    note_of_trial = (
        f"At the edge of what was tried, so that another rate may serve better: {', '.join(edge)}." if edge else ""
    )
    rows = [
        (label(s, name), *(f"{float(trial.get(f'{name} {r}', np.nan)):.2f}" for r in rates)) for name in methods(s)
    ]
    title = f"The trial of learning rates: bound per example after {s.trial_seconds:g} seconds"
    return [
        Table(
            f"What {s.seconds:g} seconds reach",
            ("estimator", "bound per example, nats", "wrong pixels, %", "steps", "seconds, measured"),
            reached,
            f"""{note} The bound is a mean over {s.evaluation_draws} draws for every training digit; a pixel is wrong
            where the rounded probability, given one draw of the hidden units, is not the pixel.""",
        ),
        Table(
            "Variance, time and efficiency",
            ("estimator", *at, "seconds a step", "1/(variance × seconds)"),
            efficiency,
            f"""Variance of the gradient of the recognition weights of a minibatch of {s.batch}, mean over weights, at
            the same points of LeGrad's fit for all, minibatch noise included; the last column is for the end.""",
        ),
        *([Table(title, ("estimator", *rates), rows, note_of_trial)] if rates else []),
    ]


def draw_images(rows: np.ndarray, columns: int, weights: bool = False) -> Figure:
    """Rows of pixels as one picture of small images."""
    columns = min(columns, len(rows))
    blank = np.full((-len(rows) % columns, rows.shape[1]), np.nan)  # the last line may be short
    rows = np.concatenate([np.asarray(rows, float), blank]).reshape(-1, columns, 28, 28)
    sheet = np.pad(rows, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=np.nan)
    sheet = sheet.transpose(0, 2, 1, 3).reshape(len(rows) * 30, columns * 30)
    limit = float(np.nanpercentile(np.abs(rows), 99.5))
    style: dict[str, Any] = {"cmap": "gray", "vmin": 0, "vmax": 1}
    if weights:
        style = {"cmap": "RdBu_r", "vmin": -limit, "vmax": limit}
    width = 8.0 if weights else 5.4
    figure = Figure(figsize=(width, width * sheet.shape[0] / sheet.shape[1]), layout="constrained")
    axes = figure.subplots()
    axes.imshow(sheet, interpolation="nearest", **style)
    axes.set_axis_off()
    return figure


def draw_bounds(s: Settings, results: Results, images: int) -> Figure:
    """By step and by wall time, all seeds."""
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    by_step, by_time = figure.subplots(1, 2, sharey=True)
    ends = []
    for name in methods(s):
        runs = [results[f"{name}, seed {seed}"] for seed in range(s.seeds)]
        steps = min(len(run["elbo"]) for run in runs)
        curves = np.stack([draw.smooth(run["elbo"][:steps] / images, max(1, steps // 40)) for run in runs])
        seconds = np.mean([run["seconds"][:steps] for run in runs], axis=0)
        ends.append(curves[:, -1].max())
        for axes, x in ((by_step, np.arange(1, curves.shape[1] + 1)), (by_time, seconds)):
            axes.fill_between(x, curves.min(0), curves.max(0), color=draw.COLOURS[name], alpha=0.2, linewidth=0)
            draw.line(axes, x, curves.mean(0), name, label(s, name))
    by_step.set(xlabel="step", ylabel="bound per example, nats", title="by step")
    by_step.set_ylim(max(ends) - 80, max(ends) + 4)
    by_time.set(xlabel="seconds", title="by wall time")
    by_step.legend(loc="lower right")
    return figure


def draw_variances(s: Settings, results: Results) -> Figure:
    """A bar for each method, at three points of the fit."""
    figure = Figure(figsize=(7, 3.4), layout="constrained")
    axes = figure.subplots()
    where = places(results)
    found = results["variance at fixed parameters"]
    for i, name in enumerate(methods(s)):
        values = np.mean([found[f"{name} {d + 1}"] for d in range(len(s.layers))], axis=0)
        bars = axes.bar(np.arange(len(where)) + 0.2 * i, values, 0.18, color=draw.COLOURS[name], label=label(s, name))
        axes.bar_label(bars, fmt="%.2g", fontsize=7)
    axes.set(yscale="log", ylabel="variance", xticks=np.arange(len(where)) + 0.3, xticklabels=where)
    axes.legend(loc="upper left", ncols=2)
    axes.margins(y=0.25)
    return figure
