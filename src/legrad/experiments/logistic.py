"""The paper's second experiment: Bayesian logistic regression on two digits of MNIST.

    p(y, w) = Π_m σ(y_m z_mᵀ w) · N(w | 0, prior_scale²),    q(w) = Π_i N(w_i | mu_i, l_i²),  784 pixels and a bias

The paper names 12,660 examples of "the digit classes 2 and 7". MNIST has 12,660 of the digits 1 and 6, which are its
second and seventh classes, and 12,223 of the digits 2 and 7.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from matplotlib.figure import Figure

import legrad
from legrad.experiments import datasets, draw
from legrad.experiments.ldgrad import LdGrad
from legrad.experiments.measure import Bench, MeasurePlan, points
from legrad.experiments.record import trajectory, window_variance
from legrad.experiments.section import Claim, Picture, Section, Table
from legrad.experiments.stages import Arrays, Results, Stage
from legrad.experiments.symbols import number

METHODS = ("LeGrad", "ReGrad", "LdGrad")


@dataclass(frozen=True)
class Settings:
    """What the paper states, and below it what it leaves open."""

    nodes: int = 5
    samples: int = 3925
    digits: tuple[int, int] = (1, 6)

    prior_scale: float = 1.0
    pixels: str = "divided by 255"
    steps: int = 600
    ldgrad_steps: int = 100
    learning_rate: float = 0.05
    optimizer: str = "Adam, step down to zero along a cosine; LdGrad makes the first of these steps only"
    start: str = "mu = 0, l = 0.1"
    seed: int = 0
    kept: tuple[int, ...] = (0, 20, 50, 99, 250, 599)
    draws: int = 200
    ldgrad_draws: int = 8  # of all the samples each: a mean square over 31,400 samples


QUICK = Settings(steps=300, ldgrad_steps=60, kept=(0, 59, 299), draws=40, ldgrad_draws=1)


def model(Z: Any, y: Any, prior_scale: float) -> None:
    """Labels are 0 and 1, which is the same as the paper's −1 and +1."""
    w = numpyro.sample("w", dist.Normal(jnp.zeros(Z.shape[1]), prior_scale).to_event(1))
    with numpyro.plate("examples", len(y)):
        numpyro.sample("y", dist.Bernoulli(logits=Z @ w), obs=y)


def guide(Z: Any, y: Any, prior_scale: float) -> None:
    """A Normal factor for each weight."""
    n = Z.shape[1]
    mu = numpyro.param("mu", jnp.zeros(n))
    scale = numpyro.param("l", jnp.full(n, 0.1), constraint=dist.constraints.positive)
    numpyro.sample("w", dist.Normal(mu, scale).to_event(1))


def estimators(s: Settings) -> dict[str, Any]:
    """The three methods."""
    return {
        "LeGrad": legrad.LocalExpectation(nodes=s.nodes, exact_terms=False),
        "ReGrad": legrad.Reparameterized(),
        "LdGrad": LdGrad(s.samples, "apart"),
    }


def inputs(s: Settings, digits: datasets.Digits) -> tuple[Any, Any, float]:
    """The design matrix with its bias column, the labels, the prior's scale."""
    images, y = datasets.pair(digits, *s.digits)
    Z = np.concatenate([images / 255.0, np.ones((len(images), 1))], axis=1)
    return jnp.asarray(Z, jnp.float32), jnp.asarray(y, jnp.float32), s.prior_scale


