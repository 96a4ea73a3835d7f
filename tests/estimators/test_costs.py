"""The learning signal of each element: against its definition, number by number, and what it does to the noise."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax.lax import stop_gradient

import legrad
from checking import draw_until
from legrad.estimators import costs, signals
from legrad.estimators.adding import add_up
from legrad.estimators.costs import Costs, fixed_parents
from legrad.model.problem import Noise, Problem
from legrad.trace.concrete import compiled_for
from legrad.trace.dependence import EMPTY

# --- the rule, against its definition -------------------------------------------------------------------------


def by_definition(sees, counted):
    """(elements, numbers): which numbers weigh whose score, from flags (numbers, elements); the last are fillers."""
    weighs, shared = np.zeros(sees.T.shape, bool), sees[:counted][sees[:counted].sum(axis=1) > 1]
    for t, seen in enumerate(sees):
        if t < counted:
            weighs[seen, t] = True
        if seen.sum() == 1 and shared[:, seen.argmax()].any():
            weighs[shared[shared[:, seen.argmax()]].all(axis=0), t] = True
    return weighs


def as_sets(flags):
    words = np.packbits(np.pad(flags, ((0, 0), (0, -flags.shape[1] % 64))), axis=1, bitorder="little")
    return words.view("<u8").T


def weighs(found, numbers):
    """The groups written out: (elements, numbers)."""
    label = np.concatenate([np.ravel(label) for label in found.labels.values()])
    out = np.zeros((found.members.shape[1], numbers), bool)
    for t, g in enumerate(label):
        if g >= 0:
            out[:, t] = found.members.toarray()[g]
    return out


@pytest.mark.parametrize("seed", range(40))
def test_groups_follow_the_rule(seed):
    rng = np.random.default_rng(seed)
    elements, numbers, extra = rng.integers(1, 9), rng.integers(1, 14), rng.integers(0, 5)
    sees = rng.random((numbers + extra, elements)) < rng.choice([0.1, 0.3, 0.6])
    sees[rng.random(len(sees)) < 0.3] = np.eye(elements, dtype=bool)[rng.integers(elements)]
    sees[rng.random(len(sees)) < 0.2] = True
    terms = {"f": as_sets(sees[:numbers]), "filler": as_sets(sees[numbers:])}
    found = signals.groups(terms, [(slice(0, 1), (elements,))], ["filler"])
    assert np.array_equal(weighs(found, len(sees)), by_definition(sees, numbers))
    # ... and the sums of the groups are those of their numbers, for a part of the elements
    values = {"f": jnp.asarray(rng.normal(size=numbers)), "filler": jnp.asarray(rng.normal(size=extra))}
    begin = rng.integers(elements)
    out = add_up(values, found, slice(begin, elements), (elements - begin,))
    exact = by_definition(sees, numbers) @ np.concatenate([values["f"], values["filler"]])
    np.testing.assert_allclose(out, exact[begin:], atol=1e-5)


def random_boxes(rng, shape, numbers):
    lo = rng.integers(0, shape, (numbers, len(shape)))
    hi = np.minimum(lo + rng.integers(0, 3, lo.shape), np.asarray(shape) - 1)
    boxes = np.concatenate([lo, -hi], axis=1).astype(np.int32)
    boxes[rng.random(numbers) < 0.2] = EMPTY
    inside = np.ones((numbers, *shape), bool)
    for axis, size in enumerate(shape):
        index = np.arange(size).reshape([-1 if a == axis else 1 for a in range(len(shape))])
        fit = lambda b: b.reshape(-1, *(1,) * len(shape))
        inside &= (fit(boxes[:, axis]) <= index) & (index <= fit(-boxes[:, len(shape) + axis]))
    inside &= (boxes[:, 0] != EMPTY).reshape(-1, *(1,) * len(shape))
    return boxes, inside.reshape(numbers, -1)


@pytest.mark.parametrize("shape", [(), (7,), (4, 3), (2, 3, 2)])
@pytest.mark.parametrize("seed", range(4))
def test_boxes_are_counted_as_they_are(shape, seed):
    """An interval of an axis is not the whole axis; two sites lie side by side."""
    rng = np.random.default_rng(seed)
    parts = [random_boxes(rng, s or (1,), 20) for s in (shape, (5,))]
    table, sees = (np.concatenate(p, axis=1) for p in zip(*parts, strict=True))
    rank = max(len(shape), 1)
    sites = [(slice(0, 2 * rank), shape), (slice(2 * rank, 2 * rank + 2), (5,))]
    found = signals.groups({"f": table.T.reshape(-1, 4, 5)}, sites)
    assert np.array_equal(weighs(found, 20), by_definition(sees, 20))


@pytest.mark.parametrize("form", ["boxes", "sets"])
@pytest.mark.parametrize("limit", [1, 30, 45])
def test_too_many_pairs_count_for_more_elements_never_for_fewer(form, limit, monkeypatch):
    rng = np.random.default_rng(3)
    boxes, sees = random_boxes(rng, (6, 4), 25)
    table, rows = (boxes.T, slice(0, 4)) if form == "boxes" else (as_sets(sees), slice(0, 1))
    exact = weighs(signals.groups({"f": table}, [(rows, (6, 4))]), 25)
    monkeypatch.setattr(signals, "PAIRS", limit)
    found = weighs(signals.groups({"f": table}, [(rows, (6, 4))]), 25)
    assert found.sum() > exact.sum()
    assert not (sees.T & ~found).any()


# --- costs of programs ----------------------------------------------------------------------------------------


def costs_of(model, guide, params, args, noise=None):
    noise = Noise(jax.random.key(1), jax.random.key(2)) if noise is None else noise
    problem = Problem(model, guide, params, args)
    pivot = problem.draw(noise)
    x = {n: stop_gradient(f.coordinate) for n, f in pivot.items()}
    evaluate = lambda x: problem.evaluate(x, noise, pivot=pivot)
    return Costs(x, fixed_parents(x, problem.parents(pivot, noise)), evaluate), evaluate(x)


CAUSES = np.array([[0, 9, 4], [3, 9, 9], [5, 6, 1], [2, 8, 0], [2, 3, 8]])


def noisy_or(causes):
    with numpyro.plate("causes", 10):
        z = numpyro.sample("z", dist.Bernoulli(0.1))
    with numpyro.plate("findings", 5):
        numpyro.sample("y", dist.Bernoulli(1 - jnp.exp(-0.1 - z[causes].sum(axis=1))), obs=jnp.array([1, 0, 1, 1, 0]))


def ten(causes):
    with numpyro.plate("causes", 10):
        numpyro.sample("z", dist.Bernoulli(logits=numpyro.param("logits", jnp.linspace(-1.0, 1.0, 10))))


def test_a_finding_counts_for_its_causes_alone():
    """Scattered over the axis, with nothing for the causes between; where `fit` knows them, too."""
    params = {"logits": jnp.linspace(-1.0, 1.0, 10)}
    found, here = costs_of(noisy_or, ten, params, (CAUSES,))
    wanted = np.array(here.log_p["z"] + here.minus_log_q["z"])
    for finding, causes in zip(here.log_p["y"], CAUSES, strict=True):
        wanted[np.unique(causes)] += finding
    # 1, 5 and 6 share one finding and have no other, so they share a signal; 4 has one, with 0 and 9; 2 and 8 have
    # the same two
    own = np.asarray(here.log_p["z"] + here.minus_log_q["z"])
    for j, covering in {1: [5, 6], 5: [1, 6], 6: [1, 5], 4: [0, 9], 8: [2], 2: [8]}.items():
        wanted[covering] += own[j]
    np.testing.assert_allclose(found.of("z", found.values(here)), wanted, rtol=1e-5)

    @jax.jit
    def inside(causes):
        with compiled_for([causes], [CAUSES]):
            found, here = costs_of(noisy_or, ten, params, (causes,))
            return found.of("z", found.values(here))

    np.testing.assert_allclose(inside(CAUSES), wanted, rtol=1e-5)


@pytest.mark.parametrize("sets", [True, False], ids=["sets", "boxes"])
def test_neighbours_of_a_chain(sets, monkeypatch):
    """Each pair counts for its two states, an interval; the two ends' own terms count for their neighbours."""
    if not sets:
        monkeypatch.setattr(costs, "_SETS", 0)

    def f(latents):
        z = latents["z"]
        pairs = (z[1:] - 0.5) * (z[:-1] + 0.3)
        return jnp.concatenate([pairs, 0.1 * z])

    def guide():
        numpyro.sample("z", dist.Bernoulli(logits=jnp.linspace(-1.0, 1.0, 6)).to_event(1))

    found, here = costs_of(legrad.log_density(f), guide, {}, ())
    pairs, own = here.log_p["log_density"][:5], here.log_p["log_density"][5:] + here.minus_log_q["z"]
    wanted = own.at[1:].add(pairs).at[:-1].add(pairs).at[1].add(own[0]).at[4].add(own[5])
    np.testing.assert_allclose(found.of("z", found.values(here)), wanted, rtol=1e-5)


