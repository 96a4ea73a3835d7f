"""Climbing an ELBO that has no noise: damped natural steps, and L-BFGS in the geometry of the guide.

    r = −F(u)⁻¹ ∇loss    the natural step, and what is left of it at the optimum: nothing

Natural steps come first if there are discrete factors: ρ r, where ρ grows with every step that is accepted. Discrete
factors begin with a thousandth of a step, so that continuous ones follow before decisions are made; full steps from a
symmetric start decide by accident. Once natural steps are slow, L-BFGS takes over, with

    pairs (s, r_old − r_new)    instead of changes of the gradient, of which a saturated logit has none
    products aᵀ F(u) b          at the current u, so that coordinates which do not matter there do not count

Logits that are saturated have no gradient, on whichever side they are. Where a climb would end, they are looked at
once more: from a point where they are not saturated, their natural step says where they belong.

A step is accepted if the loss falls as its slope says, or, where the loss differs by less than its rounding, if the
slope behind the step does. One iteration takes one gradient; all of them are one compiled program.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from legrad.natural.metric import Metric

CLIMBING, CONVERGED, ROUNDING, STUCK, SPENT, NOWHERE = range(6)
AWAKE, PROBING, TRYING = range(3)

_NO_MEMORY: Any = ()
_PAIRS = 10
_ROOM = 1 << 28  # numbers that all pairs may take
_SLOWEST, _FIRST, _GROWTH = 1e-3, 0.3, 1.6  # shares of a natural step: of discrete factors, of others; per step
_FOLD = 1.0  # the most that the logarithm of a scale may change in one step
_DESCENT = 1e-4  # of what its slope promises, a step must gain this share
_FLAT = 0.8  # below rounding, the slope behind a step may be this share of the slope before it
_LOOK_BACK, _SLOW = 8, 0.5  # natural steps are slow if r shrinks by less than this over so many steps
_GAIN = (
    1e-5  # nats: parameters of no factor have no standard deviation, so their end is where the next step gains less
)
_FAR = {4: 8.0, 8: 16.0}  # logits further away are saturated, by the bytes of a number
_WAKES = 5  # looks at saturated logits
_PATIENCE = 3  # refusals after which a direction of L-BFGS is given up
_REFUSALS = 14  # refusals after which nothing is left to try


class Memory(NamedTuple):
    """What a climb remembers, by rows that are written one at a time.

    Attributes:
        steps: the last accepted steps, in a ring.
        bends: the changes of −r along them.
        history: the loss at each evaluation.
    """

    steps: Array
    bends: Array
    history: Array

    def write(self, row: Array, step: Array | None = None, bend: Array | None = None) -> Memory:
        """Write a step, or its bend, to a row of the ring."""
        put = jax.lax.dynamic_update_index_in_dim
        return self._replace(
            steps=self.steps if step is None else put(self.steps, step, row, 0),
            bends=self.bends if bend is None else put(self.bends, bend, row, 0),
        )


class Climb(NamedTuple):
    """The state of a climb.

    Attributes:
        at: the unconstrained parameters, flat.
        loss: the loss there.
        gradient: its gradient.
        natural: r, the natural step.
        direction: the step that is tried next, times `share`.
        share: how much of it is tried.
        with_pairs: whether L-BFGS has taken over.
        decided: the share of a natural step that discrete factors take.
        rate: the share that all others take.
        pairs: how many of the last steps are known, with the changes of −r along them.
        newest: the row of the newest of them.
        plain: the size of a step for parameters that belong to no factor.
        lengths: the Fisher length of r after the last few steps, the newest first.
        length: how far r moves the guide: the largest Fisher length of an element.
        reach: how far the direction moves it.
        refused: trials refused in a row.
        taken: natural steps taken since L-BFGS last gave up.
        evaluations: gradients so far.
        waking: AWAKE; PROBING while the trial is a look at saturated logits; TRYING while it is what they say.
        woken: how often saturated logits were looked at.
        end: CLIMBING, or how the climb ended.
        memory: what is written in place: it is much larger than the rest.
    """

    at: Array
    loss: Array
    gradient: Array
    natural: Array
    direction: Array
    share: Array
    with_pairs: Array
    decided: Array
    rate: Array
    pairs: Array
    newest: Array
    plain: Array
    lengths: Array
    length: Array
    reach: Array
    refused: Array
    taken: Array
    evaluations: Array
    waking: Array
    woken: Array
    end: Array
    memory: Memory


def beginning(start: dict[str, Any], most: int) -> Climb:
    """Return the state before the first gradient as NumPy arrays: making them takes no program.

    Args:
        start: the unconstrained parameters; only their sizes and types matter.
        most: the largest number of gradients.
    """
    leaves = jax.tree.leaves(start)
    dtype, size = jnp.result_type(*leaves), sum(math.prod(np.shape(x)) for x in leaves)
    none: Any = np.zeros(size, dtype)
    empty: Any = np.zeros((_room(size), size), dtype)
    history: Any = np.full(most, np.nan, dtype)
    zero, one, endless = np.zeros((), np.int32), np.ones((), dtype), np.full((), np.inf, dtype)
    state: dict[str, Any] = dict(
        at=none,
        loss=endless,
        gradient=none,
        natural=none,
        direction=none,
        share=one,
        with_pairs=np.asarray(False),
        decided=np.asarray(_SLOWEST / _GROWTH, dtype),
        rate=np.asarray(_FIRST / _GROWTH, dtype),
        pairs=zero,
        newest=zero,
        plain=one,
        lengths=np.full(_LOOK_BACK, np.inf, dtype),
        length=endless,
        reach=endless,
        refused=zero,
        taken=zero,
        evaluations=zero,
        waking=zero,
        woken=zero,
        end=zero,
        memory=Memory(empty, empty.copy(), history),
    )
    return Climb(**state)


def _room(size: int) -> int:
    return max(2, min(_PAIRS, _ROOM // (2 * max(1, size))))


class Ascent:
    """A climb to the optimum of a loss that has no noise.

    Args:
        loss: the loss, a function of unconstrained parameters.
        metric: the Fisher metric of the guide in these parameters.
        like: parameters of the right shapes.
        tolerance: standard deviations of the guide that it may be away from the optimum.
        most: the largest number of gradients.
    """

    def __init__(
        self,
        loss: Callable[[dict[str, Any]], Array],
        metric: Metric,
        like: dict[str, Any],
        tolerance: float = 1e-3,
        most: int = 2000,
    ) -> None:
        flat, self.unflatten = ravel_pytree(like)
        self.metric, self.tolerance, self.most, self.dtype = metric, tolerance, most, flat.dtype
        self.room = _room(flat.size)
        self._value = jax.value_and_grad(lambda at: loss(self.unflatten(at)).astype(self.dtype))
        self._in_factor, self._discrete = (
            ravel_pytree(jax.tree.map(lambda mine, x: jnp.full(jnp.shape(x), mine), marks, like))[0]
            for marks in (metric.has_factor(like), metric.has_factor(like, discrete=True))
        )
        self._any_discrete = any(jax.tree.leaves(metric.has_factor(like, discrete=True)))

    def begin(self, start: dict[str, Any], nudge: dict[str, Any] | None = None) -> Climb:
        """Return the state of a climb from some parameters, moved by a nudge; nothing is evaluated yet.

        A nudge to where the loss is not finite is shortened.
        """
        at = ravel_pytree(start)[0]
        return jax.tree.map(jnp.asarray, beginning(start, self.most))._replace(
            with_pairs=jnp.asarray(not self._any_discrete),
            at=at,
            direction=jnp.zeros_like(at) if nudge is None else ravel_pytree(nudge)[0].astype(at.dtype),
        )

    def run(self, climb: Climb, upto: Array | int | None = None) -> Climb:
        """Climb until the end, or until so many gradients were taken."""
        limit = self.most if upto is None else upto
        return jax.lax.while_loop(lambda c: (c.end == CLIMBING) & (c.evaluations < limit), self._iterate, climb)

    # --- one iteration ------------------------------------------------------------------------------------------

    def _iterate(self, climb: Climb) -> Climb:
        direction = climb.direction
        there = climb.at + climb.share * direction
        loss, gradient = self._value(there)
        sound, first = jnp.isfinite(loss) & jnp.all(jnp.isfinite(gradient)), jnp.isinf(climb.loss)
        slope, behind = jnp.vdot(climb.gradient, climb.direction), jnp.vdot(gradient, climb.direction)
        falls = loss <= climb.loss + _DESCENT * climb.share * slope
        flat = (loss <= climb.loss + self._rounding(climb)) & (behind <= _FLAT * jnp.abs(slope))
        probing, trying = climb.waking == PROBING, climb.waking == TRYING
        gains = loss < climb.loss - self._rounding(climb)
        good = sound & ~probing & jnp.where(trying, gains, falls | flat | first)
        count = climb.evaluations + 1
        seen = jnp.where(climb.waking == PROBING, climb.loss, loss)  # a look is no step
        # The memory takes no part in what is chosen below: that would copy it.
        memory = climb.memory._replace(history=climb.memory.history.at[count - 1].set(seen))
        climb = climb._replace(evaluations=count, memory=_NO_MEMORY)
        row = (climb.newest + 1) % self.room
        step = jnp.where(good, there - climb.at, jax.lax.dynamic_index_in_dim(memory.steps, row, 0, False))
        memory = memory.write(row, step=step)
        before, refused = climb, self._refused(climb, loss, slope)
        # L-BFGS gives up a direction, and all that it knows, for natural steps.
        gives_up = climb.with_pairs & (climb.pairs > 0) & (refused.refused >= _PATIENCE)
        accepted = self._accepted(climb, there, loss, gradient, first)
        accepted = _choose(trying, self._forgetful(accepted), accepted)
        climb = _choose(good, accepted, _choose(gives_up, self._forgetful(refused), refused))
        climb = _choose(probing, before._replace(at=there, gradient=gradient), climb)
        aims, old = good | gives_up | probing, climb.natural
        climb = jax.lax.cond(aims, self._solved, lambda c: c, climb)
        bend = jax.lax.dynamic_index_in_dim(memory.bends, row, 0, False)
        memory = memory.write(row, bend=jnp.where(aims & good, old - climb.natural, bend))
        climb = jax.lax.cond(aims, self._aimed, lambda c, _: c, climb, memory)
        awake = before._replace(
            direction=jnp.where(direction != 0, there + climb.natural - before.at, 0.0),
            waking=jnp.asarray(TRYING, jnp.int32),
        )
        climb = _choose(probing, awake, climb)
        climb = climb._replace(end=jnp.where(trying & ~good, CONVERGED, climb.end))
        still = jnp.all(direction == 0)  # a start, not a nudge from it
        end = jnp.where(first & ~sound & (still | (climb.end != CLIMBING)), NOWHERE, climb.end)
        end = jnp.where((end == CLIMBING) & (count >= self.most), SPENT, end)
        return climb._replace(end=end.astype(jnp.int32), memory=memory)

    def _rounding(self, climb: Climb) -> Array:
        return 8 * jnp.finfo(self.dtype).eps * jnp.maximum(jnp.abs(climb.loss), 1.0)

    def _accepted(self, climb: Climb, there: Array, loss: Array, gradient: Array, first: Array) -> Climb:
        step = there - climb.at
        outside = [jnp.where(self._in_factor, 0.0, x) for x in (step, gradient - climb.gradient)]
        along, bend = jnp.vdot(*outside), jnp.vdot(outside[1], outside[1])
        plain = jnp.where((along > 0) & (bend > 0), along / jnp.where(bend > 0, bend, 1.0), climb.plain)
        rate = jnp.minimum(1.0, _GROWTH * climb.share * climb.rate)
        return climb._replace(
            at=there,
            loss=loss,
            gradient=gradient,
            plain=jnp.where(first, 1.0 / jnp.maximum(jnp.sqrt(bend), 1.0), plain),
            refused=jnp.zeros_like(climb.refused),
            lengths=jnp.roll(climb.lengths, 1).at[0].set(climb.length),
            newest=(climb.newest + 1) % self.room,
            pairs=jnp.where(climb.with_pairs & ~first, jnp.minimum(climb.pairs + 1, self.room), 0),
            decided=jnp.minimum(1.0, _GROWTH * climb.decided),
            rate=jnp.where(climb.with_pairs & ~first, climb.rate, rate),
            taken=climb.taken + 1,
        )

    def _refused(self, climb: Climb, loss: Array, slope: Array) -> Climb:
        excess = loss - climb.loss - climb.share * slope  # what the step lost against a straight line
        known = jnp.isfinite(excess) & (excess > 0)
        best = jnp.clip(-0.5 * climb.share * slope / jnp.where(known, excess, 1.0), 0.1, 0.5)
        refused = climb.refused + 1
        flat = 0.5 * jnp.abs(jnp.vdot(climb.gradient, climb.natural)) < self._rounding(climb)
        end = jnp.where(flat | (climb.length < self.tolerance), ROUNDING, STUCK)
        return climb._replace(
            share=climb.share * jnp.where(known, best, 0.2),
            refused=refused,
            end=jnp.where(refused >= _REFUSALS, end, climb.end).astype(jnp.int32),
        )

    def _forgetful(self, climb: Climb) -> Climb:
        return climb._replace(
            with_pairs=jnp.asarray(not self._any_discrete),
            pairs=jnp.zeros_like(climb.pairs),
            rate=jnp.asarray(_FIRST, self.dtype),
            taken=jnp.zeros_like(climb.taken),
        )

    # --- the direction ------------------------------------------------------------------------------------------

    def _solved(self, climb: Climb) -> Climb:
        """Return the state with r."""
        here = self.unflatten(climb.at)
        solved = ravel_pytree(self.metric.solve(here, self.unflatten(climb.gradient)).step)[0]
        return climb._replace(natural=-jnp.where(self._in_factor, solved, climb.plain * climb.gradient))

    def _aimed(self, climb: Climb, memory: Memory) -> Climb:
        """Return the state with the next direction, or with the end."""
        here, natural = self.unflatten(climb.at), climb.natural
        length = self.metric.tamed(here, self.unflatten(natural), _FOLD)[1]
        slow = (length > _SLOW * climb.lengths[-1]) & (climb.taken > _LOOK_BACK)
        takes_over = climb.with_pairs | ((climb.decided >= 1.0) & slow)
        direction, pairs = jax.lax.cond(
            takes_over & (climb.pairs > 0),
            self._by_pairs,
            lambda c, _: (c.natural, jnp.zeros_like(c.pairs)),
            climb,
            memory,
        )
        rates = jnp.where(self._discrete, climb.decided, climb.rate)
        direction = jnp.where(pairs > 0, direction, rates * natural)
        tamed, reach = self.metric.tamed(here, self.unflatten(direction), _FOLD)
        direction = ravel_pytree(tamed)[0]
        direction = jnp.where(jnp.vdot(climb.gradient, direction) < 0, direction, _FIRST * natural)
        outside = jnp.where(self._in_factor, 0.0, climb.gradient)
        gains = climb.plain * jnp.vdot(outside, outside), jnp.abs(jnp.vdot(outside, direction))
        still = (gains[0] <= self._rounding(climb)) & (gains[1] <= jnp.maximum(self._rounding(climb), _GAIN))
        flat = 0.5 * jnp.abs(jnp.vdot(climb.gradient, natural)) <= self._rounding(climb) / 8
        close = jnp.where(pairs > 0, reach < self.tolerance, length < 0.3 * self.tolerance) | flat
        settled = climb.decided >= 1.0 if self._any_discrete else True
        done = settled & (length < self.tolerance) & close & still
        near = ravel_pytree(self.metric.awake(here, _FAR[min(8, max(4, self.dtype.itemsize))]))[0]
        look = done & jnp.any(near != climb.at) & (climb.woken < _WAKES) & self._any_discrete
        direction = jnp.where(look, near - climb.at, direction)
        return climb._replace(
            direction=direction,
            share=jnp.ones_like(climb.share),
            with_pairs=takes_over,
            pairs=pairs,
            length=length,
            reach=reach,
            waking=jnp.where(look, PROBING, AWAKE).astype(jnp.int32),
            woken=climb.woken + look,
            end=jnp.where(done & ~look, CONVERGED, CLIMBING).astype(jnp.int32),
        )

    def _by_pairs(self, climb: Climb, memory: Memory) -> tuple[Array, Array]:
        """Return the direction of L-BFGS, as a combination of all steps, all bends and r, and the pairs in use."""
        m = self.room
        basis = jnp.concatenate([memory.steps, memory.bends, climb.natural[None]])
        gram = self._products(climb, basis)
        curvature = jnp.diagonal(gram[:m, m : 2 * m])
        sizes = jnp.sqrt(jnp.diagonal(gram))
        age = (climb.newest - jnp.arange(m)) % m  # of the pair in each row: 0 for the newest
        known = (age < climb.pairs) & (curvature > 1e-6 * sizes[:m] * sizes[m : 2 * m])
        inverse = jnp.where(known, 1.0 / jnp.where(known, curvature, 1.0), 0.0)

        def back(k: Array, given: tuple[Array, Array]) -> tuple[Array, Array]:
            weights, q = given
            i = (climb.newest - k) % m
            weight = inverse[i] * jnp.sum(gram[i] * q)
            return weights.at[i].set(weight), q.at[m + i].add(-weight)

        def forth(k: Array, q: Array) -> Array:
            i = (climb.newest + 1 + k) % m
            return q.at[i].add(jnp.where(known[i], weights[i] - inverse[i] * jnp.sum(gram[m + i] * q), 0.0))

        q = jnp.zeros(2 * m + 1, self.dtype).at[-1].set(-1.0)
        weights, q = jax.lax.fori_loop(0, m, back, (jnp.zeros(m, self.dtype), q))
        newest = jnp.argmin(jnp.where(known, age, m))
        bend = gram[m + newest, m + newest]
        size = jnp.where(known[newest] & (bend > 0), curvature[newest] / jnp.where(bend > 0, bend, 1.0), _FIRST)
        q = jax.lax.fori_loop(0, m, forth, size * q)
        return -(q @ basis), jnp.where(jnp.any(known), climb.pairs, 0)

    def _products(self, climb: Climb, basis: Array) -> Array:
        """Return the inner products of some steps in the Fisher metric at the current point."""
        roots = self.metric.coordinates(self.unflatten(climb.at), jax.vmap(self.unflatten)(basis))
        outside = jnp.where(self._in_factor, 0.0, basis)
        return sum((x @ x.T for x in roots), start=outside @ outside.T / climb.plain)


def _choose(which: Array, a: Climb, b: Climb) -> Climb:
    return jax.tree.map(lambda x, y: jnp.where(which, x, y), a, b)
