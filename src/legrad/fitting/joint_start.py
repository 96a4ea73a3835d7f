"""Where the stochastic loop starts a structured guide: at the best joint mode of all latents, with its curvature.

The joint Gaussian is whitened by the Hessian at the mode, given the discrete latents and the members of plates.
Members start with the standard deviations of their diagonal, the factors of discrete latents near the mode's values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import constraints

from legrad._compiled import jit
from legrad.fitting.annealing import Annealing, Place
from legrad.fitting.exchangeable import exchangeable_sites
from legrad.fitting.mode import curvature
from legrad.guides.structured import Structured
from legrad.model.arrays import map_in_batches, split_arrays
from legrad.model.precision import as_double, in_double

_STARTS = 4  # places to search from if there may be several modes
_ELEMENTS = 20_000  # discrete values, above which none is searched for
_CURVED = 4_000  # continuous latents, above which the curvature is not computed
_SAME = 1e-3  # nats: two searches that end this close found the same mode, or one with other labels
_PAIRS, _STEPS = 1_000, 12  # members times values of a pair, above which it starts equal; Newton steps of one
_NARROWEST, _WIDEST = 1e-3, 1.0  # initial standard deviations of latents in plates


@dataclass(frozen=True)
class Start:
    """Where a fit begins.

    Attributes:
        params: initial values of the guide's parameters, by name.
        note: a sentence on how the place was found.
    """

    params: dict[str, Any]
    note: str


def joint_start(guide: Structured, args: tuple[Any, ...], kwargs: Mapping[str, Any], key: jax.Array) -> Start | None:
    """Find a joint mode, whiten the guide there, and return its parameters; None where there is nothing to gain."""
    guide.space(*args, **kwargs)
    values = sum(factor.logits.size for factor in guide.discrete)
    if guide.is_subsampled or values > _ELEMENTS:
        return None
    found = in_double(lambda: _search(guide, key, *as_double((args, dict(kwargs)))))
    if found is None:
        return None
    real = jnp.result_type(float)
    return Start({name: np.asarray(value, real) for name, value in found.params.items()}, found.note)


def _search(guide: Structured, key: jax.Array, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Start | None:
    windows = {factor.latent.name: (factor.low, factor.high) for factor in guide.discrete}
    labels = {name: high for name, (low, high) in windows.items() if low == 0 and high > 2}
    space = guide.everything(*args, **kwargs)
    exchangeable = exchangeable_sites(space, args, kwargs, labels)
    possible = {f.latent.name: f.possible for f in guide.discrete if f.possible is not None}
    search = Annealing(space, windows, args, kwargs, possible)
    place, searches = _best(search, key, bool(windows or exchangeable), bool(exchangeable))
    if place is None:
        return None
    params: dict[str, Any] = _whitened(guide, place, args, kwargs) if space.size else {}
    for factor in guide.discrete:
        binary = factor.latent.support == constraints.boolean
        params[f"{guide.prefix}{factor.latent.name}_logits"] = place.logits(binary, factor.latent.name)
    params |= _conditionals(guide, place, args, kwargs)
    note = f"started at the best of {searches} joint modes" if searches > 1 else "started at the joint mode"
    if exchangeable:
        note += f"; the components of {', '.join(exchangeable)} can be relabelled, and this is one order"
    return Start(params, note)


def _best(search: Annealing, key: jax.Array, several: bool, anywhere: bool) -> tuple[Place | None, int]:
    """Return the best place of some searches, and their number; a mode that was found twice ends them."""
    found: list[Place] = []
    for i in range(_STARTS if several else 1):
        rng = np.random.default_rng([int(np.asarray(jax.random.key_data(key)).ravel()[-1]), i])
        start = search.space.start if i == 0 and not anywhere else search.space.other_start(rng)
        found.append(search.run(jax.random.fold_in(key, i), start))
        best = max(found, key=lambda place: place.value)
        if sum(abs(place.value - best.value) < _SAME for place in found) > 1:
            break
    return (best if math.isfinite(best.value) else None), len(found)


def _whitened(guide: Structured, place: Place, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Whiten the joint Gaussian at a place; return the parameters of all that is not whitened."""
    space = guide.everything(*args, **kwargs)
    joint = guide.joint_positions
    arrays, rebuild = split_arrays((args, dict(kwargs)))
    z = {name: jnp.asarray(value) for name, value in place.z.items()}

    def gradient(x: jax.Array, arrays: Any) -> jax.Array:
        args, kwargs = rebuild(arrays)
        return jax.grad(lambda x: space.log_density(x, args, kwargs, given=z))(x)

    def rows(which: Any, arrays: Any) -> jax.Array:
        def row(i: jax.Array) -> jax.Array:
            unit = jnp.zeros(space.size).at[i].set(1.0)
            return jax.jvp(lambda x: gradient(x, arrays), (jnp.asarray(place.x),), (unit,))[1]

        return map_in_batches(row, which, 32)

    sd = np.full(space.size, guide.init_scale)
    if space.size > _CURVED:
        return guide.initial(place.x, sd)
    hessian = -np.asarray(jit(rows)(jnp.arange(space.size), arrays))
    if not np.isfinite(hessian).all():
        return guide.initial(place.x, sd)
    bend = np.abs(np.diagonal(hessian))
    sd = np.clip(1 / np.sqrt(np.maximum(bend, 1e-30)), _NARROWEST, _WIDEST)
    if guide.is_whitenable:
        guide.whiten(place.x[joint], curvature(hessian[np.ix_(joint, joint)]).tril())
    return guide.initial(place.x, sd)


