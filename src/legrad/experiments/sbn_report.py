"""The belief net's part of the report: its figures, its tables, and the paper's claims beside them."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

from legrad.experiments import draw
from legrad.experiments.sbn import Settings, final, methods, reconstruct, steps_of
from legrad.experiments.section import Claim, Picture, Section, Table
from legrad.experiments.stages import Results
from legrad.experiments.symbols import number

TEXT = """Each image has binary hidden units (200 in the paper) with a uniform prior, and a recognition model reads
them off the pixels. The bound includes the constant log p(x) of each image (−200 log 2 for 200 units), which the
paper's printed bound leaves out; LdGrad's f has it too.

Every method has the same net, start and optimizer, minibatches of the same size, the learning rate that served it
best in a trial at full size, and the same number of seconds on the same machine (the quick size counts steps, and
gives the others more of them, as theirs cost less). LdGrad multiplies the score of an image's units by the whole of
that image's f. DisARM and leave-one-out are younger than the paper: they are what one would use today."""
DEEP = """With more than one hidden layer, a unit of a lower layer has children in q: its candidates are weighed by
its Markov blanket, and the value of f cannot simply be measured from that of the pivot. Two pivots, each the other's
baseline, take most of that noise away."""
RECONSTRUCTIONS = """The same digits reconstructed by LeGrad's fit (seed 0): the pixels' probabilities given one draw
of the hidden units."""
BOUND = """The bound per example (minibatch estimates, smoothed; mean of the seeds in a band from the least to the
largest), by step as in the paper, and by wall time, which the paper does not show. Compiling is left out."""
VARIANCE = """The variance of the gradient of the recognition weights at fixed parameters, those of LeGrad's fit (mean
over weights)."""


def length(s: Settings) -> str:
    """How long the fits are, in words."""
    if not s.steps:
        return f"{s.seconds:g} seconds"
    rest = ", ".join(f"{name} {steps_of(s, name)}" for name in methods(s) if name != "LeGrad")
    return f"{steps_of(s, 'LeGrad')} steps ({rest})"