# --- what it is for -------------------------------------------------------------------------------------------


def grouped(group):
    with numpyro.plate("G", 3):
        z = numpyro.sample("z", dist.Bernoulli(0.3))
    with numpyro.plate("N", 300):
        numpyro.sample("y", dist.Normal(1.5 * z[group], 1.0), obs=jnp.linspace(-2, 3, 300))


def of_groups(group):
    with numpyro.plate("G", 3):
        numpyro.sample("z", dist.Bernoulli(logits=numpyro.param("logits", jnp.zeros(3))))


def test_an_argument_that_is_known_is_as_good_as_a_closure():
    group, params, keys = np.arange(300) % 3, {"logits": jnp.zeros(3)}, jax.random.split(jax.random.key(0), 500)

    def gradients(group, keys):
        loss = lambda p, key: legrad.ScoreFunction().loss(key, p, grouped, of_groups, group)
        return jax.vmap(lambda key: jax.grad(loss)(params, key)["logits"])(keys)

    @jax.jit
    def as_argument(argument, keys):
        with compiled_for([argument], [group]):
            return gradients(argument, keys)

    closed_over = jax.jit(lambda keys: gradients(group, keys))(keys)
    np.testing.assert_allclose(as_argument(group, keys), closed_over, rtol=1e-3, atol=1e-3)
    assert np.var(jax.jit(gradients)(group, keys), axis=0).mean() > 2 * np.var(closed_over, axis=0).mean()


