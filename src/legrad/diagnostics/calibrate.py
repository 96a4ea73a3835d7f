"""Simulation-based calibration: simulate from the model, fit, and see where the truth lies in the fitted guide.

For latents z* and data drawn from the model, and draws z_1, ..., z_L of the guide fitted to those data, each scalar
element has the probability integral transform

    pit = ( #{z_l < z*} + U · (#{z_l = z*} + 1) ) / (L + 1),    U uniform,

which is uniform over simulations if the guide is the posterior. U breaks ties at random, so this holds for discrete
elements as well.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpyro import handlers
from numpyro.infer.elbo import ELBO
from tqdm.auto import tqdm

from legrad._compiled import jit
from legrad.diagnostics.calibration import Calibration
from legrad.diagnostics.replay import replay
from legrad.diagnostics.simulation import Simulator
from legrad.estimators import LocalExpectation
from legrad.estimators.base import require_positive
from legrad.model.keys import Key, as_key
from legrad.model.objective import Given, Objective, update
from legrad.model.parameters import Parameters
from legrad.model.threads import one_at_a_time

_LEAST = 20  # simulations: with fewer, the tests could not show anything


class _Outcome(NamedTuple):
    """The outcome of one simulation."""

    pit: dict[str, jax.Array]
    simulated: jax.Array  # whether latents and data are finite
    fitted: jax.Array  # whether parameters and draws are finite
    rise: jax.Array  # of the ELBO, from the second-to-last tenth of the steps to the last tenth


def calibrate(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    *,
    key: Key,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    observed: Sequence[str] = (),
    guide_args: Callable[[dict[str, Any]], tuple[Any, ...]] | None = None,
    simulations: int = 100,
    draws: int = 100,
    estimator: ELBO | None = None,
    optimizer: optax.GradientTransformation | None = None,
    steps: int = 2000,
    init_params: Mapping[str, Any] | None = None,
    parallel: int = 10,
    level: float = 0.01,
    progress: bool | None = None,
) -> Calibration:
    """Calibrate a guide, and the way it is fitted, by simulation; latents may be discrete.

    Latents and data are drawn from the model, the guide is fitted to the data, and the position of the latents among
    draws of the guide is recorded (VSBC: Yao, Vehtari, Simpson and Gelman 2018, "Yes, but did it work?").
    Observed sites are simulated and then conditioned on by name, so the model needs no change, and its other
    arguments stay as they are. All fits are one compiled program, and start from the same parameters.

    Args:
        model: a NumPyro model in which every unknown has a prior.
        guide: a guide, or a guide class (`legrad.MeanField`, NumPyro's `AutoNormal`, or `functools.partial` of one),
            which is called with the model.
        key: the random key.
        args: positional arguments of model and guide, as for `legrad.fit`. The data among them determine which sites
            are observed.
        kwargs: keyword arguments of model and guide.
        observed: further sites that hold data, for arguments such as `args=(X, None)`.
        guide_args: for a guide that reads the data from its arguments: a function from the simulated data, by site,
            to the guide's arguments, `lambda data: (X, data["y"])`. If None, an argument that is a site's `obs` is
            replaced by the simulated data.
        simulations: the number of simulations; more simulations find smaller faults.
        draws: the number of draws from each fitted guide.
        estimator: one of legrad's estimators, or any NumPyro ELBO; `LocalExpectation()` if None.
        optimizer: an optax optimizer, schedules included; `optax.adam(1e-2)` if None.
        steps: the number of steps of each fit; 0 tests the guide at `init_params`, for example an amortized guide.
        init_params: parameter values to start from, constrained.
        parallel: how many simulations run at the same time, vectorized; fewer need less memory.
        level: the probability that a calibrated guide gets any flag.
        progress: whether to show a progress bar; if None, only when the output is a terminal.

    Returns:
        The transforms by site, their tests, and in `flags` a sentence for each fault.

    Example:
        >>> print(legrad.calibrate(model, legrad.MeanField, args=(X, y), key=jax.random.key(0)))
    """
    estimator = LocalExpectation() if estimator is None else estimator
    optimizer = optax.adam(1e-2) if optimizer is None else optimizer
    _check(estimator, optimizer, simulations, draws, steps, parallel, level)
    of_look, of_init, of_runs = jax.random.split(as_key(key), 3)
    simulator = Simulator(model, args, dict(kwargs or {}), observed, of_look)
    _, data = jit(simulator.draw)(of_look)
    fitted = simulator.guide_on_data(guide, guide_args)
    with one_at_a_time:
        handlers.seed(fitted, of_init)(data)  # guides that read the model at their first call need concrete data
    parameters = Parameters(simulator.conditioned, fitted, (data,), {}, of_init, init_params)
    simulator.check_guide(fitted, parameters.initial, data, of_init)

    fit = partial(_fit, simulator.conditioned, fitted, parameters, estimator, optimizer, steps)
    one = partial(_simulate, simulator, fitted, fit, draws)
    outcomes = _in_parallel(one, jax.random.split(of_runs, simulations), parallel, progress)
    return Calibration(
        pit={name: np.where(simulator.counted[name], pit, np.nan) for name, pit in outcomes.pit.items()},
        draws=draws,
        level=level,
        bad_simulations=np.flatnonzero(~outcomes.simulated),
        bad_fits=np.flatnonzero(outcomes.simulated & ~outcomes.fitted),
        elbo_rise=np.asarray(outcomes.rise),
    )


def _simulate(simulator: Simulator, guide: Callable[..., Any], fit: Callable[..., Any], draws: int, key: Any) -> Any:
    """Run one simulation: draw latents and data, fit, and locate the latents among draws of the fitted guide."""
    of_data, of_fit, of_draws, of_ties = jax.random.split(key, 4)
    truth, data = simulator.draw(of_data)
    params, rise = fit(of_fit, data)

    def draw(key: jax.Array) -> dict[str, jax.Array]:
        trace = replay(guide, (data,), {}, key, params)
        return {name: trace[name]["value"] for name in truth}

    z = jax.vmap(draw)(jax.random.split(of_draws, draws))
    simulated, fitted = _finite((truth, data)), _finite((params, z))
    ties = jax.random.split(of_ties, len(truth))
    pit = {n: _pit(z[n], truth[n], tie) for n, tie in zip(truth, ties, strict=True)}
    pit = jax.tree.map(lambda p: jnp.where(simulated & fitted, p, jnp.nan), pit)
    return _Outcome(pit, simulated, fitted, rise)


def _fit(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    parameters: Parameters,
    estimator: ELBO,
    optimizer: optax.GradientTransformation,
    steps: int,
    key: jax.Array,
    data: dict[str, jax.Array],
) -> tuple[dict[str, Any], jax.Array]:
    """Return the fitted parameters, constrained, and the rise of the ELBO at the end of the fit."""
    objective, given = Objective(model, guide, parameters), Given((data,), {}, {})

    def step(carry: Any, i: jax.Array) -> tuple[Any, jax.Array]:
        of_step = jax.random.fold_in(key, i)
        done = update(lambda u: objective.loss(estimator, u, of_step, given), optimizer, *carry)
        return (done.unconstrained, done.memory), -done.loss

    start = parameters.unconstrain(parameters.initial)
    if not steps:
        return parameters.constrain(start), jnp.zeros(())
    (unconstrained, _), elbo = jax.lax.scan(step, (start, optimizer.init(start)), jnp.arange(steps))
    tenth = max(1, steps // 10)
    return parameters.constrain(unconstrained), jnp.mean(elbo[-tenth:]) - jnp.mean(elbo[-2 * tenth : -tenth])


def _pit(z: jax.Array, truth: jax.Array, key: jax.Array) -> jax.Array:
    u = jax.random.uniform(key, truth.shape)
    return (jnp.sum(z < truth, 0) + u * (jnp.sum(z == truth, 0) + 1)) / (len(z) + 1)


def _finite(tree: Any) -> jax.Array:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))


def _in_parallel(one: Callable[..., _Outcome], keys: jax.Array, parallel: int, progress: bool | None) -> _Outcome:
    """Run all simulations, `parallel` at a time with one compiled program; the last batch repeats some to be full."""
    together = min(parallel, len(keys))
    run = jit(jax.vmap(one))
    parts = []
    hide = not (sys.stderr.isatty() if progress is None else progress)
    with tqdm(total=len(keys), disable=hide, unit="fit", desc="calibrate") as bar:
        for start in range(0, len(keys), together):
            number = min(together, len(keys) - start)
            chosen = keys[(np.arange(start, start + together)) % len(keys)]
            parts.append(jax.tree.map(lambda a, n=number: a[:n], jax.device_get(run(chosen))))
            bar.update(number)
    return jax.tree.map(lambda *a: np.concatenate(a), *parts)


def _check(
    estimator: Any, optimizer: Any, simulations: Any, draws: Any, steps: Any, parallel: Any, level: Any
) -> None:
    require_positive(simulations=simulations, draws=draws, parallel=parallel)
    if simulations < _LEAST:
        raise ValueError(f"simulations={simulations}: a test of uniformity needs at least {_LEAST}")
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 0:
        raise ValueError(f"steps={steps!r}: it must be a whole number; 0 tests the guide as it is")
    if not 0 < level < 1:
        raise ValueError(f"level={level!r}: it is the probability of a false alarm, such as 0.01")
    if not isinstance(estimator, ELBO):
        raise TypeError(
            f"estimator={estimator!r} is not an estimator: pass an object such as legrad.LocalExpectation()"
        )
    if not isinstance(optimizer, optax.GradientTransformation):
        raise TypeError(f"optimizer={optimizer!r} is not an optax optimizer: pass one such as optax.adam(1e-2)")