def section(s: Settings, results: Results, Y: np.ndarray, source: str, command: str) -> Section:
    """The figures, and the paper's claims beside them."""
    first = results["LeGrad, seed 0"]
    params = final(first)
    shown = np.linspace(0, len(Y) - 1, 100).astype(int)
    probabilities = np.asarray(reconstruct(jax.random.key(0), params, Y[shown]))
    found = tables(s, results)
    bound = {name: float(over_seeds(s, results, name, "bound").mean()) for name in methods(s)}
    rival = max((name for name in bound if name != "LeGrad"), key=lambda name: bound[name])
    digits = f"100 of {len(Y):,} training digits, binarized."
    weights = f"The learned weights W of the {s.layers[0]} units next to the pixels, each as an image (red: ink)."
    return Section(
        name="sbn",
        title="A sigmoid belief net with a recognition model",
        text=TEXT + ("\n\n" + DEEP if len(s.layers) > 1 else ""),
        claims=claims(s, results, float(Y.mean()), command),
        headline=f"""A net of {" and ".join(map(str, s.layers))} hidden on-off units learns handwritten digits: with
        LeGrad it reaches {bound["LeGrad"]:.0f} nats per digit, with {rival}, the best of the others,
        {bound[rival]:.0f}, and with LdGrad, which the paper compares with, {bound["LdGrad"]:.0f} (higher is
        better).""",
        pictures=[
            Picture("sbn-bound", BOUND, partial(draw_bounds, s, results, len(Y))),
            Picture("sbn-digits", digits, partial(draw_images, Y[shown], 10)),
            Picture("sbn-reconstructions", RECONSTRUCTIONS, partial(draw_images, probabilities, 10)),
            Picture("sbn-weights", weights, partial(draw_images, params["W1"], 20, weights=True)),
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
    took = {n: np.mean([results[f"{n}, seed {i}"]["seconds"][-1] for i in range(s.seeds)]) for n in methods(s)}
    clock = ", ".join(f"{name} {seconds:.1f}" for name, seconds in took.items())
    error = float(results["closed form"]["error"])
    found = [
        Claim(
            "sbn-fit",
            """the model is able to provide very good reconstruction of the training data and exhibits also a fast
            and very stable convergence""",
            f"""in {length(s)} the bound per example rises from {first[0]:.0f} to {mean["LeGrad"]:.1f} nats;
            half of the way is done after {half} of {len(first):,} steps; {100 * wrong["LeGrad"]:.2f}% of the pixels
            are reconstructed wrongly, where a blank image would have {100 * ink:.0f}% wrong""",
            wrong["LeGrad"] < 0.05 and smooth[-1] >= smooth.max() - 2.0,
            command,
            "fewer than 5% of the pixels are wrong and the smoothed bound ends within 2 nats of its best",
            short="LeGrad's net reconstructs the digits well, and converges fast",
            number=f"{100 * wrong['LeGrad']:.1f}% of pixels wrong; a blank image: {100 * ink:.0f}%",
        ),
        Claim(
            "sbn-ld",
            "LdGrad is unable to make good progress and has a severe tendency to get stuck",
            f"""in {length(s)} LdGrad ({s.ldgrad_samples} samples) reaches {mean["LdGrad"]:.1f}
            nats, LeGrad {mean["LeGrad"]:.1f}; wrong pixels {100 * wrong["LdGrad"]:.2f}% against
            {100 * wrong["LeGrad"]:.2f}%""",
            mean["LdGrad"] < mean["LeGrad"] - 10,
            command,
            "LdGrad ends more than 10 nats below LeGrad",
            short="LdGrad gets stuck",
            number=f"{mean['LdGrad']:.0f} nats; LeGrad {mean['LeGrad']:.0f}",
        ),
        Claim(
            "sbn-closed-form",
            "the gradient of the recognition weights has the closed form that the paper derives",
            f"""in a net of one hidden layer, the estimator's gradient differs from it by {error:.1e} of its largest
            component, with the same pivot, in float32""",
            error < 1e-5,
            command,
            "the difference is below 1e-5",
            short="The net's gradient has the closed form of the paper",
            number=f"off by {error:.0e}, which is rounding",
        ),
        Claim(
            "sbn-equal-time",
            "does LeGrad reach a better bound than what one would use today, in equal time?",
            f"""bound per example after {length(s)}: LeGrad {mean["LeGrad"]:.2f}; {theirs}. LeGrad is
            {ahead} the best of them by {lead:.2f} nats{of_seeds}. Seconds without compiling: {clock}""",
            mean["LeGrad"] > mean[best],
            command,
            ours=True,
            short="Does LeGrad beat today's alternatives in equal time?",
            number=f"{lead:.0f} nats {ahead} {best}",
        ),
    ]
    if len(s.layers) > 1:
        found.append(
            Claim(
                "sbn-deep",
                "does LeGrad fit nets with several layers, the paper's future work, at least as well as DisARM?",
                f"""layers of {layers} units: LeGrad with the weights of the Markov blanket reaches
                {mean["LeGrad"]:.2f} nats per example; {theirs}""",
                mean["LeGrad"] >= mean["DisARM"],
                command,
                ours=True,
                short="Does LeGrad fit nets of several layers as well as DisARM?",
                number=f"{mean['LeGrad']:.0f} nats; DisARM {mean['DisARM']:.0f}",
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
        numbers = (number(v) for v in (*mean, seconds))
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
            f"What {length(s)} reach",
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
    draw.legend_above(figure, by_step)
    return figure


def draw_variances(s: Settings, results: Results) -> Figure:
    """A bar for each method, at three points of the fit."""
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    where = places(results)
    found = results["variance at fixed parameters"]
    for i, name in enumerate(methods(s)):
        values = np.mean([found[f"{name} {d + 1}"] for d in range(len(s.layers))], axis=0)
        bars = axes.bar(np.arange(len(where)) + 0.2 * i, values, 0.18, color=draw.COLOURS[name], label=label(s, name))
        axes.bar_label(bars, labels=[number(float(v), 2) for v in values], fontsize=7, padding=1)
    middle = 0.1 * (len(methods(s)) - 1)
    axes.set(yscale="log", ylabel="variance", xticks=np.arange(len(where)) + middle, xticklabels=where)
    axes.grid(axis="x", visible=False)
    axes.margins(y=0.1)
    draw.legend_above(figure, axes)
    return figure
