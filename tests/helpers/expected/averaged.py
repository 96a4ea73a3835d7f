"""The mean of LocalExpectation's value and gradient over everything that it may draw.

Where the objective is deterministic that is its value. Where some terms stay sampled, it is the sum over all pivots
of the guide, with a dense rule for the noise of continuous sites, so that nothing is left to chance.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import legrad
from expected.case import Case
from legrad._compiled import jit
from legrad.model.problem import Noise
from pivots import Given, Pivots, bare, elementwise, together, trace_of

MOST = 30_000  # pivots
BATCH = 1 << 8
NODES = 50  # of an element that is integrated with the others at a pivot
END = 8.0  # of the noise, in standard deviations
KEYS = 8  # that a deterministic loss is the same for
SAME = 1e-12  # relative


class Found(NamedTuple):
    """A value and gradient of the negative ELBO.

    Attributes:
        value: of the loss.
        gradient: by all parameters.
        deterministic: whether no key takes part in them.
        tolerance: to which the average over what is drawn can be right; zero where nothing is.
    """

    value: Any
    gradient: Any
    deterministic: bool
    tolerance: float


def found(case: Case) -> Found:
    """Return what LocalExpectation finds, with everything that it draws averaged out."""
    program = jit(lambda params, key: _loss(legrad.LocalExpectation(), case, params, key))
    first, *others = (jax.device_get(program(case.params, jax.random.key(seed))) for seed in range(KEYS))
    if all(_same(first, other) for other in others):
        return Found(*first, True, 0.0)
    return _over_pivots(case, legrad.LocalExpectation(nodes=NODES))


def _loss(estimator: Any, case: Case, params: Any, key: jax.Array) -> tuple[jax.Array, Any]:
    return jax.value_and_grad(lambda p: estimator.loss(key, p, case.model, case.guide, *case.args))(params)


def _same(first: Any, second: Any) -> bool:
    leaves = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return all(np.allclose(a, b, rtol=SAME, atol=SAME, equal_nan=True) for a, b in leaves)


def _over_pivots(case: Case, estimator: Any) -> Found:
    module = sys.modules[type(estimator).__module__]
    pivots, tolerance = _pivots(case)
    usual = jax.tree.map(lambda a: jnp.asarray(a[len(pivots.mass) // 2]), pivots.given)

    def one(given: dict[str, Any]) -> Any:
        at, inside = [given], []

        def guide(*args: Any) -> Any:
            return Given(case.guide, at[0])(*args)

        def at_this(one: Any, noise: Noise) -> Any:
            if inside:  # draws within a draw are a baseline, and do not depend on it: here all are one and the same
                at[0] = usual
            inside.append(True)
            found = jax.tree.map(lambda a: a[None], one(Noise(noise.sites[0], noise.plates)))
            inside.pop()
            at[0] = given
            return found

        with mock.patch.object(module, "over_draws", at_this):
            return jax.value_and_grad(lambda p: estimator.loss(jax.random.key(0), p, case.model, guide, *case.args))(
                case.params
            )

    @jit
    def some(given: dict[str, Any], mass: jax.Array) -> Any:
        return jax.tree.map(lambda a: jnp.tensordot(mass, a, 1), jax.vmap(one)(given))

    number = len(pivots.mass)
    batch, total = min(number, BATCH), None
    for start in range(0, number, batch):
        rows = np.arange(start, start + batch)
        mass = np.where(rows < number, pivots.mass[np.minimum(rows, number - 1)], 0.0)
        part = some({n: v[np.minimum(rows, number - 1)] for n, v in pivots.given.items()}, mass)
        total = part if total is None else jax.tree.map(jnp.add, total, part)
    return Found(*total, False, tolerance)


def _pivots(case: Case) -> tuple[Pivots, float]:
    """Return the values of the discrete sites and the noise of the others, and how exact a sum over them is.

    Gamma sites take values like discrete ones: they are not treated by reparameterization here.
    """
    trace = {n: s for n, s in trace_of(case, {}).items() if s["type"] == "sample"}
    sizes = {n: int(np.prod(np.shape(s["value"]))) for n, s in trace.items()}
    lists = {
        n: np.ravel(bare(s["fn"]).enumerate_support(expand=False)) for n, s in trace.items() if s["fn"].is_discrete
    }
    given_values = set(lists) | {n for n, s in trace.items() if isinstance(bare(s["fn"]), dist.Gamma)}
    configurations = np.prod([float(len(v)) ** sizes[n] for n, v in lists.items()])
    continuous = sum(size for n, size in sizes.items() if n not in lists)
    points = min(101, int((MOST / configurations) ** (1 / max(1, continuous))))
    assert points >= 11 or not continuous, f"{case.name} has too many pivots"
    noise = np.linspace(-END, END, points)
    density = np.exp(-0.5 * noise**2) / np.sum(np.exp(-0.5 * noise**2))
    parts = []
    for n, s in trace.items():
        shape, count = np.shape(s["value"]), sizes[n]
        if n not in given_values:
            mass = np.prod(elementwise([density] * count, (count,)), axis=1)
            parts.append(Pivots({n: elementwise([noise] * count, shape)}, mass, None))
            continue
        values = [lists[n]] * count if n in lists else [np.exp(np.linspace(-9, 3.5, points))] * count
        steps = [np.ones_like(v) if n in lists else v * np.log(v[1] / v[0]) for v in values]
        mass = np.prod(elementwise(steps, (count,)), axis=1)
        parts.append(Pivots({n: elementwise(values, shape)}, mass, None))
    joint = together(parts)

    def log_mass(data: dict[str, Any]) -> jax.Array:
        sites = [s for n, s in trace_of(case, data).items() if n in given_values]
        return sum((jnp.sum(bare(s["fn"]).log_prob(s["value"])) for s in sites), start=jnp.zeros(()))

    mass = joint.mass * np.exp(jax.jit(jax.vmap(log_mass))(joint.given))
    possible = mass > 1e-18
    tolerance = 0.0 if not continuous else 1e-5 if points > 30 else 1e-3
    return Pivots({n: v[possible] for n, v in joint.given.items()}, mass[possible], None), tolerance
