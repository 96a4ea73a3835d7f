"""Quadratic surrogates of likelihoods whose expectation is not known: their noise is taken out, not their mean.

The likelihood of a logit z, a sum of many independent latents, has no expectation in closed form. A quadratic has:

    log p(y | z)  →  log p(y | z) − g(z) + E g,    g(z) = (y − s) (z − m) − ½ c (z − m)²
    m, v: mean, variance of z under the guide;  κ² = 1 / (1 + π v / 8), s = σ(κ m) ≈ E σ(z), c = κ s (1 − s) ≈ E σ'(z)

That is right for any s, c and m in g, which are constants to a derivative. As z is affine in the latents, g summed
over data is a function L of the latents' means and variances, whose derivatives are all one-element changes:

    E g = L(means, variances),    g(x) = L(x, 0),    g(x + δ in element e) − g(x) = δ ∂L/∂mean_e + δ² ∂L/∂variance_e
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient

from legrad.exact.families import Family, family
from legrad.exact.known import Known
from legrad.exact.laws import Law
from legrad.exact.moments import marginal
from legrad.trace.program import Op, Program

LIKELIHOODS = frozenset(["legrad_hard_bernoulli_logits", "legrad_bernoulli_logits"])
_LINEAR = frozenset([Family.MOVE, Family.SCALE, Family.ADD, Family.MIX])


class Surrogates(NamedTuple):
    """What the surrogates add to f.

    Attributes:
        value: E g − g(x), differentiable.
        slope: ∂g/∂x of the elements of each site.
        bend: what goes with δ² in the change of g.
        terms: `terms(x)` returns what g adds to each term at other values, differentiable but for x.
    """

    value: jax.Array
    slope: dict[str, jax.Array]
    bend: dict[str, jax.Array]
    terms: Callable[[Mapping[str, jax.Array]], dict[str, jax.Array]]

    def change(self, site: str, moved: Any, pivot: jax.Array) -> jax.Array:
        """Return the change of g when an element of a site moves to other values, on a leading axis."""
        delta = jnp.asarray(moved, self.slope[site].dtype) - pivot
        return delta * self.slope[site] + delta**2 * self.bend[site]


def surrogates(
    terms: Callable[[dict[str, Any]], dict[str, Any]], laws: Mapping[str, Law], x: Mapping[str, jax.Array]
) -> Surrogates | None:
    """Return the surrogates of all likelihoods that have one; None if none has.

    Args:
        terms: additive terms as a function of independent latents.
        laws: the laws of these latents.
        x: their values.
    """
    laws = {name: laws[name] for name in sorted(x)}
    like = {name: jax.ShapeDtypeStruct(law.shape, law.dtype) for name, law in laws.items()}
    program = Program(terms, like)
    known = Known(program, laws)
    ops = [op for op in program.ops if op.name in LIKELIHOODS and _has_surrogate(program, known, op)]
    if not ops:
        return None
    floats = jnp.result_type(float)
    means = {name: law.mean.astype(floats) for name, law in laws.items()}
    variances = {name: jnp.broadcast_to(law.variance, law.shape).astype(floats) for name, law in laws.items()}
    here = {name: stop_gradient(x[name]).astype(floats) for name in laws}
    nothing = jax.tree.map(jnp.zeros_like, here)
    coefficients = [
        _coefficients(known.constant(op.inputs[1]), *_moments(program, laws, means, variances, op)) for op in ops
    ]
    weights = _weights(program, known, ops, here)

    def total(means: dict[str, Any], variances: dict[str, Any]) -> jax.Array:
        parts = []
        for op, weight, (centre, slope, bend) in zip(ops, weights, coefficients, strict=True):
            m, v = _moments(program, laws, means, variances, op)
            away = m - centre
            parts.append(jnp.sum(weight * (slope * away - 0.5 * bend * (away**2 + v))))
        return sum(parts, start=jnp.zeros((), floats))

    def by_term(at: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        at = {name: at[name] for name in laws}
        logits = _run(program, at, {}, [op.inputs[0] for op in ops])
        likelihoods = [jnp.zeros(program.shapes[op.outputs[0]], program.dtypes[op.outputs[0]]) for op in ops]
        changes = [
            (slope * (z - centre) - 0.5 * bend * (z - centre) ** 2).astype(like.dtype)
            for z, like, (centre, slope, bend) in zip(logits, likelihoods, coefficients, strict=True)
        ]

        def results(likelihoods: list[jax.Array]) -> list[Any]:
            given = {op.outputs[0]: like for op, like in zip(ops, likelihoods, strict=True)}
            return _run(program, at, given, program.outputs)

        found: Any = jax.jvp(results, (likelihoods,), (changes,))[1]  # they are only added up
        return jax.tree.unflatten(program.structure, found)

    g, (slope, bend) = jax.value_and_grad(total, argnums=(0, 1))(here, nothing)
    return Surrogates(total(means, variances) - g, stop_gradient(slope), stop_gradient(bend), by_term)


def _has_surrogate(program: Program, known: Known, op: Op) -> bool:
    """Say whether an operation's logits are affine in the latents, its data known, and its results only added up."""
    if known.is_constant(op.inputs[0]) or not known.is_constant(op.inputs[1]):
        return False
    before, after = _leading_to(program, op.inputs[0]), {op.outputs[0]}
    if any(
        _kind(program, known, other) not in _LINEAR for other in before if not known.is_constant(other.outputs[0])
    ):
        return False
    for other in program.ops:
        if not after.isdisjoint(other.inputs):
            if _kind(program, known, other) not in _LINEAR:
                return False
            after.update(other.outputs)
    return True


