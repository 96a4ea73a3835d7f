"""Checks whether a fitted guide can be trusted: its moments against those of its draws, reweighted to the posterior.

For every element x of every latent, with the smoothed weights W of `psis`:

    mean: (mean_q − mean_W) / sd_W        sd: (sd_q − sd_W) / sd_W        both must be within 0.1

A shift is flagged by its estimate. Draws are random: if z of its standard errors are more than 0.1, with
z = max(2, √(2 log m)) for m comparisons, the largest z-score that noise alone reaches among m, then the draws cannot
tell, and a flag says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import jax
import numpy as np

from legrad.diagnostics.components import component_concerns
from legrad.diagnostics.psis import (
    FEW,
    LIMIT,
    ElboEstimate,
    concerns,
    known,
    smoothed_weights,
    summary,
    weighing,
)
from legrad.diagnostics.weights import Draws, Values
from legrad.model.problem import Problem

TOLERANCE = 0.1  # posterior standard deviations
_SHOWN = 12
Feature = tuple[str, int | None]  # a latent, or the indicator of one of its categories


@dataclass(frozen=True)
class Shift:
    """How far a moment of the guide is from that of the posterior, at the element where it is farthest.

    Attributes:
        value: the guide's moment minus the posterior's, in posterior standard deviations.
        error: the Monte Carlo standard error of the value.
        index: the element; for a Categorical with more than two categories the last number is the category.
        element: the element by its name, as in `summary`: "w[age]", "z[3]".
    """

    value: float
    error: float
    index: tuple[int, ...]
    element: str

    def __str__(self) -> str:
        return f"{self.value:+.3f} ± {self.error:.3f}"


@dataclass(frozen=True)
class SiteShift:
    """The worst shifts of one latent.

    Attributes:
        mean: the shift of the mean; for labels (Bernoulli, Categorical), that of the probability of a category.
        sd: the shift of the standard deviation; None for labels, which their probabilities describe fully.
    """

    mean: Shift
    sd: Shift | None


@dataclass(frozen=True)
class Diagnosis:
    """The findings of `diagnose`; print them.

    Attributes:
        khat: the PSIS k-hat; see `khat`.
        elbo: the ELBO and the importance-weighted bound.
        sites: the worst shifts of each latent.
        flags: a sentence for each fault, and for each moment about which the draws cannot tell.
        draws: the number of draws.
        notes: a sentence for each thing to know that is no fault.
    """

    khat: float
    elbo: ElboEstimate
    sites: dict[str, SiteShift]
    flags: list[str] = field(repr=False)
    draws: int
    notes: list[str] = field(default_factory=list, repr=False)

    @property
    def ok(self) -> bool:
        """Whether there are no flags: k-hat is at most 0.7, and means and sds are within 0.1 posterior sd."""
        return not self.flags

    def __str__(self) -> str:
        if not self.sites:
            return f"the posterior is exact; {self.elbo}"
        lines = [f"k-hat {self.khat:.2f}; {self.elbo}", "", "guide minus posterior, in posterior sds:"]
        worst = sorted(self.sites, key=lambda name: -_largest(self.sites[name]))
        width = max(len(shift.element) for site in self.sites.values() for shift in _both(site))
        for name in worst[:_SHOWN]:
            for what, shift in zip(("mean", "sd"), _both(self.sites[name]), strict=False):
                if shift.value == shift.error == 0:  # certain labels, constants: no element is worse than another
                    lines.append(f"  {what:<4}  {name:<{width}}  the same in all draws")
                else:
                    lines.append(f"  {what:<4}  {shift.element:<{width}}  {shift}")
        if len(worst) > _SHOWN:
            lines.append(f"  and {len(worst) - _SHOWN} more sites, with smaller shifts")
        said = [*(self.flags or ["no problem found"]), *self.notes]
        return "\n".join([*lines, "", *(f"- {sentence}" for sentence in said)])


def diagnose(
    problem: Problem,
    key: jax.Array,
    n: int = 16_000,
    proposal: Problem | None = None,
    names: Mapping[int, Sequence[str]] | None = None,
) -> Diagnosis:
    """Compare a guide with the posterior, using draws of the guide, or of a proposal with heavier tails.

    A mode of the posterior that no draw has visited cannot be seen.

    Args:
        problem: model, guide, fitted parameters and data.
        key: the random key.
        n: the number of draws, at least 100.
        proposal: the problem with a guide whose draws are weighed; `problem` itself if None.
        names: names of the members of an axis, by its length.

    Raises:
        ValueError: in the cases listed at `log_weights`, for example with subsampled plates.

    Example:
        >>> report = diagnose(result.problem, jax.random.key(1))
        >>> print(report)
        >>> assert report.ok, report.flags
    """
    draws = weighing(proposal or problem, key, n)
    log_w = draws.f()
    weights, k = smoothed_weights(log_w)
    weights, one, none = n * weights, np.ones(n), np.zeros(n)
    own = draws if proposal is None else Draws(problem, jax.random.fold_in(key, 1), n)
    pool = (
        [Weighed(draws, one, weights)] if own is draws else [Weighed(own, one, none), Weighed(draws, none, weights)]
    )
    moments = _moments(pool)
    errors = _errors(pool, moments)
    number = sum((1 if name in draws.labels else 2) * m.mean_q.size for (name, _), m in moments.items())
    z = max(2.0, math.sqrt(2 * math.log(number)))
    sites, flags = {}, concerns(k, own.f(), own.unknown)  # the tails of a proposal may leave the support
    for name in dict.fromkeys(name for name, _ in moments):
        mine = {key: m for key, m in moments.items() if key[0] == name}
        shifts = {"mean": [m.mean_shift for m in mine.values()], "sd": [m.sd_shift for m in mine.values()]}
        found = []
        for i, what in enumerate(("mean",) if name in draws.labels else ("mean", "sd")):
            value, error = np.stack(shifts[what], -1), np.stack([errors[key][i] for key in mine], -1)
            if len(mine) == 1:
                value, error = value[..., 0], error[..., 0]
            axes = value.ndim - (len(mine) > 1)
            at = partial(_at, value, error, name=name, axes=axes, names=names or {})
            found.append(at(_worst(value, error)))
            flags += _flags(what, found[-1], at(np.argmax(error)), z, n, k)
        sites[name] = SiteShift(found[0], found[1] if len(found) == 2 else None)
    flags += component_concerns(moments, draws.labels, n)
    return Diagnosis(k, summary(known(own)), sites, flags, n, _notes(draws))


def _notes(draws: Draws) -> list[str]:
    if not 0 < draws.unknown <= FEW * draws.n:
        return []
    return [f"at {draws.unknown} of {draws.n} draws the log-density is not a number: their weight is zero"]


# --- moments of draws, chunk by chunk ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Moments:
    mean_q: np.ndarray
    sd_q: np.ndarray
    mean_w: np.ndarray
    sd_w: np.ndarray

    @property
    def mean_shift(self) -> np.ndarray:
        return _ratio(self.mean_q - self.mean_w, self.sd_w)

    @property
    def sd_shift(self) -> np.ndarray:
        return _ratio(self.sd_q - self.sd_w, self.sd_w)


def _ratio(a: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """Divide by sd: a constant is off by zero or by infinitely many sds; a value that is NaN counts as off."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(a == 0, 0.0, a / sd)
    return np.where(np.isnan(ratio), np.inf, ratio)


