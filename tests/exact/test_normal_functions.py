"""Functions of a Gaussian projection: nodes and closed forms that hold at any standard deviation, or refused."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.scipy.special import log_ndtr
from scipy import special

from legrad.distributions.elements import scalar
from legrad.exact.expect import expectations
from legrad.exact.laws import law

Z = np.linspace(-12, 12, 400_001)


def moments(f, mean, sd):
    """The mean of f and its derivative by the mean, from a dense rule."""
    mass = np.exp(-0.5 * Z**2) / np.sqrt(2 * np.pi)
    values = f(mean + sd * Z)
    return np.trapezoid(values * mass, Z), np.trapezoid(values * Z / sd * mass, Z)


FUNCTIONS = {
    "softplus": (jax.nn.softplus, lambda u: np.logaddexp(0, u)),
    "log1p of exp": (lambda u: jnp.log1p(jnp.exp(u)), lambda u: np.logaddexp(0, u)),
    "far from zero": (lambda u: jax.nn.softplus(30 - 4 * u), lambda u: np.logaddexp(0, 30 - 4 * u)),
    "steep": (lambda u: log_ndtr((u - 7) / 0.05), lambda u: special.log_ndtr((u - 7) / 0.05)),
    "heavy tails": (lambda u: jnp.log1p(((7 - u) / 0.1) ** 2), lambda u: np.log1p(((7 - u) / 0.1) ** 2)),
    "on two routes": (lambda u: u * jax.nn.sigmoid(2 * u + 1), lambda u: u * special.expit(2 * u + 1)),
    "absolute": (jnp.abs, np.abs),
    "relu": (jax.nn.relu, lambda u: np.maximum(u, 0)),
    "max": (lambda u: jnp.maximum(1.5, 2 * u), lambda u: np.maximum(1.5, 2 * u)),
    "min": (lambda u: jnp.minimum(u, -0.5), lambda u: np.minimum(u, -0.5)),
    "square of a kink": (lambda u: (3 - jnp.abs(u)) ** 2, lambda u: (3 - np.abs(u)) ** 2),
    "Laplace": (lambda u: dist.Laplace(u, 0.7).log_prob(2.0), lambda u: -np.abs(2 - u) / 0.7 - np.log(1.4)),
    "checked": (lambda u: jnp.where(jnp.isfinite(u), jax.nn.softplus(u), -1.0), lambda u: np.logaddexp(0, u)),
}


def term(f, mean, sd):
    w = law(
        scalar(dist.Normal(mean * jnp.array([0.5, 0.5]), sd * jnp.array([0.6, 0.8])).to_event(1)), jnp.dtype(float)
    )
    return expectations(lambda x: {"t": f(jnp.sum(x["w"]))}, {"w": w})["t"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_standard_deviation_does_not_matter(name):
    f, same = FUNCTIONS[name]
    ours = jax.jit(jax.value_and_grad(lambda mean, sd: term(f, mean, sd).mean))
    for sd in (0.05, 1.0, 30.0, *([] if name == "log1p of exp" else [150.0])):  # where exp does not overflow
        for mean in (0.3, -sd):
            np.testing.assert_allclose(ours(mean, sd), moments(same, mean, sd), rtol=1e-6, atol=1e-8 / sd)


@pytest.mark.parametrize(("f", "shift"), [(jnp.sin, 0.0), (jnp.cos, np.pi / 2)])
def test_waves(f, shift):
    for sd in (0.5, 40.0):
        expected = np.exp(-0.5 * sd**2) * np.sin(0.3 + shift)
        np.testing.assert_allclose(term(lambda u: f(2 * u), 0.15, sd / 2).mean, expected, rtol=1e-12, atol=1e-15)
    square = term(lambda u: (f(u) - 1) ** 2, 0.3, 0.8).mean
    np.testing.assert_allclose(square, moments(lambda u: (np.sin(u + shift) - 1) ** 2, 0.3, 0.8)[0], rtol=1e-9)
    assert not term(lambda u: jnp.exp(f(u)), 0.3, 0.8).is_exact


REFUSED = {
    "reciprocal": lambda u: 1 / u,
    "quotient": lambda u: jnp.exp(u) / (2 * u + 1),
    "negative power": lambda u: u**-2,
    "quotient by a square": lambda u: 1 / u**2,
    "two kinks": lambda u: jnp.clip(u, -1, 1),
    "exp of a kink": lambda u: jnp.exp(-jnp.abs(u)),
    "finite or not": lambda u: jnp.where(jnp.isfinite(jnp.log(u)), 1.0, 0.0),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_mean_or_no_rule_is_refused(name):
    assert not term(REFUSED[name], 0.3, 0.8).is_exact


def test_a_quotient_by_another_latent_has_no_mean():
    def found(divide):
        laws = {
            "w": law(scalar(dist.Normal(jnp.zeros(2), 1.0).to_event(1)), jnp.dtype(float)),
            "z": law(scalar(dist.Bernoulli(0.3)), jnp.dtype(jnp.result_type(int))),
        }
        return expectations(lambda x: {"t": divide(x)}, laws)["t"]

    assert not found(lambda x: x["z"] / x["w"][0]).is_exact
    assert not found(lambda x: x["w"][0] / x["w"][1]).is_exact
    np.testing.assert_allclose(found(lambda x: (x["w"][0] + 1) / (1 + x["z"])).mean, 0.85, rtol=1e-12)
    np.testing.assert_allclose(found(lambda x: x["z"] / jnp.exp(x["w"][0])).mean, 0.3 * np.exp(0.5), rtol=1e-9)


WHOLE = {
    "floor of a half": lambda z: jnp.floor(0.5 * jnp.sum(z)),
    "whole quotient": lambda z: jnp.sum(z) // 2,
    "remainder": lambda z: jnp.sum(z) % 2,
    "comparison": lambda z: jnp.sum(z) > 1,
    "choice": lambda z: jnp.where(jnp.sum(z) >= 2, jnp.sum(z), -1.0),
    "look-up": lambda z: jnp.array([0.3, -1.0, 2.0, 5.0])[jnp.sum(z)],
    "bits": lambda z: (jnp.sum(z) & 1) + (jnp.sum(z) << 1),
    "narrow": lambda z: 100 * jnp.sum(z.astype(jnp.int8), dtype=jnp.int8),
    "running": lambda z: jnp.sum(jnp.cumsum(z) > 1),
    "rounded mean": lambda z: jnp.round(jnp.mean(z)),
    "sign": lambda z: jnp.sign(jnp.sum(z) - 1.5),
    "all": lambda z: jnp.all(z == 1) | ~jnp.any(z == 1),
    "cast": lambda z: (0.7 * jnp.sum(z)).astype(int),
}


@pytest.mark.parametrize("name", WHOLE)
def test_sums_of_whole_numbers_stay_whole(name):
    z = law(scalar(dist.Bernoulli(jnp.array([0.3, 0.6, 0.8])).to_event(1)), jnp.dtype(jnp.result_type(int)))
    found = expectations(lambda x: {"t": jnp.asarray(WHOLE[name](x["z"]), float)}, {"z": z})["t"]
    joint = jnp.array(np.indices((2, 2, 2)).reshape(3, -1).T)
    mass = np.prod(np.where(joint == 1, [0.3, 0.6, 0.8], [0.7, 0.4, 0.2]), axis=1)
    if name == "narrow" and not found.is_exact:
        return  # a sum that wraps around may be refused
    np.testing.assert_allclose(found.mean, mass @ jnp.asarray(jax.vmap(WHOLE[name])(joint), float), rtol=1e-12)
