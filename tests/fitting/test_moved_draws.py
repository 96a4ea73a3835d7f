"""The mixture that covers a posterior to which no Gaussian is close."""

import numpy as np
import pytest

from legrad.diagnostics.psis import smoothed_weights
from legrad.fitting.fixed_draws import Gaussian
from legrad.fitting.moved_draws import Mixture, _log_normal, cover


class Banana:
    """x₀ ~ Normal(0, 1), x₁ ~ Normal(x₀², 0.5), and six latents more that are standard Normal."""

    size = 8

    def many(self, xs):
        away = (xs[:, 1] - xs[:, 0] ** 2) / 0.5
        return -0.5 * (xs[:, 0] ** 2 + away**2 + (xs[:, 2:] ** 2).sum(1))

    def many_gradients(self, xs):
        rest = (xs[:, 1] - xs[:, 0] ** 2) / 0.25
        return self.many(xs), np.column_stack([-xs[:, 0] + 2 * xs[:, 0] * rest, -rest, -xs[:, 2:]])


MEAN, SD = np.array([0.0, 1.0, *[0.0] * 6]), np.array([1.0, 1.5, *[1.0] * 6])


@pytest.mark.long
def test_a_banana_is_covered():
    tril = np.diag([0.5, 0.55, *[1.0] * 6])  # what the ELBO prefers: the tip
    q = Gaussian(np.zeros(8), tril)
    x = q.at(np.random.default_rng(0).normal(size=(6144, 8)))
    _, alone = smoothed_weights(Banana().many(x) - _log_normal(x, q))
    found = cover(Banana(), q, q, 0)
    assert alone > 0.7
    assert found.khat < 0.7
    np.testing.assert_allclose(found.mean, MEAN, atol=0.15)
    np.testing.assert_allclose(found.sd, SD, rtol=0.25)  # of the Gaussian: 0.55 for 1.5


def test_a_mixture_has_the_density_of_its_draws():
    rng = np.random.default_rng(1)
    loc, tril = rng.normal(size=(3, 2)) * 3, np.linalg.cholesky(np.stack([np.eye(2) + 0.3 * k for k in range(3)]))
    mixture = Mixture(np.array([0.5, 0.3, 0.2]), loc, tril)
    x = mixture.draw(40_000, rng)
    inside = np.abs(x).max(1) < 8
    grid = np.linspace(-8, 8, 161)
    points = np.stack([g.ravel() for g in np.meshgrid(grid, grid)], 1)
    mass = np.exp(mixture.log_density(points)).sum() * 0.1**2
    assert mass == pytest.approx(inside.mean(), abs=0.01)
    assert x[inside].mean(0) == pytest.approx(np.exp(mixture.log_density(points)) @ points * 0.1**2 / mass, abs=0.05)


def test_nothing_is_covered_where_no_draw_has_a_density():
    class Nowhere(Banana):
        def many(self, xs):
            return np.full(len(xs), -np.inf)

    q = Gaussian(np.zeros(8), np.eye(8))
    assert cover(Nowhere(), q, q, 0) is None
