"""Estimators side by side at the same parameters: gradient variance, bias, time, and 1 / (variance × time).

Times are medians of rounds in which the estimators take turns, so a busy machine touches all of them alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from numpyro.infer.elbo import ELBO

from legrad.diagnostics.gradients import Moments, gradient, moments
from legrad.diagnostics.timing import interleaved_seconds


@dataclass(frozen=True)
class Measured:
    """One estimator's figures.

    Attributes:
        variance: of the gradient in unconstrained space, mean over components.
        bias_z: the largest z-score of a component's mean against the other estimators' means.
        seconds: for one gradient, compiled.
        efficiency: 1 / (variance × seconds); infinite where there is no sampling noise.
        mean: the mean gradient, by parameter.
        variances: the variance of every component, by parameter.
    """

    variance: float
    bias_z: float
    seconds: float
    efficiency: float
    mean: dict[str, Any]
    variances: dict[str, Any]


@dataclass(frozen=True)
class Comparison:
    """A table of estimators: `comparison["name"]` gives one of them."""

    rows: dict[str, Measured]
    draws: int

    def __getitem__(self, name: str) -> Measured:
        return self.rows[name]

    def to_markdown(self) -> str:
        """The table, a row an estimator."""
        lines = [
            "| estimator | gradient variance | bias z | ms per gradient | 1/(variance × seconds) |",
            "|---|---|---|---|---|",
        ]
        lines += [
            f"| {name} | {r.variance:.3g} | {r.bias_z:.1f} | {1e3 * r.seconds:.3g} | {r.efficiency:.3g} |"
            for name, r in self.rows.items()
        ]
        return "\n".join(lines)

    __str__ = to_markdown


def compare(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    params: Mapping[str, Any],
    estimators: Mapping[str, ELBO],
    *,
    key: jax.Array,
    draws: int = 200,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Comparison:
    """Measure estimators of the same gradient at the same parameters.

    Args:
        model: a NumPyro model, or `legrad.log_density(f)`.
        guide: a NumPyro guide.
        params: constrained parameters; those left out take their initial values.
        estimators: by name.
        key: the random key.
        draws: gradients drawn from each.
        args: arguments of model and guide.
        kwargs: keyword arguments of model and guide.

    Example:
        >>> print(legrad.compare(model, guide, result.params, {"LeGrad": legrad.LocalExpectation()}, key=key))
    """
    if draws < 2:
        raise ValueError(f"draws={draws!r}: a variance needs at least 2")
    if not estimators:
        raise ValueError("there is no estimator to compare: pass a dictionary such as {'LeGrad': LocalExpectation()}")
    one = {
        name: jax.jit(gradient(e, model, guide, params, args, dict(kwargs or {}))) for name, e in estimators.items()
    }
    found = {
        name: jax.device_get(jax.jit(lambda k, draw=draw: moments(draw, k, draws))(jax.random.fold_in(key, i)))
        for i, (name, draw) in enumerate(one.items())
    }
    seconds = interleaved_seconds({name: partial(draw, key) for name, draw in one.items()})
    rows = {}
    for name, (mean, variance) in found.items():
        average = float(np.mean(_flat(variance)))
        cost = average * seconds[name]
        z = _bias_z(found[name], [m for other, m in found.items() if other != name], draws)
        rows[name] = Measured(average, z, seconds[name], 1 / cost if cost > 0 else float("inf"), mean, variance)
    return Comparison(rows, draws)


def _flat(tree: Any) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def _bias_z(mine: Moments, others: list[Moments], draws: int) -> float:
    """Against the precision-weighted mean of the others; components without any noise must agree to rounding."""
    if not others:
        return 0.0
    mean, square = _flat(mine.mean), _flat(mine.variance) / draws
    tiny = 1e-12 * (1.0 + mean**2)  # rounding, as a variance
    precision = [1.0 / (_flat(o.variance) / draws + tiny) for o in others]
    total = np.sum(precision, axis=0)
    reference = sum(p * _flat(o.mean) for p, o in zip(precision, others, strict=True)) / total
    return float(np.max(np.abs(mean - reference) / np.sqrt(square + 1.0 / total + tiny)))
