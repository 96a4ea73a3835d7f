"""The paper's first experiment: a factorized Gaussian fitted to a strongly correlated one.

    p(x) = N(x | 2, Σ),  Σ_ij = exp(−(t_i − t_j)²/2) + 0.1 δ_ij,  t a grid on [0, 10]
    q(x) = Π_i N(x_i | mu_i, l_i²)

At the optimum mu = 2 and l_i² = 1/Λ_ii, Λ = Σ⁻¹.
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
from legrad.experiments import draw
from legrad.experiments.ldgrad import LdGrad
from legrad.experiments.measure import Bench, MeasurePlan, points
from legrad.experiments.record import trajectory
from legrad.experiments.section import Claim, Picture, Section, Table
from legrad.experiments.stages import Arrays, Results, Stage
from legrad.experiments.symbols import number

DATA = "none: the target is made by its formula"
METHODS = ("LeGrad", "ReGrad", "LdGrad")


@dataclass(frozen=True)
class Settings:
    """What the paper states, and below it what it leaves open."""

    n: int = 100
    nodes: int = 5
    samples: int = 500
    many_samples: int = 10_000

    steps: int = 2000
    learning_rate: float = 0.02
    optimizer: str = "Adam, constant step"
    many_steps: int = 1000
    fit_steps: int = 300_000
    fit_learning_rate: float = 0.005
    fit_optimizer: str = "Adam, step down to zero along a cosine"
    start: str = "mu = 0, l = 1"
    seed: int = 0
    kept: tuple[int, ...] = (0, 20, 50, 100, 200, 500, 1000, 1999)
    draws: int = 1000


QUICK = Settings(steps=500, many_steps=40, fit_steps=30_000, kept=(0, 50, 499), draws=200)


def covariance(n: int) -> np.ndarray:
    """The paper's Σ: strongly correlated neighbours."""
    grid = np.linspace(0.0, 10.0, n)
    return np.exp(-0.5 * (grid[:, None] - grid) ** 2) + 0.1 * np.eye(n)


def model(cholesky: Any) -> None:
    """The target."""
    numpyro.sample("x", dist.MultivariateNormal(jnp.full(len(cholesky), 2.0), scale_tril=cholesky))


def guide(cholesky: Any) -> None:
    """A Normal factor for each coordinate."""
    n = len(cholesky)
    mu = numpyro.param("mu", jnp.zeros(n))
    scale = numpyro.param("l", jnp.ones(n), constraint=dist.constraints.positive)
    numpyro.sample("x", dist.Normal(mu, scale).to_event(1))


def estimators(s: Settings) -> dict[str, Any]:
    """The three methods; LdGrad with the gradient of the entropy apart, as the paper's figures must have had it."""
    return {
        "LeGrad": legrad.LocalExpectation(nodes=s.nodes, exact_terms=False),
        "ReGrad": legrad.Reparameterized(),
        "LdGrad": LdGrad(s.samples, "apart"),
        "LdGrad, many": LdGrad(s.many_samples, "apart"),
    }


