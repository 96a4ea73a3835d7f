"""Generated models: elements that no term sees together, members of plates, and what lies above them."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers

from sums.case import Case

Rng = np.random.Generator


def sizes(rng: Rng, members: tuple[int, int] = (3, 6), values: tuple[int, int] = (2, 4)) -> tuple[int, int]:
    """Draw the number of members and the number of values of each."""
    return int(rng.integers(*members)), int(rng.integers(*values))


def simplex(rng: Rng, *shape: int) -> jax.Array:
    """Draw rows of probabilities."""
    return jnp.asarray(rng.dirichlet(np.full(shape[-1], 2.0), shape[:-1]))


def normal(rng: Rng, *shape: int) -> jax.Array:
    """Draw standard normal numbers."""
    return jnp.asarray(rng.normal(size=shape))


def mixture(rng: Rng) -> Case:
    n, k = sizes(rng)

    def model(y):
        weights = numpyro.sample("weights", dist.Dirichlet(jnp.full(k, 1.5)))
        mu = numpyro.sample("mu", dist.Normal(0.0, 3.0).expand([k]).to_event(1))
        sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
        with numpyro.plate("points", n):
            z = numpyro.sample("z", dist.Categorical(weights))
            numpyro.sample("y", dist.Normal(mu[z], sigma), obs=y)

    x = {"weights": simplex(rng, k), "mu": normal(rng, k), "sigma": jnp.asarray(rng.uniform(0.5, 2))}
    return Case(model, (normal(rng, n),), x)


def mixture_logits(rng: Rng) -> Case:
    n, k = sizes(rng)

    def model(y):
        logits = numpyro.sample("logits", dist.Normal(0.0, 1.0).expand([k]).to_event(1))
        sigma = numpyro.sample("sigma", dist.LogNormal(0.0, 1.0).expand([k]).to_event(1))
        with numpyro.plate("points", n):
            z = numpyro.sample("z", dist.Categorical(logits=logits))
            numpyro.sample("y", dist.StudentT(4.0, 0.0, sigma[z]), obs=y)

    return Case(model, (normal(rng, n),), {"logits": normal(rng, k), "sigma": jnp.exp(normal(rng, k))})


def forms_of_use(rng: Rng) -> Case:
    """A latent used by where, a one-hot product, arithmetic or a comparison."""
    n, k, form = *sizes(rng), int(rng.integers(4))

    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 3.0).expand([k]).to_event(1))
        with numpyro.plate("points", n):
            z = numpyro.sample("z", dist.Categorical(jnp.full(k, 1 / k)))
            uses = (
                lambda: jnp.where(z == 1, mu[1], mu[0]),
                lambda: jax.nn.one_hot(z, k) @ mu,
                lambda: mu[0] + mu[1] * z**2,
                lambda: mu[0] * (z > 0) + jnp.sin(mu[1] * z),
            )
            numpyro.sample("y", dist.Normal(uses[form](), 0.7), obs=y)

    return Case(model, (normal(rng, n),), {"mu": normal(rng, k)})


def switched_regression(rng: Rng) -> Case:
    n, features = int(rng.integers(4, 9)), 3

    def model(design, y):
        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([features]).to_event(1))
        gate = numpyro.sample("gate", dist.Normal(0.0, 1.0).expand([features]).to_event(1))
        shift = numpyro.sample("shift", dist.Normal(0.0, 2.0))
        with numpyro.plate("points", n):
            z = numpyro.sample("z", dist.Bernoulli(logits=design @ gate))
            numpyro.sample("y", dist.Normal(design @ beta + shift * z, 1.0), obs=y)

    x = {"beta": normal(rng, features), "gate": normal(rng, features), "shift": normal(rng)}
    return Case(model, (normal(rng, n, features), normal(rng, n)), x)


def nested_plates(rng: Rng) -> Case:
    groups, n = 2, int(rng.integers(2, 5))

    def model(y):
        with numpyro.plate("groups", groups, dim=-2):
            mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
            with numpyro.plate("members", n, dim=-1):
                z = numpyro.sample("z", dist.Categorical(jnp.array([0.3, 0.7])))
                numpyro.sample("y", dist.Normal(mu + z, 1.0 + 0.5 * z), obs=y)

    return Case(model, (normal(rng, groups, n),), {"mu": normal(rng, groups, 1)})


def two_in_a_member(rng: Rng) -> Case:
    n = int(rng.integers(2, 5))

    def model(y):
        p = numpyro.sample("p", dist.Beta(2.0, 2.0))
        table = numpyro.sample("table", dist.Normal(0.0, 1.0).expand([2, 3]).to_event(2))
        with numpyro.plate("points", n):
            z = numpyro.sample("z", dist.Bernoulli(p))
            w = numpyro.sample("w", dist.Categorical(jnp.array([0.2, 0.3, 0.5])))
            numpyro.sample("y", dist.Normal(table[z, w], 0.8), obs=y)

    return Case(model, (normal(rng, n),), {"p": jnp.asarray(rng.uniform(0.1, 0.9)), "table": normal(rng, 2, 3)})


def table_of_latent_and_data(rng: Rng) -> Case:
    n, k, kinds = *sizes(rng), 3

    def model(kind, y):
        table = numpyro.sample("table", dist.Normal(0.0, 1.0).expand([k, kinds]).to_event(2))
        with numpyro.plate("points", n):
            z = numpyro.sample("z", dist.Categorical(jnp.full(k, 1 / k)))
            numpyro.sample("y", dist.Normal(table[z, kind], 1.0), obs=y)

    return Case(model, (jnp.asarray(rng.integers(0, kinds, n)), normal(rng, n)), {"table": normal(rng, k, kinds)})


def groups_and_members(rng: Rng) -> Case:
    """A discrete latent per group, and one per member that depends on it."""
    groups, n, k = 2, int(rng.integers(2, 4)), 2

    def model(y):
        table = numpyro.sample("table", dist.Dirichlet(jnp.ones((2, k))).to_event(1))
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0).expand([k]).to_event(1))
        with numpyro.plate("groups", groups, dim=-2):
            c = numpyro.sample("c", dist.Bernoulli(0.4))
            with numpyro.plate("members", n, dim=-1):
                z = numpyro.sample("z", dist.Categorical(table[c]))
                numpyro.sample("y", dist.Normal(mu[z] + 0.5 * c, 1.0), obs=y)

    return Case(model, (normal(rng, groups, n),), {"table": simplex(rng, 2, k), "mu": normal(rng, k)})


def global_above_members(rng: Rng) -> Case:
    n, k = sizes(rng, (2, 5))

    def model(y):
        p = numpyro.sample("p", dist.Beta(2.0, 2.0).expand([k]).to_event(1))
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        m = numpyro.sample("m", dist.Categorical(jnp.full(k, 1 / k)))
        with numpyro.plate("points", n):
            z = numpyro.sample("z", dist.Bernoulli(p[m]))
            numpyro.sample("y", dist.Normal(mu[z], 1.0), obs=y)

    return Case(model, (normal(rng, n),), {"p": jnp.asarray(rng.uniform(0.1, 0.9, k)), "mu": normal(rng, 2)})


def global_above_data(rng: Rng) -> Case:
    """Which of several regressions made all data."""
    n, k = sizes(rng, (4, 9), (2, 5))

    def model(design, y):
        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([k]).to_event(1))
        c = numpyro.sample("c", dist.Categorical(logits=jnp.arange(k) * 0.3))
        with numpyro.plate("points", n):
            numpyro.sample("y", dist.Normal(design * beta[c], 1.0), obs=y)

    return Case(model, (normal(rng, n), normal(rng, n)), {"beta": normal(rng, k)})


def missing_data(rng: Rng) -> Case:
    """A mask over the data, or over the members with their latents."""
    n, k, inner = *sizes(rng), bool(rng.integers(2))

    def model(y, seen):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0).expand([k]).to_event(1))
        with numpyro.plate("points", n):
            if inner:
                z = numpyro.sample("z", dist.Categorical(jnp.full(k, 1 / k)))
                with handlers.mask(mask=seen):
                    numpyro.sample("y", dist.Normal(mu[z], 1.0), obs=y)
            else:
                z = numpyro.sample("z", dist.Categorical(jnp.full(k, 1 / k)))
                numpyro.sample("y", dist.Normal(mu[z], 1.0).mask(seen), obs=y)

    return Case(model, (normal(rng, n), jnp.asarray(rng.random(n) < 0.6)), {"mu": normal(rng, k)})


def imputed_data(rng: Rng) -> Case:
    """Missing data as latents, by obs_mask."""
    n, k = sizes(rng)

    def model(y, seen):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0).expand([k]).to_event(1))
        with numpyro.plate("points", n):
            z = numpyro.sample("z", dist.Categorical(jnp.full(k, 1 / k)))
            numpyro.sample("y", dist.Normal(mu[z], 1.0), obs=y, obs_mask=seen)

    x = {"mu": normal(rng, k), "y_unobserved": normal(rng, n)}
    return Case(model, (normal(rng, n), jnp.asarray(rng.random(n) < 0.6)), x)


def impossible_values(rng: Rng) -> Case:
    """Logits of minus infinity: some members cannot take some values."""
    n, k = sizes(rng, values=(3, 5))
    allowed = rng.random((n, k)) < 0.6
    allowed[np.arange(n), rng.integers(0, k, n)] = True

    def model(y):
        logits = numpyro.sample("logits", dist.Normal(0.0, 1.0).expand([k]).to_event(1))
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0).expand([k]).to_event(1))
        with numpyro.plate("points", n):
            logits = jnp.where(allowed, logits, -jnp.inf)
            z = numpyro.sample("z", dist.Categorical(logits=logits, validate_args=False))
            numpyro.sample("y", dist.Normal(mu[z], 1.0), obs=y)

    return Case(model, (normal(rng, n),), {"logits": normal(rng, k), "mu": normal(rng, k)})


def vectors(rng: Rng) -> Case:
    """A row of means for each value of a latent, and vector data."""
    n, k, d, full = *sizes(rng), 3, bool(rng.integers(2))

    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0).expand([k, d]).to_event(2))
        with numpyro.plate("points", n):
            z = numpyro.sample("z", dist.Categorical(jnp.full(k, 1 / k)))
            laws = dist.Normal(mu[z], 1.0).to_event(1), dist.MultivariateNormal(mu[z], jnp.eye(d) + 0.3)
            numpyro.sample("y", laws[full], obs=y)

    return Case(model, (normal(rng, n, d),), {"mu": normal(rng, k, d)})


def latent_classes(rng: Rng) -> Case:
    """Several yes-or-no answers of each person, who belongs to a class."""
    n, k, items = *sizes(rng), 4

    def model(y):
        weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(k)))
        p = numpyro.sample("p", dist.Beta(1.0, 1.0).expand([k, items]).to_event(2))
        with numpyro.plate("people", n):
            z = numpyro.sample("z", dist.Categorical(weights))
            numpyro.sample("y", dist.Bernoulli(p[z]).to_event(1), obs=y)

    x = {"weights": simplex(rng, k), "p": jnp.asarray(rng.uniform(0.1, 0.9, (k, items)))}
    return Case(model, (jnp.asarray(rng.integers(0, 2, (n, items))),), x)


def no_plate(rng: Rng) -> Case:
    """Independent elements of one statement, as a batch or as an event, and a factor."""
    n, event = int(rng.integers(3, 8)), bool(rng.integers(2))

    def model(y):
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        p = jax.nn.sigmoid(a + jnp.arange(n) * 0.3)
        law = dist.Bernoulli(p)
        z = numpyro.sample("z", law.to_event(1) if event else law)
        numpyro.factor("y", -0.5 * jnp.sum((y - a * z) ** 2))

    return Case(model, (normal(rng, n),), {"a": normal(rng)})


FAMILIES: dict[str, Callable[[Rng], Case]] = {
    f.__name__: f
    for f in (
        mixture,
        mixture_logits,
        forms_of_use,
        switched_regression,
        nested_plates,
        two_in_a_member,
        table_of_latent_and_data,
        groups_and_members,
        global_above_members,
        global_above_data,
        missing_data,
        imputed_data,
        impossible_values,
        vectors,
        latent_classes,
        no_plate,
    )
}
