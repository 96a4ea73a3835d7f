"""Where to start a fit with discrete latents: the best of several joint modes, found by annealing.

In turn, z is drawn from its conditionals, a random half of its elements at a time, and x climbs given z:

    z_e ~ p(z_e | z without e, x)^(1/T),      x ← argmax log p(x, z),      T from 1 to 0

One pass of `single_site_differences` gives the conditionals of all elements. Components that start equal are told
apart by the draws. Groups that ended as one, or in two halves, are mended by moves: merge a group into another, split
a third, and cool again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

from legrad._compiled import jit
from legrad.guides.latent_space import LatentSpace
from legrad.model.arrays import split_arrays
from legrad.singlesite import single_site_differences

_FIRST = (*np.geomspace(2.0, 0.3, 20), *[1e-3] * 5)  # temperatures of the first search
_AGAIN = (*np.geomspace(1.0, 0.3, 8), *[1e-3] * 4)  # temperatures after a group was split
_MOVES = 12  # groups that are split and merged
_DRAWS = 4  # of half of the elements, at each temperature
_CLIMB, _LAST = 10, 500  # gradients of a climb of x given z, and of the last one
_GROUPS = 64  # the largest number of values that are taken for labels
_SOFT = 3.0  # the largest log-odds of the first probabilities
_FAR = 1e300


@dataclass(frozen=True)
class Place:
    """A joint mode: a place to start a fit from.

    Attributes:
        x: the continuous latents, unconstrained.
        z: the discrete latents, by site.
        value: the log-density there.
        log_odds: for each discrete site the log-odds of its values against the mode's, given everything else.
    """

    x: np.ndarray
    z: dict[str, np.ndarray]
    value: float
    log_odds: dict[str, np.ndarray]

    def logits(self, binary: bool, name: str) -> np.ndarray:
        """Return logits of a site's factors that favour the mode, but are sure of nothing."""
        odds = self.log_odds[name]
        odds = np.clip(odds - odds.max(0), -_SOFT, 0.0)
        return odds[1] - odds[0] if binary else np.moveaxis(odds, 0, -1)


