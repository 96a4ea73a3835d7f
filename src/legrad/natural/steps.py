"""Natural steps of a fit that was given no learning rate: a share of a natural step, the same for every factor.

The gradient may have noise. Discrete factors begin with a small share of their step that grows, so that continuous
ones follow before decisions are made; from a symmetric start full steps decide by accident. Parameters that belong to
no factor take the steps of another optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from legrad.natural.guide_map import GuideMap
from legrad.natural.metric import Metric

SHARE = 0.1  # of a natural step
_FIRST, _GROWTH = 0.02, 1.1  # the first share of discrete factors, relative to the others'; growth with each step
_FARTHEST = 0.5  # standard deviations that one step may move a factor, at the full share


class NaturalSteps(NamedTuple):
    """The state: steps taken, and the state of the optimizer of the other parameters."""

    step: jax.Array
    others: Any


class Owned(NamedTuple):
    """Which arrays of parameters belong to factors of a guide.

    Attributes:
        natural: for each array whether it does, in the structure of the parameters.
        discrete: whether it belongs to discrete ones.
        all_of_guide: whether all arrays do that only the guide has.
        amortized: whether elements of a site share many numbers, as the latents of an inference network do.
    """

    natural: Any
    discrete: Any
    all_of_guide: bool
    amortized: bool


def owned(
    guide: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    like: Mapping[str, Any],
    of_model: Collection[str],
) -> Owned:
    """Return who owns what; nothing is computed, the guide is only traced.

    Args:
        guide: the guide.
        args: its arguments.
        kwargs: its keyword arguments.
        like: unconstrained parameters of model and guide.
        of_model: the names of those that the model has.
    """
    found: list[Owned] = []

    def look(unconstrained: Any) -> None:
        metric = Metric(GuideMap(guide, args, kwargs), unconstrained, of_model)
        natural = metric.has_factor(unconstrained)
        mine = {name: natural[name] for name in metric.guide.transforms if name not in of_model}
        discrete = metric.has_factor(unconstrained, discrete=True)
        found.append(Owned(natural, discrete, all(jax.tree.leaves(mine)), metric.ownership.amortized))

    jax.eval_shape(look, dict(like))
    return found[0]


def natural_steps(
    guide: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    owns: Owned,
    of_model: Collection[str],
    others: optax.GradientTransformation,
) -> optax.GradientTransformation:
    """Return the optimizer; the guide is traced as a part of the program that takes the steps.

    Args:
        guide: the guide.
        args: its arguments.
        kwargs: its keyword arguments.
        owns: which parameters belong to factors.
        of_model: the names of the parameters that the model has.
        others: the optimizer of the parameters that belong to no factor.
    """
    plain = optax.masked(others, jax.tree.map(lambda mine: not mine, owns.natural))

    def init(params: Any) -> NaturalSteps:
        return NaturalSteps(jnp.zeros((), jnp.int32), plain.init(params))

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, NaturalSteps]:
        moves, memory = plain.update(updates, state.others, params)
        metric = Metric(GuideMap(guide, args, kwargs), params, of_model)
        solved = metric.solve(params, updates, _FARTHEST / SHARE).step
        early = jnp.minimum(1.0, _FIRST * _GROWTH ** state.step.astype(float))

        def choose(mine: bool, decides: bool, step: Any, move: Any) -> Any:
            return (-SHARE * (early if decides else 1.0) * step).astype(move.dtype) if mine else move

        moved = jax.tree.map(choose, owns.natural, owns.discrete, solved, moves)
        return moved, NaturalSteps(state.step + 1, memory)

    return optax.GradientTransformation(init, update)
