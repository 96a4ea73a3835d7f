"""The twelve traps of the design: each is sprung on purpose, and the check must notice.

A trap's test runs the check of the catalogue twice: on the code as it is (it must pass), and on the code
with the mistake put in (it must fail).
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

import legrad
from catalogue import Row, named, normal_mean
from checking import flat, gradient_of
from legrad.distributions import elements, support
from legrad.estimators import base, costs, disarm, local_expectation
from legrad.model import problem
from pivots import is_exact

LOCAL = legrad.LocalExpectation


EXACT = {}  # by row, from before any mistake is put in: the first check of a test is on the code as it is


def agrees(row, estimator):
    """Whether the mean over all pivots is the exact gradient."""
    if row.name not in EXACT:
        EXACT[row.name] = flat(jax.jit(jax.grad(row.loss))(row.params))
    return is_exact(estimator, row, EXACT[row.name])


def gradient(row, estimator, key=0):
    return flat(jax.jit(gradient_of(estimator, row))(jax.random.key(key)))


def test_trap_1_constants_drop_out_of_a_quadrature():
    """A large constant in f must not become bias: quadrature scores do not sum to exactly zero."""

    def model(constant):
        numpyro.sample("x", dist.Gamma(2.0, 1.0))
        numpyro.factor("constant", constant)

    def guide(constant):
        a = numpyro.param("a", 1.0, constraint=constraints.positive)
        b = numpyro.param("b", 1.0, constraint=constraints.positive)
        numpyro.sample("x", dist.Gamma(a, b))

    params = {"a": jnp.array(1.5), "b": jnp.array(0.7)}
    plain, shifted = (gradient(Row("", model, guide, params, (c,)), LOCAL()) for c in (0.0, 1e6))
    np.testing.assert_allclose(shifted, plain, rtol=1e-6)
    q = support.candidates(dist.Gamma(1.5, 0.7))
    score = jax.grad(lambda a: jnp.sum(q.weights * dist.Gamma(a, 0.7).log_prob(q.values)))(1.5)
    assert abs(score) * 1e6 > 1, "the constant would not have shown"


def test_trap_1_constants_stay_where_there_are_descendants(monkeypatch):
    """Given the blanket a score's mean is not zero: dropping f(pivot) there is biased."""
    row = named("chain")
    assert agrees(row, LOCAL())
    blanket = local_expectation._blanket_score
    monkeypatch.setattr(local_expectation, "_blanket_score", lambda *a: blanket(*a)._replace(cost=None))
    assert not agrees(row, LOCAL())


def test_trap_1_terms_that_matter_to_nobody_add_noise(monkeypatch):
    """Dropping the terms that neither an element nor its descendants touch: same mean, less variance."""
    row = named("chain_inside_a_plate")

    def variance():
        many = jax.jit(jax.vmap(gradient_of(legrad.ScoreFunction(), row)))
        draws = many(jax.random.split(jax.random.key(0), 4000))
        return np.mean([np.var(leaf, 0).mean() for leaf in jax.tree.leaves(draws)])

    kept = variance()
    whole = lambda self, site, values: jnp.broadcast_to(sum(map(jnp.sum, values.values())), self.x[site].shape)
    monkeypatch.setattr(costs.Costs, "of", whole)
    assert agrees(row, legrad.ScoreFunction())
    assert variance() > 2 * kept


def test_trap_2_scores_and_weights_use_the_bare_density(monkeypatch):
    row = named("scaled")
    assert agrees(row, LOCAL())
    bare = problem.Factor.log_prob
    scaled = lambda self, z=None: self.scale * bare(self, z)
    monkeypatch.setattr(problem.Factor, "log_prob", scaled)
    assert not agrees(row, LOCAL())
    assert not agrees(row, legrad.ScoreFunction(4))


def test_trap_2_pivots_share_one_subsample():
    row = named("subsampled_plate")
    met = []

    def guide(size):
        with numpyro.plate("N", 4, subsample_size=size) as i:
            jax.debug.callback(lambda i: met.append(tuple(np.sort(i))), i)
            numpyro.sample("z", dist.Bernoulli(logits=numpyro.param("lz", jnp.zeros(4), event_dim=0)))
        numpyro.sample("g", dist.Bernoulli(logits=numpyro.param("lg", 0.0)))

    loss = jax.jit(lambda key: LOCAL(num_pivots=8).loss(key, row.params, row.model, guide, 2))
    for seed in range(6):
        met.clear()
        jax.block_until_ready(loss(jax.random.key(seed)))
        jax.effects_barrier()
        assert len(set(met)) == 1, "pivots of one step saw different subsamples"


