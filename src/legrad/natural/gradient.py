"""`natural_gradient`: the natural gradient of a guide's factors as an optax optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from legrad.model.messages import warn
from legrad.natural.guide_map import GuideMap
from legrad.natural.metric import Metric


class NaturalState(NamedTuple):
    """The state of `natural_gradient`: steps taken, and the state of the optimizer of the other parameters."""

    step: jax.Array
    others: Any


def natural_gradient(
    guide: Callable[..., Any],
    learning_rate: optax.ScalarOrSchedule | None = None,
    *,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    others: optax.GradientTransformation | None = None,
    radius: float | None = 2.0,
) -> optax.GradientTransformation:
    r"""Precondition gradients by the Fisher information of the guide, factor by factor.

    .. math:: u \leftarrow u - \rho\, F(u)^{-1} \nabla_u \mathrm{loss}, \qquad
        F(u) = \sum_e J_e^\top F_e J_e

    :math:`F_e` is the Fisher information of the distribution of element e, and :math:`J_e` the derivative of its
    parameters: the step is the same for logits and probabilities, scales and log-scales, constraints included. The
    gradient may be exact or stochastic, of all data or of a minibatch, in `legrad.fit` or in NumPyro's `SVI`.

    Which numbers belong to which factor is read off the guide's program. A parameter has no natural gradient if its
    site depends on other latents, or has a distribution whose Fisher information is not known, or if more than 128
    numbers would have to be solved for together; such parameters, and those of the model, are left to `others`, and
    a warning names them unless `others` is given.

    Args:
        guide: a NumPyro guide, such as `legrad.MeanField(model)`.
        learning_rate: the share of a natural step to take, or an optax schedule; 1 goes to the optimum if other
            factors stay. If None, the natural gradient itself is returned, for `optax.chain`.
        args: positional arguments of the guide; of a minibatch, if the fit has minibatches.
        kwargs: keyword arguments of the guide.
        others: the optimizer of parameters that belong to no factor; if None, `optax.adam(1e-2)`, or without a
            learning rate their plain gradient.
        radius: how far one step may move a factor, in its standard deviations: Fisher lengths of steps of blocks
            above it are shortened to it. None for no limit.

    Returns:
        An optax optimizer for the unconstrained parameters.

    Example:
        >>> import jax, legrad, numpyro, numpyro.distributions as dist
        >>> def model():
        ...     with numpyro.plate("items", 3):
        ...         z = numpyro.sample("z", dist.Bernoulli(0.3))
        ...     numpyro.sample("y", dist.Normal(z.sum(), 1.0), obs=2.0)
        >>> guide = legrad.MeanField(model)
        >>> optimizer = legrad.natural_gradient(guide, 0.5)
        >>> exact = legrad.Exact()
        >>> result = legrad.fit(model, guide, key=0, estimator=exact, optimizer=optimizer, steps=20, progress=False)
        >>> bool(result.elbo[-1] > result.elbo[0])
        True
    """
    if radius is not None and not radius > 0:
        raise ValueError(f"natural_gradient: radius={radius!r} is not positive; None is for no limit")
    if learning_rate is None and others is not None:
        raise ValueError("natural_gradient: others needs a learning_rate, or its steps would be scaled twice")
    if learning_rate is not None and not callable(learning_rate) and not learning_rate > 0:
        raise ValueError(f"natural_gradient: learning_rate={learning_rate!r} is not positive")
    guide_map = GuideMap(guide, args, kwargs or {})
    chosen = others
    if chosen is None:
        chosen = optax.identity() if learning_rate is None else optax.adam(1e-2)
    metrics: dict[Any, Metric] = {}

    def metric_of(params: Any) -> Metric:
        shapes = jax.tree.map(jnp.shape, params)
        found = jax.tree.leaves(shapes, is_leaf=lambda x: isinstance(x, tuple))
        name = (jax.tree.structure(params), tuple(found))
        if name not in metrics:
            missing = sorted(set(guide_map.transforms) - set(params))
            if missing:
                raise ValueError(
                    f"natural_gradient: the parameters that are optimized lack '{missing[0]}' of the guide: pass the "
                    "guide, and the arguments, that are fitted"
                )
            metrics[name] = Metric(guide_map, params)
            if others is None and (plain := metrics[name].ownership.plain):
                what, why = next(iter(plain.items()))
                more = f" ({len(plain) - 1} more are left out, too)" if len(plain) > 1 else ""
                how = "their plain gradient" if learning_rate is None else "optax.adam(1e-2)"
                warn(
                    f"natural_gradient: '{what}' has no natural gradient, as {why}{more}; such parameters get {how}. "
                    "Pass others=, an optax optimizer, to choose theirs"
                )
        return metrics[name]

    def of_others(params: Any) -> optax.GradientTransformation:
        mask = jax.tree.map(lambda natural: not natural, metric_of(params).has_factor(params))
        return optax.masked(chosen, mask)

    def init(params: Any) -> NaturalState:
        return NaturalState(jnp.zeros((), jnp.int32), of_others(params).init(params))

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, NaturalState]:
        if params is None:
            raise ValueError("natural_gradient needs the parameters: call update(gradient, state, params)")
        metric = metric_of(params)
        other, memory = of_others(params).update(updates, state.others, params)
        rate: Any = 1.0
        if learning_rate is not None:
            rate = learning_rate(state.step) if callable(learning_rate) else learning_rate
        found = metric.solve(params, updates, None if radius is None else radius / rate)
        sign = 1.0 if learning_rate is None else -rate

        def choose(natural: bool, step: Any, other: Any) -> Any:
            return (sign * step).astype(other.dtype) if natural else other

        new = jax.tree.map(choose, metric.has_factor(params), found.step, other)
        return new, NaturalState(state.step + 1, memory)

    return optax.GradientTransformation(init, update)
