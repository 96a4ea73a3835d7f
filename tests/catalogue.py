"""The catalogue: one row a problem, which every estimator that can treat it must pass against the exact gradient.

A row's exact negative ELBO is `Exact()` on `exact_args` where the guide is discrete, and a closed form (or a dense
Gauss-Hermite rule) where it is not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import digamma, gammaln
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.distributions import constraints

import legrad

ALL = ("local", "score", "leave_one_out", "disarm", "reparam")
DISCRETE = ("local", "score", "leave_one_out")
BINARY = (*DISCRETE, "disarm")
CONTINUOUS = ("local", "score", "leave_one_out", "reparam")


@dataclass(frozen=True)
class Row:
    name: str
    model: Callable[..., Any]
    guide: Callable[..., Any]
    params: dict[str, Any]
    args: tuple[Any, ...] = ()
    estimators: tuple[str, ...] = DISCRETE
    exact: Callable[[dict[str, Any]], Any] | None = None  # closed-form negative ELBO of the params
    exact_args: tuple[Any, ...] | None = None  # arguments without subsampling
    local: dict[str, Any] = field(default_factory=dict)  # settings of LocalExpectation
    draws: int = 1  # multiples of the usual number of draws

    def loss(self, params: dict[str, Any]) -> Any:
        if self.exact is not None:
            return self.exact(params)
        args = self.args if self.exact_args is None else self.exact_args
        return legrad.Exact().loss(jax.random.key(0), params, self.model, self.guide, *args)


ROWS: list[Row] = []
rng = np.random.default_rng(0)


def row(**settings: Any) -> Callable[[Callable[[], tuple]], None]:
    """Enter a row; the decorated function returns (model, guide, params)."""

    def enter(make: Callable[[], tuple]) -> None:
        model, guide, params = make()
        params = {name: jnp.asarray(value, float) for name, value in params.items()}
        ROWS.append(Row(make.__name__, model, guide, params, **settings))

    return enter


# --- discrete, factorized --------------------------------------------------------------------------------------


@row(estimators=BINARY)
def independent_bernoullis():
    J = jnp.array(rng.normal(size=(5, 5)))

    def model():
        z = numpyro.sample("z", dist.Bernoulli(probs=jnp.full(5, 0.3)).to_event(1))
        numpyro.factor("energy", z @ J @ z)

    def guide():
        logits = numpyro.param("logits", jnp.zeros(5))
        numpyro.sample("z", dist.Bernoulli(logits=logits).to_event(1))

    return model, guide, {"logits": rng.normal(size=5)}


@row(estimators=BINARY)
def bernoulli_probs():
    def model():
        a = numpyro.sample("a", dist.Bernoulli(0.4))
        b = numpyro.sample("b", dist.Bernoulli(jnp.array([0.2, 0.7])[a]))
        numpyro.sample("y", dist.Normal(a + 2.0 * b, 0.5), obs=1.4)

    def guide():
        p = numpyro.param("p", jnp.full(2, 0.5), constraint=constraints.unit_interval)
        numpyro.sample("a", dist.Bernoulli(probs=p[0]))
        numpyro.sample("b", dist.Bernoulli(probs=p[1]))

    return model, guide, {"p": [0.35, 0.8]}


@row()
def categorical():
    table = jnp.array(rng.normal(size=(3, 4, 2)))

    def model():
        a = numpyro.sample("a", dist.Categorical(logits=jnp.zeros(3)))
        b = numpyro.sample("b", dist.Categorical(probs=jnp.array([0.1, 0.2, 0.3, 0.4])))
        c = numpyro.sample("c", dist.Bernoulli(0.5))
        numpyro.factor("table", table[a, b, c])

    def guide():
        numpyro.sample("a", dist.Categorical(logits=numpyro.param("la", jnp.zeros(3))))
        numpyro.sample("b", dist.Categorical(logits=numpyro.param("lb", jnp.zeros(4))))
        numpyro.sample("c", dist.Bernoulli(logits=numpyro.param("lc", 0.0)))

    return model, guide, {"la": rng.normal(size=3), "lb": rng.normal(size=4), "lc": 0.3}


@row()
def binomial_and_discrete_uniform():
    def model():
        n = numpyro.sample("n", dist.Binomial(4, probs=0.3))
        u = numpyro.sample("u", dist.DiscreteUniform(1, 3))
        numpyro.sample("y", dist.Normal(n * u, 1.0), obs=2.5)

    def guide():
        numpyro.sample("n", dist.Binomial(4, logits=numpyro.param("l", 0.0)))
        numpyro.sample("u", dist.DiscreteUniform(1, 3))

    return model, guide, {"l": 0.4}


@row()
def poisson_window():
    def model():
        n = numpyro.sample("n", dist.Poisson(3.0))
        z = numpyro.sample("z", dist.Bernoulli(0.5))
        numpyro.sample("y", dist.Normal(n + 2.0 * z, 1.0), obs=5.0)

    def guide():
        rate = numpyro.param("rate", 2.0, constraint=constraints.positive)
        numpyro.sample("n", dist.Poisson(rate))
        numpyro.sample("z", dist.Bernoulli(logits=numpyro.param("l", 0.0)))

    return model, guide, {"rate": 2.5, "l": 0.4}


def _poisson_exact(params):
    n, z = jnp.arange(80), jnp.arange(2)
    q = dist.Poisson(params["rate"]).log_prob(n)[:, None] + dist.Bernoulli(logits=params["l"]).log_prob(z)
    p = dist.Poisson(3.0).log_prob(n)[:, None] + jnp.log(0.5)
    p = p + dist.Normal(n[:, None] + 2.0 * z, 1.0).log_prob(5.0)
    return -jnp.sum(jnp.exp(q) * (p - q))


ROWS[-1] = Row(**{**vars(ROWS[-1]), "exact": _poisson_exact})


# --- guides with dependence ------------------------------------------------------------------------------------


@row(estimators=BINARY, draws=4)
def chain():
    J = jnp.array(rng.normal(size=(3, 3)))

    def model():
        z = jnp.stack([numpyro.sample(n, dist.Bernoulli(0.4)) for n in "abc"])
        numpyro.factor("energy", z @ J @ z)

    def guide():
        v = numpyro.param("v", jnp.zeros(3))
        w = numpyro.param("w", jnp.zeros(2))
        a = numpyro.sample("a", dist.Bernoulli(logits=v[0]))
        b = numpyro.sample("b", dist.Bernoulli(logits=v[1] + w[0] * a))
        numpyro.sample("c", dist.Bernoulli(logits=v[2] + w[1] * b))

    return model, guide, {"v": [0.3, -0.5, 0.4], "w": [1.2, -0.8]}


@row(estimators=BINARY, draws=4)
def collider():
    def model():
        a = numpyro.sample("a", dist.Bernoulli(0.4))
        b = numpyro.sample("b", dist.Bernoulli(0.6))
        c = numpyro.sample("c", dist.Bernoulli(0.5))
        numpyro.factor("energy", 1.3 * a * b - 0.7 * b * c + 0.5 * a * c)

    def guide():
        v = numpyro.param("v", jnp.zeros(5))
        a = numpyro.sample("a", dist.Bernoulli(logits=v[0]))
        b = numpyro.sample("b", dist.Bernoulli(logits=v[1]))
        numpyro.sample("c", dist.Bernoulli(logits=v[2] + v[3] * a + v[4] * b))

    return model, guide, {"v": [0.3, -0.5, 0.4, 1.5, -1.0]}


@row(estimators=BINARY, draws=4)
def global_site_with_children_in_a_plate():
    y = jnp.array([0.5, 1.4, -0.3, 2.0])

    def model():
        g = numpyro.sample("g", dist.Bernoulli(0.3))
        with numpyro.plate("N", 4):
            z = numpyro.sample("z", dist.Bernoulli(logits=0.5 * g - 0.2))
            numpyro.sample("y", dist.Normal(z + g, 1.0), obs=y)

    def guide():
        g = numpyro.sample("g", dist.Bernoulli(logits=numpyro.param("g_logit", 0.0)))
        loc = numpyro.param("loc", jnp.zeros(4))
        slope = numpyro.param("slope", 0.0)
        with numpyro.plate("N", 4):
            numpyro.sample("z", dist.Bernoulli(logits=loc + slope * g))

    return model, guide, {"g_logit": 0.4, "loc": [0.1, 0.8, -0.6, 1.0], "slope": 0.7}


@row(estimators=BINARY, draws=4)
def chain_inside_a_plate():
    y = jnp.array([0.5, 1.4, -0.3])

    def model():
        with numpyro.plate("N", 3):
            a = numpyro.sample("a", dist.Bernoulli(0.4))
            b = numpyro.sample("b", dist.Bernoulli(0.6))
            numpyro.sample("y", dist.Normal(a + 2.0 * b, 1.0), obs=y)

    def guide():
        v = numpyro.param("v", jnp.zeros((3, 3)))
        with numpyro.plate("N", 3):
            a = numpyro.sample("a", dist.Bernoulli(logits=v[0]))
            numpyro.sample("b", dist.Bernoulli(logits=v[1] + v[2] * a))

    return model, guide, {"v": rng.normal(size=(3, 3))}


@row(estimators=BINARY)
def nested_plates():
    y = jnp.array(rng.normal(size=(2, 3)))

    def model():
        with numpyro.plate("cols", 3, dim=-1):
            c = numpyro.sample("c", dist.Bernoulli(0.3))
            with numpyro.plate("rows", 2, dim=-2):
                z = numpyro.sample("z", dist.Bernoulli(0.6))
                numpyro.sample("y", dist.Normal(z - c, 1.0), obs=y)

    def guide():
        with numpyro.plate("cols", 3, dim=-1):
            numpyro.sample("c", dist.Bernoulli(logits=numpyro.param("lc", jnp.zeros(3))))
            with numpyro.plate("rows", 2, dim=-2):
                numpyro.sample("z", dist.Bernoulli(logits=numpyro.param("lz", jnp.zeros((2, 3)))))

    return model, guide, {"lc": rng.normal(size=3), "lz": rng.normal(size=(2, 3))}


@row(estimators=BINARY, args=(2,), exact_args=(None,), draws=8)
def subsampled_plate():
    y = jnp.array([0.5, 1.4, -0.3, 0.9])

    def model(size):
        g = numpyro.sample("g", dist.Bernoulli(0.3))
        with numpyro.plate("N", 4, subsample_size=size) as i:
            z = numpyro.sample("z", dist.Bernoulli(0.4))
            numpyro.sample("y", dist.Normal(z + g, 1.0), obs=y[i])

    def guide(size):
        numpyro.sample("g", dist.Bernoulli(logits=numpyro.param("lg", 0.0)))
        with numpyro.plate("N", 4, subsample_size=size):
            lz = numpyro.param("lz", jnp.zeros(4), event_dim=0)
            numpyro.sample("z", dist.Bernoulli(logits=lz))

    return model, guide, {"lg": 0.6, "lz": [0.7, -1.1, 0.9, 1.3]}


@row(estimators=BINARY)
def amortized_guide():
    x = jnp.array(rng.normal(size=(3, 4)))
    y = jnp.array(rng.normal(size=3))

    def model():
        with numpyro.plate("N", 3):
            z = numpyro.sample("z", dist.Bernoulli(jnp.full(2, 0.4)).to_event(1))
            numpyro.sample("y", dist.Normal(z @ jnp.array([1.0, -2.0]), 1.0), obs=y)

    def guide():
        W = numpyro.param("W", jnp.zeros((4, 2)))
        b = numpyro.param("b", jnp.zeros(2))
        with numpyro.plate("N", 3):
            numpyro.sample("z", dist.Bernoulli(logits=x @ W + b).to_event(1))

    return model, guide, {"W": rng.normal(size=(4, 2)), "b": [0.1, -0.4]}


@row(estimators=BINARY, draws=4)
def two_layers():
    """A deep belief net's guide: h1 given data, h2 given h1, for each member of a plate."""
    y = jnp.array(rng.integers(0, 2, size=(2, 3)))
    W1, W2 = jnp.array(rng.normal(size=(2, 3))), jnp.array(rng.normal(size=(2, 2)))

    def model():
        with numpyro.plate("N", 2):
            h2 = numpyro.sample("h2", dist.Bernoulli(jnp.full(2, 0.5)).to_event(1))
            h1 = numpyro.sample("h1", dist.Bernoulli(logits=h2 @ W2).to_event(1))
            numpyro.sample("y", dist.Bernoulli(logits=h1 @ W1).to_event(1), obs=y)

    def guide():
        V1, V2 = numpyro.param("V1", jnp.zeros((3, 2))), numpyro.param("V2", jnp.zeros((2, 2)))
        with numpyro.plate("N", 2):
            h1 = numpyro.sample("h1", dist.Bernoulli(logits=y @ V1).to_event(1))
            numpyro.sample("h2", dist.Bernoulli(logits=h1 @ V2).to_event(1))

    return model, guide, {"V1": rng.normal(size=(3, 2)), "V2": rng.normal(size=(2, 2))}