def _narrow_child(width):
    def model():
        z = numpyro.sample("z", dist.Bernoulli(0.5))
        x = numpyro.sample("x", dist.Normal(2.0 * z, 1.0))
        numpyro.sample("y", dist.Normal(x, 1.0), obs=1.2)

    def guide():
        z = numpyro.sample("z", dist.Bernoulli(logits=numpyro.param("l", 0.0)))
        mu = numpyro.param("mu", jnp.zeros(2))
        numpyro.sample("x", dist.Normal(mu[z], width))

    def exact(params):
        total = 0.0
        for z in (0, 1):
            log_q = dist.Bernoulli(logits=params["l"]).log_prob(z)

            def f(x, z=z, log_q=log_q):
                log_p = jnp.log(0.5) + dist.Normal(2.0 * z, 1.0).log_prob(x) + dist.Normal(x, 1.0).log_prob(1.2)
                return log_p - log_q - dist.Normal(params["mu"][z], width).log_prob(x)

            total += jnp.exp(log_q) * normal_mean(f, params["mu"][z], width)
        return -total

    return Row("narrow", model, guide, {"l": jnp.array(0.4), "mu": jnp.array([0.3, 1.4])}, exact=exact)


@pytest.mark.parametrize("continuous", ["quadrature", "reparam"])
def test_trap_3_recomputed_children_are_in_nobodys_blanket(continuous, monkeypatch):
    """A narrow Normal child ruins its discrete parent's weights when it is held at its value."""
    row = _narrow_child(0.02)

    def variance(**settings):
        many = jax.jit(jax.vmap(gradient_of(LOCAL(**settings), row)))
        draws = many(jax.random.split(jax.random.key(0), 20_000))
        return float(np.var(draws["l"]))

    assert agrees(row, LOCAL(continuous=continuous))
    with_child_in_blanket = variance(sites={"x": "score"})
    assert variance(continuous=continuous) < with_child_in_blanket / 20


def test_trap_3_reparameterized_parents_stay_differentiable(monkeypatch):
    row = named("continuous_parent_discrete_child")
    assert agrees(row, LOCAL())
    leaf = local_expectation._leaf_score

    def detached(factor, cut, change):
        fn = dist.Bernoulli(logits=jax.lax.stop_gradient(factor.fn.logits))
        return leaf(replace(factor, fn=fn), cut, change)

    monkeypatch.setattr(local_expectation, "_leaf_score", detached)
    assert not agrees(row, LOCAL())


def test_trap_4_continuous_parents_default_to_reparameterization():
    row = named("continuous_parent_discrete_child")
    pivot, graph = _graph(row)
    chosen = local_expectation.treatments(pivot, graph, "quadrature", {})
    assert chosen == {"x": "reparam", "z": "local"}


def _graph(row):
    here = problem.Problem(row.model, row.guide, row.params, row.args)
    noise = problem.Noise(*jax.random.split(jax.random.key(0)))
    pivot = here.draw(noise)
    return pivot, here.parents(pivot, noise)


def test_trap_4_an_inaccurate_explicit_local_raises():
    def row(slope):
        def model():
            x = numpyro.sample("x", dist.Normal(0.0, 1.0))
            numpyro.sample("y", dist.Normal(x, 0.1))

        def guide():
            x = numpyro.sample("x", dist.Normal(numpyro.param("m", 0.3), 1.0))
            numpyro.sample("y", dist.Normal(slope * x, 0.1))

        return Row("", model, guide, {"m": jnp.array(0.3)})

    local = LOCAL(sites={"x": "local", "y": "score"})
    with pytest.raises(Exception, match="site 'x': a quadrature reweighted by the site's children changes by"):
        jax.block_until_ready(gradient(row(1.0), local))
        jax.effects_barrier()
    gradient(row(0.02), local)  # a wide child does no harm
    jax.effects_barrier()


def test_trap_5_nodes_at_the_base_of_a_saturated_transform():
    """At x = sigmoid(z) = 1 the transform cannot be inverted: log q is evaluated at the base node."""
    with jax.enable_x64(False):

        def guide():
            loc, scale = numpyro.param("loc", 0.0), numpyro.param("scale", 1.0)
            normal = dist.Normal(loc, scale)
            numpyro.sample("p", dist.TransformedDistribution(normal, dist.transforms.SigmoidTransform()))

        target = legrad.log_density(lambda x: 2.0 * x["p"])
        params = {"loc": jnp.float32(12.0), "scale": jnp.float32(4.0)}
        g = jax.grad(lambda p: LOCAL().loss(jax.random.key(0), p, target, guide))(params)
        assert np.isfinite(flat(g)).all()
        # ∂ELBO/∂loc of the entropy of a sigmoid: E[1 − 2σ(z)], nearly −1 here
        np.testing.assert_allclose(g["loc"], 1.0, atol=0.02)


def test_trap_6_shared_parameters_get_both_parts(monkeypatch):
    row = named("learned_model_parameters")
    assert agrees(row, LOCAL())
    total = problem.Evaluation.total
    monkeypatch.setattr(problem.Evaluation, "total", lambda *a, **k: jax.lax.stop_gradient(total(*a, **k)))
    assert not agrees(row, LOCAL())