def stages(s: Settings) -> dict[str, Stage]:
    """What is computed, in order."""
    args = (jnp.asarray(np.linalg.cholesky(covariance(s.n)), jnp.float32),)
    bench = Bench(model, guide, args)
    methods = estimators(s)
    fewer = LdGrad(s.samples // 10, "apart")  # its variance is ten times that of all samples
    fit = partial(trajectory, model, guide, args, seed=s.seed, pick=lambda g: g["mu"][0])

    def fitted(name: str, results: Results, label: str) -> Arrays:
        steps = s.many_steps if name == "LdGrad, many" else s.steps
        return fit(methods[name], optax.adam(s.learning_rate), steps=steps, keep=s.kept, label=label)

    def to_the_end(results: Results, label: str) -> Arrays:
        adam = optax.adam(optax.cosine_decay_schedule(s.fit_learning_rate, s.fit_steps))
        return fit(methods["LeGrad"], adam, steps=s.fit_steps, keep=(s.fit_steps - 1,), label=label)

    def variances(results: Results, label: str) -> Arrays:
        plans = {
            "LeGrad": MeasurePlan(methods["LeGrad"], s.draws),
            "ReGrad": MeasurePlan(methods["ReGrad"], s.draws),
            "LdGrad": MeasurePlan(fewer, s.draws, 10),
            "LdGrad inside": MeasurePlan(LdGrad(s.samples // 10), s.draws, 10),
        }
        return bench.variances(plans, points(results["LeGrad"]), label)

    def windows(results: Results, label: str) -> Arrays:
        """The true variance along each method's own fit, for its window to be compared with."""
        plans = {
            "ReGrad": MeasurePlan(methods["ReGrad"], s.draws),
            "LdGrad": MeasurePlan(LdGrad(s.samples // 10, "apart"), s.draws, 10),
        }
        found = {"LeGrad": results["variance at fixed parameters"]["variance LeGrad mu"]}
        for name, plan in plans.items():
            found[name] = bench.variances({name: plan}, points(results[name]), label)[f"variance {name} mu"]
        return {name: variance[:, 0] for name, variance in found.items()}

    def seconds(results: Results, label: str) -> Arrays:
        loops = {name: (method, 1 if "many" in name else 10) for name, method in methods.items()}
        loops |= {f"ReGrad, {s.samples} samples": (legrad.Reparameterized(s.samples), 20)}
        loops |= {"LdGrad inside": (LdGrad(s.samples), 20)}
        return bench.seconds(loops, points(results["LeGrad"])[-1], label)

    return {
        **{name: partial(fitted, name) for name in methods},
        "LeGrad to the end": to_the_end,
        "variance at fixed parameters": variances,
        "seconds": seconds,
        "mu_1 along each fit": windows,
    }


TEXT = """The target is a Gaussian of 100 strongly correlated variables, and q has a Normal factor for each. LeGrad
uses 5 Gauss–Hermite nodes for each variable, so that a step takes 500 evaluations of f; LdGrad uses 500 samples to
match; ReGrad uses one sample, as is usual.

LdGrad stands for the score function times the whole of f, with the gradient of the entropy added in closed form. With
−log q inside f its variance near the optimum is far smaller, because the noise of log p and of log q nearly cancel;
the table has both."""
WINDOW = """What the paper plots: the variance of the gradient of mu_1 over the last ten steps, as the fit goes on.
Left: LdGrad with S samples; right: with many more. The window mixes the drift of the gradient into its variance, and
mu_1 is the edge of the grid."""
FIXED = """What the window stands for: the variance of the gradient at fixed parameters (those of LeGrad's fit at
that step, the same for all methods), for mu and for log l. Lines are means over all coordinates, bands go from the
least coordinate to the largest."""


def section(s: Settings, results: Results, command: str) -> Section:
    """The figures, and the paper's claims beside them."""
    found = results["variance at fixed parameters"]
    at = {name: found[f"variance {name} mu"] for name in (*METHODS, "LdGrad inside")}
    scale = {name: found[f"variance {name} l"] for name in at}
    efficiency = table(s, results, at, scale)
    covariances = f"The {s.n} × {s.n} covariance matrix Σ of the target."
    return Section(
        name="gaussian",
        title="A factorized Gaussian fitted to a correlated one",
        text=TEXT,
        claims=claims(s, results, at, scale, command),
        headline=f"""A Gaussian of {s.n} strongly correlated variables, approximated by independent ones: LeGrad's
        gradients have {_times(at, "ReGrad")} times less variance than those of the reparameterization trick (ReGrad),
        and {_times(at, "LdGrad")} times less than the score function's with {s.samples} samples (LdGrad).""",
        pictures=[
            Picture("gaussian-variance", FIXED, partial(draw.fixed, s, METHODS, at, scale)),
            Picture("gaussian-covariance", covariances, partial(draw_covariance, s)),
            Picture("gaussian-window", WINDOW, partial(draw_windows, s, results)),
            Picture("gaussian-efficiency", draw.EFFICIENT, partial(draw.efficiencies, efficiency)),
            Picture("gaussian-bound", draw.BOUND, partial(draw.bounds, {n: results[n] for n in METHODS})),
        ],
        tables=[efficiency],
        settings=draw.settings(s),
        data=DATA,
    )


def _times(at: Arrays, name: str) -> str:
    """How many times LeGrad's variance a method has, in mu at the end of the fit."""
    return f"{float(at[name][-1].mean() / at['LeGrad'][-1].mean()):.0f}"


def claims(s: Settings, results: Results, at: Arrays, scale: Arrays, command: str) -> list[Claim]:
    """The claims of the paper's Section 4.1, and what its figures hide."""
    le, re, ld = (float(at[name][-1].mean()) for name in METHODS)
    inside = float(at["LdGrad inside"][-1].mean())
    first = {name: float(at[name][-1, 0]) for name in METHODS}
    times, times_first = re / le, first["ReGrad"] / first["LeGrad"]
    less = "less" if inside < re else "more"
    tenk = s.samples / s.many_samples
    ld_many, ld_many_first = ld * tenk, first["LdGrad"] * tenk
    worst = max(float((at["LeGrad"] / at["ReGrad"]).max()), float((scale["LeGrad"] / scale["ReGrad"]).max()))
    kept = len(at["LeGrad"])
    end = results["LeGrad to the end"]
    exact = 1 / np.diag(np.linalg.inv(covariance(s.n)))
    off_mu = float(np.abs(end["final mu"] - 2).max())
    off_l = float(np.abs(end["final l"] ** 2 / exact - 1).max())
    start, best = float(results["LeGrad"]["elbo"][0]), optimum(s.n)
    nearly = {name: draw.first_step(results[name]["elbo"], best - 0.1 * (best - start)) for name in METHODS}
    needed = ", ".join(f"{name} {_steps(step, s.steps)}" for name, step in nearly.items())
    bounds = ", ".join(f"{name} {results[name]['elbo'][-50:].mean():.1f}" for name in METHODS)
    true = results["mu_1 along each fit"]
    drift = {name: draw.drift(results[name]["gradient"], true[name], s.kept) for name in METHODS}
    most = max(METHODS, key=lambda name: float(np.abs(np.log(drift[name])).max()))
    row = int(np.argmax(np.abs(np.log(drift[most]))))
    ranges = ", ".join(f"{name} {value.min():.2g} to {value.max():.2g}" for name, value in drift.items())
    smooth = directions(s.n)
    t_le, t_re, t_many = (float(results["seconds"][n]) for n in ("LeGrad", "ReGrad", f"ReGrad, {s.samples} samples"))
    re_many = re / s.samples
    return [
        Claim(
            "theorem",
            "LeGrad always has lower variance than ReGrad with a sample size of one (factorized location-scale q)",
            f"""the largest ratio of variances, LeGrad to ReGrad, is {worst:.3f} over {2 * s.n * kept:,} cases (mu_i
            and log l_i of all {s.n} coordinates at {kept} points of the fit)""",
            worst <= 1.0,
            command,
            short="LeGrad always has less variance than ReGrad with one sample",
            number=f"at most {worst:.2f} of ReGrad's, in {2 * s.n * kept:,} cases",
        ),
        Claim(
            "gaussian-order",
            """LeGrad has the lowest variance, then comes ReGrad and last is LdGrad with 500 samples; LeGrad's
            variance is roughly one order of magnitude lower than ReGrad's""",
            f"""at the end of the fit, mean over mu: LeGrad {le:.3g}, ReGrad {re:.3g} ({times:.1f} times as much),
            LdGrad {ld:.3g}. For mu_1 alone ReGrad has {times_first:.1f} times LeGrad's. With −log q inside f, LdGrad
            has {inside:.3g}, {less} than ReGrad""",
            le < re < ld and 5 <= times <= 20,
            command,
            "the means over mu are in this order and ReGrad's is 5 to 20 times LeGrad's",
            short="LeGrad has the least variance, ReGrad about ten times as much, LdGrad the most",
            number=f"{number(le, 2)}, {number(re, 2)} and {number(ld, 2)}",
        ),
        Claim(
            "gaussian-10k",
            f"LdGrad reaches the variance of LeGrad when it uses S = {s.many_samples:,} samples",
            f"""mu_1, which the paper plots: LdGrad {ld_many_first:.3g}, LeGrad {first["LeGrad"]:.3g}. Mean over mu:
            {ld_many:.3g} and {le:.3g}. With −log q inside f, {s.samples * inside / le:,.0f} samples reach LeGrad's
            mean""",
            0.5 <= ld_many_first / first["LeGrad"] <= 2.0,
            command,
            "the two agree within a factor of 2 for mu_1, the paper's coordinate",
            short=f"LdGrad needs {s.many_samples:,} samples to have LeGrad's variance",
            number=f"{ld_many_first:.1f} and {first['LeGrad']:.1f}, for mu_1",
        ),
        Claim(
            "gaussian-fit",
            "the optimal value of each mu_i is 2, and of l_i² about 0.1 (exactly, 1/Λ_ii)",
            f"""after {s.fit_steps:,} steps of LeGrad: |mu_i − 2| at most {off_mu:.3f}, l_i² within {100 * off_l:.2g}%
            of 1/Λ_ii, which lies between {exact.min():.3f} and {exact.max():.3f}""",
            off_mu < 0.2 and off_l < 0.01,
            command,
            "mu is within 0.2, a fifth of the target's standard deviation, and l² within 1%",
            short="The fit ends at the optimum: each mu_i is 2, each l_i² about 0.1",
            number=f"mu_i within {off_mu:.2f}; l_i² to {off_l:.0e}",
        ),
        Claim(
            "gaussian-bound",
            "LdGrad makes very slow progress in maximizing the bound while LeGrad and ReGrad converge rapidly",
            f"""nine tenths of the way from the start ({start:.0f}) to the optimum ({best:.1f}) are done after so
            many steps: {needed}. The mean of the last 50 of {s.steps:,} steps is {bounds}""",
            nearly["LdGrad"] > 2 * max(nearly["LeGrad"], nearly["ReGrad"]),
            command,
            "LdGrad needs more than twice the steps of both others for nine tenths of the way",
            short="LeGrad and ReGrad converge fast, LdGrad slowly",
            number=f"{', '.join(_steps(nearly[n], s.steps) for n in METHODS)} steps for nine tenths of the way",
        ),
        Claim(
            "gaussian-directions",
            "does LeGrad have the lower variance not only in each coordinate but in each direction?",
            f"""along the smoothest direction of the target (the leading eigenvector of Σ), where a fit is slowest,
            the variance of mu's gradient is {smooth["LeGrad"]:.3g} for LeGrad and {smooth["ReGrad"]:.3g} for ReGrad,
            both in closed form at the optimum""",
            smooth["LeGrad"] < smooth["ReGrad"],
            command,
            ours=True,
            short="Is LeGrad's variance lower in every direction, too?",
            number=f"along the smoothest one {number(smooth['LeGrad'], 2)}; ReGrad {smooth['ReGrad']:.0e}",
        ),
        Claim(
            "gaussian-window",
            "does the variance in a running window of ten steps of mu_1 show the variance of the gradient?",
            f"""the window over the true variance at the same step of the same fit, means of ten windows: {ranges};
            farthest off is {most} at step {s.kept[row]} with {drift[most][row]:.2g}. Ten windows cover 19 steps, so a
            third up or down is chance. And mu_1 is not typical: its ReGrad variance is {times_first:.1f} times
            LeGrad's, where the mean over mu has {times:.1f}""",
            all(value.min() > 1 / 3 and value.max() < 3 for value in drift.values()),
            command,
            "all of these are within a factor of 3",
            ours=True,
            short="Does the paper's measure, a window of ten steps, show the true variance?",
            number=f"{np.min([*drift.values()]):.2f} to {np.max([*drift.values()]):.1f} times it",
        ),
        Claim(
            "gaussian-equal-cost",
            "does LeGrad have a lower variance than ReGrad at a cost of 500 evaluations of f each, too?",
            f"""ReGrad's average over {s.samples} samples has variance {re_many:.3g} for mu, LeGrad has
            {le:.3g}. What counts is time, since a one-element change costs far less than an evaluation: seconds per
            gradient are {number(t_le, 2)} for LeGrad, {number(t_re, 2)} for ReGrad, {number(t_many, 2)} for its
            {s.samples} samples; 1/(variance × seconds) is {number(1 / (le * t_le))}, {number(1 / (re * t_re))} and
            {number(1 / (re_many * t_many))}""",
            le < re_many,
            command,
            ours=True,
            short=f"Is LeGrad's variance lower than ReGrad's with as many evaluations of f, {s.samples}?",
            number=f"{number(le, 2)}; ReGrad {number(re_many, 2)}",
        ),
    ]


def optimum(n: int) -> float:
    """The largest bound that a factorized q can have: ½ (log |Λ| − Σ log Λ_ii)."""
    precision = np.linalg.inv(covariance(n))
    return 0.5 * float(np.linalg.slogdet(precision)[1] - np.log(np.diag(precision)).sum())


def _steps(step: int, most: int) -> str:
    return str(step) if step <= most else f"more than {most:,}"


def directions(n: int) -> dict[str, float]:
    """The variance of mu's gradient along Σ's leading eigenvector v, at the optimum.

    ReGrad's noise is −Λ l ε; LeGrad's leaves out each coordinate's own part: −(Λ − diag Λ) l ε.
    """
    sigma = covariance(n)
    precision = np.linalg.inv(sigma)
    own = np.diag(np.diag(precision))
    v = np.linalg.eigh(sigma)[1][:, -1]
    noise = {"LeGrad": precision - own, "ReGrad": precision}
    return {name: float(((v @ matrix) ** 2 / np.diag(precision)).sum()) for name, matrix in noise.items()}


def table(s: Settings, results: Results, at: Arrays, scale: Arrays) -> Table:
    """Variance, time and their product, at the end of the fit."""
    seconds = results["seconds"]
    ratio = s.samples / s.many_samples
    many = f"ReGrad, {s.samples} samples"
    variance = {
        "LeGrad": (at["LeGrad"], scale["LeGrad"], 1.0, "LeGrad"),
        "ReGrad, 1 sample": (at["ReGrad"], scale["ReGrad"], 1.0, "ReGrad"),
        many: (at["ReGrad"], scale["ReGrad"], 1 / s.samples, many),
        f"LdGrad, {s.samples} samples": (at["LdGrad"], scale["LdGrad"], 1.0, "LdGrad"),
        f"LdGrad, {s.samples} samples, −log q inside f": (
            at["LdGrad inside"],
            scale["LdGrad inside"],
            1.0,
            "LdGrad inside",
        ),
        f"LdGrad, {s.many_samples:,} samples": (at["LdGrad"], scale["LdGrad"], ratio, "LdGrad, many"),
    }
    rows = [
        draw.efficiency_row(name, float(mu[-1].mean()) * f, float(log_l[-1].mean()) * f, float(seconds[key]))
        for name, (mu, log_l, f, key) in variance.items()
    ]
    return Table("Variance, time and efficiency at the end of the fit", draw.EFFICIENCY, rows, draw.EFFICIENCY_NOTE)


def draw_covariance(s: Settings) -> Figure:
    """The paper's Figure 1."""
    figure = Figure(figsize=(4.6, 3.8), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(covariance(s.n), cmap="viridis")
    axes.grid(False)
    figure.colorbar(image, ax=axes, label=r"$\Sigma_{ij}$")
    axes.set(xlabel="$j$", ylabel="$i$")
    return figure


def draw_windows(s: Settings, results: Results) -> Figure:
    """The paper's Figure 2 (a) and (b)."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, name, samples in zip(panels, ("LdGrad", "LdGrad, many"), (s.samples, s.many_samples), strict=True):
        draw.windows(axes, {n: results[n] for n in ("LeGrad", "ReGrad")} | {"LdGrad": results[name]})
        axes.set(yscale="log", title=f"LdGrad with {draw.samples(samples)}")
        axes.label_outer()
    draw.legend_above(figure, *panels)
    return figure
