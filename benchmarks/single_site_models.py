"""The problems of `benchmarks/single_site.py`: log-densities, pivots, candidates, and one-element code by hand.

Each problem comes in its full size and in a small one that tests can compare with brute force in float64; no timing
here. A log-density f(x, data) takes the latents and, as arguments, the data; only index arrays that decide the
sparsity are closed over as NumPy arrays.

The code by hand returns what `single_site` returns, f(x with x_e = v_k), for all elements and candidates, from what
a change touches:

    logistic          Σ_i softplus(z_i + (v_k - w_j) X_ij), z = X w; the rest is linear
    spike-and-slab    |r - δ X_j|² = |r|² - 2 δ X_j·r + δ² |X_j|², r = y - X (γ β)
    sigmoid network   Σ_d softplus(z_bd + (1 - 2 h_bj) W_jd), z = h W + b
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.lax import optimization_barrier
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import logsumexp
from numpyro.infer.util import log_density

Tree = Any
NODES = 5  # candidates of a continuous element


class Problem(NamedTuple):
    """A log-density f(x, data) with pivot and candidates, and `hand(x, candidates, data)` where it was written."""

    f: Callable[[Tree, Tree], jax.Array]
    x: Tree
    candidates: Tree
    data: Tree = ()
    hand: Callable[[Tree, Tree, Tree], Tree] | None = None


class Guided(NamedTuple):
    """A NumPyro model and guide, and the gradient of LocalExpectation's loss by hand.

    Attributes:
        draw: (key, params, data) → a pivot.
        hand: (params, pivot, data) → the gradient with that pivot.
    """

    model: Callable[..., None]
    guide: Callable[..., None]
    params: dict[str, jax.Array]
    data: tuple[jax.Array, ...]
    site: str
    candidates: jax.Array  # for a test of the bare model; LocalExpectation finds its own
    draw: Callable[[jax.Array, dict[str, jax.Array], tuple], jax.Array]
    hand: Callable[[dict[str, jax.Array], jax.Array, tuple], dict[str, jax.Array]]

    def problem(self) -> Problem:
        """The model's log-density at a draw of the guide."""

        def f(x: Tree, data: Tree) -> jax.Array:
            args, params = data
            return log_density(self.model, args, {}, params | x)[0]

        pivot = self.draw(jax.random.key(0), self.params, self.data)
        return Problem(f, {self.site: pivot}, {self.site: self.candidates}, (self.data, self.params))


# --- data ---------------------------------------------------------------------------------------------------


def mnist_directory() -> Path | None:
    """Where LEGRAD_DATA has MNIST's training set; None: synthetic data stands in for it."""
    directory = Path(os.environ.get("LEGRAD_DATA", "")) / "mnist"
    return directory if (directory / "train-images-idx3-ubyte.gz").exists() else None


