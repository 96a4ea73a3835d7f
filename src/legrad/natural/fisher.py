"""The Fisher information of families of distributions, as a root R with F = RᵀR.

A family maps a change of its parameters to Fisher coordinates: `root(parameters, change)` is R times the change. Its
squared length is that of the change in the Fisher metric, twice the KL that the change makes. A root pulls back
through any map of parameters (R J), and keeps its digits where F does not: no product of small numbers is subtracted
from another.

    Bernoulli, logits     √(p (1−p)) dl               Normal     (dμ, √2 dσ) / σ
    Categorical, logits   √p_k (dl_k − Σ_j p_j dl_j)  MultivariateNormal   L⁻¹dμ, and √2 or 1 times L⁻¹dL

A new family is a line in `FAMILIES`, and a row in `tests/natural/test_fisher.py`, which compares every family with
the expected product of scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import polygamma

from legrad.distributions.offset_categorical import OffsetCategorical

Change = Mapping[str, Array]


class Family(NamedTuple):
    """A family of distributions.

    Attributes:
        parameters: the names of its parameters, each with the number of its event axes.
        root: from parameters and their change to Fisher coordinates on a last axis.
        softmax: whether the parameter is a vector of logits of a categorical.
        positive: the parameters that are positive numbers.
    """

    parameters: dict[str, int]
    root: Callable[[Change, Change], Array]
    softmax: bool = False
    positive: tuple[str, ...] = ()

    def fold(self, at: Change, to: Change) -> Array:
        """Return how much the logarithms of the positive parameters change; zero if there are none."""
        found = [jnp.abs(to[name] / _positive(at[name])) for name in self.positive]
        if "scale_tril" in self.parameters:
            diagonals = [jnp.diagonal(x["scale_tril"], axis1=-2, axis2=-1) for x in (to, at)]
            found.append(jnp.max(jnp.abs(diagonals[0] / _positive(diagonals[1])), axis=-1, initial=0.0))
        return jnp.max(jnp.stack(found), axis=0) if found else jnp.zeros(())


def _tiny(x: Array) -> Array:
    return jnp.asarray(jnp.finfo(x.dtype).tiny, x.dtype)


def _positive(x: Array) -> Array:
    return jnp.maximum(x, _tiny(x))


def _one(x: Array) -> Array:
    return x[..., None]


def _logits_spread(logits: Array) -> Array:
    """√(p (1−p)), with all digits at both ends."""
    return jnp.exp(0.5 * (jax.nn.log_sigmoid(logits) + jax.nn.log_sigmoid(-logits)))


def _probs_spread(p: Array) -> Array:
    return jnp.sqrt(_positive(p * (1 - p)))


def _bernoulli_logits(at: Change, to: Change) -> Array:
    return _one(_logits_spread(at["logits"]) * to["logits"])


def _bernoulli_probs(at: Change, to: Change) -> Array:
    return _one(to["probs"] / _probs_spread(at["probs"]))


def _binomial_logits(at: Change, to: Change) -> Array:
    return jnp.sqrt(_one(at["total_count"])) * _bernoulli_logits(at, to)


def _binomial_probs(at: Change, to: Change) -> Array:
    return jnp.sqrt(_one(at["total_count"])) * _bernoulli_probs(at, to)


def _categorical_logits(at: Change, to: Change) -> Array:
    p = jax.nn.softmax(at["logits"], axis=-1)
    # From the change of the likeliest value: those of the others, times their small p, keep their digits.
    top = jnp.take_along_axis(to["logits"], jnp.argmax(at["logits"], axis=-1, keepdims=True), axis=-1)
    change = to["logits"] - top
    return jnp.sqrt(p) * (change - jnp.sum(p * change, axis=-1, keepdims=True))


def _categorical_probs(at: Change, to: Change) -> Array:
    p = at["probs"]
    return (to["probs"] - p * jnp.sum(to["probs"], axis=-1, keepdims=True)) / jnp.sqrt(_positive(p))


def _normal(at: Change, to: Change) -> Array:
    return jnp.stack([to["loc"], math.sqrt(2.0) * to["scale"]], axis=-1) / _one(at["scale"])


def _excess(x: Array) -> Array:
    """ψ'(x) − 1/x > 0: by its asymptotic series where the difference would have few digits."""
    far = jnp.maximum(x, 10.0)
    series = (0.5 + (1 / 6 - (1 / 30 - (1 / 42 - 1 / (30 * far**2)) / far**2) / far**2) / far) / far**2
    near = jnp.minimum(x, 10.0)
    return jnp.where(x > 10.0, series, polygamma(1, near) - 1 / near)