@row(draws=4)
def scanned_chain():
    """NumPyro's scan: one site whose elements are each other's parents."""
    y = jnp.array([0.2, 1.3, -0.4, 0.8])

    def model():
        def step(z, y):
            z = numpyro.sample("z", dist.Bernoulli(jnp.array([0.3, 0.6])[z]))
            numpyro.sample("y", dist.Normal(1.5 * z, 1.0), obs=y)
            return z, None

        scan(step, jnp.array(0), y)

    def guide():
        v = numpyro.param("v", jnp.zeros(4))
        w = numpyro.param("w", 0.0)

        def step(z, v):
            z = numpyro.sample("z", dist.Bernoulli(logits=v + w * z))
            return z, None

        scan(step, jnp.array(0), v)

    return model, guide, {"v": [0.3, -0.5, 0.4, 0.8], "w": 1.1}


# --- traps -----------------------------------------------------------------------------------------------------


@row(estimators=BINARY)
def coupled_plate_members():
    """z * roll(z) inside a plate is legal, and couples the members."""

    def model():
        with numpyro.plate("N", 4):
            z = numpyro.sample("z", dist.Bernoulli(0.4))
            numpyro.factor("ring", 1.5 * z * jnp.roll(z, 1))

    def guide():
        with numpyro.plate("N", 4):
            numpyro.sample("z", dist.Bernoulli(logits=numpyro.param("l", jnp.zeros(4))))

    return model, guide, {"l": [0.3, -0.7, 0.9, 0.2]}