def digits(small: bool) -> tuple[np.ndarray, np.ndarray]:
    """Images in [0, 1] and labels: MNIST's training set, or 60 (small) or 60,000 synthetic ones, as sparse."""
    directory = None if small else mnist_directory()
    if directory is None:
        rng, shape = np.random.default_rng(0), (60, 20) if small else (60_000, 784)
        ink = rng.random(shape, np.float32) < 0.2 * rng.random(shape[1])
        return np.where(ink, rng.random(shape, np.float32), 0), np.arange(shape[0]) % 10
    with gzip.open(directory / "train-images-idx3-ubyte.gz") as file:
        images = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 784)
    with gzip.open(directory / "train-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), np.uint8, offset=8)
    return images / np.float32(255), labels


def ones_and_sixes(small: bool) -> tuple[jax.Array, jax.Array]:
    """X with a constant column, 12660x785 at full size, and y = 1 for a six."""
    images, labels = digits(small)
    chosen = (labels == 1) | (labels == 6)
    X = np.concatenate([images[chosen], np.ones((chosen.sum(), 1))], axis=1)
    # At full size the rows of the synthetic data are cut to MNIST's number.
    return jnp.asarray(X[:12660], float), jnp.asarray(labels[chosen][:12660] == 6, int)


def nodes(loc: jax.Array, scale: Any) -> jax.Array:
    """Gauss-Hermite nodes of a Normal, on a leading axis."""
    z = np.polynomial.hermite_e.hermegauss(NODES)[0]
    return loc + scale * jnp.asarray(z, float).reshape(-1, *(1,) * jnp.ndim(loc))


def values(count: int, x: jax.Array) -> jax.Array:
    """The candidates 0, ..., count - 1 of every element."""
    return jnp.broadcast_to(jnp.arange(count).reshape(-1, *(1,) * x.ndim), (count, *x.shape)).astype(x.dtype)


def softplus(z: jax.Array) -> jax.Array:
    """As jax.nn.softplus without its handling of NaN and infinite differences: one fusion, not three."""
    return jnp.maximum(z, 0) + jnp.log1p(jnp.exp(-jnp.abs(z)))


# --- logistic regression --------------------------------------------------------------------------------------


def logistic(small: bool = False) -> Problem:
    """Bayesian logistic regression with a standard normal prior, in plain JAX."""
    X, y = ones_and_sixes(small)

    def f(w: jax.Array, data: Tree) -> jax.Array:
        X, y = data
        z = X @ w
        return jnp.sum(y * z - jax.nn.softplus(z)) - 0.5 * jnp.sum(w**2)

    def hand(w: jax.Array, candidates: jax.Array, data: Tree) -> jax.Array:
        z, dense = _logistic_parts(w, candidates - w, data)
        return data[1] @ z + dense - 0.5 * (jnp.sum(w**2) + candidates**2 - w**2)

    rng, p = np.random.default_rng(1), X.shape[1]
    w, loc = (jnp.asarray(rng.normal(size=p) * 0.1, float) for _ in range(2))
    return Problem(f, w, nodes(loc, 0.1), (X, y), hand)


def _logistic_parts(w: jax.Array, d: jax.Array, data: Tree) -> tuple[jax.Array, jax.Array]:
    """z = X w, and Σ_i [y_i d X_ij - softplus(z_i + d X_ij)] for changes d of shape (candidates, elements)."""
    X, y = data
    z, d = optimization_barrier((X @ w, d))
    linear = optimization_barrier(y.astype(X.dtype) @ X)
    # Data axis first, elements last: the fastest of nine layouts; the sum fuses with what it sums.
    return z, d * linear - jnp.sum(softplus(z[:, None, None] + d * X[:, None, :]), axis=0)


def logistic_numpyro(small: bool = False) -> Guided:
    """The same as a NumPyro model, with a mean-field Normal guide."""
    X, y = ones_and_sixes(small)

    def model(X: jax.Array, y: jax.Array) -> None:
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([X.shape[1]]).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=X @ w).to_event(1), obs=y)

    def guide(X: jax.Array, y: jax.Array) -> None:
        loc = numpyro.param("loc", jnp.zeros(X.shape[1]))
        log_scale = numpyro.param("log_scale", jnp.zeros(X.shape[1]))
        numpyro.sample("w", dist.Normal(loc, jnp.exp(log_scale)).to_event(1))

    def draw(key: jax.Array, params: Tree, data: Tree) -> jax.Array:
        return params["loc"] + jnp.exp(params["log_scale"]) * jax.random.normal(key, params["loc"].shape)

    def hand(params: Tree, w: jax.Array, data: Tree) -> Tree:
        loc, scale = params["loc"], jnp.exp(params["log_scale"])
        z, weights = (jnp.asarray(a, float)[:, None] for a in np.polynomial.hermite_e.hermegauss(NODES))
        v = loc + scale * z
        at_pivot, dense = _logistic_parts(w, v - w, data)
        change = dense + jnp.sum(softplus(at_pivot)) - 0.5 * (v**2 - w**2)
        weighted = weights / weights.sum() * change
        # the entropy of a Normal adds one to the derivative by its log scale
        return {"loc": -jnp.sum(weighted * z, 0) / scale, "log_scale": -jnp.sum(weighted * (z**2 - 1), 0) - 1}

    rng, p = np.random.default_rng(1), X.shape[1]
    params = {"loc": jnp.asarray(rng.normal(size=p) * 0.1, float), "log_scale": jnp.full(p, np.log(0.1), float)}
    return Guided(model, guide, params, (X, y), "w", nodes(params["loc"], 0.1), draw, hand)


# --- sigmoid belief network -----------------------------------------------------------------------------------


