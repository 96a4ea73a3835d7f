"""The mean of an estimator over every pivot that its guide can draw: Σ_x q(x) · ĝ(x).

For a discrete guide it is the exact gradient to rounding, with no draws: a bias of a billionth is seen. A Normal or
LogNormal site takes the nodes of a Gauss-Hermite rule for its noise, a subsampled plate every choice of its members,
and DisARM, which compares uniform numbers with probabilities, every cell of them in which nothing changes. What is
left is that draws follow q: `count` counts them.
"""

from __future__ import annotations

import itertools
import sys
from contextlib import ExitStack
from typing import NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.primitives import Messenger

import legrad
from legrad.estimators.base import draws
from legrad.model.problem import Noise, Problem

KEY = jax.random.key(0)
BATCH = 1 << 13
COUNTS = 60  # values of a Poisson site: beyond them is less than 1e-40 of the mass
NODES = {1: 40, 2: 24, 3: 6}  # for each dimension of the noise; in three of them the integrands are polynomials
MOST = 20_000  # cells
UNIFORM = jax.random.uniform
KNOWN = {}  # pivots of guides


class Pivots(NamedTuple):
    """All that a guide can draw.

    Attributes:
        given: for each site its value, its noise or its uniform numbers, for each subsampled plate its members; the
            pivots are on the leading axis.
        mass: the probability of each.
        choice: the number of its choice of subsamples, which the draws of one step share.
    """

    given: dict[str, np.ndarray]
    mass: np.ndarray
    choice: np.ndarray

    def repeated(self, number):
        """Return steps of `number` draws that are all the same."""
        return self._replace(given={n: np.repeat(v[:, None], number, axis=1) for n, v in self.given.items()})

    def pairs(self):
        """Return steps of two independent draws."""
        i, j = np.nonzero(self.choice[:, None] == self.choice)
        share = np.bincount(self.choice, self.mass)[self.choice]
        given = {n: np.stack([v[i], v[j]], axis=1) for n, v in self.given.items()}
        return Pivots(given, self.mass[i] * self.mass[j] / share[i], self.choice[i])


class Uniforms(NamedTuple):
    """What stands in the place of a random key for the uniform numbers of a site."""

    numbers: jax.Array


class Given(Messenger):
    """Gives the sites and plates of a guide one of its `Pivots`; an estimator's own values come after, and count."""

    def __init__(self, fn, data, uniforms=False):
        super().__init__(fn)
        self.data, self.uniforms = data, uniforms

    def process_message(self, msg):
        if msg["type"] == "control_flow":
            msg["kwargs"]["substitute_stack"].append(("substitute", self.data))
        if msg["type"] not in ("sample", "plate") or msg["name"] not in self.data or msg.get("_control_flow_done"):
            return
        mine = self.data[msg["name"]]
        base = bare(msg["fn"]) if msg["type"] == "sample" else None
        if isinstance(base, dist.MultivariateNormal):
            msg["value"] = base.loc + base.scale_tril @ mine
        elif base is not None and not base.is_discrete and not isinstance(base, dist.Gamma):
            log = isinstance(base, dist.LogNormal)
            normal = base.base_dist if log else base
            assert isinstance(normal, dist.Normal), base
            value = normal.loc + normal.scale * mine
            msg["value"] = jnp.exp(value) if log else value
        elif msg["type"] == "sample" and self.uniforms:
            msg["kwargs"]["rng_key"] = Uniforms(mine)
        else:
            msg["value"] = mine


def bare(fn):
    """Take off what does not change how an element is drawn: masks, and what turns batches into events."""
    wrappers = (dist.Independent, dist.ExpandedDistribution, dist.MaskedDistribution)
    return bare(fn.base_dist) if isinstance(fn, wrappers) else fn


def trace_of(row, data):
    """Run the guide of a row at its parameters and at given values."""
    guide = handlers.substitute(Given(row.guide, data), data=row.params)
    return handlers.trace(handlers.seed(guide, 0)).get_trace(*row.args)


def product(*axes):
    """Every combination of the rows of some arrays, as arrays of numbers of rows."""
    return np.indices([len(axis) for axis in axes]).reshape(len(axes), -1)


def elementwise(choices, shape):
    """Every array of a shape whose e-th element is one of `choices[e]`."""
    rows = product(*choices)
    values = np.stack([np.asarray(c)[i] for c, i in zip(choices, rows, strict=True)], axis=1)
    return values.reshape(-1, *shape)