@row(estimators=BINARY, draws=4)
def scaled():
    def model():
        with handlers.scale(scale=5.0):
            a = numpyro.sample("a", dist.Bernoulli(0.3))
            b = numpyro.sample("b", dist.Bernoulli(0.6))
            numpyro.sample("y", dist.Normal(a - b, 1.0), obs=0.7)

    def guide():
        v = numpyro.param("v", jnp.zeros(3))
        with handlers.scale(scale=5.0):
            a = numpyro.sample("a", dist.Bernoulli(logits=v[0]))
            numpyro.sample("b", dist.Bernoulli(logits=v[1] + v[2] * a))

    return model, guide, {"v": [0.4, -0.6, 0.9]}


@row(estimators=BINARY, draws=2)
def masked():
    mask = jnp.array([True, False, True])
    y = jnp.array([0.3, jnp.nan, 1.2])

    def model():
        with numpyro.plate("N", 3), handlers.mask(mask=mask):
            z = numpyro.sample("z", dist.Bernoulli(0.3))
            numpyro.sample("y", dist.Normal(z, 1.0), obs=y)

    def guide():
        with numpyro.plate("N", 3), handlers.mask(mask=mask):
            numpyro.sample("z", dist.Bernoulli(logits=numpyro.param("l", jnp.zeros(3))))

    return model, guide, {"l": [0.4, 0.9, -0.7]}


