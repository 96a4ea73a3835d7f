"""The categorical over a window of integers."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from legrad.distributions.offset_categorical import OffsetCategorical


class TestOffsetCategorical:
    logits = jnp.array([[0.0, 1.0, -1.0], [2.0, 0.0, 0.5]])

    def test_agrees_with_categorical(self):
        d, c = OffsetCategorical(self.logits, low=4), dist.Categorical(logits=self.logits)
        z = d.sample(jax.random.key(0), (5,))
        assert z.shape == (5, 2)
        assert jnp.issubdtype(z.dtype, jnp.integer)
        np.testing.assert_array_equal(z, 4 + c.sample(jax.random.key(0), (5,)))
        np.testing.assert_allclose(d.log_prob(z), c.log_prob(z - 4))
        np.testing.assert_allclose(d.entropy(), c.entropy())
        np.testing.assert_array_equal(d.enumerate_support(False)[:, 0], [4, 5, 6])
        probs = np.exp(d.log_prob(d.enumerate_support()))
        np.testing.assert_allclose(probs.sum(0), 1.0)
        values = np.arange(4, 7)[:, None]
        np.testing.assert_allclose(d.mean, (probs * values).sum(0))
        np.testing.assert_allclose(d.variance, (probs * values**2).sum(0) - d.mean**2)

    def test_outside_is_minus_infinity_with_zero_gradient(self):
        def f(logits, z):
            log_prob = OffsetCategorical(logits, 4).log_prob(z)
            return jnp.where(jnp.isfinite(log_prob), log_prob, 0.0).sum(), log_prob

        for z in (3, 7, -100, 1000):
            gradient, log_prob = jax.grad(f, has_aux=True)(self.logits, jnp.asarray(z))
            assert np.all(np.isneginf(log_prob))
            np.testing.assert_array_equal(gradient, 0.0)

    def test_wrappers_and_pytree(self):
        d = OffsetCategorical(self.logits, low=4)
        assert d.expand((3, 2)).to_event(1).mask(True).has_enumerate_support
        assert d.expand((3, 2)).sample(jax.random.key(0)).shape == (3, 2)
        assert d.to_event(1).log_prob(jnp.array([4, 5])).shape == ()
        masked = d.mask(jnp.array([True, False]))
        assert masked.log_prob(jnp.array([4, 0]))[1] == 0.0
        moved = jax.jit(lambda d: d)(d)
        assert moved.low == 4
        np.testing.assert_array_equal(moved.support(jnp.array([3, 4, 6, 7])), [False, True, True, False])
        batched = jax.vmap(lambda logits: OffsetCategorical(logits, 4).mean)(self.logits)
        np.testing.assert_allclose(batched, d.mean)
