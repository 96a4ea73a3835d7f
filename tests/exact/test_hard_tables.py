"""Tables whose candidates hold masks and infinities: the gradient is that of the sum over all joint values."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

from legrad.distributions.elements import scalar
from legrad.exact.expect import expectations
from legrad.exact.laws import law

LL = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)))
PARAMS = {"l": jnp.array([0.3, -0.2, 0.7]), "ll": LL, "th": jnp.asarray(1.3)}
JOINT = jnp.array(list(itertools.product((0, 1), repeat=3)))


def masked(z, c):
    """One class is always there, so that no sum is empty."""
    return jnp.concatenate([jnp.zeros(1), jnp.where(z[1:] == 1, 0.0, -c)])


PROGRAMS = {
    "logsumexp": lambda z, c, p: jax.nn.logsumexp(masked(z, c) + p["ll"], axis=1),
    "transposed": lambda z, c, p: jax.nn.logsumexp(masked(z, c)[:, None] + p["ll"].T, axis=0),
    "log_softmax": lambda z, c, p: jax.nn.log_softmax(masked(z, c) + p["ll"], axis=1)[:, 0],
    "softmax": lambda z, c, p: jax.nn.softmax(masked(z, c) + p["ll"], axis=1) @ p["ll"][0],
    "logits": lambda z, c, p: dist.Categorical(logits=masked(z, c) * p["th"]).log_prob(jnp.array([0, 0])),
    "listed twice": lambda z, c, p: jnp.log(jnp.sum((z * p["th"])[np.array([[0, 1, 1], [2, 0, 2]])], axis=1) + 1 / c),
    "differences": lambda z, c, p: jnp.log(1e-3 + (1 - z) * p["th"] + jnp.roll(z, 3) * jnp.exp(-z * p["th"])),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_of_masks_are_those_of_the_sum(name):
    f = PROGRAMS[name]

    def ours(p, c):
        z = law(scalar(dist.Bernoulli(logits=p["l"]).to_event(1)), jnp.dtype(jnp.result_type(int)))
        return expectations(lambda x: {"t": p["th"] * jnp.sum(f(x["z"], c, p))}, {"z": z})["t"].mean

    def dense(p, c):
        weight = lambda z: jnp.exp(jnp.sum(jax.nn.log_sigmoid(jnp.where(z == 1, p["l"], -p["l"]))))
        return jnp.sum(jax.vmap(lambda z: weight(z) * p["th"] * jnp.sum(f(z, c, p)))(JOINT))

    def both(c):
        return jax.jit(lambda: (jax.value_and_grad(ours)(PARAMS, c), jax.value_and_grad(dense)(PARAMS, c)))()

    for c in (1e9, np.inf):
        if c == np.inf and name in ("logits", "listed twice"):
            continue  # 0 · ∞, log 0
        found, expected = both(c)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            assert np.isfinite(b).all()
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9 * (1 + float(abs(expected[0]))), err_msg=f"{c}")
