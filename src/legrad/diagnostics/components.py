"""Components that nothing uses, and components that were never told apart: mixtures, states, topics, blocks.

A label is a discrete latent z whose K categories number an axis of continuous latents, such as the K means of a
mixture. With p_ek = q(z_e = k) for its elements e, from draws of the guide:

    unused       Σ_e p_ek < ½
    symmetric    p_ek is the same for all e, and the K entries of every such latent have the same mean and sd
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Protocol

import numpy as np

_MEMBERS = 0.5  # expected members of a component that nothing uses
_EACH = 2  # elements for each component, below which an empty one says nothing
_ALIKE = 0.02  # of a probability, or of a standard deviation
_NOISE = 5.0  # standard errors


class Moments(Protocol):
    """The moments of a site, or of the indicators of one category of a label."""

    @property
    def mean_q(self) -> np.ndarray:
        """The mean of the guide."""

    @property
    def sd_q(self) -> np.ndarray:
        """The standard deviation of the guide."""


def component_concerns(
    moments: Mapping[tuple[str, int | None], Moments], labels: Mapping[str, int], n: int
) -> list[str]:
    """Return a sentence for each label with unused components, or with components that are all alike.

    Args:
        moments: the moments of each number, and of the indicators of each category of a label but the first of two.
        labels: the labels, with their numbers of categories.
        n: the number of draws.
    """
    found = []
    for label, number in labels.items():
        numbered = {
            name: axes
            for (name, category), m in moments.items()
            if category is None and (axes := [i for i, k in enumerate(np.shape(m.mean_q)) if k == number])
        }
        p = _probabilities(moments, label, number)
        elements = p[0].size
        if not numbered or elements < 2:
            continue
        unused = [k for k in range(number) if p[k].sum() < _MEMBERS]
        if unused and elements >= _EACH * number:
            found.append(_unused(label, number, unused, numbered))
        flat = p.reshape(number, -1)
        noise = _NOISE * np.sqrt(flat * (1 - flat) / n).max()
        same = (flat.max(1) - flat.min(1)).max() <= _ALIKE + 2 * noise
        if same and not unused and all(_alike(moments[name, None], axes, n) for name, axes in numbered.items()):
            found.append(
                f"every element of '{label}' has the same probabilities, and the components of {_names(numbered)} "
                "are all alike: the fit has not left the symmetric point where it started. Use restarts=4, initial "
                "values that differ, or no guide: legrad.fit(model, args=..., key=...) breaks the symmetry"
            )
    return found


def _probabilities(moments: Mapping[tuple[str, int | None], Moments], label: str, number: int) -> np.ndarray:
    if number == 2:  # indicators of the second category alone
        second = np.asarray(moments[label, 1].mean_q)
        return np.stack([1 - second, second])
    return np.stack([np.asarray(moments[label, k].mean_q) for k in range(number)])


def _unused(label: str, number: int, unused: list[int], numbered: Mapping[str, list[int]]) -> str:
    one = len(unused) == 1
    which = f"component {unused[0]}" if one else f"components {', '.join(map(str, unused))}"
    return (
        f"{which} of {number} that '{label}' numbers (in {_names(numbered)}) {'has' if one else 'have'} no members: "
        "either the data need fewer components, or the fit has lost some. Compare restarts, and a model with "
        f"{number - len(unused)}"
    )


def _names(names: Mapping[str, list[int]]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _alike(m: Moments, axes: list[int], n: int) -> bool:
    """Whether the entries along each of some axes have the same mean and sd, up to the noise of the draws."""
    sd = np.asarray(m.sd_q)
    noise = _ALIKE + 2 * _NOISE / math.sqrt(n)
    return all(
        bool((np.abs(a - b) <= noise * np.maximum(sd, 1e-300)).all())
        for axis in axes
        for a, b in _beside(np.asarray(m.mean_q), axis)
    ) and all(bool((np.abs(a - b) <= noise * a).all()) for axis in axes for a, b in _beside(sd, axis))


def _beside(x: np.ndarray, axis: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the array, with the array whose entries along an axis are rolled by one."""
    yield x, np.roll(x, 1, axis)
