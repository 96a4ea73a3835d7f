"""Estimators side by side at the same parameters: gradient variance, bias, time, and 1 / (variance × time).

Variance and bias are given for the whole gradient and for each parameter alone: the variance is a mean over
components, the bias that of the worst component. Times are medians of rounds in which the estimators take turns, so
that a busy machine affects all of them alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from numpyro.infer.elbo import ELBO

from legrad._compiled import jit
from legrad.diagnostics.gradients import Moments, gradient, moments, rounding
from legrad.diagnostics.timing import interleaved_seconds
from legrad.model.frames import unframed
from legrad.model.keys import Key, as_key


class ParameterMeasured(NamedTuple):
    """The measurements of one estimator for one parameter; see `Measured`."""

    variance: float
    bias_z: float
    efficiency: float
    components: int


@dataclass(frozen=True)
class Measured:
    """The measurements of one estimator.

    Attributes:
        variance: the variance of the gradient in unconstrained space, a mean over components.
        bias_z: the largest z-score of a component's mean against the means of the other estimators.
        seconds: the seconds of one gradient, compiled.
        efficiency: 1 / (variance × seconds); infinite where there is no sampling noise.
        mean: the mean gradient, by parameter.
        variances: the variance of every component, by parameter.
        parameters: variance, bias_z and efficiency of each parameter alone; a parameter that is a tree (of a
            network) counts leaf by leaf, for example as "net.Dense_0.kernel".
    """

    variance: float
    bias_z: float
    seconds: float
    efficiency: float
    mean: dict[str, Any]
    variances: dict[str, Any]
    parameters: dict[str, ParameterMeasured] = field(default_factory=dict)

    @property
    def components(self) -> int:
        """The number of components of the gradient."""
        return sum(p.components for p in self.parameters.values())

    def by_parameter(self) -> dict[str, Measured | ParameterMeasured]:
        """Return the measurements of the whole gradient under "all", and those of each parameter."""
        return {"all": self, **self.parameters}


@dataclass(frozen=True)
class Comparison:
    """A table of estimators; `comparison["name"]` is the row of one of them."""

    rows: dict[str, Measured]
    draws: int

    def __getitem__(self, name: str) -> Measured:
        return self.rows[name]

    def to_markdown(self, per_parameter: bool = False) -> str:
        """Return a table with one row per estimator; with `per_parameter`, also one row for each parameter."""
        head = ["estimator", "gradient variance", "bias z", "ms per gradient", "1/(variance × seconds)"]
        if per_parameter:
            head.insert(1, "parameter")
        lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
        for name, r in self.rows.items():
            for parameter, m in r.by_parameter().items() if per_parameter else [("", r)]:
                cells = [name, parameter] if per_parameter else [name]
                cells += [f"{m.variance:.3g}", f"{m.bias_z:.1f}", f"{1e3 * r.seconds:.3g}", f"{m.efficiency:.3g}"]
                lines.append(f"| {' | '.join(cells)} |")
        return "\n".join(lines)

    def to_pandas(self) -> Any:
        """Return a tidy DataFrame: one row for each estimator and parameter, and one with the parameter "all".

        Needs pandas.
        """
        try:
            from pandas import DataFrame  # type: ignore[import-untyped,unused-ignore]
        except ImportError as error:
            raise ImportError("a DataFrame needs pandas: pip install pandas") from error
        return DataFrame(
            [
                {
                    "estimator": name,
                    "parameter": parameter,
                    "components": m.components,
                    "variance": m.variance,
                    "bias_z": m.bias_z,
                    "seconds": r.seconds,
                    "efficiency": m.efficiency,
                }
                for name, r in self.rows.items()
                for parameter, m in r.by_parameter().items()
            ]
        )

    def plot(self, path: Any = None) -> Any:
        """Plot variance, time and efficiency of each estimator, and variance by parameter. Needs matplotlib.

        Args:
            path: the file to write the picture to; if None, the figure is only returned.
        """
        from legrad.diagnostics.compare_plot import plot_comparison

        return plot_comparison(self, path)

    def __str__(self) -> str:
        return self.to_markdown()


def compare(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    params: Mapping[str, Any],
    estimators: Mapping[str, ELBO],
    *,
    key: Key,
    draws: int = 200,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Comparison:
    """Compare estimators of the same gradient at the same parameters: variance, bias and time.

    Args:
        model: a NumPyro model, or `legrad.log_density(f)`.
        guide: a NumPyro guide.
        params: constrained parameters; parameters that are left out take their initial values.
        estimators: the estimators, by name.
        key: the random key.
        draws: the number of gradients drawn from each estimator.
        args: positional arguments of model and guide.
        kwargs: keyword arguments of model and guide.

    Example:
        >>> both = {"LeGrad": legrad.LocalExpectation(), "LdGrad": legrad.ScoreFunction()}
        >>> table = legrad.compare(model, guide, result.params, both, key=key, args=(X, y))
        >>> print(table)
        >>> table.plot("estimators.png")
    """
    key = as_key(key)
    args, kwargs, _ = unframed(model, args, kwargs or {})
    if draws < 2:
        raise ValueError(f"draws={draws!r}: a variance needs at least 2")
    if not estimators:
        raise ValueError("there is no estimator to compare: pass a dictionary such as {'LeGrad': LocalExpectation()}")
    plain = {name: gradient(e, model, guide, params, args, dict(kwargs or {})) for name, e in estimators.items()}
    one = {name: jit(draw) for name, draw in plain.items()}
    found = {
        name: jax.device_get(jit(lambda k, draw=draw: moments(draw, k, draws))(jax.random.fold_in(key, i)))
        for i, (name, draw) in enumerate(plain.items())
    }
    seconds = interleaved_seconds({name: partial(draw, key) for name, draw in one.items()})
    noise = _rounding(model, guide, params, args, dict(kwargs or {}), key, next(iter(found.values())).mean)
    rows = {}
    for name, (mean, variance) in found.items():
        average = float(np.mean(_flat(variance)))
        z = _bias_z(found[name], [m for other, m in found.items() if other != name], draws, noise)
        parameters, start = {}, 0
        for parameter, leaf in _leaves(variance).items():
            own = z[start : start + leaf.size]
            start += leaf.size
            of_leaf = float(np.mean(leaf)) if leaf.size else 0.0
            parameters[parameter] = ParameterMeasured(
                of_leaf, float(own.max(initial=0.0)), _efficiency(of_leaf, seconds[name]), leaf.size
            )
        efficiency = _efficiency(average, seconds[name])
        rows[name] = Measured(average, float(np.max(z)), seconds[name], efficiency, mean, variance, parameters)
    return Comparison(rows, draws)


def _efficiency(variance: float, seconds: float) -> float:
    return 1 / (variance * seconds) if variance * seconds > 0 else math.inf


def _leaves(tree: Any) -> dict[str, np.ndarray]:
    """Return the leaves of the parameters by their path, in the order of `_flat`."""
    return {
        ".".join(str(getattr(k, "key", getattr(k, "idx", getattr(k, "name", k)))) for k in path): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _flat(tree: Any) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def _rounding(*given: Any) -> np.ndarray:
    """Return the rounding error of each component of a gradient, if legrad can evaluate model and guide."""
    *problem, like = given
    try:
        return _flat(jax.device_get(rounding(*problem)))
    except (ValueError, NotImplementedError):  # for example, a latent that NumPyro's own estimators sum out
        return np.zeros(_flat(like).shape)


def _bias_z(mine: Moments, others: list[Moments], draws: int, noise: np.ndarray) -> np.ndarray:
    """Return z-scores against the precision-weighted mean of the others; noiseless means must agree to rounding."""
    mean, square = _flat(mine.mean), _flat(mine.variance) / draws
    if not others:
        return np.zeros_like(mean)
    tiny = 1e-12 * (1.0 + mean**2) + noise**2  # rounding, as a variance
    precision = [1.0 / (_flat(o.variance) / draws + tiny) for o in others]
    total = np.sum(precision, axis=0)
    reference = sum(p * _flat(o.mean) for p, o in zip(precision, others, strict=True)) / total
    return np.abs(mean - reference) / np.sqrt(square + 1.0 / total + tiny)
