"""Pictures of a fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from legrad.fitting.result import FitResult


def plot_fit(result: FitResult, path: Any = None) -> Any:
    """The ELBO by step with its running mean.

    Args:
        result: what `legrad.fit` gave.
        path: where to write the picture; if None, only the figure is returned.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'legrad[plots]'") from error
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    elbo, window = result.elbo, max(1, len(result.elbo) // 50)
    mean = np.convolve(elbo, np.ones(window) / window, mode="valid")
    steps = np.arange(1, len(elbo) + 1)
    axes.plot(steps, elbo, color="#2471a3", alpha=0.25, linewidth=0.6, label="each step")
    axes.plot(steps[window - 1 :], mean, color="#c0392b", label=f"mean of {window} steps")
    finite = elbo[np.isfinite(elbo)]
    if len(finite) > 10:
        # The first steps are often far below: let the picture show where the fit ends up.
        low, high = np.percentile(finite, [5, 100])
        axes.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    axes.set(xlabel="step", ylabel="ELBO", title=f"{type(result.estimator).__name__}, {result.seconds:.1f} s")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    if path is not None:
        figure.savefig(path, dpi=130)
    return figure
