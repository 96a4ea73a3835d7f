"""Distributions that NumPyro lacks.

`OffsetCategorical` is a categorical over consecutive integers, p(z = low + k) = softmax(logits)_k: the factor
of a latent whose support does not start at zero, or of a count cut to a window.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from numpyro.distributions import constraints
from numpyro.distributions.util import lazy_property


class OffsetCategorical(dist.Distribution):
    r"""A categorical over the integers low, ..., low + K - 1.

    .. math:: p(z = \mathrm{low} + k) = \mathrm{softmax}(\mathrm{logits})_k, \qquad k = 0, \dots, K - 1

    The log-probability of any other value is minus infinity, with a gradient of zero.

    Args:
        logits: array with the K values on its last axis.
        low: the smallest value, a Python integer.
        validate_args: as in every NumPyro distribution.

    Example:
        >>> import jax.numpy as jnp
        >>> OffsetCategorical(jnp.zeros(3), low=5).enumerate_support().tolist()
        [5, 6, 7]
    """

    arg_constraints = {"logits": constraints.real_vector}  # noqa: RUF012
    pytree_aux_fields = ("low",)
    has_enumerate_support = True

    def __init__(self, logits: jax.Array, low: int = 0, *, validate_args: bool | None = None) -> None:
        if jnp.ndim(logits) < 1:
            raise ValueError("`logits` needs at least one axis, that of the K values.")
        self.logits = logits
        self.low = low
        super().__init__(batch_shape=jnp.shape(logits)[:-1], validate_args=validate_args)

    @lazy_property
    def probs(self) -> jax.Array:
        """The probability of each value, on the last axis."""
        return jax.nn.softmax(self.logits, axis=-1)

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self) -> Any:
        """The integers low, ..., low + K - 1."""
        return constraints.integer_interval(self.low, self.low + self.logits.shape[-1] - 1)

    def sample(self, key: jax.Array, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        """Draw integers of shape `sample_shape + batch_shape`."""
        return self.low + dist.Categorical(logits=self.logits).sample(key, sample_shape)

    def log_prob(self, value: jax.Array, intermediates: Any = None) -> jax.Array:
        """Return the log-probability of each value; minus infinity outside the support."""
        inside = self.support(jnp.asarray(value))
        index = jnp.where(inside, jnp.asarray(value) - self.low, 0).astype(int)
        return jnp.where(inside, dist.Categorical(logits=self.logits).log_prob(index), -jnp.inf)

    def enumerate_support(self, expand: bool = True) -> jax.Array:
        """Return all values along a new first axis."""
        return self.low + dist.Categorical(logits=self.logits).enumerate_support(expand)

    def entropy(self) -> jax.Array:
        """Return the entropy in nats."""
        return dist.Categorical(logits=self.logits).entropy()

    @property
    def mean(self) -> jax.Array:
        """Expected value."""
        return self.low + self.probs @ jnp.arange(self.logits.shape[-1], dtype=self.probs.dtype)

    @property
    def variance(self) -> jax.Array:
        """Variance."""
        k = jnp.arange(self.logits.shape[-1], dtype=self.probs.dtype)
        return jnp.sum(self.probs * (k - (self.probs @ k)[..., None]) ** 2, axis=-1)
