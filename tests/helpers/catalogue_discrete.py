"""Rows of the catalogue with discrete guides: factorized, structured, and the traps."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.distributions import constraints

from catalogue_row import BINARY, ROWS, Row, row

rng = np.random.default_rng(0)


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


@row(estimators=BINARY)
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


@row(estimators=BINARY)
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


@row(estimators=BINARY)
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


@row(estimators=BINARY)
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


@row(estimators=BINARY, args=(2,), exact_args=(None,))
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


@row(estimators=BINARY)
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


@row()
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


@row()
def scanned_pair():
    """Two sites of one scan, each an ancestor of the other."""
    y = jnp.array([0.2, 1.3, -0.4])

    def model():
        def step(z, y):
            z = numpyro.sample("z", dist.Bernoulli(jnp.array([0.3, 0.6])[z]))
            s = numpyro.sample("s", dist.Bernoulli(0.4))
            numpyro.sample("y", dist.Normal(1.5 * z - s, 1.0), obs=y)
            return z, None

        scan(step, jnp.array(0), y)

    def guide():
        v, w = numpyro.param("v", jnp.zeros((3, 2))), numpyro.param("w", jnp.zeros(2))

        def step(s, v):
            z = numpyro.sample("z", dist.Bernoulli(logits=v[0] + w[0] * s))
            s = numpyro.sample("s", dist.Bernoulli(logits=v[1] + w[1] * z))
            return s, None

        scan(step, jnp.array(0), v)

    return model, guide, {"v": rng.normal(size=(3, 2)), "w": [1.1, -0.8]}


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


@row(estimators=BINARY)
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


@row(estimators=BINARY)
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