def stages(s: Settings, args: tuple[Any, Any, float]) -> dict[str, Stage]:
    """What is computed, in order."""
    bench = Bench(model, guide, args)
    methods = estimators(s)
    fit = partial(trajectory, model, guide, args, seed=s.seed, pick=lambda g: g["mu"][0])

    def fitted(name: str, results: Results, label: str) -> Arrays:
        steps = s.ldgrad_steps if name == "LdGrad" else s.steps
        schedule = optax.cosine_decay_schedule(s.learning_rate, s.steps)
        return fit(methods[name], optax.adam(schedule), steps=steps, keep=s.kept, label=label)

    def variances(results: Results, label: str) -> Arrays:
        at = points(results["LeGrad"])
        pair = {name: methods[name] for name in ("LeGrad", "ReGrad")}
        plans = {"LdGrad": MeasurePlan(LdGrad(25, "apart"), s.ldgrad_draws * s.samples // 25, s.samples / 25)}
        return bench.paired(pair, at, s.draws, label) | bench.variances(plans, at, label)

    def seconds(results: Results, label: str) -> Arrays:
        loops = {
            "LeGrad": (methods["LeGrad"], 5),
            "ReGrad": (methods["ReGrad"], 20),
            "LdGrad": (methods["LdGrad"], 1),
        }
        return bench.seconds(loops, points(results["LeGrad"])[-1], label)

    def bounds(results: Results, label: str) -> Arrays:
        """The bound without noise, along each method's own fit."""
        return {name: np.array([exact_bound(args, at) for at in points(results[name])]) for name in methods}

    return {
        **{name: partial(fitted, name) for name in methods},
        "variance at fixed parameters": variances,
        "seconds": seconds,
        "bounds without noise": bounds,
    }


def exact_bound(args: tuple[Any, Any, float], at: dict[str, np.ndarray], nodes: int = 64) -> float:
    """The lower bound at unconstrained parameters: each logit is Gaussian under q, so one-dimensional integrals do.

    E_q[log p(y, w) − log q(w)] = Σ_m ( y_m a_m − E softplus(a_m + s_m ε) ) − KL(q, prior),  a = Z mu, s² = Z² l²
    """
    Z, y, prior = np.asarray(args[0], np.float64), np.asarray(args[1], np.float64), args[2]
    mu, log_l = np.asarray(at["mu"], np.float64), np.asarray(at["l"], np.float64)
    mean, deviation = Z @ mu, np.sqrt(Z**2 @ np.exp(2 * log_l))
    e, w = np.polynomial.hermite_e.hermegauss(nodes)
    softplus = sum(wk * np.logaddexp(0.0, mean + ek * deviation) for ek, wk in zip(e, w / w.sum(), strict=True))
    kl = 0.5 * ((np.exp(2 * log_l) + mu**2) / prior**2 - 1) - log_l + np.log(prior)
    return float((y * mean - softplus).sum() - kl.sum())


TEXT = """Two digits are told apart by their pixels: a weight for each of the 784 pixels and a bias, with a Normal
prior. As the paper asks, LeGrad has 5 nodes for each weight, which is 3,925 evaluations of f a step, and LdGrad as
many samples; it multiplies each score by the whole of f, and takes the gradient of the entropy in closed form. All
examples are used in every step.

LeGrad does not pay for 3,925 evaluations: a change of one weight adds a multiple of one column of the data to the
logits."""
WINDOW = """What the paper plots: the variance of the gradient of mu_1 in a window of ten steps. mu_1 belongs to the
corner pixel, which is blank in all digits: there the likelihood says nothing, and LeGrad's gradient has no noise at
all. Its window shows only how the parameter moves."""
FIXED = """The variance of the gradient at fixed parameters (those of LeGrad's fit at that step, the same for all
methods), for mu and log l. Lines are means over all weights; bands go from the least weight to the largest."""
WEIGHTS = "The fitted q: means of the weights, and their standard deviations, as images."


def section(s: Settings, results: Results, source: str, args: tuple[Any, Any, float], command: str) -> Section:
    """The figures, and the paper's claims beside them."""
    found = results["variance at fixed parameters"]
    mu = {name: found[f"variance {name} mu"] for name in METHODS}
    log_l = {name: found[f"variance {name} l"] for name in METHODS}
    inked = np.asarray(np.asarray(args[0]).any(axis=0))
    efficiency = table(s, results, mu, log_l)
    return Section(
        name="logistic",
        title="Logistic regression on two digits",
        text=TEXT,
        claims=claims(s, results, mu, log_l, inked, len(args[1]), command),
        headline=headline(s, results, len(args[1])),
        pictures=[
            Picture("logistic-bound", draw.BOUND, partial(draw.bounds, {n: results[n] for n in METHODS})),
            Picture("logistic-window", WINDOW, partial(draw_windows, s, results)),
            Picture("logistic-variance", FIXED, partial(draw.fixed, s, METHODS, mu, log_l, decades=12)),
            Picture("logistic-efficiency", draw.EFFICIENT, partial(draw.efficiencies, efficiency)),
            Picture("logistic-weights", WEIGHTS, partial(draw_weights, results["LeGrad"])),
        ],
        tables=[efficiency],
        settings=draw.settings(s) | {"examples": len(args[1]), "weights": args[0].shape[1]},
        data=source,
    )


def headline(s: Settings, results: Results, examples: int) -> str:
    """What the experiment shows, for a first reader."""
    exact, seconds = results["bounds without noise"], results["seconds"]
    common = len(exact["LdGrad"]) - 1
    le, re, ld = (float(exact[name][common]) for name in METHODS)
    slower = float(seconds["LeGrad"] / seconds["ReGrad"])
    return f"""Telling the digits {s.digits[0]} and {s.digits[1]} apart in {examples:,} images: after the same
    {s.kept[common] + 1} steps LeGrad has reached a bound of {number(le)}, ReGrad {number(re)} and LdGrad {number(ld)}
    (higher is better). By the clock ReGrad is ahead, as a step of LeGrad's takes {slower:.0f} times as long."""


def claims(
    s: Settings, results: Results, mu: Arrays, log_l: Arrays, inked: np.ndarray, examples: int, command: str
) -> list[Claim]:
    """The claims of the paper's Section 4.2, and what its figure hides."""
    le, re, ld = (float(mu[name][-1].mean()) for name in METHODS)
    le_l, re_l, ld_l = (float(log_l[name][-1].mean()) for name in METHODS)
    ld_start = float(mu["LdGrad"][0].mean())
    found = results["variance at fixed parameters"]
    worst = max(float(found[f"excess {param}"][:, inked].max()) for param in ("mu", "l"))
    window = {n: float(np.median(window_variance(results[n]["gradient"]))) for n in METHODS}
    ratio, ratio_l = (float(np.median((v["LeGrad"] / v["ReGrad"])[:, inked])) for v in (mu, log_l))
    exact = results["bounds without noise"]
    start, best = float(exact["LeGrad"][0]), float(exact["LeGrad"][-1])
    common = len(exact["LdGrad"]) - 1
    there = {n: float(exact[n][common]) for n in METHODS}
    way = {n: f"{100 * (value - start) / (best - start):.1f}%" for n, value in there.items()}
    rest = [k for k in range(1, len(s.kept)) if k != common]
    pairs = ", ".join(f"step {s.kept[k]}: {exact['LeGrad'][k]:.0f} and {exact['ReGrad'][k]:.0f}" for k in rest)
    ahead = bool((exact["LeGrad"][1:] > exact["ReGrad"][1:]).all())
    left = {n: best - value for n, value in there.items()}
    target = float(draw.smooth(results["ReGrad"]["elbo"], 20)[-1])
    seconds = {n: float(results["seconds"][n]) for n in METHODS}
    faster = {n: draw.first_at(results[n], target) for n in ("LeGrad", "ReGrad")}
    le_blank, re_blank = (mu[name][-1, 0] for name in ("LeGrad", "ReGrad"))
    drift = float(window_variance(results["LeGrad"]["gradient"])[0])
    corner = "inked in some" if inked[0] else "blank in all"
    le_inked, re_inked = (mu[name][-1, inked].mean() for name in ("LeGrad", "ReGrad"))
    return [
        Claim(
            "logistic-order",
            """LeGrad has roughly one order of magnitude lower variance than ReGrad; LdGrad with S = 3925 severely
            suffers from very high variance, of the order of 10^7""",
            f"""{examples:,} examples, at the end of LeGrad's fit, mean over weights: mu LeGrad {le:.3g}, ReGrad
            {re:.3g} ({re / le:.1f} times), LdGrad {ld:.3g} ({ld / re:,.0f} times ReGrad's); log l {le_l:.3g},
            {re_l:.3g} ({re_l / le_l:,.0f} times), {ld_l:.3g}. At the start LdGrad has {ld_start:.3g} for mu. In the
            paper's own measure, the median of mu_1's window, they have {window["LeGrad"]:.2g},
            {window["ReGrad"]:.2g} and {window["LdGrad"]:.2g}, but mu_1 is a blank pixel. These gradients have heavy
            tails: over {s.draws} draws the ratio, at the same pivots, is surer than the size""",
            le < re / 2 and ld > 100 * re,
            command,
            "for the mean over mu, ReGrad has at least twice LeGrad's variance and LdGrad 100 times ReGrad's",
            short="LeGrad's variance is ten times lower than ReGrad's; LdGrad's is far higher",
            number=f"ReGrad has {re / le:.1f} times LeGrad's, LdGrad {number(ld / re, 2)} times ReGrad's",
        ),
        Claim(
            "logistic-theorem",
            "LeGrad always has lower variance than ReGrad with a sample size of one",
            f"""the median ratio of variances is {ratio:.2f} for mu_i and {ratio_l:.2g} for log l_i, over the
            {inked.sum()} weights whose pixel is ever inked, at {len(mu["LeGrad"])} points of the fit. Both were
            measured at the same pivots: where LeGrad's variance exceeds ReGrad's most, it is by {max(worst, 0.0):.1f}
            standard errors (5 would refute the claim)""",
            worst < 5.0,
            command,
            short="LeGrad always has less variance than ReGrad with one sample",
            number=f"{ratio:.2f} of ReGrad's for mu, {ratio_l:.1g} for log l (medians)",
        ),
        Claim(
            "logistic-bound",
            """LeGrad has significantly faster and much more stable convergence than the other two methods; LdGrad
            cannot make good progress""",
            f"""the bound, computed without noise, after {s.kept[common]} steps from {start:.0f}:
            {there["LeGrad"]:.0f} with LeGrad, {there["ReGrad"]:.0f} with ReGrad, {there["LdGrad"]:.0f} with LdGrad,
            which is {way["LeGrad"]}, {way["ReGrad"]} and {way["LdGrad"]} of the way to LeGrad's last bound
            ({best:.0f}). LeGrad and ReGrad at other steps: {pairs}""",
            ahead and left["LdGrad"] > 3 * left["LeGrad"] and left["LdGrad"] > 2 * left["ReGrad"],
            command,
            f"""LeGrad is ahead of ReGrad at every step looked at, and after {s.kept[common]} steps LdGrad is at least
            3 times as far from LeGrad's last bound as LeGrad, and twice as far as ReGrad; stability is not judged""",
            short="Step by step LeGrad converges fastest, and LdGrad makes little progress",
            number=f"bounds {', '.join(number(there[n]) for n in METHODS)} after {s.kept[common] + 1} steps",
        ),
        Claim(
            "logistic-time",
            "does LeGrad converge faster than ReGrad by the clock, too?",
            f"""a gradient takes {seconds["LeGrad"]:.2g} s with LeGrad, {seconds["ReGrad"]:.2g} s with ReGrad and
            {seconds["LdGrad"]:.2g} s with LdGrad; ReGrad's last bound is reached after {faster["LeGrad"]:.3g} s of
            LeGrad and {faster["ReGrad"]:.3g} s of ReGrad""",
            faster["LeGrad"] < faster["ReGrad"],
            command,
            ours=True,
            short="Does LeGrad converge faster than ReGrad by the clock, too?",
            number=f"ReGrad's last bound after {faster['LeGrad']:.2g} s; ReGrad {faster['ReGrad']:.2g} s",
        ),
        Claim(
            "logistic-blank-pixel",
            "is mu_1, whose variance the paper plots, typical of the weights?",
            f"""mu_1 is the corner pixel, {corner} of {examples:,} images: there LeGrad's true variance is
            {le_blank:.1g} and ReGrad's {re_blank:.3g}, so their ratio says nothing; {(~inked).sum()} of
            {len(inked) - 1} pixels are like it. Over the inked ones the ratio of mean variances is
            {re_inked / le_inked:.1f}. What mu_1's window shows of LeGrad, at first {drift:.1g}, is the drift of the
            parameter alone""",
            bool(inked[0]),
            command,
            "mu_1's pixel is inked in some image",
            ours=True,
            short="Is mu_1, the one weight whose variance the paper plots, typical?",
            number=f"it is the corner pixel, {corner} images",
        ),
    ]


def table(s: Settings, results: Results, mu: Arrays, log_l: Arrays) -> Table:
    """Variance, time and their product, at the end of the fit."""
    labels = {name: name for name in METHODS} | {"LdGrad": f"LdGrad, {s.samples:,} samples"}
    mean = {name: (float(mu[name][-1].mean()), float(log_l[name][-1].mean())) for name in METHODS}
    rows = [draw.efficiency_row(labels[name], *mean[name], float(results["seconds"][name])) for name in METHODS]
    return Table("Variance, time and efficiency at the end of the fit", draw.EFFICIENCY, rows, draw.EFFICIENCY_NOTE)


def draw_windows(s: Settings, results: Results) -> Figure:
    """The paper's Figure 3 (a) and (b)."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for axes, names in ((left, ("LeGrad", "ReGrad")), (right, ("LdGrad",))):
        draw.windows(axes, {name: results[name] for name in names})
        draw.log_axis(axes)
    left.set_title("LeGrad and ReGrad")
    right.set_title(f"LdGrad, {draw.samples(s.samples)}")
    draw.legend_above(figure, left, right)
    return figure


def draw_weights(run: Arrays) -> Figure:
    """The posterior as two images."""
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    for axes, name, title in zip(figure.subplots(1, 2), ("mu", "l"), ("mean", "standard deviation"), strict=True):
        values = run[f"final {name}"][:784].reshape(28, 28)
        limit = float(np.abs(values).max())
        style: dict[str, Any] = {"cmap": "viridis", "vmin": 0.0}
        if name == "mu":
            style = {"cmap": "RdBu_r", "vmin": -limit, "vmax": limit}
        figure.colorbar(axes.imshow(values, **style), ax=axes)
        axes.set_title(title)
        axes.set_axis_off()
    return figure