def random(*shape, seed=0):
    return jnp.asarray(0.5 * np.random.default_rng(seed).normal(size=shape))


def two_layers():
    """An image of thirty pixels with ten units, and two above them."""
    with numpyro.plate("images", 1):
        above = numpyro.sample("above", dist.Bernoulli(0.4).expand([2]).to_event(1))
        units = numpyro.sample("units", dist.Bernoulli(logits=above @ random(2, 10)).to_event(1))
        y = jnp.asarray(np.random.default_rng(1).integers(0, 2, (1, 30)))
        numpyro.sample("y", dist.Bernoulli(logits=units @ random(10, 30)).to_event(1), obs=y)


def upwards():
    a, V = numpyro.param("a", random(1, 10, seed=2)), numpyro.param("V", random(10, 2, seed=3))
    with numpyro.plate("images", 1):
        units = numpyro.sample("units", dist.Bernoulli(logits=a).to_event(1))
        numpyro.sample("above", dist.Bernoulli(logits=units @ V).to_event(1))


def gradient_of(estimator, params):
    return lambda key: jax.grad(lambda p: estimator.loss(key, p, two_layers, upwards))(params)


@pytest.fixture(scope="module")
def fitted():
    """Where −log q is near what log p is: after a fit."""
    settings = {"steps": 300, "optimizer": optax.adam(0.02), "progress": False}
    result = legrad.fit(two_layers, upwards, key=jax.random.key(0), **settings)
    params = {name: jnp.asarray(value) for name, value in result.params.items()}
    exact = jax.jit(gradient_of(legrad.Exact(), params))(jax.random.key(0))
    return params, np.concatenate([np.ravel(exact[name]) for name in sorted(exact)])


