"""The result of a calibration: tests of a guide's probability integral transforms, in numbers, words and a picture.

A guide whose mean is off by b of its standard deviations, and whose standard deviation is 1/s of what it should be,
has normal scores x = Φ⁻¹(pit) with mean b and standard deviation s. There are three tests for each element:

    uniform    Kolmogorov–Smirnov: pit is uniform
    symmetric  Wilcoxon's signed ranks: pit and 1 − pit have the same distribution (VSBC; so if the centre is right)
    spread     χ²: the scores have variance 1

Holm's correction makes the probability of any false alarm, over all elements and tests, at most `level`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

_TESTS = ("uniform", "symmetric", "spread")
_RISE = 0.1  # nats in the last tenth of the steps: above this, a fit still moves


class Tested(NamedTuple):
    """The tests of a site, each array with the shape of the site; NaN where an element is masked.

    Attributes:
        bias: how far above the guide's centre the truth lies, in the guide's standard deviations.
        spread: the truth's spread around its mean, in the guide's standard deviations: above 1, the guide is too
            narrow. The number of draws limits bias and spread: how far a truth lies beyond all draws is not seen.
        p: the p-value of each test, by name: "uniform", "symmetric", "spread".
        adjusted: the p-values corrected for the number of tests.
    """

    bias: np.ndarray
    spread: np.ndarray
    p: dict[str, np.ndarray]
    adjusted: dict[str, np.ndarray]


@dataclass(frozen=True)
class Calibration:
    """The result of `calibrate`: how well fitted guides place the truth.

    Attributes:
        pit: for each latent its probability integral transforms, with a leading axis of simulations; NaN where the
            simulation failed, or the element is masked.
        draws: the number of draws from each fitted guide.
        level: the probability that a calibrated guide gets any flag for its transforms.
        bad_simulations: the simulations that drew values that are not finite.
        bad_fits: the simulations whose fit ended with values that are not finite.
        elbo_rise: the rise of the ELBO from the second-to-last tenth of the steps to the last tenth, by simulation.
    """

    pit: dict[str, np.ndarray] = field(repr=False)
    draws: int
    level: float
    bad_simulations: np.ndarray
    bad_fits: np.ndarray
    elbo_rise: np.ndarray = field(repr=False)

    @property
    def simulations(self) -> int:
        """The number of simulations."""
        return len(self.elbo_rise)

    @property
    def ok(self) -> bool:
        """Whether there are no flags."""
        return not self.flags

    @cached_property
    def tests(self) -> dict[str, Tested]:
        """The tests of each site."""
        scores = {name: _scores(pit) for name, pit in self.pit.items()}
        p = np.concatenate([np.ravel(s.p[test]) for s in scores.values() for test in _TESTS])
        adjusted, found, at = _holm(p), {}, 0
        for name, score in scores.items():
            corrected = {}
            for test in _TESTS:
                size = score.bias.size
                corrected[test] = adjusted[at : at + size].reshape(score.bias.shape)
                at += size
            found[name] = score._replace(adjusted=corrected)
        return found

    @property
    def flags(self) -> list[str]:
        """A sentence for each fault; empty if there is none."""
        said, n = [], self.simulations
        if len(self.bad_simulations):
            said.append(
                f"{len(self.bad_simulations)} of {n} simulations drew values that are not finite, and are left out: "
                "narrow the priors"
            )
        if len(self.bad_fits):
            said.append(
                f"{len(self.bad_fits)} of {n} fits ended with values that are not finite, and are left out: "
                "lower the optimizer's step size"
            )
        rise = self.elbo_rise[np.isfinite(self.elbo_rise)]
        if len(rise) > 1 and rise.mean() > max(_RISE, 3 * rise.std(ddof=1) / np.sqrt(len(rise))):
            said.append(f"the ELBO still rose by {rise.mean():.2g} in the last tenth of the steps: pass more steps")
        for name, tested in self.tests.items():
            said += _site_flags(name, tested, self.level)
        return said

    def to_markdown(self) -> str:
        """Return a table with a row for the most suspicious element of each site, and the flags."""
        lines = [
            "| site | elements | bias | spread | p uniform | p symmetric | p spread |",
            "|---|---|---|---|---|---|---|",
        ]
        for name, tested in self.tests.items():
            worst = _worst(tested)
            if worst is None:
                lines.append(f"| {name} | {tested.bias.size} | not tested | | | | |")
                continue
            p = " | ".join(f"{tested.p[test][worst]:.2g}" for test in _TESTS)
            row = f"{tested.bias[worst]:+.2f} | {tested.spread[worst]:.2f} | {p}"
            lines.append(f"| {name}{_index(worst)} | {tested.bias.size} | {row} |")
        flags = [f"- {flag}" for flag in self.flags] or [
            f"No flag: {self.simulations} simulations show no difference between the guide and the posterior."
        ]
        return "\n".join([*lines, "", *flags])

    __str__ = to_markdown

    def plot(self, path: Any = None) -> Any:
        """Plot histograms of the transforms, with the band of a calibrated guide. Needs matplotlib.

        Args:
            path: the file to write the picture to; if None, the figure is only returned.
        """
        from legrad.diagnostics.calibration_plot import plot_calibration

        return plot_calibration(self, path)

    def faults(self, name: str) -> list[str]:
        """Return the faults of a site, in a few words each."""
        return list(_faults(self.tests[name], self.level))

    def worst(self, name: str) -> tuple[int, ...] | None:
        """Return the index of a site's most suspicious element; None if all are masked."""
        return _worst(self.tests[name])