def sbn(small: bool = False) -> Guided:
    """A sigmoid belief network with one layer of binary latents in a plate, and a linear inference network."""
    batch, hidden = (4, 6) if small else (100, 200)
    y = jnp.asarray(digits(small)[0][:batch] > 0.5, int)

    def model(y: jax.Array) -> None:
        prior, W, b = (numpyro.param(name, params[name]) for name in ("prior", "W", "b"))
        with numpyro.plate("batch", batch):
            h = numpyro.sample("h", dist.Bernoulli(logits=prior).to_event(1))
            numpyro.sample("y", dist.Bernoulli(logits=h @ W + b).to_event(1), obs=y)

    def guide(y: jax.Array) -> None:
        V, c = (numpyro.param(name, params[name]) for name in ("V", "c"))
        with numpyro.plate("batch", batch):
            numpyro.sample("h", dist.Bernoulli(logits=y @ V + c).to_event(1))

    def draw(key: jax.Array, params: Tree, data: Tree) -> jax.Array:
        return jax.random.bernoulli(key, jax.nn.sigmoid(data[0] @ params["V"] + params["c"])).astype(int)

    def hand(params: Tree, h: jax.Array, data: Tree) -> Tree:
        y, W, prior = data[0].astype(params["W"].dtype), params["W"], params["prior"]
        a = y @ params["V"] + params["c"]
        h = h.astype(W.dtype)
        flip, q = 1 - 2 * h, jax.nn.sigmoid(a)
        z = optimization_barrier(h @ W + params["b"])
        # Outputs last: the sum over them fuses with what it sums.
        dense = jnp.sum(softplus(z[:, None, :] + flip[:, :, None] * W), axis=-1)
        change = flip * (y @ W.T + prior) - dense + jnp.sum(softplus(z), axis=-1, keepdims=True)
        # q(flipped) ∇ log q(flipped) = ±q(1-q); the entropy of a Bernoulli has the derivative -a q(1-q)
        by_a = q * (1 - q) * (flip * change - a)
        by_z = y - jax.nn.sigmoid(z)
        gradient = {"W": h.T @ by_z, "b": by_z.sum(0), "prior": jnp.sum(h - jax.nn.sigmoid(prior), axis=0)}
        return jax.tree.map(jnp.negative, gradient | {"V": y.T @ by_a, "c": by_a.sum(0)})

    rng, D = np.random.default_rng(2), y.shape[1]
    sizes = {"prior": (hidden,), "W": (hidden, D), "b": (D,), "V": (D, hidden), "c": (hidden,)}
    params = {name: jnp.asarray(rng.normal(size=shape) * 0.1, float) for name, shape in sizes.items()}
    return Guided(model, guide, params, (y,), "h", values(2, jnp.zeros((batch, hidden), int)), draw, hand)


# --- Gaussians ------------------------------------------------------------------------------------------------


def _gaussian(small: bool) -> tuple[jax.Array, jax.Array, np.ndarray, np.ndarray]:
    """A pivot, candidates, the mean and the precision."""
    n, rng = 12 if small else 1000, np.random.default_rng(3)
    A = rng.normal(size=(n, n)) / np.sqrt(n)
    x, loc = (jnp.asarray(rng.normal(size=n), float) for _ in range(2))
    return x, nodes(loc, 0.5), rng.normal(size=n), A @ A.T + np.eye(n)


def gaussian(small: bool = False) -> Problem:
    """A quadratic form in the precision."""
    x, candidates, mean, precision = _gaussian(small)

    def f(x: jax.Array, data: Tree) -> jax.Array:
        mean, precision = data
        r = x - mean
        return -0.5 * r @ precision @ r

    return Problem(f, x, candidates, (jnp.asarray(mean, float), jnp.asarray(precision, float)))


def cholesky(small: bool = False) -> Problem:
    """The same density through the Cholesky factor of its covariance and a triangular solve."""
    x, candidates, mean, precision = _gaussian(small)
    L = np.linalg.cholesky(np.linalg.inv(precision))

    def f(x: jax.Array, data: Tree) -> jax.Array:
        mean, L = data
        return -0.5 * jnp.sum(solve_triangular(L, x - mean, lower=True) ** 2) - jnp.sum(jnp.log(jnp.diag(L)))

    return Problem(f, x, candidates, (jnp.asarray(mean, float), jnp.asarray(L, float)))


# --- few terms for each element -------------------------------------------------------------------------------


def chain(small: bool = False, n: int | None = None) -> Problem:
    """A chain of pairwise terms with four states."""
    n, rng = n or (20 if small else 10_000), np.random.default_rng(4)

    def f(z: jax.Array, data: Tree) -> jax.Array:
        alone, pairs = data
        return jnp.sum(alone[jnp.arange(n), z]) + jnp.sum(pairs[z[:-1], z[1:]])

    z = jnp.asarray(rng.integers(0, 4, n))
    data = jnp.asarray(rng.normal(size=(n, 4)), float), jnp.asarray(rng.normal(size=(4, 4)), float)
    return Problem(f, z, values(4, z), data)