@pytest.mark.long
def test_local_expectation_takes_log_q_of_the_other_units(fitted, monkeypatch):
    """Its own terms have the exact entropy, which has no noise to cancel that of log p."""
    params, exact = fitted

    def noise():
        many = jax.jit(jax.vmap(gradient_of(legrad.LocalExpectation(num_pivots=2), params)))
        return np.var(many(jax.random.split(jax.random.key(1), 4000))["a"], axis=0).mean()

    gradient = gradient_of(legrad.LocalExpectation(num_pivots=2), params)
    assert draw_until(gradient, exact, 0.02, batch=1 << 13, most=10).agrees(exact)
    with_fillers = noise()
    monkeypatch.setattr(Costs, "__init__", _without_fillers(Costs.__init__))
    assert noise() > 1.2 * with_fillers


def _without_fillers(init):
    return lambda self, x, parents, evaluate, exact=(): init(self, x, parents, evaluate)


def test_one_pivot_with_draws_of_its_own_costs_is_better_than_an_antithetic_pair():
    """Of two layers the lower one has children in the guide: its costs have a baseline."""
    rng = np.random.default_rng(0)
    V, W, y = (jnp.asarray(rng.normal(size=shape)) for shape in ((6, 6), (6, 20), (20,)))

    def model():
        z = numpyro.sample("z", dist.Bernoulli(0.5).expand([6]).to_event(1))
        h = numpyro.sample("h", dist.Bernoulli(logits=z @ V).to_event(1))
        numpyro.sample("y", dist.Normal(3 * h @ W, 1.0).to_event(1), obs=y)

    def guide():
        h = numpyro.sample("h", dist.Bernoulli(logits=numpyro.param("a", jnp.zeros(6))).to_event(1))
        numpyro.sample("z", dist.Bernoulli(logits=h @ V + numpyro.param("b", jnp.zeros(6))).to_event(1))

    at = {"a": jnp.linspace(-1.0, 1.0, 6), "b": jnp.zeros(6)}

    def variance(estimator):
        one = jax.grad(lambda p, key: estimator.loss(key, p, model, guide))
        found = jax.jit(jax.vmap(one, (None, 0)))(at, jax.random.split(jax.random.key(0), 400))
        return float(jnp.sum(jnp.var(found["a"], axis=0)))

    assert variance(legrad.LocalExpectation(exact_terms=False)) < 0.5 * variance(legrad.DisARM())


def test_a_baseline_leaves_out_draws_that_the_model_rules_out():
    """A tenth of all draws have no density: they must not spoil the gradients of the others."""

    def model():
        h = numpyro.sample("h", dist.Bernoulli(0.5))
        numpyro.sample("z", dist.Normal(h, 1.0))
        numpyro.factor("ruled out", jnp.where(h == 1, -jnp.inf, 0.0))

    def guide():
        h = numpyro.sample("h", dist.Bernoulli(logits=numpyro.param("a", jnp.asarray(-2.2))))
        numpyro.sample("z", dist.Normal(h * 1.0, jnp.exp(numpyro.param("b", jnp.zeros(())))))

    at = {"a": jnp.asarray(-2.2), "b": jnp.asarray(0.1)}
    estimator = legrad.LocalExpectation(exact_terms=False, sites={"h": "score", "z": "score"})
    one = jax.grad(lambda p, key: estimator.loss(key, p, model, guide))
    found = jax.jit(jax.vmap(one, (None, 0)))(at, jax.random.split(jax.random.key(0), 400))
    assert 0.85 < float(jnp.mean(jnp.isfinite(found["a"]))) < 0.95