def together(parts):
    """Every combination of some Pivots of different sites."""
    if not parts:
        return Pivots({}, np.ones(1), np.zeros(1, int))
    rows = product(*(part.mass for part in parts))
    given, mass = {}, np.ones(rows.shape[1])
    for part, i in zip(parts, rows, strict=True):
        given |= {name: v[i] for name, v in part.given.items()}
        mass = mass * part.mass[i]
    return Pivots(given, mass, np.zeros(len(mass), int))


def plates_and_noise(row):
    """The subsamples of a guide and the noise of its continuous sites; the mass of its discrete ones is missing."""
    trace = trace_of(row, {})
    parts = []
    for name, site in trace.items():
        if site["type"] == "plate" and site["args"][1] not in (None, site["args"][0]):
            members = np.array(list(itertools.permutations(range(site["args"][0]), site["args"][1])))
            parts.append(Pivots({name: members}, np.full(len(members), 1 / len(members)), None))
    number = np.arange(len(together(parts).mass))
    for name, site in trace.items():
        if site["type"] == "sample" and not site["fn"].is_discrete:
            shape = np.shape(site["value"])
            nodes, weights = np.polynomial.hermite_e.hermegauss(NODES[max(1, int(np.prod(shape)))])
            count = int(np.prod(shape))
            mass = np.prod(elementwise([weights / weights.sum()] * count, (count,)), axis=1)
            parts.append(Pivots({name: elementwise([nodes] * count, shape)}, mass, None))
    found = together(parts)
    return trace, found._replace(choice=np.repeat(number, len(found.mass) // len(number)))


def pivots_of(row):
    """Every joint value of a guide's sites, with its probability."""
    if row.guide not in KNOWN:
        KNOWN[row.guide] = _pivots_of(row)
    return KNOWN[row.guide]


def _pivots_of(row):
    trace, found = plates_and_noise(row)
    parts = [found]
    for name, site in trace.items():
        if site["type"] == "sample" and site["fn"].is_discrete:
            base, shape = bare(site["fn"]), np.shape(site["value"])
            support = np.arange(COUNTS) if isinstance(base, dist.Poisson) else base.enumerate_support(expand=False)
            parts.append(Pivots({name: elementwise([np.ravel(support)] * int(np.prod(shape)), shape)}, None, None))
    parts = [p if p.mass is not None else p._replace(mass=np.ones(len(*p.given.values()))) for p in parts]
    joint = together(parts)
    choice = np.repeat(found.choice, len(joint.mass) // len(found.mass))

    def log_mass(data):
        sites = [s for s in trace_of(row, data).values() if s["type"] == "sample" and s["fn"].is_discrete]
        return sum((jnp.sum(bare(s["fn"]).log_prob(s["value"])) for s in sites), start=jnp.zeros(()))

    mass = joint.mass * np.exp(jax.jit(jax.vmap(log_mass))(joint.given))
    np.testing.assert_allclose(mass.sum(), 1.0, rtol=1e-10)
    possible = mass > 1e-100
    return Pivots({n: v[possible] for n, v in joint.given.items()}, mass[possible], choice[possible])


def cells_of(row):
    """Every cell of the uniform numbers that Bernoulli sites are compared with; None where there are too many.

    Both u and 1 − u are compared with the probabilities that an element has at any value of its parents.
    """
    trace, found = plates_and_noise(row)
    names = [n for n, s in trace.items() if s["type"] == "sample" and s["fn"].is_discrete]
    joint = pivots_of(row)

    def probabilities(data):
        sites = trace_of(row, data)
        return {n: jnp.broadcast_to(bare(sites[n]["fn"]).probs, jnp.shape(sites[n]["value"])) for n in names}

    parts, number = [found], len(found.mass)
    for name, probs in jax.jit(jax.vmap(probabilities))(joint.given).items():
        shape, middles, widths = probs.shape[1:], [], []
        for p in np.reshape(probs, (len(probs), -1)).T:
            ends = np.unique(np.round(np.concatenate([[0.0, 1.0], p, 1.0 - p]), 12))
            middles.append((ends[1:] + ends[:-1]) / 2)
            widths.append(np.diff(ends))
        number *= np.prod([len(m) for m in middles])
        if number > MOST:
            return None
        mass = np.prod(elementwise(widths, (len(widths),)), axis=1)
        parts.append(Pivots({name: elementwise(middles, shape)}, mass, None))
    joint = together(parts)
    return joint._replace(choice=np.repeat(found.choice, len(joint.mass) // len(found.mass)))


def uniform(key, *args, **kwargs):
    """Draw uniform numbers, or give those that stand in the place of the key."""
    return key.numbers if isinstance(key, Uniforms) else UNIFORM(key, *args, **kwargs)


def gradients(estimator, row, steps, uniforms=False):
    """Return the estimator's gradients for the draws of each step, which it would have drawn: (steps, parameters).

    Draws within a draw serve as a baseline, and do not depend on it: here all are one and the same.
    """
    usual = {name: jnp.asarray(v[len(v) // 2, 0]) for name, v in steps.given.items()}
    module = sys.modules[type(estimator).__module__]
    sites = {n for n, site in trace_of(row, {}).items() if site["type"] == "sample" and site["fn"].is_discrete}

    def one(given):
        at = {"data": {name: v[0] for name, v in given.items() if name not in sites}}

        def guide(*args):
            return Given(row.guide, at["data"], uniforms)(*args)

        def over_given(one, noise):
            if "inside" in at:
                here, at["data"] = at["data"], usual
                found = one(Noise(noise.sites[0], noise.plates))
                at["data"] = here
                return jax.tree.map(lambda a: a[None], found)

            def run(data, key):
                at.update(data=data, inside=True)
                return one(Noise(key, noise.plates))

            return jax.vmap(run)(given, noise.sites)

        def each_given(several):
            return [{n: v[i] for n, v in given.items() if n in sites} for i in range(several.number)]

        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(module, "over_draws", over_given))
            stack.enter_context(mock.patch.object(jax.random, "uniform", uniform))
            if hasattr(module, "Several"):
                stack.enter_context(mock.patch.object(module.Several, "draws", each_given))
            return jax.grad(lambda p: estimator.loss(KEY, p, row.model, guide, *row.args))(row.params)

    number = len(steps.mass)
    batch, found = min(number, BATCH), []
    many = jax.jit(jax.vmap(one))
    for start in range(0, number, batch):
        rows = np.minimum(np.arange(start, start + batch), number - 1)
        some = many({n: v[rows] for n, v in steps.given.items()})
        found.append(np.concatenate([np.reshape(leaf, (batch, -1)) for leaf in jax.tree.leaves(some)], axis=1))
    return np.concatenate(found)[:number]


def steps_of(row, estimator):
    """Return every step of an estimator that can be: draws that depend on each other are taken in pairs."""
    if isinstance(estimator, legrad.DisARM):
        return cells_of(row).repeated(estimator.num_particles)
    several = isinstance(estimator, legrad.LocalExpectation) and estimator.num_particles > 1
    if several or getattr(estimator, "baseline", None) is not None:
        assert estimator.num_particles == 2, "a step of more than two draws has too many cases"
        return pivots_of(row).pairs()
    return pivots_of(row).repeated(estimator.num_particles)


def is_exact(estimator, row, exact):
    """Whether the mean over all steps is the exact gradient, to a billionth."""
    steps = steps_of(row, estimator)
    found = gradients(estimator, row, steps, uniforms=isinstance(estimator, legrad.DisARM))
    assert np.isfinite(found).all(), "a gradient is not finite"
    return bool(np.all(np.abs(steps.mass @ found - exact) <= 1e-9 * max(1.0, np.linalg.norm(exact))))


def count(row, pivots, number):
    """Draw steps of two pivots; return how often each joint value came first, and how often both are the same."""
    problem = Problem(row.model, row.guide, row.params, row.args)

    def two(key):
        noise = draws(key, 2)
        traces = [problem.draw(Noise(sites, noise.plates)).trace for sites in noise.sites]
        return [{n: t[n]["value"] for n in pivots.given} for t in traces]

    drawn = jax.jit(jax.vmap(two))(jax.random.split(KEY, number))
    tables = [
        np.concatenate([np.reshape(t[n], (len(t[n]), -1)) for n in pivots.given], axis=1)
        for t in (pivots.given, *drawn)
    ]
    kinds, index = np.unique(np.concatenate(tables), axis=0, return_inverse=True)
    table, first, second = np.split(index.ravel(), [len(pivots.mass), len(pivots.mass) + number])
    counts = np.bincount(first, minlength=len(kinds))
    assert counts[table].sum() == number, "a draw that the guide excludes"
    return counts[table], int(np.sum(first == second))