def ising(small: bool = False) -> Problem:
    """An Ising model on a grid, its spins given as zeros and ones."""
    n, rng = 5 if small else 100, np.random.default_rng(5)

    def f(z: jax.Array, field: jax.Array) -> jax.Array:
        s = 2.0 * z - 1.0
        return 0.4 * (jnp.sum(s[1:] * s[:-1]) + jnp.sum(s[:, 1:] * s[:, :-1])) + jnp.sum(field * s)

    z = jnp.asarray(rng.integers(0, 2, (n, n)))
    return Problem(f, z, values(2, z), jnp.asarray(rng.normal(size=(n, n)), float))


def mixture(small: bool = False) -> Problem:
    """The components of the points of a mixture, `mu[z]`."""
    n, K, rng = 15 if small else 10_000, 8, np.random.default_rng(6)

    def f(z: jax.Array, data: Tree) -> jax.Array:
        y, mu, log_pi = data
        return jnp.sum(dist.Normal(mu[z], 0.5).log_prob(y) + log_pi[z])

    z, mu = jnp.asarray(rng.integers(0, K, n)), jnp.asarray(3 * rng.normal(size=K), float)
    y, log_pi = jnp.asarray(3 * rng.normal(size=n), float), jnp.log(jnp.asarray(rng.dirichlet(np.ones(K)), float))
    return Problem(f, z, values(K, z), (y, mu, log_pi))


def noisy_or(small: bool = False) -> Problem:
    """A noisy-or network: each finding has five causes, given as an index array."""
    n, m, rng = (10, 30, np.random.default_rng(7)) if small else (1000, 5000, np.random.default_rng(7))
    causes = rng.integers(0, n, (m, 5))

    def f(z: jax.Array, data: Tree) -> jax.Array:
        y, weight, log_odds = data
        off = -0.01 - jnp.sum(weight * z[causes], axis=1)  # log of the probability that no cause shows
        return jnp.sum(jnp.where(y == 1, jnp.log(-jnp.expm1(off)), off)) + jnp.sum(log_odds * z)

    z, y = jnp.asarray(rng.integers(0, 2, n)), jnp.asarray(rng.integers(0, 2, m))
    weight, log_odds = jnp.asarray(rng.exponential(size=(m, 5)), float), jnp.asarray(rng.normal(size=n) - 1, float)
    return Problem(f, z, values(2, z), (y, weight, log_odds))


# --- dense, and fallbacks -------------------------------------------------------------------------------------


def spike_and_slab(small: bool = False) -> Problem:
    """Sparse linear regression, X @ (gamma * beta), both latent."""
    n, p, rng = (30, 8, np.random.default_rng(8)) if small else (1000, 500, np.random.default_rng(8))

    def f(x: Tree, data: Tree) -> jax.Array:
        X, y = data
        gamma, beta = x["gamma"], x["beta"]
        r = y - X @ (gamma * beta)
        return -0.5 * jnp.sum(r**2) - 0.5 * jnp.sum(beta**2) - 2.0 * jnp.sum(gamma)

    def hand(x: Tree, candidates: Tree, data: Tree) -> Tree:
        X, y = data
        gamma, beta = x["gamma"], x["beta"]
        r = y - X @ (gamma * beta)
        here = -0.5 * jnp.sum(r**2) - 0.5 * jnp.sum(beta**2) - 2.0 * jnp.sum(gamma)
        slope, square = optimization_barrier((r @ X, jnp.sum(X * X, axis=0)))
        flips, moves = candidates["gamma"] - gamma, candidates["beta"]
        by_gamma, by_beta = flips * beta, gamma * (moves - beta)
        return {
            "gamma": here + by_gamma * (slope - 0.5 * by_gamma * square) - 2.0 * flips,
            "beta": here + by_beta * (slope - 0.5 * by_beta * square) - 0.5 * (moves**2 - beta**2),
        }

    gamma, beta = jnp.asarray(rng.integers(0, 2, p)), jnp.asarray(rng.normal(size=p), float)
    data = jnp.asarray(rng.normal(size=(n, p)), float), jnp.asarray(rng.normal(size=n), float)
    candidates = {"gamma": values(2, gamma), "beta": nodes(beta + 0.1, 0.3)}
    return Problem(f, {"gamma": gamma, "beta": beta}, candidates, data, hand)