def _conditionals(
    guide: Structured, place: Place, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the parameters of continuous latents that depend on discrete ones: where each is for each value.

    For every member and value, the latent alone climbs by Newton steps, all others at the mode.
    """
    space = guide.everything(*args, **kwargs)
    arrays, rebuild = split_arrays((args, dict(kwargs)))
    z = {name: jnp.asarray(value) for name, value in place.z.items()}
    found: dict[str, Any] = {}
    for pair in guide.pairs.values():
        part, name, low = pair.part, pair.factor.latent.name, pair.factor.low
        k = pair.factor.high - low
        if part.size * k > _PAIRS:
            continue
        start = space.parts[part.latent.name].start

        def climb(item: Any, arrays: Any, name: str = name, low: int = low, start: int = start) -> Any:
            member, value = item
            other = z | {name: z[name].ravel().at[member].set(value + low).reshape(z[name].shape)}
            args, kwargs = rebuild(arrays)

            def f(t: jax.Array) -> jax.Array:
                return space.log_density(jnp.asarray(place.x).at[start + member].set(t), args, kwargs, given=other)

            def step(t: jax.Array, _: None) -> tuple[jax.Array, None]:
                slope, bend = jax.grad(f)(t), jnp.abs(jax.grad(jax.grad(f))(t)) + 1e-6
                move = slope / bend
                return t + jnp.clip(move, -3 / jnp.sqrt(bend), 3 / jnp.sqrt(bend)), None

            t, _ = jax.lax.scan(step, jnp.asarray(place.x)[start + member], None, _STEPS)
            return t, 1 / jnp.sqrt(jnp.abs(jax.grad(jax.grad(f))(t)) + 1e-6)

        items = jnp.repeat(jnp.arange(part.size), k), jnp.tile(jnp.arange(k), part.size)
        run = jit(lambda items, arrays, climb=climb: jax.lax.map(lambda i: climb(i, arrays), items))
        at, sd = (np.asarray(a).reshape(*part.shape, k) for a in run(items, arrays))
        pair.reference = np.asarray(place.z[name]) - low
        stretch = sd / np.take_along_axis(sd, pair.reference[..., None], -1)
        if np.isfinite(at).all() and np.isfinite(stretch).all() and (stretch > 0).all():
            pair.units = sd
            found |= dict(zip(pair.names, (at, np.log(stretch)), strict=True))
    return found
