"""What is looked at before a fit begins: the data, and the ELBO of the first draw, term by term."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from legrad.fitting.arrays import split_arrays
from legrad.problem import Noise, Problem


def check_start(problem: Problem, key: jax.Array) -> None:
    """Raise where the data or the initial ELBO is not finite, naming the site."""
    arrays, rebuild = split_arrays((problem.args, dict(problem.kwargs)))

    @jax.jit
    def look(params: dict, arrays: list) -> tuple[dict, dict]:
        here = Problem(problem.model, problem.guide, params, *rebuild(arrays))
        noise = Noise(*jax.random.split(key))
        evaluation = here.evaluate({}, noise, pivot=here.draw(noise))
        bad = {name: jnp.sum(~jnp.isfinite(value)) for name, value in evaluation.observed.items()}
        return bad, {name: jnp.sum(term) for name, term in evaluation.terms().items()}

    bad, terms = jax.device_get(look(dict(problem.params), arrays))
    for name, count in bad.items():
        if count:
            raise ValueError(
                f"the data of site '{name}' holds {int(count)} values that are NaN or infinite: drop them, or mask "
                "them with numpyro.handlers.mask"
            )
    for name, total in terms.items():
        if not np.isfinite(total):
            raise ValueError(
                f"the initial ELBO is not finite: {name} is {float(total)} at the first draw. Check the data and the "
                "initial parameters of that site, and that the guide's support lies inside the model's"
            )
