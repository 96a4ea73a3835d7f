"""A model as a simulator: latents and data drawn together, and the model conditioned on the drawn data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.distributions import ImproperUniform
from numpyro.infer import init_to_sample
from numpyro.ops.provenance import eval_provenance

from legrad.diagnostics.replay import Trace, full_shape, is_factor, latent_sites, observed_sites, replay
from legrad.distributions.unwrap import unwrap
from legrad.model.log_density import LogDensity
from legrad.model.problem import Noise, Problem
from legrad.model.threads import one_at_a_time

Data = dict[str, jax.Array]


class Simulator:
    """A model at given arguments, whose observed sites can be drawn as well.

    `conditioned` is a model of one argument, the data by site; guides take the same argument.

    Args:
        model: a NumPyro model.
        args: the positional arguments of the model.
        kwargs: the keyword arguments of the model.
        observed: sites that hold data although these arguments give them none.
        key: the random key of a trial run of the model.

    Attributes:
        data: the sites that hold data.
        counted: for each latent, which elements have a prior; the other elements are masked.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        observed: Sequence[str],
        key: jax.Array,
    ) -> None:
        if isinstance(model, LogDensity):
            raise TypeError("a legrad.log_density cannot be simulated: calibrate a NumPyro model")
        if not isinstance(args, tuple):
            raise TypeError(f"args is a {type(args).__name__}: pass the model's arguments as a tuple, args=(X, y)")
        self.model, self.args, self.kwargs = model, args, kwargs
        # An improper prior cannot be drawn from: with this strategy the run gets as far as the message about it.
        start = handlers.substitute(substitute_fn=init_to_sample)
        self.trace = replay(handlers.seed(model, key), args, kwargs, key, {}, start)
        self.data = _data_sites(self.trace, observed)
        _check_simulable(self.trace, self.data)
        latents = {n: s for n, s in latent_sites(self.trace).items() if n not in self.data}
        if not latents:
            raise ValueError("the model has no latent site: there is nothing to calibrate")
        self.counted = {name: _counted(site) for name, site in latents.items()}

    def draw(self, key: jax.Array) -> tuple[Data, Data]:
        """Draw latents and data from the model."""
        trace = replay(self.model, self.args, self.kwargs, key, {}, handlers.uncondition())
        return {n: trace[n]["value"] for n in self.counted}, {n: trace[n]["value"] for n in self.data}

    def conditioned(self, data: Data) -> Any:
        """Run the model conditioned on data."""
        return handlers.condition(self.model, data=data)(*self.args, **self.kwargs)

    def guide_on_data(
        self, guide: Callable[..., Any], guide_args: Callable[[Data], tuple[Any, ...]] | None
    ) -> Callable[[Data], Any]:
        """Return the guide as a function of the data."""
        if isinstance(guide, type) or (isinstance(guide, partial) and isinstance(guide.func, type)):
            return guide(self.conditioned)
        if guide_args is not None:
            return lambda data: guide(*guide_args(data), **self.kwargs)
        leaves, structure = jax.tree.flatten((self.args, self.kwargs))
        # Whole numbers are not replaced: Python shares them, and a size may be the same object as a datum.
        readable = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array | np.ndarray | float)]
        site = {i: n for i in readable for n in self.data if leaves[i] is self.trace[n]["value"]}

        def on_data(data: Data) -> Any:
            full = [data[site[i]] if i in site else leaf for i, leaf in enumerate(leaves)]
            args, kwargs = jax.tree.unflatten(structure, full)
            return guide(*args, **kwargs)

        self._check_reads(guide, leaves, structure, site)
        return on_data

    def check_guide(
        self, guide: Callable[[Data], Any], params: Mapping[str, Any], data: Data, key: jax.Array
    ) -> None:
        """Raise if guide and model do not match."""
        problem = Problem(self.conditioned, guide, params, (data,))

        def look(noise: Noise) -> Any:
            return problem.evaluate({}, noise, pivot=problem.draw(noise)).terms()

        jax.eval_shape(look, Noise(*jax.random.split(key)))

    def _check_reads(self, guide: Callable[..., Any], leaves: list, structure: Any, replaced: Mapping) -> None:
        """Raise for a guide that reads data from an argument that the simulated data would not replace."""
        arrays = {
            f"leaf {i}": leaf
            for i, leaf in enumerate(leaves)
            if i not in replaced and isinstance(leaf, jax.Array | np.ndarray)
        }
        with one_at_a_time:
            handlers.seed(guide, 0)(*self.args, **self.kwargs)  # MeanField reads its model once, concretely

        def program(**given: Any) -> tuple[list, list]:
            key = jax.random.key(0)
            full = [given.get(f"leaf {i}", leaf) for i, leaf in enumerate(leaves)]
            args, kwargs = jax.tree.unflatten(structure, full)
            model, q = (replay(f, args, kwargs, key, {}) for f in (self.model, guide))
            seen = [s["value"] for s in q.values() if s["type"] == "sample"]
            return [model[n]["value"] for n in self.data if model[n]["is_observed"]], seen

        of_data, of_guide = eval_provenance(program, **arrays) if arrays else ([], [])
        if frozenset().union(*of_data) & frozenset().union(*of_guide):
            raise ValueError(
                "the guide reads the data from an argument that is not itself a site's obs, so simulated data cannot "
                "replace it: pass guide_args=lambda data: (...), the guide's arguments as a function of data by site"
            )


def _data_sites(trace: Trace, named: Sequence[str]) -> list[str]:
    if isinstance(named, str):
        raise TypeError(f"observed='{named}': pass a list of names, observed=['{named}']")
    known = [name for name, site in trace.items() if site["type"] == "sample"]
    if unknown := [name for name in named if name not in known]:
        raise ValueError(
            f"observed names '{unknown[0]}', which is not a site of the model: it has {', '.join(known)}"
        )
    data = list(dict.fromkeys([*observed_sites(trace), *named]))
    if not data:
        raise ValueError(
            "the model observes nothing with these arguments: pass its data, or name the sites that hold data, "
            "observed=['y']"
        )
    return data


def _check_simulable(trace: Trace, data: Sequence[str]) -> None:
    """Raise if drawing from the model is not drawing from the density that is fitted."""
    for name, site in trace.items():
        problem = None
        if site["type"] in ("param", "mutable"):
            problem = "is a parameter without a prior: give it one, or fix it with numpyro.handlers.substitute"
        elif site["type"] == "plate" and site["args"][1] not in (None, site["args"][0]):
            problem = "is a plate that subsamples: every fit needs all of its data; remove subsample_size"
        elif site["type"] == "sample":
            bare = unwrap(site["fn"]).bare
            if is_factor(site):
                problem = "is a numpyro.factor, which cannot be simulated: write it as a sample site"
            elif isinstance(bare, ImproperUniform):
                problem = "has an improper prior, which cannot be simulated: give it a proper prior"
            elif site["scale"] is not None and not np.all(np.asarray(site["scale"]) == 1):
                problem = "is scaled, and its density is not the one it is drawn from: remove numpyro.handlers.scale"
            elif name in data and site["is_observed"] and "_scan_current_index" in site["infer"]:
                problem = (
                    "has data inside scan, which later steps may read: pass None for the data and "
                    f"observed=['{name}']"
                )
        if problem:
            raise ValueError(f"site '{name}' of the model {problem}")


def _counted(site: Any) -> np.ndarray:
    bare, mask = unwrap(site["fn"])
    shape = full_shape(site)
    if mask is None:
        return np.ones(shape, bool)
    return np.broadcast_to(jnp.reshape(mask, jnp.shape(mask) + (1,) * bare.event_dim), shape)