def _features(values: Values, labels: Mapping[str, int]) -> Iterator[tuple[Feature, np.ndarray]]:
    """Yield what has moments: numbers as they are, labels as indicators of categories (of the second, if two)."""
    for name, x in values.items():
        if name not in labels:
            yield (name, None), np.asarray(x, np.float64)
        for category in range(1 if labels.get(name) == 2 else 0, labels.get(name, 0)):
            yield (name, category), np.asarray(x == category, np.float64)


class Weighed(NamedTuple):
    """Draws with weights of mean one, or all zero: those that make them draws of the guide, and of the posterior."""

    draws: Draws
    of_q: np.ndarray
    of_p: np.ndarray


def _passes(pool: Sequence[Weighed]) -> Iterator[tuple[Feature, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield each feature of each chunk, with the weights of its draws in a shape that multiplies the feature."""
    for draws, of_q, of_p in pool:
        start = 0
        for values in draws.chunks():
            for feature, x in _features(values, draws.labels):
                part, shape = slice(start, start + len(x)), (-1,) + (1,) * (x.ndim - 1)
                yield feature, x, of_q[part].reshape(shape), of_p[part].reshape(shape)
            start += len(x)


def _moments(pool: Sequence[Weighed]) -> dict[Feature, _Moments]:
    n = pool[0].draws.n
    origin: dict[Feature, np.ndarray] = {}  # the first draw: squares around that value lose no digits
    sums: dict[Feature, np.ndarray] = {}
    with np.errstate(over="ignore", invalid="ignore"):
        for feature, x, q, p in _passes(pool):
            y = x - origin.setdefault(feature, x[0])
            parts = np.stack([(q * y).sum(0), (q * y**2).sum(0), (p * y).sum(0), (p * y**2).sum(0)])
            sums[feature] = sums.get(feature, 0.0) + parts / n
        # n draws cannot see probabilities below 1/n: a rarer label counts as a label of probability 1/n
        least = {feature: 0.0 if feature[1] is None else n**-0.5 for feature in sums}
        return {
            feature: _Moments(
                origin[feature] + a, _sd(a, aa), origin[feature] + b, np.maximum(_sd(b, bb), least[feature])
            )
            for feature, (a, aa, b, bb) in sums.items()
        }


def _sd(mean: np.ndarray, square: np.ndarray) -> np.ndarray:
    return np.sqrt(np.maximum(square - mean**2, 0.0))


def _errors(pool: Sequence[Weighed], moments: Mapping[Feature, _Moments]) -> dict[Feature, np.ndarray]:
    """Return standard errors of the shifts of mean and sd by the delta method: √(Σ ψ² / n²), ψ a draw's influence."""
    squares: dict[Feature, np.ndarray] = {}
    with np.errstate(all="ignore"):
        for feature, x, of_q, of_p in _passes(pool):
            m = moments[feature]
            q, p, share = (x - m.mean_q) / m.sd_w, (x - m.mean_w) / m.sd_w, m.sd_q / m.sd_w
            spread = of_p * (p**2 - 1) / 2
            mean = of_q * q - of_p * p - m.mean_shift * spread
            sd = of_q * (q**2 - share**2) / (2 * share) - share * spread
            parts = np.stack([(mean**2).sum(0), (sd**2).sum(0)])
            squares[feature] = squares.get(feature, 0.0) + parts / pool[0].draws.n ** 2
        # a constant has no noise
        return {feature: np.where(moments[feature].sd_w > 0, np.sqrt(s), 0.0) for feature, s in squares.items()}


# --- shifts and flags --------------------------------------------------------------------------------------------


def _worst(value: np.ndarray, error: np.ndarray) -> np.intp:
    """Return the element that is farthest off; among equals, such as certain labels, the least certain one."""
    size = np.abs(value).ravel()
    return np.argmax(np.where(size == size.max(), np.nan_to_num(error.ravel(), nan=np.inf), -1.0))


def _at(
    value: np.ndarray, error: np.ndarray, flat: np.intp, name: str, axes: int, names: Mapping[int, Sequence[str]]
) -> Shift:
    """Return the shift at a position of `value`, whose axes beyond the first `axes` are categories."""
    index = tuple(int(i) for i in np.unravel_index(flat, value.shape))
    sizes = value.shape[:axes]
    words = [names[n][i] if n in names else str(i) for n, i in zip(sizes, index, strict=False)]
    words += map(str, index[axes:])
    element = name + (f"[{', '.join(words)}]" if words else "")
    return Shift(float(value[index]), float(error[index]), index, element)


def _both(site: SiteShift) -> list[Shift]:
    return [site.mean] if site.sd is None else [site.mean, site.sd]


def _largest(site: SiteShift) -> float:
    return max(abs(shift.value) for shift in _both(site))


_TRY = {
    "mean": "try more steps with a smaller step size, several restarts, or a richer guide",
    "sd": "try a guide with the dependence between latents that this one lacks, or more steps",
}


_CORRECT = "take corrected draws, result.sample(key, corrected=True), or "


def _flags(what: str, worst: Shift, noisiest: Shift, z: float, n: int, k: float) -> list[str]:
    if abs(worst.value) > TOLERANCE:
        return [
            f"the {what} of {worst.element} is {worst} posterior standard deviations from that of the "
            f"reweighted draws, more than {TOLERANCE}: {_CORRECT if k <= LIMIT else ''}{_TRY[what]}"
        ]
    if k <= LIMIT and not z * noisiest.error <= TOLERANCE:  # above the limit, weights say nothing anyway
        more = n * (z * noisiest.error / TOLERANCE) ** 2
        remedy = f"use about {2 * more:.1g} draws" if math.isfinite(more) else "its moments are not finite"
        return [
            f"{n} draws cannot tell whether the {what} of {noisiest.element} is right to {TOLERANCE} "
            f"posterior standard deviations (noise {noisiest.error:.3f}): {remedy}"
        ]
    return []