def _gamma(at: Change, to: Change) -> Array:
    c, dc = at["concentration"], to["concentration"]
    along = jnp.sqrt(c) * (to["rate"] / at["rate"] - dc / c)
    return jnp.stack([along, jnp.sqrt(_excess(c)) * dc], axis=-1)


def _beta(at: Change, to: Change) -> Array:
    # ψ'(a) da² + ψ'(b) db² − ψ'(a+b) (da+db)², with ψ'(x) = 1/x + excess(x): both parts are positive.
    a, b, da, db = at["concentration1"], at["concentration0"], to["concentration1"], to["concentration0"]
    first = jnp.sqrt(a * b / (a + b)) * (da / a - db / b)
    x, y, both = _excess(a), _excess(b), _excess(a + b)
    lead = _positive(x - both)
    second = jnp.sqrt(lead) * (da - both / lead * db)
    return jnp.stack([first, second, jnp.sqrt(jnp.maximum(y - both - both**2 / lead, 0.0)) * db], axis=-1)


def _multivariate_normal(at: Change, to: Change) -> Array:
    tril = at["scale_tril"]
    loc = solve_triangular(tril, to["loc"][..., None], lower=True)[..., 0]
    scale = jnp.tril(solve_triangular(tril, jnp.tril(to["scale_tril"]), lower=True))
    scale = scale * (1.0 + (math.sqrt(2.0) - 1.0) * jnp.eye(tril.shape[-1], dtype=tril.dtype))
    return jnp.concatenate([loc, scale.reshape(*scale.shape[:-2], -1)], axis=-1)


def _geometric_logits(at: Change, to: Change) -> Array:
    return _one(jnp.exp(0.5 * jax.nn.log_sigmoid(-at["logits"])) * to["logits"])


def _geometric_probs(at: Change, to: Change) -> Array:
    p = at["probs"]
    return _one(to["probs"] / jnp.sqrt(_positive(p * p * (1 - p))))


FAMILIES: dict[type, Family] = {
    dist.BernoulliLogits: Family({"logits": 0}, _bernoulli_logits),
    dist.BernoulliProbs: Family({"probs": 0}, _bernoulli_probs),
    dist.BinomialLogits: Family({"logits": 0, "total_count": 0}, _binomial_logits),
    dist.BinomialProbs: Family({"probs": 0, "total_count": 0}, _binomial_probs),
    dist.CategoricalLogits: Family({"logits": 1}, _categorical_logits, softmax=True),
    dist.CategoricalProbs: Family({"probs": 1}, _categorical_probs),
    OffsetCategorical: Family({"logits": 1}, _categorical_logits, softmax=True),
    dist.GeometricLogits: Family({"logits": 0}, _geometric_logits),
    dist.GeometricProbs: Family({"probs": 0}, _geometric_probs),
    dist.Poisson: Family(
        {"rate": 0}, lambda at, to: _one(to["rate"] / jnp.sqrt(_positive(at["rate"]))), positive=("rate",)
    ),
    dist.Normal: Family({"loc": 0, "scale": 0}, _normal, positive=("scale",)),
    dist.HalfNormal: Family(
        {"scale": 0}, lambda at, to: _one(math.sqrt(2.0) * to["scale"] / at["scale"]), positive=("scale",)
    ),
    dist.Exponential: Family({"rate": 0}, lambda at, to: _one(to["rate"] / at["rate"]), positive=("rate",)),
    dist.Gamma: Family({"concentration": 0, "rate": 0}, _gamma, positive=("concentration", "rate")),
    dist.InverseGamma: Family({"concentration": 0, "rate": 0}, _gamma, positive=("concentration", "rate")),
    dist.Beta: Family(
        {"concentration1": 0, "concentration0": 0}, _beta, positive=("concentration1", "concentration0")
    ),
    dist.MultivariateNormal: Family({"loc": 1, "scale_tril": 2}, _multivariate_normal),
}


def parameters_of(family: Family, bare: Any, shape: tuple[int, ...]) -> dict[str, Array]:
    """Return the parameters of a distribution by name, each with all batch axes.

    Args:
        family: the family of the distribution.
        bare: the distribution.
        shape: its batch shape, with plates and event axes that are independent.
    """
    found = {}
    for name, axes in family.parameters.items():
        value = jnp.asarray(getattr(bare, name))
        value = value.astype(jnp.result_type(value, float))
        found[name] = jnp.broadcast_to(value, shape + value.shape[value.ndim - axes :])
    return found