@row(estimators=BINARY)
def learned_model_parameters():
    def model():
        W = numpyro.param("W", jnp.zeros(2))
        shared = numpyro.param("shared", 0.0)
        z = numpyro.sample("z", dist.Bernoulli(logits=jnp.full(2, shared)).to_event(1))
        numpyro.sample("y", dist.Normal(z @ W, jnp.exp(shared)), obs=0.7)

    def guide():
        shared = numpyro.param("shared", 0.0)
        l = numpyro.param("l", jnp.zeros(2))
        numpyro.sample("z", dist.Bernoulli(logits=l * (1.0 + shared)).to_event(1))

    return model, guide, {"W": [0.6, -1.2], "shared": 0.3, "l": [0.5, -0.8]}


@row(estimators=("local", "score", "leave_one_out"))
def saturated_and_impossible():
    def model():
        a = numpyro.sample("a", dist.Bernoulli(probs=jnp.array([0.3, 0.6, 0.5])).to_event(1))
        c = numpyro.sample("c", dist.Categorical(probs=jnp.array([0.2, 0.5, 0.3])))
        d = numpyro.sample("d", dist.Categorical(probs=jnp.array([0.2, 0.5, 0.3])))
        numpyro.factor("energy", 0.7 * a[0] * c - a[1] * a[2] + 0.4 * d * a[2])

    def guide():
        l = numpyro.param("l", jnp.zeros(3))
        numpyro.sample("a", dist.Bernoulli(logits=l).to_event(1))
        m = numpyro.param("m", jnp.zeros(2))
        numpyro.sample("c", dist.Categorical(probs=jnp.concatenate([jnp.zeros(1), jax.nn.softmax(m)])))
        logits = jnp.concatenate([jnp.array([-jnp.inf]), m])
        numpyro.sample("d", dist.Categorical(logits=logits, validate_args=False))

    return model, guide, {"l": [40.0, -40.0, 0.3], "m": [0.2, -0.5]}


