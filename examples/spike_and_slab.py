"""Spike-and-slab regression: which of 20 features matter, and how much?

Each feature has a discrete latent (is it in?) and a continuous one (its slope). The same mean-field guide is fitted
with three gradient estimators; the table and the plot show what their noise costs.
"""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax

import legrad

matplotlib.use("Agg")
import matplotlib.pyplot as plt

STEPS = 3000
ESTIMATORS = {
    "LeGrad": legrad.LocalExpectation(),
    "DisARM": legrad.DisARM(),
    "score, 16 samples": legrad.ScoreFunction(16, baseline="leave_one_out"),
}


def make_data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 20))
    slopes = np.zeros(20)
    slopes[[2, 7, 11]] = [1.5, -1.0, 0.7]
    return jnp.asarray(X), jnp.asarray(X @ slopes + 0.5 * rng.normal(size=100)), slopes


def model(X, y):
    with numpyro.plate("features", X.shape[1]):
        included = numpyro.sample("included", dist.Bernoulli(0.2))
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(X @ (included * slope), 0.5), obs=y)


def main(out: Path = Path("out")) -> None:
    X, y, slopes = make_data()
    guide = legrad.MeanField(model)
    fits = {}
    for name, estimator in ESTIMATORS.items():
        print(f"fitting with {name}: {estimator!r}", flush=True)
        fits[name] = legrad.fit(
            model, guide, args=(X, y), key=jax.random.key(1), estimator=estimator,
            optimizer=optax.adam(1e-2), steps=STEPS,
        )  # fmt: skip
    print("comparing the gradients early in the fit and at its end", flush=True)
    early = legrad.fit(model, guide, args=(X, y), key=jax.random.key(1), steps=100).params
    tables = {
        "after 100 steps": legrad.compare(model, guide, early, ESTIMATORS, key=jax.random.key(2), args=(X, y)),
        "at the end": legrad.compare(
            model, guide, fits["LeGrad"].params, ESTIMATORS, key=jax.random.key(2), args=(X, y)
        ),
    }
    print(f"\n{'estimator':<20}{'where':<17}{'gradient variance':>18}{'ms':>8}{'1/(var·s)':>11}{'final ELBO':>12}")
    for where, table in tables.items():
        for name, row in table.rows.items():
            elbo = f"{fits[name].elbo[-500:].mean():>12.1f}" if where == "at the end" else ""
            print(f"{name:<20}{where:<17}{row.variance:>18.3g}{1e3 * row.seconds:>8.2f}{row.efficiency:>11.3g}{elbo}")
    included = jax.nn.sigmoid(fits["LeGrad"].params["included_logits"])
    print(f"\ntruly included: {np.flatnonzero(slopes).tolist()}; LeGrad: {np.flatnonzero(included > 0.5).tolist()}")
    out.mkdir(exist_ok=True)
    path = out / "spike_and_slab.png"
    plot(fits, tables["after 100 steps"], included, slopes, path)
    print(f"plot written to {path.resolve()}")


def plot(fits, table, included, slopes, path):
    figure, (bound, variance, features) = plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
    colours = dict(zip(fits, ["#c0392b", "#2471a3", "#229954"], strict=True))
    window = np.ones(50) / 50
    for name, fit in fits.items():
        smooth = np.convolve(fit.elbo, window, mode="valid")
        bound.plot(fit.elbo, color=colours[name], alpha=0.12, linewidth=0.5)
        bound.plot(np.arange(len(smooth)) + 50, smooth, color=colours[name], label=name)
    low, high = fits["LeGrad"].elbo[50], max(fit.elbo[-500:].max() for fit in fits.values())
    bound.set(title="ELBO", xlabel="step", ylim=(low, high + 0.05 * (high - low)))
    figure.legend(frameon=False, loc="outside lower left", ncols=3)
    bars = variance.bar(list(table.rows), [r.variance for r in table.rows.values()], color=list(colours.values()))
    variance.bar_label(bars, fmt="{:,.0f}", padding=2)
    variance.set(title="gradient variance after 100 steps", yscale="log")
    variance.margins(y=0.12)
    variance.tick_params(axis="x", labelsize=8)
    truth = ["#c0392b" if s else "#bbbbbb" for s in slopes]
    features.bar(np.arange(len(included)), included, color=truth)
    features.set(title="q(included), LeGrad; true features in red", xlabel="feature", ylim=(0, 1.05))
    features.set_xticks(np.arange(0, 20, 2))
    for axes in (bound, variance, features):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
