"""ReGrad: the reparameterization trick, with the total derivative.

∇ E_q[f] = E_ε[ ∇ f(x(ε)) ],    x(ε) the guide's sample as a differentiable function of noise and parameters
"""

from __future__ import annotations

import jax

from legrad.estimators.base import Estimator, draws, over_draws, require_positive
from legrad.model.problem import Noise, Problem


class Reparameterized(Estimator):
    """The pathwise estimator, for guides in which every latent is reparameterizable.

    Args:
        num_samples: the number of draws averaged in one estimate.

    References:
        Kingma, Welling (2013). Rezende, Mohamed, Wierstra (2014). Titsias, Lázaro-Gredilla (2014).
    """

    def __init__(self, num_samples: int = 1) -> None:
        require_positive(num_samples=num_samples)
        super().__init__(num_particles=num_samples)
        self.num_samples = num_samples

    def estimate(self, problem: Problem, key: jax.Array) -> jax.Array:
        """See `Estimator.estimate`."""

        def one(noise: Noise) -> jax.Array:
            pivot = problem.draw(noise)
            for name, factor in pivot.items():
                if not factor.fn.has_rsample:
                    kind = "discrete" if factor.fn.is_discrete else "not reparameterizable"
                    raise ValueError(
                        f"site '{name}' of the guide is {factor.family}, which is {kind}: "
                        "use legrad.LocalExpectation(), which takes its expectation locally, or "
                        "legrad.ScoreFunction()"
                    )
            return problem.evaluate({}, noise, pivot=pivot).total()

        return over_draws(one, draws(key, self.num_samples)).mean()