@row(estimators=BINARY)
def conditioned_with_deterministic():
    def inner():
        a = numpyro.sample("a", dist.Bernoulli(0.3))
        b = numpyro.sample("b", dist.Bernoulli(0.5))
        s = numpyro.deterministic("s", a + 2 * b)
        numpyro.sample("y", dist.Poisson(jnp.exp(0.3 * s)))
        numpyro.sample("t", dist.Categorical(logits=jnp.array([0.0, 1.0]) * s))

    def guide():
        numpyro.sample("a", dist.Bernoulli(logits=numpyro.param("la", 0.0)))
        numpyro.sample("b", dist.Bernoulli(logits=numpyro.param("lb", 0.0)))

    model = handlers.condition(inner, data={"y": jnp.array(2), "t": jnp.array(1)})
    return model, guide, {"la": 0.7, "lb": -0.4}


# --- continuous and mixed --------------------------------------------------------------------------------------

_nodes, _weights = np.polynomial.hermite_e.hermegauss(60)
_weights = _weights / _weights.sum()


def _normal_mean(f, loc, scale):
    """E[f(x)] under Normal(loc, scale), by 60 nodes."""
    return jnp.sum(jnp.asarray(_weights) * jax.vmap(f)(loc + scale * jnp.asarray(_nodes)))