def _kind(program: Program, known: Known, op: Op) -> Family:
    return family(program, op, known.is_constant)


def _leading_to(program: Program, value: int) -> Collection[Op]:
    found, ahead = dict[int, Op](), [value]
    while ahead:
        op = program.maker(ahead.pop())
        if op is not None and op.outputs[0] not in found:
            found[op.outputs[0]] = op
            ahead += op.inputs
    return found.values()


def _moments(
    program: Program, laws: Mapping[str, Law], means: Mapping[str, Any], variances: Mapping[str, Any], op: Op
) -> tuple[jax.Array, jax.Array]:
    """Return mean and variance of an operation's logits, which need no more of their latents than theirs."""
    plain = {
        name: replace(law, mean=means[name], variance=variances[name], normal=True) for name, law in laws.items()
    }
    known, shape = Known(program, plain), program.shapes[op.inputs[0]]
    found = marginal(known.variables, known.moments(op.inputs[0]))
    return jnp.broadcast_to(found.mean.values, shape), jnp.broadcast_to(found.spread.values, shape)


def _coefficients(y: Any, mean: jax.Array, variance: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return m, y − s and c of each likelihood, as constants; no slope and no bend where m or v is not finite."""
    m, v = stop_gradient(mean), stop_gradient(variance)
    sound = jnp.isfinite(m) & jnp.isfinite(v)
    m, v = jnp.where(sound, m, 0.0), jnp.where(sound, v, 0.0)
    shrink = jax.lax.rsqrt(1.0 + math.pi / 8.0 * v)
    s = jax.nn.sigmoid(shrink * m)
    return m, jnp.where(sound, y - s, 0.0), jnp.where(sound, shrink * s * (1.0 - s), 0.0)


def _weights(program: Program, known: Known, ops: list[Op], x: Mapping[str, Any]) -> list[jax.Array]:
    """Return how much each likelihood counts in the sum of all terms: masks, and the scales of plates."""
    like = [jnp.zeros(program.shapes[op.outputs[0]], program.dtypes[op.outputs[0]]) for op in ops]

    def total(likelihoods: list[jax.Array]) -> jax.Array:
        given = {op.outputs[0]: value for op, value in zip(ops, likelihoods, strict=True)}
        return sum((jnp.sum(value) for value in _run(program, x, given, program.outputs)), start=jnp.zeros(()))

    return stop_gradient(jax.grad(total)(like))


def _run(program: Program, x: Mapping[str, Any], given: Mapping[int, Any], wanted: list[int]) -> list[Any]:
    """Run a program on values of its latents; some results of its operations may be given."""
    values: dict[int, Any] = dict(program.constants)
    for i, value in zip(program.inputs, x.values(), strict=True):
        values[i] = jax.lax.convert_element_type(value, program.dtypes[i])
    for op in program.ops:
        known = [given.get(i) for i in op.outputs]
        results = known if known[0] is not None else op.run([values[i] for i in op.inputs])
        values.update(zip(op.outputs, results, strict=True))
    return [values[i] for i in wanted]