def decoder(small: bool = False, batch: int = 1) -> Problem:
    """A decoder with a hidden layer of tanh units, from binary latents to binary outputs."""
    sizes, rng = ((5, 7, 9) if small else (100, 200, 784)), np.random.default_rng(9)

    def f(h: jax.Array, data: Tree) -> jax.Array:
        y, W1, b1, W2, b2 = data
        logits = jnp.tanh(h @ W1 + b1) @ W2 + b2
        return jnp.sum(y * logits - jax.nn.softplus(logits))

    shapes = [sizes[:2], sizes[1:2], sizes[1:], sizes[2:]]
    weights = [jnp.asarray(rng.normal(size=shape) * shape[0] ** -0.5, float) for shape in shapes]
    h, y = (jnp.asarray(rng.integers(0, 2, (batch, size))) for size in (sizes[0], sizes[2]))
    return Problem(f, h, values(2, h), (y, *weights))


def hmm(small: bool = False) -> Problem:
    """The states of a hidden Markov model and its emission means, with `lax.scan` over time."""
    n, K, rng = (12, 3, np.random.default_rng(10)) if small else (200, 4, np.random.default_rng(10))

    def f(x: Tree, data: Tree) -> jax.Array:
        y, log_transition = data

        def step(before: jax.Array, here: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            z, y = here
            return z, log_transition[before, z] + dist.Normal(x["mu"][z], 0.7).log_prob(y)

        return jnp.sum(jax.lax.scan(step, jnp.zeros((), x["z"].dtype), (x["z"], y))[1])

    z, mu = jnp.asarray(rng.integers(0, K, n)), jnp.asarray(np.arange(K), float)
    data = jnp.asarray(2 * rng.normal(size=n), float), jnp.log(jnp.asarray(rng.dirichlet(np.ones(K), K), float))
    return Problem(f, {"z": z, "mu": mu}, {"z": values(K, z), "mu": nodes(mu + 0.1, 0.3)}, data)


def hmm_forward(small: bool = False) -> Problem:
    """A hidden Markov model with its states summed out by the forward algorithm: means and logits are latent."""
    n, K, rng = (12, 3, np.random.default_rng(11)) if small else (200, 4, np.random.default_rng(11))

    def f(x: Tree, y: jax.Array) -> jax.Array:
        log_transition = jax.nn.log_softmax(x["logits"])

        def step(alpha: jax.Array, y: jax.Array) -> tuple[jax.Array, None]:
            alpha = logsumexp(alpha[:, None] + log_transition, axis=0)
            return alpha + dist.Normal(x["mu"], 0.7).log_prob(y), None

        return logsumexp(jax.lax.scan(step, jnp.full(K, -np.log(K), y.dtype), y)[0])

    x = {"mu": jnp.asarray(np.arange(K), float), "logits": jnp.asarray(rng.normal(size=(K, K)), float)}
    return Problem(f, x, jax.tree.map(lambda a: nodes(a + 0.1, 0.3), x), jnp.asarray(2 * rng.normal(size=n), float))


def ordered(small: bool = False) -> Problem:
    """Noisy observations of the sorted latents."""
    n, rng = 10 if small else 400, np.random.default_rng(12)

    def f(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.sum(dist.Normal(jnp.sort(x), 0.3).log_prob(y)) - 0.5 * jnp.sum(x**2)

    x, y = jnp.asarray(rng.normal(size=n), float), jnp.asarray(np.sort(rng.normal(size=n)), float)
    return Problem(f, x, nodes(x + 0.1, 0.5), y)


# --- all of them ----------------------------------------------------------------------------------------------

GUIDED: dict[str, Callable[..., Guided]] = {"logistic_numpyro": logistic_numpyro, "sbn": sbn}
PROBLEMS: dict[str, Callable[..., Problem]] = {
    "logistic": logistic,
    **{name: (lambda small=False, make=make: make(small).problem()) for name, make in GUIDED.items()},
    "gaussian": gaussian,
    "cholesky": cholesky,
    "chain": chain,
    "ising": ising,
    "mixture": mixture,
    "spike_and_slab": spike_and_slab,
    "noisy_or": noisy_or,
    "decoder": decoder,
    "decoder_batch": partial(decoder, batch=10),
    "hmm": hmm,
    "hmm_forward": hmm_forward,
    "sort": ordered,
}


def _bind(make: Callable[..., Problem], small: bool = False) -> tuple[Callable[[Tree], jax.Array], Tree, Tree]:
    problem = make(small=small)
    return (lambda x: problem.f(x, problem.data)), problem.x, problem.candidates


MODELS: dict[str, Callable[..., tuple[Callable[[Tree], jax.Array], Tree, Tree]]] = {
    name: partial(_bind, make) for name, make in PROBLEMS.items()
}
"""By name, a function of `small` that gives (f, x, candidates), the data closed over."""


def distance(one: Tree, other: Tree) -> float:
    """The largest difference of two trees of arrays, relative to the largest entry of each array of the second."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return max(float(jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(b))) for a, b in pairs)