def _discrete_parent_exact(params):
    total = 0.0
    for z in (0, 1):
        log_q = dist.Bernoulli(logits=params["l"]).log_prob(z)
        loc, scale = params["mu"][z], params["sd"]

        def f(x, z=z, log_q=log_q, loc=loc, scale=scale):
            log_p = jnp.log(0.5) + dist.Normal(2.0 * z, 1.0).log_prob(x) + dist.Normal(x, 0.5).log_prob(1.2)
            return log_p - log_q - dist.Normal(loc, scale).log_prob(x)

        total += jnp.exp(log_q) * _normal_mean(f, loc, scale)
    return -total


@row(exact=_discrete_parent_exact, estimators=DISCRETE, draws=4)
def discrete_parent_continuous_child():
    def model():
        z = numpyro.sample("z", dist.Bernoulli(0.5))
        x = numpyro.sample("x", dist.Normal(2.0 * z, 1.0))
        numpyro.sample("y", dist.Normal(x, 0.5), obs=1.2)

    def guide():
        z = numpyro.sample("z", dist.Bernoulli(logits=numpyro.param("l", 0.0)))
        mu = numpyro.param("mu", jnp.zeros(2))
        sd = numpyro.param("sd", 1.0, constraint=constraints.positive)
        numpyro.sample("x", dist.Normal(mu[z], sd))

    return model, guide, {"l": 0.4, "mu": [0.3, 1.4], "sd": 0.7}


# the same with the child reparameterized: it is then in nobody's blanket
ROWS.append(
    Row(
        **{
            **vars(ROWS[-1]),
            "name": "discrete_parent_reparameterized_child",
            "local": {"continuous": "reparam"},
            "estimators": ("local", "disarm"),
        }
    )
)


def _continuous_parent_exact(params):
    def f(x):
        q = dist.Bernoulli(logits=params["b"] + params["w"] * x)
        log_p_x = dist.Normal(0.0, 1.0).log_prob(x) - dist.Normal(params["loc"], params["sd"]).log_prob(x)
        terms = [
            dist.Bernoulli(logits=x).log_prob(z) + dist.Normal(x + z, 1.0).log_prob(1.5) - q.log_prob(z)
            for z in (0, 1)
        ]
        return log_p_x + sum(jnp.exp(q.log_prob(z)) * t for z, t in enumerate(terms))

    return -_normal_mean(f, params["loc"], params["sd"])


@row(exact=_continuous_parent_exact, estimators=BINARY, draws=8)
def continuous_parent_discrete_child():
    def model():
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        z = numpyro.sample("z", dist.Bernoulli(logits=x))
        numpyro.sample("y", dist.Normal(x + z, 1.0), obs=1.5)

    def guide():
        loc = numpyro.param("loc", 0.0)
        sd = numpyro.param("sd", 1.0, constraint=constraints.positive)
        x = numpyro.sample("x", dist.Normal(loc, sd))
        b, w = numpyro.param("b", 0.0), numpyro.param("w", 0.0)
        numpyro.sample("z", dist.Bernoulli(logits=b + w * x))

    return model, guide, {"loc": 0.5, "sd": 0.6, "b": 0.2, "w": 0.9}


_A = np.array([[2.0, 0.8, 0.0], [0.8, 1.5, -0.5], [0.0, -0.5, 1.0]])


def _gaussian_exact(params):
    A, loc, sd = jnp.asarray(_A), params["loc"], params["sd"]
    mean = -0.5 * (loc - 1.0) @ A @ (loc - 1.0) - 0.5 * jnp.sum(jnp.diag(A) * sd**2)
    return -(mean + jnp.sum(jnp.log(sd)) + 1.5 * (1.0 + jnp.log(2 * jnp.pi)))


@row(exact=_gaussian_exact, estimators=CONTINUOUS)
def normal_guide():
    def model():
        x = numpyro.sample("x", dist.ImproperUniform(constraints.real, (), (3,)))
        numpyro.factor("target", -0.5 * (x - 1.0) @ jnp.asarray(_A) @ (x - 1.0))

    def guide():
        loc = numpyro.param("loc", jnp.zeros(3))
        sd = numpyro.param("sd", jnp.ones(3), constraint=constraints.positive)
        numpyro.sample("x", dist.Normal(loc, sd).to_event(1))

    return model, guide, {"loc": [0.3, -0.4, 0.8], "sd": [0.5, 0.9, 0.7]}