class Annealing:
    """The search for joint modes of a model.

    Args:
        space: the continuous latents.
        windows: for each discrete site its smallest value, and the one after its largest.
        args: positional arguments of the model.
        kwargs: keyword arguments of the model.
        possible: for discrete sites, which values of the window each element can take; all, if a site is not named.
    """

    def __init__(
        self,
        space: LatentSpace,
        windows: Mapping[str, tuple[int, int]],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        possible: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        self.space, self.windows, self._possible = space, dict(windows), dict(possible or {})
        arrays, rebuild = split_arrays((args, dict(kwargs)))

        def f(x: jax.Array, z: Mapping[str, Any], arrays: Any) -> jax.Array:
            args, kwargs = rebuild(arrays)
            return space.log_density(x, args, kwargs, given=z)

        def odds(x: jax.Array, z: Mapping[str, Any], arrays: Any) -> dict[str, Any]:
            found = {name: self._candidates(name, jnp.ndim(v)) for name, v in z.items()}
            changes = single_site_differences(lambda z: f(x, z, arrays), dict(z), found)
            return {name: jnp.nan_to_num(c, nan=-jnp.inf, posinf=jnp.inf) for name, c in changes.items()}

        def draw(key: jax.Array, x: jax.Array, z: Mapping[str, Any], temperature: Any, arrays: Any) -> dict[str, Any]:
            def half(z: dict[str, Any], key: jax.Array) -> tuple[dict[str, Any], None]:
                new = {}
                for i, (name, change) in enumerate(sorted(odds(x, z, arrays).items())):
                    of_value, of_half = jax.random.split(jax.random.fold_in(key, i))
                    drawn = jax.random.categorical(of_value, change / temperature, axis=0) + self.windows[name][0]
                    chosen = jax.random.bernoulli(of_half, 0.5, jnp.shape(z[name]))
                    new[name] = jnp.where(chosen, drawn, z[name]).astype(z[name].dtype)
                return new, None

            return jax.lax.scan(half, dict(z), jax.random.split(key, _DRAWS))[0]

        self._arrays = arrays
        self._gradient = jit(jax.value_and_grad(f))
        self._odds, self._draw = jit(odds), jit(draw)
        self._first = jit(lambda key, x, arrays: space.draw_discrete(key, x, *rebuild(arrays)))

    def _candidates(self, name: str, rank: int) -> jax.Array:
        low, high = self.windows[name]
        return jnp.arange(low, high).reshape(-1, *(1,) * rank)

    def run(self, key: jax.Array, start: np.ndarray) -> Place:
        """Search from a start of the continuous latents, with discrete ones drawn from the prior."""
        if not self.windows:
            x, value = self._climb(start, {}, _LAST)
            return Place(x, {}, value, {})
        of_first, of_draws, of_moves = jax.random.split(key, 3)
        best = self._cool(of_draws, start, self._inside(self._first(of_first, start, self._arrays)), _FIRST)
        rng = np.random.default_rng(np.asarray(jax.random.key_data(of_moves)))
        groups = [name for name, (low, high) in self.windows.items() if 2 < high - low <= _GROUPS]
        for i in range(_MOVES if groups else 0):
            name = groups[i % len(groups)]
            split = best[2] | {name: _regrouped(np.asarray(best[2][name]), self.windows[name], rng)}
            other = self._cool(jax.random.fold_in(of_moves, i), best[1], split, _AGAIN)
            best = max(best, other, key=lambda found: found[0])
        _, x, z = best
        x, value = self._climb(x, z, _LAST)
        log_odds = jax.device_get(self._odds(x, z, self._arrays))
        return Place(x, jax.device_get(z), value, log_odds)

    def _inside(self, z: Mapping[str, Any]) -> dict[str, Any]:
        """Move elements to the nearest values that the data allow."""
        moved = dict(z)
        for name, possible in self._possible.items():
            low, high = self.windows[name]
            away = np.abs(np.arange(low, high) - np.asarray(z[name])[..., None])
            nearest = low + np.where(possible, away, high - low).argmin(-1)
            moved[name] = jnp.asarray(nearest, z[name].dtype)
        return moved

    def _cool(self, key: jax.Array, x: np.ndarray, z: Any, temperatures: Sequence[float]) -> tuple[float, Any, Any]:
        """Return the best value that is seen while the temperature falls, with its x and z."""
        best: tuple[float, Any, Any] = (-math.inf, x, z)
        for i, temperature in enumerate(temperatures):
            z = self._draw(jax.random.fold_in(key, i), x, z, temperature, self._arrays)
            x, value = self._climb(x, z, _CLIMB)
            best = max(best, (value, x, z), key=lambda found: found[0])
        return best

    def _climb(self, x: np.ndarray, z: Mapping[str, Any], limit: int) -> tuple[np.ndarray, float]:
        best: list[Any] = [-math.inf, x]

        def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = jax.device_get(self._gradient(x, z, self._arrays))
            if not (math.isfinite(value) and np.isfinite(gradient).all()):
                return _FAR, np.zeros_like(x)
            if value > best[0]:
                best[:] = [float(value), x.copy()]
            return -float(value), -np.asarray(gradient, np.float64)

        if not len(x):
            return x, -loss(x)[0]
        with np.errstate(all="ignore"):
            minimize(loss, x, jac=True, method="L-BFGS-B", options={"maxfun": limit, "maxiter": limit})
        return best[1], best[0]


def _regrouped(z: np.ndarray, window: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Return labels with one group merged into another, and its label given to half of a third group.

    The third group is chosen by its size: a large group may be two.
    """
    labels = np.arange(*window)
    sizes = np.array([np.sum(z == label) for label in labels]) + 1e-9
    split = rng.choice(labels, p=sizes / sizes.sum())
    free, into = rng.permutation(labels[labels != split])[:2]
    z = np.where(z == free, into, z)
    return np.where((z == split) & (rng.uniform(size=z.shape) < 0.5), free, z).astype(z.dtype)
