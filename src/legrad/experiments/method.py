"""What the paper says of the method itself, on problems small enough to know the answer.

Is the estimator unbiased? Does a step take n(K−1)+1 evaluations of f? Up to which degree is a quadrature exact?
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import legrad
from legrad.distributions.support import must_have_candidates
from legrad.experiments import draw, gaussian
from legrad.experiments.measure import Bench, MeasurePlan
from legrad.experiments.section import Claim, Section, Table
from legrad.experiments.stages import Arrays, Results, Stage
from legrad.model.parameters import Parameters

DATA = "none: small problems made by a seed"


@dataclass(frozen=True)
class Settings:
    """Sizes of the small problems."""

    hidden: int = 6
    pixels: int = 20
    images: int = 2
    n: int = 20
    nodes: int = 5
    levels: int = 3
    draws: int = 20_000
    seed: int = 0


QUICK = Settings(hidden=4, draws=2000)


def net(y: Any, W: Any) -> None:
    """A small sigmoid belief net, whose hidden states can be enumerated."""
    with numpyro.plate("images", len(y)):
        x = numpyro.sample("x", dist.Bernoulli(0.5 * jnp.ones(len(W))).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=x @ W - 1.0).to_event(1), obs=y)


def beliefs(y: Any, W: Any) -> None:
    """A factor for each hidden unit of each image."""
    logits = numpyro.param("logits", 0.5 * jnp.ones((len(y), len(W))))
    with numpyro.plate("images", len(y)):
        numpyro.sample("x", dist.Bernoulli(logits=logits).to_event(1))


def stages(s: Settings) -> dict[str, Stage]:
    """What is computed, in order."""
    return {
        "unbiased, discrete": lambda results, label: unbiased_discrete(s, label),
        "unbiased, quadrature": lambda results, label: unbiased_quadrature(s, label),
        "evaluations counted": lambda results, label: counted(s),
        "degree of the quadrature": lambda results, label: degrees(s),
    }


def unbiased_discrete(s: Settings, label: str) -> Arrays:
    """The mean of many gradients against the enumeration of all hidden states."""
    of_y, of_w = jax.random.split(jax.random.key(s.seed))
    y = jax.random.bernoulli(of_y, 0.4, (s.images, s.pixels)).astype(int)
    bench = Bench(net, beliefs, (y, jax.random.normal(of_w, (s.hidden, s.pixels))))
    at = bench.parameters.unconstrain(bench.parameters.initial)
    plans = {
        "LeGrad": MeasurePlan(legrad.LocalExpectation(exact_terms=False), s.draws),
        "exact": MeasurePlan(legrad.Exact(), 2),
    }
    found = bench.variances(plans, [at], label)
    return _compared(found, "logits", s.draws, found["mean exact logits"][0])


def unbiased_quadrature(s: Settings, label: str) -> Arrays:
    """The mean of many gradients against the closed form, for the Gaussian target: a quadratic f."""
    sigma = gaussian.covariance(s.n)
    bench = Bench(gaussian.model, gaussian.guide, (jnp.asarray(np.linalg.cholesky(sigma), jnp.float32),))
    at = bench.parameters.unconstrain(bench.parameters.initial)  # mu = 0, l = 1
    found = bench.variances(
        {"LeGrad": MeasurePlan(legrad.LocalExpectation(nodes=s.nodes, exact_terms=False), s.draws)}, [at], label
    )
    precision = np.linalg.inv(sigma)
    for_mu = _compared(found, "mu", s.draws, precision @ np.full(s.n, 2.0))
    exact_l = 1 - np.diag(precision)  # of log l, at l = 1
    error = np.abs(found["mean LeGrad l"][0] - exact_l).max() / np.abs(exact_l).max()
    return for_mu | {"error l": np.asarray(error)}


def _compared(found: Arrays, param: str, draws: int, exact: np.ndarray) -> Arrays:
    error = np.sqrt(found[f"variance LeGrad {param}"][0] / draws)
    off = np.abs(found[f"mean LeGrad {param}"][0] - exact)
    return {
        "z": np.asarray((off / error).max()),
        "components": np.asarray(off.size),
    }


def counted(s: Settings) -> Arrays:
    """The evaluations of f in one step by brute force, counted where they happen."""
    K, n, seen = s.levels, s.n, []

    def f(latents: dict[str, Any]) -> jax.Array:
        def note(values: np.ndarray) -> np.ndarray:
            seen.append(int(np.prod(values.shape[:-1], dtype=int)))
            return np.zeros(values.shape[:-1], np.float32)

        shape = jax.ShapeDtypeStruct((), jnp.float32)
        x = jax.lax.stop_gradient(latents["x"])
        return jnp.sum(1.0 * latents["x"]) ** 2 + jax.pure_callback(note, shape, x, vmap_method="broadcast_all")

    def q() -> None:
        logits = numpyro.param("logits", jnp.zeros((n, K)))
        numpyro.sample("x", dist.Categorical(logits=logits).to_event(1))

    target = legrad.log_density(f)
    params = Parameters(target, q, (), {}, jax.random.key(0)).initial
    loss = legrad.LocalExpectation(method="brute", exact_terms=False).loss
    gradient = jax.grad(lambda params, key: loss(key, params, target, q))
    jax.block_until_ready(jax.jit(gradient)(params, jax.random.key(0)))
    return {"evaluations": np.asarray(sum(seen)), "formula": np.asarray(n * (K - 1) + 1)}


def degrees(s: Settings) -> Arrays:
    """For K = 1 to 6 nodes: the highest degree d for which all moments up to x^d of a Normal are exact."""
    found = []
    for K in range(1, 7):
        values, weights, _ = must_have_candidates(dist.Normal(0.3, 1.4), K, 64)
        z, w = (np.asarray(values, np.float64) - 0.3) / 1.4, np.asarray(weights, np.float64)
        exact = [abs((w * z**d).sum() - _moment(d)) < 1e-4 * _moment(d + d % 2) for d in range(1, 14)]
        found.append(exact.index(False))
    return {"K": np.arange(1, 7), "degree": np.asarray(found)}


def _moment(d: int) -> float:
    """E z^d of a standard Normal."""
    return 0.0 if d % 2 else float(np.prod(np.arange(d - 1, 0, -2, dtype=float)))


TEXT = """The claims that hold for any model are checked where the answer is known: a net small enough to enumerate
all its hidden states, a Gaussian whose gradient has a closed form, and a function that counts how often it is
evaluated."""


def section(s: Settings, results: Results, command: str) -> Section:
    """The claims about the method, and the degrees of the quadrature."""
    K, degree = (results["degree of the quadrature"][name] for name in ("K", "degree"))
    return Section(
        name="method",
        title="The method",
        text=TEXT,
        claims=claims(s, results, command),
        tables=[
            Table(
                "Exactness of the Gauss–Hermite rule",
                ("nodes K", "highest exact degree", "2K − 1"),
                [(str(k), str(d), str(2 * k - 1)) for k, d in zip(K, degree, strict=True)],
            )
        ],
        settings=draw.settings(s),
        data=DATA,
    )


def claims(s: Settings, results: Results, command: str) -> list[Claim]:
    """What the paper says of any model."""
    discrete, quadrature = results["unbiased, discrete"], results["unbiased, quadrature"]
    components = int(discrete["components"])
    z, z_mu, error_l = float(discrete["z"]), float(quadrature["z"]), float(quadrature["error l"])
    count, formula = (int(results["evaluations counted"][name]) for name in ("evaluations", "formula"))
    K, degree = (results["degree of the quadrature"][name] for name in ("K", "degree"))
    exact = ", ".join(f"{k}: {d}" for k, d in zip(K, degree, strict=True))
    return [
        Claim(
            "unbiased",
            """the estimator's mean is the exact gradient: for discrete variables exactly, with quadrature to its
            degree""",
            f"""mean of {s.draws:,} gradients. Belief net of {s.hidden} hidden units and {s.images} images, against
            enumeration: the largest of {components} deviations is {z:.1f} standard errors (5 would refute the
            claim). Gaussian of {s.n} variables with {s.nodes} nodes, against the closed form: {z_mu:.1f} standard
            errors for mu; for log l no noise, and a relative error of {error_l:.0e}, which is float32 rounding""",
            z < 5 and z_mu < 5 and error_l < 1e-4,
            command,
            short="The mean of LeGrad's gradients is the exact gradient",
            number=f"off by at most {max(z, z_mu):.1f} standard errors",
        ),
        Claim(
            "count",
            "a step for n discrete variables with K values takes n(K−1)+1 evaluations of f",
            f"{count} counted, for n = {s.n} and K = {s.levels}, by brute force; the formula gives {formula}",
            count == formula,
            command,
            short="A step takes n(K−1)+1 evaluations of f",
            number=f"{count} counted, {formula} expected",
        ),
        Claim(
            "degree",
            "Gaussian quadrature with K grid points integrates exactly polynomials up to degree 2K − 1",
            f"""highest exact degree for K = {exact}. A Gaussian target needs degree 4 (f quadratic, times the score
            of the scale), so K = 3 suffices""",
            bool((degree == 2 * K - 1).all()),
            command,
            short="With K nodes, polynomials up to degree 2K − 1 are integrated exactly",
            number=f"degrees {', '.join(map(str, degree))} for K = {K[0]} to {K[-1]}",
        ),
    ]
