"""NumPyro's NUTS on marginals: posteriordb's mixture against its reference, others against sums written by hand."""

import importlib.util
import os
from pathlib import Path

import jax
import numpy as np
import pytest
from numpyro import handlers
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import MCMC, NUTS
from numpyro.infer.util import log_density
from scipy import stats
from scipy.special import logsumexp

import legrad
from sums.nuts_models import PAIRS
from sums.oracle import close

# On its way a chain or a search may visit rates at which a window of counts leaves something out.
pytestmark = pytest.mark.filterwarnings("ignore:site '.*' is a count")

FILE = Path(os.environ.get("LEGRAD_DATA") or "", "posteriordb", "models.py")
CHAINS, WARMUP, DRAWS = 4, 500, 1000


def posterior(model, args, key):
    """Draws of all latents, each of shape (chains, draws, size)."""
    chains = MCMC(
        NUTS(model),
        num_warmup=WARMUP,
        num_samples=DRAWS,
        num_chains=CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )
    chains.run(jax.random.key(key), *args)
    found = chains.get_samples(group_by_chain=True)
    return {name: np.asarray(v).reshape(CHAINS, DRAWS, -1) for name, v in found.items()}


def summary(draws):
    """Mean, sd and Monte Carlo error of each latent; every R-hat must be below 1.01."""
    found = {}
    for name, v in draws.items():
        assert (split_gelman_rubin(v) < 1.01).all(), f"{name}: the chains differ"
        sd = v.std((0, 1))
        found[name] = v.mean((0, 1)), sd, sd / np.sqrt(effective_sample_size(v))
    return found


def furthest(one, other):
    """The largest difference of means, in Monte Carlo errors of the two."""
    return max(
        float(np.max(np.abs(one[name][0] - other[name][0]) / np.hypot(one[name][2], other[name][2]))) for name in one
    )


def prior_draw(pair):
    trace = handlers.trace(handlers.seed(pair.by_hand, jax.random.key(3))).get_trace(*pair.args)
    return {n: s["value"] for n, s in trace.items() if s["type"] == "sample" and not s["is_observed"]}


def shifted(found, sds):
    return {name: (mean + sds * sd, sd, error) for name, (mean, sd, error) in found.items()}


@pytest.mark.long
@pytest.mark.parametrize("name", PAIRS)
def test_the_sum_is_the_one_by_hand(name):
    """At draws of the prior, value and gradient; so both chains below explore the same density."""
    pair = PAIRS[name]()
    x = prior_draw(pair)

    def of(model):
        return jax.jit(jax.value_and_grad(lambda x: log_density(model, pair.args, {}, x)[0]))(x)

    assert close(of(legrad.marginalize(pair.model)), of(pair.by_hand), 1e-8)


@pytest.mark.long
@pytest.mark.parametrize("name", ["hmm", "change_point", "occupancy"])
def test_the_sum_by_hand_is_numpyros(name):
    """The references themselves, against NumPyro's enumeration."""
    pytest.importorskip("funsor")
    from numpyro.contrib.funsor import config_enumerate, enum
    from numpyro.contrib.funsor import log_density as enumerated

    pair = PAIRS[name]()
    x = prior_draw(pair)
    model = enum(config_enumerate(pair.model), -3)
    found = jax.value_and_grad(lambda x: enumerated(model, pair.args, {}, x)[0])(x)
    assert close(found, jax.value_and_grad(lambda x: log_density(pair.by_hand, pair.args, {}, x)[0])(x), 1e-8)


def test_the_sum_of_counts_by_hand_is_scipys():
    pair = PAIRS["n_mixture"]()
    x = prior_draw(pair)
    (y,), rate, p = pair.args, float(x["rate"]), float(x["p"])
    k = np.arange(300)[:, None, None]
    each = stats.poisson.logpmf(k[:, 0], rate) + stats.binom.logpmf(np.asarray(y), k, p).sum(1)
    truth = logsumexp(each, 0).sum() + stats.gamma.logpdf(rate, 6.0) + stats.beta.logpdf(p, 4.0, 4.0)
    np.testing.assert_allclose(log_density(pair.by_hand, pair.args, {}, x)[0], truth, rtol=1e-10)


@pytest.mark.long
@pytest.mark.parametrize("name", PAIRS)
def test_nuts_agrees_with_the_sum_by_hand(name):
    pair = PAIRS[name]()
    found = summary(posterior(legrad.marginalize(pair.model), pair.args, 0))
    truth = summary(posterior(pair.by_hand, pair.args, 1))
    assert furthest(found, truth) < 4.5
    assert furthest(shifted(found, 0.25), truth) > 4.5, "a quarter of an sd would not be noticed"


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")  # its files
@pytest.mark.skipif(not FILE.is_file(), reason="LEGRAD_DATA holds no posteriordb/models.py")
def test_nuts_recovers_the_reference_of_posteriordbs_mixture():
    spec = importlib.util.spec_from_file_location("posteriordb_models", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    row = module.POSTERIORS["low_dim_gauss_mix_z"]
    assert row.discrete
    draws = posterior(legrad.marginalize(row.model), row.args, 0)
    found = summary({name: v for name, v in draws.items() if name in ("mu", "sigma", "theta")})
    assert set(found) == {"mu", "sigma", "theta"}
    for name, (mean, sd, error) in found.items():
        for i in range(len(mean)):
            reference = module.REFS[row.ref][name if len(mean) == 1 else f"{name}[{i + 1}]"]
            assert abs(mean[i] - reference["mean"]) < 4.5 * np.hypot(error[i], reference["se"])
            assert abs(sd[i] / reference["sd"] - 1) < 0.1
            assert abs(mean[i] + 0.25 * sd[i] - reference["mean"]) > 4.5 * np.hypot(error[i], reference["se"])