def _scores(pit: np.ndarray) -> Tested:
    """Return bias, spread and p-values of every element, without correction."""
    from scipy import stats  # slow to import, and only needed here

    shape = pit.shape[1:]
    flat = pit.reshape(len(pit), -1)
    failed = np.isnan(flat).all(1)
    flat = flat[~failed]
    n = len(flat)
    bias, spread = np.full((2, flat.shape[1]), np.nan)
    p = {test: np.full(flat.shape[1], np.nan) for test in _TESTS}
    counted = ~np.isnan(flat).any(0) if n > 1 else np.zeros(flat.shape[1], bool)
    if counted.any():
        u = np.asarray(flat[:, counted], np.float64)
        x = stats.norm.ppf(np.clip(u, 1e-12, 1 - 1e-12))
        bias[counted], spread[counted] = x.mean(0), x.std(0, ddof=1)
        ranked, i = np.sort(u, 0), np.arange(n)[:, None]
        distance = np.maximum(ranked - i / n, (i + 1) / n - ranked).max(0)
        p["uniform"][counted] = stats.kstwo.sf(distance, n)
        p["symmetric"][counted] = stats.wilcoxon(u - 0.5, axis=0).pvalue
        below = stats.chi2.cdf((n - 1) * x.var(0, ddof=1), n - 1)
        above = stats.chi2.sf((n - 1) * x.var(0, ddof=1), n - 1)
        p["spread"][counted] = np.minimum(1.0, 2 * np.minimum(below, above))
    p = {test: value.reshape(shape) for test, value in p.items()}
    return Tested(bias.reshape(shape), spread.reshape(shape), p, p)


def _holm(p: np.ndarray) -> np.ndarray:
    """Apply Holm's step-down correction; NaN does not count as a test."""
    adjusted = np.full(p.shape, np.nan)
    valid = np.flatnonzero(~np.isnan(p))
    order = valid[np.argsort(p[valid])]
    factors = np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * factors))
    return adjusted


def _worst(tested: Tested) -> tuple[int, ...] | None:
    smallest = np.min([tested.p[test] for test in _TESTS], axis=0)
    if np.isnan(smallest).all():
        return None
    return tuple(int(i) for i in np.unravel_index(np.nanargmin(smallest), smallest.shape))


def _faults(tested: Tested, level: float) -> dict[str, tuple[str, np.ndarray]]:
    """Return for each possible fault of a site the test that finds it, and the elements that have it."""
    rejected = {test: tested.adjusted[test] < level for test in _TESTS}
    faults = {
        "biased to the left": ("symmetric", rejected["symmetric"] & (tested.bias > 0)),
        "biased to the right": ("symmetric", rejected["symmetric"] & (tested.bias < 0)),
        "too narrow": ("spread", rejected["spread"] & (tested.spread > 1)),
        "too wide": ("spread", rejected["spread"] & (tested.spread < 1)),
        "of the wrong shape": ("uniform", rejected["uniform"] & ~rejected["symmetric"] & ~rejected["spread"]),
    }
    return {fault: found for fault, found in faults.items() if found[1].any()}


def _site_flags(name: str, tested: Tested, level: float) -> list[str]:
    said = []
    for fault, (test, where) in _faults(tested, level).items():
        p = np.where(where, tested.adjusted[test], np.inf)
        worst = tuple(int(i) for i in np.unravel_index(np.argmin(p), p.shape))
        size = {
            "symmetric": f"the truth lies {tested.bias[worst]:+.2f} of its standard deviations away",
            "spread": f"the truth spreads over {tested.spread[worst]:.2f} of its standard deviations",
            "uniform": "the positions of the truth in it are not uniform",
        }[test]
        among = f" in {where.sum()} of {where.size} elements, most in {name}{_index(worst)}" if where.size > 1 else ""
        said.append(f"q({name}) is {fault}{among}: {size} (p = {p[worst]:.1g} after correction)")
    return said


def _index(index: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, index))}]" if index else ""
