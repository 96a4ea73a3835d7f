"""A sigmoid belief network with one layer of hidden units, trained by local expectation gradients.

    z_h ~ Bernoulli(σ(a_h)),    x_d ~ Bernoulli(σ(c_d + Σ_h z_h W_hd)),    q(z_h | x) = Bernoulli(σ(d_h + V_h x))

Columns are padded to a multiple of 8 and masked, and batches have one size, so that networks of similar shape share
one compiled program.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from scipy.special import expit, logsumexp

from legrad.estimators import LocalExpectation

Params = dict[str, np.ndarray]
BATCH = 64  # rows of a step
_CHUNK = 25  # steps of one compiled call
_ROUND = 8
ENUMERATED = 12  # hidden units up to which the log-density is a sum over all their values


def model(x: jax.Array, seen: jax.Array, hidden: int) -> None:
    """Sample hidden units and rows; `seen` masks the columns that are padding."""
    width = x.shape[1]
    a = numpyro.param("hidden_bias", jnp.zeros(hidden))
    w = numpyro.param("weights", jnp.zeros((hidden, width)))
    c = numpyro.param("bias", jnp.zeros(width))
    with numpyro.plate("rows", x.shape[0]):
        z = numpyro.sample("z", dist.Bernoulli(logits=a).to_event(1))
        numpyro.sample("x", dist.Bernoulli(logits=c + z @ w).mask(seen).to_event(1), obs=x)


def guide(x: jax.Array, seen: jax.Array, hidden: int) -> None:
    """Sample hidden units by logits that are linear in the row."""
    v = numpyro.param("encoder", jnp.zeros((x.shape[1], hidden)))
    d = numpyro.param("encoder_bias", jnp.zeros(hidden))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("z", dist.Bernoulli(logits=d + (x - 0.5) @ v).to_event(1))


@lru_cache(maxsize=32)
def _steps(hidden: int, estimator_rows: int) -> tuple[optax.GradientTransformation, Callable[..., Any]]:
    """Return the optimizer, and a compiled function that takes `_CHUNK` steps; compiled once for each width."""
    optimizer = optax.inject_hyperparams(optax.adam)(learning_rate=1e-2)
    estimator = LocalExpectation(exact_terms=False)

    def step(carry: Any, given: Any) -> Any:
        params, state, x, seen = carry
        key, rows, rate = given
        batch = x[rows]

        def loss(params: Any) -> jax.Array:
            return estimator.loss(key, params, model, guide, batch, seen, hidden) / estimator_rows

        value, gradient = jax.value_and_grad(loss)(params)
        state.hyperparams["learning_rate"] = rate
        update, state = optimizer.update(gradient, state, params)
        return (optax.apply_updates(params, update), state, x, seen), value

    @jax.jit
    def chunk(params: Any, state: Any, x: Any, seen: Any, keys: Any, rows: Any, rates: Any) -> Any:
        carry, values = jax.lax.scan(step, (params, state, x, seen), (keys, rows, rates))
        return carry[0], carry[1], values

    return optimizer, chunk


def train(
    X: np.ndarray, hidden: int, steps: int, learning_rate: float, rng: np.random.Generator
) -> tuple[Params, np.ndarray]:
    """Train a network on rows of zeros and ones; return its parameters, and minus the ELBO of a row at each step."""
    columns = X.shape[1]
    width = -(-columns // _ROUND) * _ROUND
    rows = 1 << max(6, math.ceil(math.log2(len(X))))
    x = np.zeros((rows, width), np.float32)
    x[: len(X), :columns] = X
    seen = np.arange(width) < columns
    share = np.clip(np.pad(X.mean(0), (0, width - columns), constant_values=0.5), 0.02, 0.98)
    small = 1 / math.sqrt(width)
    params: Any = {
        "hidden_bias": np.zeros(hidden),
        "weights": rng.normal(size=(hidden, width)) * small,
        "bias": np.log(share / (1 - share)),
        "encoder": rng.normal(size=(width, hidden)) * small,
        "encoder_bias": np.zeros(hidden),
    }
    params = {name: jnp.asarray(value, jnp.float32) for name, value in params.items()}
    optimizer, chunk = _steps(hidden, BATCH)
    state = optimizer.init(params)
    chunks = -(-steps // _CHUNK)
    rates = learning_rate * np.minimum(1.0, 2.0 * (1 - np.arange(chunks * _CHUNK) / (chunks * _CHUNK))) + 1e-5
    history = []
    key = jax.random.key(int(rng.integers(2**31)))
    for i in range(chunks):
        keys = jax.random.split(jax.random.fold_in(key, i), _CHUNK)
        batches = np.stack([_batch(len(X), rng) for _ in range(_CHUNK)])
        now = jnp.asarray(rates[i * _CHUNK : (i + 1) * _CHUNK], jnp.float32)
        params, state, values = chunk(params, state, x, seen, keys, batches, now)
        history.append(np.asarray(values))
    kept = {name: np.asarray(value, float) for name, value in params.items()}
    kept["weights"], kept["bias"] = kept["weights"][:, :columns], kept["bias"][:columns]
    kept["encoder"] = kept["encoder"][:columns]
    return kept, np.concatenate(history)


def _batch(n: int, rng: np.random.Generator) -> np.ndarray:
    return rng.choice(n, BATCH, replace=n < BATCH)


def encode(params: Params, X: np.ndarray) -> np.ndarray:
    """Return the logits of the hidden units given rows."""
    return np.asarray(params["encoder_bias"] + (X - 0.5) @ params["encoder"])


def log_joint(params: Params, X: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Return log p(x, z) for rows and hidden units whose shapes broadcast."""
    eta = params["bias"] + z @ params["weights"]
    prior = z @ params["hidden_bias"] - np.logaddexp(0.0, params["hidden_bias"]).sum()
    return np.asarray(prior + (X * eta).sum(-1) - np.logaddexp(0.0, eta).sum(-1))


def log_density(params: Params, X: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Return log p(x) of each row: exactly with few hidden units, else by the importance-weighted bound."""
    hidden = len(params["hidden_bias"])
    if hidden <= ENUMERATED:
        z = (np.arange(2**hidden)[:, None] >> np.arange(hidden) & 1).astype(float)
        eta = params["bias"] + z @ params["weights"]
        prior = z @ params["hidden_bias"] - np.logaddexp(0.0, params["hidden_bias"]).sum()
        return np.asarray(logsumexp(X @ eta.T + prior - np.logaddexp(0.0, eta).sum(1), axis=1))
    logits = encode(params, X)
    log_w = np.empty((draws, len(X)))
    for i in range(draws):
        z = (rng.random(logits.shape) < expit(logits)).astype(float)
        log_q = (z * logits - np.logaddexp(0.0, logits)).sum(1)
        log_w[i] = log_joint(params, X, z) - log_q
    return np.asarray(logsumexp(log_w, axis=0) - math.log(draws))


def generate(params: Params, number: int, rng: np.random.Generator) -> np.ndarray:
    """Return rows drawn from the network."""
    z = (rng.random((number, len(params["hidden_bias"]))) < expit(params["hidden_bias"])).astype(float)
    p = expit(params["bias"] + z @ params["weights"])
    return (rng.random(p.shape) < p).astype(float)