def _lognormal_exact(params):
    mu, sd = params["mu"], params["sd"]
    mean = jnp.exp(mu + 0.5 * sd**2)
    # p: x_i ~ Exponential(1), y ~ Exponential(rate x1 + x2) at 0.8; q: LogNormal
    nodes, w = jnp.asarray(_nodes), jnp.asarray(_weights)
    x1, x2 = jnp.exp(mu[0] + sd[0] * nodes), jnp.exp(mu[1] + sd[1] * nodes)
    rate = x1[:, None] + x2
    likelihood = jnp.sum(w[:, None] * w * (jnp.log(rate) - 0.8 * rate))
    entropy = jnp.sum(mu + 0.5 * jnp.log(2 * jnp.pi * jnp.e * sd**2))
    return -(-jnp.sum(mean) + likelihood + entropy)


@row(exact=_lognormal_exact, estimators=CONTINUOUS, local={"nodes": 9}, draws=4)
def lognormal_guide():
    def model():
        x = numpyro.sample("x", dist.Exponential(jnp.ones(2)).to_event(1))
        numpyro.sample("y", dist.Exponential(x.sum()), obs=0.8)

    def guide():
        mu = numpyro.param("mu", jnp.zeros(2))
        sd = numpyro.param("sd", jnp.ones(2), constraint=constraints.positive)
        numpyro.sample("x", dist.LogNormal(mu, sd).to_event(1))

    return model, guide, {"mu": [0.1, -0.3], "sd": [0.4, 0.5]}


def _gamma_exact(params):
    a, b = params["a"], params["b"]
    mean, mean_log = a / b, digamma(a) - jnp.log(b)
    log_p = 1.0 * mean_log - mean + 3.0 * mean_log - mean - gammaln(4.0)  # Gamma(2, 1) prior, Poisson(x) at 3
    entropy = a - jnp.log(b) + gammaln(a) + (1 - a) * digamma(a)
    return -jnp.sum(log_p + entropy)


@row(exact=_gamma_exact, estimators=CONTINUOUS, local={"nodes": 9})
def gamma_guide():
    def model():
        with numpyro.plate("N", 2):
            x = numpyro.sample("x", dist.Gamma(2.0, 1.0))
            numpyro.sample("y", dist.Poisson(x), obs=jnp.array([3, 3]))

    def guide():
        a = numpyro.param("a", jnp.ones(2), constraint=constraints.positive)
        b = numpyro.param("b", jnp.ones(2), constraint=constraints.positive)
        with numpyro.plate("N", 2):
            numpyro.sample("x", dist.Gamma(a, b))

    return model, guide, {"a": [3.0, 6.0], "b": [1.3, 2.5]}


def _beta_exact(params):
    a, b = params["a"], params["b"]
    log_x, log_1x = digamma(a) - digamma(a + b), digamma(b) - digamma(a + b)
    log_p = jnp.log(6.0) + log_x + log_1x + 3.0 * log_x + 1.0 * log_1x + jnp.log(4.0)  # Beta(2,2), Binomial 3 of 4
    betaln = gammaln(a) + gammaln(b) - gammaln(a + b)
    entropy = betaln - (a - 1) * log_x - (b - 1) * log_1x
    return -(log_p + entropy)


@row(exact=_beta_exact, estimators=CONTINUOUS, local={"nodes": 9})
def beta_guide():
    def model():
        p = numpyro.sample("p", dist.Beta(2.0, 2.0))
        numpyro.sample("y", dist.Binomial(4, p), obs=3)

    def guide():
        a = numpyro.param("a", 1.0, constraint=constraints.positive)
        b = numpyro.param("b", 1.0, constraint=constraints.positive)
        numpyro.sample("p", dist.Beta(a, b))

    return model, guide, {"a": 4.0, "b": 2.5}
