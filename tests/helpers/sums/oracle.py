"""The truth about discrete latents, by running a model at every joint configuration of them.

    log Σ_z p(z, x, y),    P(z | x, y),    P(z_e = k | x, y),    argmax_z p(z, x, y)

Nothing here reads the structure of a model: a configuration is substituted, NumPyro's log_density does the rest. That
is right where no scale surrounds a latent. Where one does, the sum is inside a member and the scale outside, which no
sum over whole configurations can say: the generated models with such scales bring their density, written by hand.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import logsumexp
from numpyro import handlers
from numpyro.infer.util import log_density

Values = dict[str, Any]
MOST = 200_000  # configurations


def discrete_latents(
    model: Callable[..., Any], args: tuple, kwargs: Mapping[str, Any], given: Values
) -> dict[str, Any]:
    """Return the statements of the discrete latents that `given` leaves open, by name."""
    seeded = handlers.seed(handlers.substitute(model, data=given), jax.random.key(0))
    trace = handlers.trace(seeded).get_trace(*args, **kwargs)
    return {
        name: site
        for name, site in trace.items()
        if site["type"] == "sample"
        and not site["is_observed"]
        and site["fn"].support.is_discrete
        and name not in given
    }


def listed(law: dist.Distribution) -> Any:
    """Return the values of one element of a distribution."""
    while isinstance(law, dist.Independent | dist.ExpandedDistribution | dist.MaskedDistribution):
        law = law.base_dist
    return law.enumerate_support(expand=False)


class Enumeration:
    """Hold every joint configuration of the discrete latents of a model that `fixed` leaves open.

    `supports` gives the values of sites whose distribution cannot list them: counts without an upper end, ends that
    depend on data. `fixed` holds what is neither summed nor differentiated: subsamples of plates, latents left over.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        args: tuple,
        x: Values,
        *,
        kwargs: Mapping[str, Any] | None = None,
        supports: Mapping[str, Any] | None = None,
        fixed: Values | None = None,
    ) -> None:
        self.model, self.args, self.kwargs, self.fixed = model, args, dict(kwargs or {}), dict(fixed or {})
        sites = discrete_latents(model, self.args, self.kwargs, x | self.fixed)
        self.supports, self.shapes, dtypes = {}, {}, {}
        for name, site in sites.items():
            given = (supports or {}).get(name)
            values = listed(site["fn"]) if given is None else given
            self.supports[name] = np.asarray(values).reshape(-1)
            self.shapes[name], dtypes[name] = np.shape(site["value"]), np.asarray(site["value"]).dtype
        self.sizes = {name: int(np.prod(shape)) for name, shape in self.shapes.items()}
        axes = [range(len(self.supports[name])) for name, size in self.sizes.items() for _ in range(size)]
        assert np.prod([float(len(axis)) for axis in axes]) <= MOST, "too many configurations: make the model smaller"
        rows = np.array(list(itertools.product(*axes)), int).reshape(-1, len(axes))
        self.indices, start = {}, 0
        for name, size in self.sizes.items():
            self.indices[name] = rows[:, start : start + size].reshape(-1, *self.shapes[name])
            start += size
        self.values = {
            name: jnp.asarray(self.supports[name][index], dtypes[name]) for name, index in self.indices.items()
        }

    def joint(self, x: Values, keep: np.ndarray | None = None) -> jax.Array:
        """Return log p(z, x, y) for each configuration z, or for those in `keep`."""
        values = self.values if keep is None else {name: v[keep] for name, v in self.values.items()}

        def one(z: Values) -> jax.Array:
            return log_density(self.model, self.args, self.kwargs, x | self.fixed | z)[0]

        return jax.vmap(one)(values) if values else one({})[None]

    def value_and_gradient(self, x: Values) -> tuple[jax.Array, Values]:
        """Return log Σ_z p(z, x, y) and its gradient; what has probability zero takes no part in either."""
        keep = np.flatnonzero(np.isfinite(np.asarray(jax.jit(self.joint)(x))))
        return jax.jit(jax.value_and_grad(lambda x: logsumexp(self.joint(x, keep))))(x)

    def posterior(self, x: Values) -> np.ndarray:
        """Return P(z | x, y) for each configuration."""
        return np.asarray(jax.nn.softmax(jax.jit(self.joint)(x)))

    def probabilities(self, x: Values) -> dict[str, np.ndarray]:
        """Return P(z_e = k | x, y) for each site, of shape (*site shape, K)."""
        weights = self.posterior(x)
        found = {}
        for name, index in self.indices.items():
            each = [np.tensordot(weights, index == k, 1) for k in range(len(self.supports[name]))]
            found[name] = np.stack(each, -1)
        return found

    def position(self, draws: Values) -> np.ndarray:
        """Return which configuration each draw is, as an index into `posterior`."""
        position = np.zeros(len(next(iter(draws.values()))), int)
        for name, size in self.sizes.items():
            support = self.supports[name]
            order = np.argsort(support)
            flat = np.asarray(draws[name]).reshape(len(position), size)
            index = order[np.clip(np.searchsorted(support[order], flat), 0, len(support) - 1)]
            assert (support[index] == flat).all(), f"a draw of {name!r} is outside its support"
            for column in index.T:
                position = position * len(support) + column
        return position


def close(actual: Any, expected: Any, tolerance: float) -> bool:
    """Tell whether all numbers agree to a tolerance, relative to the largest of them (at least 1)."""
    leaves, truth = jax.tree.leaves(actual), jax.tree.leaves(expected)
    if len(leaves) != len(truth):
        return False
    for a, b in zip(leaves, truth, strict=True):
        a, b = np.asarray(a), np.asarray(b)
        if a.shape != b.shape or not np.isfinite(a).all():
            return False
        if (np.abs(a - b) > tolerance * max(1.0, np.abs(b).max(initial=0.0))).any():
            return False
    return True
