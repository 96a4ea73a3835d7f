"""Writes mnist.md and images/mnist.png from results/mnist.json, which benchmarks/mnist/run.py makes."""

import json
from pathlib import Path

from matplotlib.figure import Figure

HERE = Path(__file__).parent
KEPT = HERE / "results" / "mnist.json"
COLOURS = {
    "LeGrad": "#1f618d",
    "DisARM": "#b9770e",
    "leave-one-out": "#1e8449",
    "REBAR": "#7d3c98",
    "TraceGraph": "#909497",
}
TEXT = """# Static binarized MNIST

One layer of 200 binary units, a linear recognition model, learned prior logits; 50,000 training images, minibatches
of 100, Adam with a step size that falls to zero like a cosine. Units count as −1 and 1; the decoder's bias starts at
the logit of the pixel means. All methods share the same code, optimizer, seed and minibatches. Values are in nats per
image; ELBOs use one draw per image, the bound uses 100. `make bench-mnist` writes this page, with MNIST in
`LEGRAD_DATA`.
"""
PUBLISHED = """
Published for this net and data (protocols differ in batch and in steps, up to a million):
LeGrad by its authors, test bound ≤ 117.5; RELAX, train ELBO −111.2; Concrete, REBAR and ARM, 100-sample test bound
107.2 to 107.7; NVIL and MuProp 113.1.
"""


def page() -> str:
    """The page, from the results that are kept."""
    kept = json.loads(KEPT.read_text())
    lines = [TEXT]
    if "compare" in kept:
        runs = kept["compare"]
        first = next(iter(runs.values()))
        seconds = min(run["seconds"] for run in runs.values())
        lines += [
            f"## Equal steps, equal time\n\n{first['steps']:,} steps each, rate {first['rate']:g}. *In time*: the "
            f"train ELBO (10,000 images) at the last point before {seconds:.0f} seconds, when the fastest "
            "finished.\n",
            "| method | seconds | train ELBO | test ELBO | test, 100 samples | train ELBO in time |",
            "|---|---|---|---|---|---|",
        ]
        for name, run in runs.items():
            within = [value for _, took, value in run["curve"] if took <= seconds * 1.001]
            lines.append(
                f"| {name} | {run['seconds']:.0f} | {run['train']:.2f} | {run['test']:.2f} | {run['test_100']:.2f} "
                f"| {within[-1]:.2f} |"
            )
        lines.append("")
    if "long" in kept:
        run = kept["long"]["LeGrad"]
        lines += [
            f"## A longer fit\n\nLeGrad, {run['steps']:,} steps at rate {run['rate']:g}, {run['seconds'] / 60:.0f} "
            f"minutes on 2 shared cores: train ELBO **{run['train']:.2f}**, test ELBO {run['test']:.2f}, 100-sample "
            f"test bound **{run['test_100']:.2f}**.\n",
            PUBLISHED,
        ]
    lines.append("![Train ELBO by steps and by time](images/mnist.png)\n")
    return "\n".join(lines)


def figure() -> Figure:
    """Train ELBO by steps and by seconds."""
    kept = json.loads(KEPT.read_text())
    drawn = Figure(figsize=(10, 4), layout="constrained")
    for ax, column, label in zip(drawn.subplots(1, 2, sharey=True), (0, 1), ("steps", "seconds"), strict=True):
        for name, run in kept.get("compare", {}).items():
            ax.plot([p[column] for p in run["curve"]], [p[2] for p in run["curve"]], color=COLOURS[name], label=name)
        if "long" in kept:
            run = kept["long"]["LeGrad"]
            ax.plot(
                [p[column] for p in run["curve"]],
                [p[2] for p in run["curve"]],
                "--",
                color=COLOURS["LeGrad"],
                label=f"LeGrad, {run['steps']:,} steps",
            )
        ax.set_xscale("log")
        ax.set_ylim(-170, -110)
        ax.set_xlabel(label)
        ax.grid(alpha=0.3)
        ax.spines[["top", "right"]].set_visible(False)
    drawn.axes[0].set_ylabel("train ELBO, nats per image")
    drawn.axes[0].legend(frameon=False)
    return drawn


if __name__ == "__main__":
    (HERE / "mnist.md").write_text(page())
    figure().savefig(HERE / "images" / "mnist.png", dpi=120)
