"""fit without a guide on models with discrete latents: summed out, paired with continuous ones, or annealed."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import legrad
from legrad.fitting.exchangeable import exchangeable_sites
from legrad.fitting.joint_start import joint_start
from legrad.fitting.mode import find_mode
from legrad.marginal.marginalize import Marginal

RNG = np.random.default_rng(0)
Y = np.concatenate([RNG.normal(-3, 1, 60), RNG.normal(3, 1, 40)])


def mixture(y):
    w = numpyro.sample("w", dist.Dirichlet(jnp.ones(2)))
    with numpyro.plate("components", 2):
        mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    with numpyro.plate("data", len(y)):
        z = numpyro.sample("z", dist.Categorical(w))
        numpyro.sample("y", dist.Normal(mu[z], 1.0), obs=y)


def ordered(y):
    mu = numpyro.sample("mu", dist.Normal(jnp.array([-1.0, 1.0]), 5.0).to_event(1))
    with numpyro.plate("data", len(y)):
        z = numpyro.sample("z", dist.Bernoulli(0.4))
        numpyro.sample("y", dist.Normal(mu[z], 1.0), obs=y)


def spike_and_slab(X, y):
    with numpyro.plate("features", X.shape[1]):
        included = numpyro.sample("included", dist.Bernoulli(0.3))
        slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(X @ (included * slope), 1.0), obs=y)


def inclusion(X, y):
    """The exact probabilities of inclusion, by the evidence of every subset of features."""
    weights, subsets = [], list(itertools.product([0, 1], repeat=X.shape[1]))
    for subset in subsets:
        used = X * np.array(subset)
        cov = np.eye(len(y)) + 4 * used @ used.T
        _, det = np.linalg.slogdet(cov)
        prior = np.sum(np.where(subset, np.log(0.3), np.log(0.7)))
        weights.append(prior - 0.5 * (det + y @ np.linalg.solve(cov, y)))
    share = np.exp(weights - np.max(weights))
    return share @ np.array(subsets) / share.sum()


@pytest.mark.long
def test_a_mixture_is_summed_and_drawn_back():
    result = legrad.fit(mixture, args=(Y,), key=0)
    assert isinstance(result.problem.model, Marginal)
    assert result.model is mixture
    assert "z summed out" in result.method
    assert "can be relabelled" in result.method
    assert result.converged
    assert not result.other_modes  # other orders of the labels are not other modes
    draws = result.sample(1, 500)
    assert draws["z"].shape == (500, 100)
    order = np.argsort(np.asarray(draws["mu"]).mean(0))
    np.testing.assert_allclose(np.asarray(draws["mu"]).mean(0)[order], [Y[:60].mean(), Y[60:].mean()], atol=0.2)
    right = (np.asarray(draws["z"]) == order[(np.arange(100) >= 60).astype(int)]).mean()
    assert right > 0.98
    tree = result.to_arviz(2, 40)
    assert tree.posterior["z"].shape[-1] == 100


@pytest.mark.long
def test_the_mixture_without_summing_keeps_its_latents():
    guide = legrad.Structured(mixture)
    jax.eval_shape(lambda key: numpyro.handlers.seed(guide, key)(Y), jax.random.key(0))
    assert [factor.latent.name for factor in guide.discrete] == ["z"]


def test_a_model_that_is_summed_altogether_is_exact():
    def chain(y):
        z = 0
        for t in range(5):
            z = numpyro.sample(f"z{t}", dist.Categorical(jnp.array([[0.8, 0.2], [0.3, 0.7]])[z]))
            numpyro.sample(f"y{t}", dist.Normal(2.0 * z, 1.0), obs=y[t])

    y = np.array([0.3, 2.2, 1.7, -0.4, 1.0])
    table, total = np.array([[0.8, 0.2], [0.3, 0.7]]), {}
    for path in itertools.product([0, 1], repeat=5):
        log_p = sum(np.log(table[a, b]) for a, b in itertools.pairwise([0, *path]))
        total[path] = log_p - 0.5 * np.sum((y - 2 * np.array(path)) ** 2) - 2.5 * np.log(2 * np.pi)
    share = np.exp(np.array(list(total.values())))
    result = legrad.fit(chain, args=(y,), key=0)
    assert result.converged
    assert float(result.elbo[-1]) == pytest.approx(np.log(share.sum()), abs=1e-5)
    assert result.diagnose(1).ok
    draws = result.sample(2, 4000)
    for t in range(5):
        exact = share @ np.array([path[t] for path in total]) / share.sum()
        assert abs(np.asarray(draws[f"z{t}"]).mean() - exact) < 5 * np.sqrt(0.25 / 4000)


@pytest.mark.long
def test_spike_and_slab_is_right():
    X = RNG.normal(size=(60, 4))
    y = X @ [1.5, 0.0, 0.3, 0.0] + RNG.normal(size=60)
    exact = inclusion(X, y)
    assert exact.min() < 0.5 < exact.max()
    result = legrad.fit(spike_and_slab, args=(X, y), key=0)
    assert "slope_centers" in result.params  # a slope of its own for each value of its inclusion
    assert result.converged, result.status
    found = np.asarray(result.sample(1, 4000)["included"]).mean(0)
    np.testing.assert_allclose(found, exact, atol=0.06)


def test_what_can_be_relabelled_is_found_and_nothing_else():
    space = legrad.Structured(legrad.marginalize(mixture)).space(Y)
    assert set(exchangeable_sites(space, (Y,), {})) == {"w", "mu"}
    assert not exchangeable_sites(legrad.Structured(legrad.marginalize(ordered)).space(Y), (Y,), {})

    def regression(X, y):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        numpyro.sample("y", dist.Normal(X @ b, 1.0), obs=y)

    data = RNG.normal(size=(10, 2)), np.ones(10)
    assert not exchangeable_sites(legrad.Structured(regression).space(*data), data, {})

    def groups(n, y):  # a prior whose draws are 0 or infinite: the entries of b come out equal
        v = numpyro.sample("v", dist.InverseGamma(0.001, 0.001))
        b = numpyro.sample("b", dist.Normal(0.0, jnp.sqrt(v)).expand([3]).to_event(1))
        numpyro.sample("y", dist.Binomial(n, logits=b), obs=y)

    data = np.array([47, 148, 119]), np.array([0, 18, 8])
    assert not exchangeable_sites(legrad.Structured(groups).space(*data), data, {})


def test_a_saddle_is_left():
    class Double:
        """The density −(a² − 1)² − b²/2: a saddle at zero, where its gradient vanishes."""

        def value(self, x):
            return float(-((x[0] ** 2 - 1) ** 2) - x[1] ** 2 / 2)

        def gradient(self, x):
            return self.value(x), np.array([-4 * x[0] * (x[0] ** 2 - 1), -x[1]])

        def hessian(self, x):
            return np.diag([4 - 12 * x[0] ** 2, -1.0])

    mode = find_mode(Double(), np.array([0.0, 0.5]))
    assert mode.found
    assert mode.left_a_saddle
    np.testing.assert_allclose(np.abs(mode.x), [1.0, 0.0], atol=1e-4)


@pytest.mark.long
def test_a_block_model_finds_its_blocks():
    n, k = 40, 3
    z = np.repeat(np.arange(k), [14, 13, 13])
    links = np.full((k, k), 0.05) + 0.5 * np.eye(k)
    rows, columns = np.triu_indices(n, 1)
    edges = (RNG.uniform(size=len(rows)) < links[z[rows], z[columns]]).astype(int)

    def blocks(rows, columns, edges):
        share = numpyro.sample("share", dist.Dirichlet(jnp.ones(k)))
        link = numpyro.sample("link", dist.Beta(1.0, 1.0).expand([k, k]).to_event(2))
        with numpyro.plate("nodes", n):
            z = numpyro.sample("z", dist.Categorical(share))
        with numpyro.plate("pairs", len(edges)):
            numpyro.sample("edge", dist.Bernoulli(link[z[rows], z[columns]]), obs=edges)

    result = legrad.fit(blocks, args=(rows, columns, edges), key=0, steps=3000)
    assert "joint modes" in result.method
    found = np.asarray(result.sample(1, 200)["z"])
    best = [np.bincount(found[:, z == block].ravel(), minlength=k).argmax() for block in range(k)]
    assert sorted(best) == [0, 1, 2]
    assert (found == np.array(best)[z]).mean() > 0.95


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*as this posterior is not Gaussian")
def test_observed_values_may_depend_on_latents():
    """An ARMA model observes its residuals, which explode at some draws of the prior."""
    noise, y = 0.2 * RNG.normal(size=120), np.zeros(120)
    for t in range(1, 120):
        y[t] = 0.3 + 0.5 * y[t - 1] + 0.3 * noise[t - 1] + noise[t]

    def arma(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
        phi = numpyro.sample("phi", dist.Normal(0.0, 2.0))
        theta = numpyro.sample("theta", dist.Normal(0.0, 4.0))
        sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))

        def step(error, pair):
            error = pair[1] - (mu + phi * pair[0] + theta * error)
            return error, error

        first = y[0] - (mu + phi * mu)
        _, rest = jax.lax.scan(step, first, (y[:-1], y[1:]))
        numpyro.sample("error", dist.Normal(0.0, sigma), obs=jnp.concatenate([first[None], rest]))

    result = legrad.fit(arma, args=(y,), key=0)
    assert result.converged, result.status
    assert abs(float(np.mean(result.sample(1, 500, corrected=True)["sigma"])) - noise.std()) < 0.03


def test_a_model_without_continuous_latents_starts_at_a_mode():
    """Twelve switches that one sum sees: nothing is summed out, and there is no continuous place to start from."""
    A = RNG.normal(size=(12, 12))
    on = RNG.random(12) < 0.5

    def switches(A, y):
        with numpyro.plate("switches", 12):
            on = numpyro.sample("on", dist.Bernoulli(0.5))
        numpyro.sample("y", dist.Normal(A @ on, 0.1).to_event(1), obs=y)

    start = joint_start(legrad.Structured(switches), (A, A @ on), {}, jax.random.key(0))
    assert ((start.params["on_logits"] > 0) == on).all()