def test_trap_6_reparameterized_is_the_total_derivative():
    """At q = p the path derivative vanishes; the total derivative has the score's noise."""

    def model():
        numpyro.sample("x", dist.Normal(0.0, 1.0))

    def guide():
        numpyro.sample("x", dist.Normal(numpyro.param("m", 0.0), jnp.exp(numpyro.param("s", 0.0))))

    row = Row("", model, guide, {"m": jnp.array(0.0), "s": jnp.array(0.0)})
    many = jax.jit(jax.vmap(gradient_of(legrad.Reparameterized(), row)))
    draws = np.stack(jax.tree.leaves(many(jax.random.split(jax.random.key(0), 200))), axis=1)
    assert draws.std(0).max() > 0.1


@pytest.mark.parametrize("value", [np.inf, 1e4, 40.0])
def test_trap_7_zero_times_infinity_is_zero(value):
    def model():
        z = numpyro.sample("z", dist.Bernoulli(0.5))
        c = numpyro.sample("c", dist.Categorical(logits=jnp.zeros(3)))
        numpyro.factor("energy", 1.0 * z * c)

    def guide():
        l = numpyro.param("l", 0.0)
        numpyro.sample("z", dist.Bernoulli(logits=l))
        m = jnp.stack([l, -l, jnp.array(-value)])
        numpyro.sample("c", dist.Categorical(logits=m, validate_args=False))

    row = Row("", model, guide, {"l": jnp.array(-40.0)})
    for estimator in (LOCAL(), LOCAL(num_pivots=3), legrad.Exact(), legrad.ScoreFunction()):
        assert np.isfinite(gradient(row, estimator)).all(), estimator
    np.testing.assert_allclose(gradient(row, LOCAL()), gradient(row, legrad.Exact()), atol=1e-9)


def test_trap_8_differences_survive_float32():
    """A coordinate's small effect beside 10^5 large terms."""
    with jax.enable_x64(False):
        big = jnp.asarray(1e4 * np.random.default_rng(0).normal(size=100_000), jnp.float32)

        def guide():
            numpyro.sample("z", dist.Bernoulli(logits=numpyro.param("l", jnp.zeros(3))).to_event(1))

        f = lambda x: big.at[:3].set(0.01 * x["z"])
        g = jax.grad(lambda p: legrad.expectation(f, guide, p, key=jax.random.key(0)))({"l": jnp.zeros(3)})["l"]
        np.testing.assert_allclose(g, 0.0025, rtol=1e-4)


def test_trap_9_a_plate_does_not_prove_independence(monkeypatch):
    """z * roll(z) in a plate: costs per member, assumed from the plate, are biased."""
    row = named("coupled_plate_members")
    assert agrees(row, legrad.ScoreFunction(2, "leave_one_out"))

    def by_member(self, site, values):
        return sum(jnp.broadcast_to(term, self.x[site].shape) for term in values.values())

    monkeypatch.setattr(costs.Costs, "of", by_member)
    assert not agrees(row, legrad.ScoreFunction(2, "leave_one_out"))


def test_trap_10_elements_of_a_scan_are_in_each_others_blanket(monkeypatch):
    row = named("scanned_chain")
    assert agrees(row, LOCAL())
    drop_self = lambda parents: {n: after - {n} for n, after in found(parents).items()}
    found = local_expectation.descendants
    monkeypatch.setattr(local_expectation, "descendants", drop_self)
    assert not agrees(row, LOCAL())


def test_trap_10_transforms_of_whole_vectors_have_no_scalars():
    fn = dist.TransformedDistribution(
        dist.Normal(jnp.zeros(2), 1.0).to_event(1), dist.transforms.StickBreakingTransform()
    )
    assert elements.scalar(fn) is None


def test_trap_11_disarm_resamples_descendants(monkeypatch):
    row = named("chain")
    assert agrees(row, legrad.DisARM())

    class Kept(disarm._Uniforms):
        """Descendants keep the value they had: both partners then share one stale child."""

        def process_message(self, msg):
            if self.flipped and msg["type"] == "sample" and msg["name"] in first and msg["name"] != self.flipped:
                msg["value"] = first[msg["name"]]
                return
            super().process_message(msg)
            if not self.flipped and msg["type"] == "sample":
                first[msg["name"]] = msg["value"]

    first = {}
    monkeypatch.setattr(disarm, "_Uniforms", Kept)
    assert not agrees(row, legrad.DisARM())


def test_trap_12_what_is_not_understood_raises():
    def model():
        numpyro.sample("k", dist.Multinomial(3, jnp.ones(2) / 2))

    row = Row("", model, model, {})
    with pytest.raises(ValueError, match=r"site 'k' of the guide is Multinomial.*use LocalExpectation\(sites="):
        LOCAL().loss(jax.random.key(0), {}, row.model, row.guide)


def test_the_surrogate_has_the_value_of_f():
    """The surrogates add a gradient and no value."""
    row = named("chain")
    loss = LOCAL().loss(jax.random.key(0), row.params, row.model, row.guide)
    noise = base.draws(jax.random.key(0), 1)
    noise = problem.Noise(noise.sites[0], noise.plates)
    here = problem.Problem(row.model, row.guide, row.params)
    pivot = here.draw(noise)
    x = {n: f.coordinate for n, f in pivot.items()}
    value = here.evaluate(x, noise, pivot=pivot, exact_entropy=list(x)).total()
    np.testing.assert_allclose(-loss, value)
