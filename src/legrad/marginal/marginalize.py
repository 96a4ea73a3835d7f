"""`marginalize`: a model without the discrete latents that can be summed out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import handlers
from numpyro.primitives import Messenger

from legrad import _compat
from legrad._compiled import jit
from legrad.marginal.eliminate import Elimination
from legrad.marginal.evaluate import Support, Tables, tables
from legrad.marginal.factors import Factors, collect
from legrad.marginal.plan import (
    Obstacle,
    Plan,
    Run,
    family,
    given_values,
    is_discrete,
    look,
    obstacle,
    plan_for,
    support_of,
)
from legrad.marginal.table import CannotSum
from legrad.marginal.terms import Terms
from legrad.marginal.windows import WINDOW, escaped, is_unbounded, located, near, watch
from legrad.model.arrays import map_in_batches
from legrad.model.keys import Key, as_key
from legrad.singlesite.together import all_of

LIMIT = 4096
_TOGETHER = 64  # draws that are computed together


class Recovered(NamedTuple):
    """The discrete sites that were summed out, given draws of all others.

    Attributes:
        draws: for each site a joint draw of its elements, or their most likely values: (draws, *shape).
        probabilities: for each site the probability of each value of each element: (draws, *shape, values).
        support: for each site its values, in the shape of `probabilities`; the window of a count moves with the draw.
    """

    draws: dict[str, Any]
    probabilities: dict[str, Any]
    support: dict[str, Any]


class _Start(NamedTuple):
    """Where a sum starts: the terms, the supports of sites, the sites, and the scales of their elements."""

    terms: Terms
    supports: dict[str, Support]
    sites: dict[str, Any]
    scales: dict[str, Any]


class _Graph(NamedTuple):
    """Factors, the supports of all sites and of elements whose value is given, and the tables they are made from."""

    factors: Factors
    supports: dict[str, Support]
    tables: Tables


class Marginal:
    """A NumPyro model without the discrete latents that can be summed out; see `marginalize`."""

    def __init__(self, model: Callable[..., Any], sites: Sequence[str] | None, limit: int, window: int) -> None:
        self.model, self.sites, self.limit, self.window = model, sites, limit, window
        self._plans: dict[Any, Plan] = {}
        self._warned: set[str] = set()
        self._last: tuple[tuple[Any, ...], dict[str, Any]] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model; a factor holds the sum over the latents that are summed out."""
        plan = self.plan(*args, **kwargs)
        if all(_compat.is_concrete(leaf) for leaf in jax.tree.leaves((args, kwargs))):
            self._last = args, kwargs
        if not plan.summed:
            return self.model(*args, **kwargs)
        with handlers.trace() as trace, _Hide(plan):
            returned = self.model(*args, **kwargs)
        try:
            total = self.total(plan, given_values(trace), args, kwargs)
        except CannotSum as error:  # arguments of the same shapes could be summed before
            name, reason = obstacle(error, plan)
            raise ValueError(
                f"site '{name}' cannot be summed out for these arguments: {reason}. Arrays that say which elements "
                "meet must be numbers while the model is traced: let the model close over them instead of passing "
                "them as arguments of a compiled function"
            ) from error
        numpyro.factor(_factor_name(plan), total)
        return returned

    def summed(self, *args: Any, **kwargs: Any) -> tuple[str, ...]:
        """Return the names of the sites that are summed out, for these arguments of the model."""
        return self.plan(*args, **kwargs).summed

    def is_exact(self, *args: Any, **kwargs: Any) -> bool:
        """Whether every latent is summed out, for these arguments of the model."""
        plan = self.plan(*args, **kwargs)
        return bool(plan.summed) and set(plan.shapes) == set(plan.summed)

    def draw(
        self, key: jax.Array, draws: Mapping[str, Any], number: int, *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        """Draw the summed sites once for each of a number of draws of all other latents, with one leading axis.

        Args:
            key: a random key.
            draws: draws of the other latents, by name; empty if every latent is summed out.
            number: the number of draws.
            args: the arguments of the model.
            kwargs: keyword arguments of the model.
        """
        plan = self.plan(*args, **kwargs)
        given = {name: jnp.asarray(draws[name]) for name in plan.shapes if name not in plan.summed}

        def one(item: tuple[Any, Any]) -> dict[str, Any]:
            found = self.graph(plan, item[0], args, kwargs)
            chosen = found.draw(item[1])
            return {name: _at(found.supports[name], chosen[name]) for name in plan.summed}

        run = jit(lambda items: map_in_batches(one, items, _TOGETHER))
        return run((given, jax.random.split(key, number)))

    def recover(
        self, key: Key, draws: Mapping[str, Any], *args: Any, most_likely: bool = False, **kwargs: Any
    ) -> Recovered:
        """Draw the summed sites given draws of all other latents; return also their exact probabilities.

        Args:
            key: a random key.
            draws: draws of the other latents by name, such as `mcmc.get_samples()`, with leading axes for draws.
            args: the arguments of the model; those of the model's last run if none are given.
            most_likely: return the jointly most likely values instead of a draw.
            kwargs: keyword arguments of the model.
        """
        if not args and not kwargs and self._last is not None:
            args, kwargs = self._last
        plan = self.plan(*args, **kwargs)
        missing = [name for name in plan.shapes if name not in draws and name not in plan.summed]
        if missing:
            raise ValueError(
                f"`draws` has no site '{missing[0]}', which the model samples: pass draws of all latents that are "
                "not summed out, such as mcmc.get_samples()"
            )
        given = {name: jnp.asarray(draws[name]) for name in plan.shapes if name not in plan.summed}
        if not given:
            return _first(self._recovered(plan, {}, jax.random.split(as_key(key), 1), most_likely, args, kwargs))
        name = next(iter(given))
        lead = given[name].shape[: given[name].ndim - len(plan.shapes[name])]
        flat = {k: v.reshape(-1, *v.shape[len(lead) :]) for k, v in given.items()}
        found = self._recovered(plan, flat, jax.random.split(as_key(key), math.prod(lead)), most_likely, args, kwargs)
        return jax.tree.map(lambda x: x.reshape(*lead, *x.shape[1:]), found)

    def _recovered(self, plan: Plan, given: Any, keys: Any, most_likely: bool, args: Any, kwargs: Any) -> Recovered:
        def one(item: tuple[Any, Any]) -> Recovered:
            values, key = item

            def total(offsets: Any) -> Any:
                return self.graph(plan, values, args, kwargs, offsets).total

            zero = {name: jnp.zeros(shape) for name, shape in self._table_shapes(plan, values, args, kwargs).items()}
            probabilities = jax.grad(total)(zero)
            found = self.graph(plan, values, args, kwargs, best=most_likely)
            chosen = found.draw(key)
            drawn, support, shares = {}, {}, {}
            for name in plan.summed:
                s = found.supports[name]
                every = jnp.broadcast_to(s.values, (s.size, *s.shape))
                drawn[name] = _at(s, chosen[name])
                shares[name] = jnp.moveaxis(probabilities[name].reshape(s.size, *s.shape), 0, -1)
                support[name] = jnp.moveaxis(every, 0, -1)
            return Recovered(drawn, shares, support)

        run = jit(lambda items: map_in_batches(one, items, _TOGETHER))
        return run((given, keys))

    def _table_shapes(self, plan: Plan, values: Any, args: Any, kwargs: Any) -> dict[str, tuple[int, int]]:
        found = jax.eval_shape(lambda: self.graph(plan, values, args, kwargs).factors.potentials)
        return {name: found[name].shape for name in plan.summed}

    # --- the sum --------------------------------------------------------------------------------------------

    def total(self, plan: Plan, values: dict[str, Any], args: Any, kwargs: Any) -> Any:
        """Return the sum of the terms that depend on the summed sites, at given values of everything else."""
        start = self._start(plan, values, args, kwargs)
        counts = [name for name in plan.summed if is_unbounded(start.sites[name])]

        def moved() -> Any:
            graph = self._factors(
                start.terms, located(lambda s: self._factors(start.terms, s).factors, start.supports, start.sites)
            )
            for name in counts:
                share = escaped(graph.factors, graph.supports, name)
                watch(share, name, self.window, self._warned)
            return self._eliminated(graph, start).total

        if not counts:
            return self._eliminated(self._factors(start.terms, start.supports), start).total
        graph = self._factors(start.terms, near(start.supports, start.sites))
        left_out = jnp.stack([escaped(graph.factors, graph.supports, name) for name in counts])
        enough = all_of(jnp.max(left_out) < jnp.finfo(left_out.dtype).eps)
        return jax.lax.cond(enough, lambda: self._eliminated(graph, start).total, jax.checkpoint(moved))

    def graph(
        self,
        plan: Plan,
        values: dict[str, Any],
        args: Any,
        kwargs: Any,
        offsets: Mapping[str, Any] | None = None,
        best: bool = False,
    ) -> Elimination:
        """Sum the terms, and keep what is needed to draw the summed sites; windows are moved to where they matter.

        Args:
            plan: what is summed.
            values: the values of everything else.
            args: positional arguments of the model.
            kwargs: keyword arguments of the model.
            offsets: numbers to add to the potentials of sites; the sum's derivatives by them are probabilities.
            best: take maxima instead of sums.
        """
        start = self._start(plan, values, args, kwargs)
        supports = start.supports
        if any(is_unbounded(start.sites[name]) for name in plan.summed):
            supports = located(lambda s: self._factors(start.terms, s).factors, supports, start.sites)
        graph = self._factors(start.terms, supports)
        for name, offset in (offsets or {}).items():
            graph.factors.potentials[name] = graph.factors.potentials[name] + offset
        return self._eliminated(graph, start, best)

    def _start(self, plan: Plan, values: dict[str, Any], args: Any, kwargs: Any) -> _Start:
        terms = Terms(self.model, args, kwargs, plan, values)
        sites = terms.sites({name: jnp.zeros(plan.shapes[name], int) for name in plan.summed})
        supports, scales, first = {}, {}, 0
        for name in plan.summed:
            supports[name], scales[name] = support_of(sites[name], first, self.window)
            first += supports[name].count
        return _Start(terms, supports, sites, scales)

    def _eliminated(self, graph: _Graph, start: _Start, best: bool = False) -> Elimination:
        try:
            return Elimination(graph.factors.copy(), graph.supports, start.scales, self.limit, best)
        except CannotSum as error:
            error.term = graph.tables.meeting(error.elements)
            raise

    def _factors(self, terms: Terms, supports: dict[str, Support]) -> _Graph:
        try:
            found = tables(terms, supports, self.limit)
        except CannotSum:
            found = tables(terms, supports, self.limit, share=False)
        every = supports | found.given
        dtype = jnp.result_type(float, *(table.values for table in found.tables))
        return _Graph(collect(found.tables, every, found.potentials, dtype), every, found)

    # --- what is summed -------------------------------------------------------------------------------------

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """Find out what can be summed, once for each shape of the arguments."""
        key = _signature(args, kwargs)
        if key not in self._plans:
            self._plans[key] = self._make_plan(args, kwargs)
        return self._plans[key]

    def _make_plan(self, args: Any, kwargs: Any) -> Plan:
        run = look(self.model, args, kwargs)
        wanted = self._wanted(run)
        kept: dict[str, Obstacle] = {}
        for name in list(wanted):
            try:
                support_of(run.latents[name], 0, self.window)
            except ValueError as error:
                self._keep(name, Obstacle(str(error)), wanted, kept)
        while True:
            plan = plan_for(wanted, run, kept)
            if not wanted:
                return plan
            values = {name: value for name, value in given_values(run.trace).items() if name not in wanted}
            try:
                jax.eval_shape(lambda p=plan, v=values: self.total(p, v, args, kwargs))
                return plan
            except CannotSum as error:
                self._keep(*obstacle(error, plan), wanted, kept)

    def _wanted(self, run: Run) -> list[str]:
        """Return the sites to sum, if they can be found and are discrete."""
        discrete = [name for name, site in run.latents.items() if is_discrete(site)]
        if self.sites is None:
            return discrete
        for name in self.sites:
            if name not in run.latents:
                known = ", ".join(f"'{other}'" for other in discrete) or "it has none"
                raise ValueError(f"the model has no latent site '{name}' to sum out; its discrete latents: {known}")
            if name not in discrete:
                raise ValueError(
                    f"site '{name}' is continuous ({family(run.latents[name])}) and cannot be summed out: name "
                    f"discrete sites ({', '.join(discrete) or 'the model has none'}), or leave `sites` out"
                )
        return list(self.sites)

    def _keep(self, name: str, reason: Obstacle, wanted: list[str], kept: dict[str, Obstacle]) -> None:
        if self.sites is not None:
            raise ValueError(
                f"site '{name}' cannot be summed out: {reason}. Leave it out of `sites`, so that it stays a latent; "
                f"or pass a larger limit= (now {self.limit:,}) if the sum is affordable"
            )
        wanted.remove(name)
        kept[name] = reason


def marginalize(
    model: Callable[..., Any], sites: Sequence[str] | None = None, *, limit: int = LIMIT, window: int = WINDOW
) -> Marginal:
    """Sum the discrete latents of a model out, exactly, wherever that can be done.

    Args:
        model: a NumPyro model.
        sites: the names of the sites to sum; all that can be summed if None.
        limit: the largest number of joint values in one table of the sum.
        window: how many values of a count without an upper end are summed.

    Returns:
        A NumPyro model for NUTS, SVI, Predictive or `legrad.fit`. Its `recover` draws the summed sites back;
        `summed` names them.

    Example:
        >>> marginal = legrad.marginalize(mixture)
        >>> mcmc = MCMC(NUTS(marginal), num_warmup=500, num_samples=1000)
        >>> mcmc.run(key, y)
        >>> z = marginal.recover(key, mcmc.get_samples(), y).draws["z"]
    """
    if not callable(model):
        raise TypeError(f"model={model!r} is not a NumPyro model: pass the function that samples")
    for name, value in (("limit", limit), ("window", window)):
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}={value!r} is not a positive integer")
    if isinstance(model, Marginal):
        return model
    if isinstance(sites, str):
        sites = [sites]
    return Marginal(model, None if sites is None else tuple(sites), limit, window)


class _Hide(Messenger):
    """Hide the summed sites from the handlers outside, and take the terms that depend on them out of the density.

    A summed site is drawn from its prior if there is a key, so that prior and posterior predictive draws are right.
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__(None)
        self.plan = plan
        self.key: Any = None

    def __enter__(self) -> Any:
        self.key = numpyro.prng_key()
        return super().__enter__()

    def process_message(self, msg: dict[str, Any]) -> None:
        name = msg.get("name")
        if msg["type"] == "control_flow" and self.key is None:
            data = {site: jnp.zeros(self.plan.shapes[site], int) for site in self.plan.summed}
            msg["kwargs"].setdefault("substitute_stack", []).append(("substitute", data))
        if msg["type"] == "deterministic" and name in self.plan.hidden:
            msg["stop"] = True
        if msg["type"] != "sample":
            return
        if name in self.plan.summed:
            msg["stop"] = True
            if msg["value"] is None and self.key is None:
                msg["value"] = _first_value(msg)
            elif msg["value"] is None:
                self.key, msg["kwargs"]["rng_key"] = jax.random.split(self.key)
        elif name in self.plan.touched:
            msg["fn"] = msg["fn"].mask(False)


def _at(support: Support, index: Any) -> jax.Array:
    """Return the values of a site by the place of each element's value in its support."""
    every = jnp.broadcast_to(support.values, (support.size, *support.shape)).reshape(support.size, support.count)
    return every[index, jnp.arange(support.count)].reshape(support.shape)


def _first_value(msg: dict[str, Any]) -> Any:
    fn = msg["fn"]
    shape = fn.shape(msg["kwargs"].get("sample_shape", ()))
    return jnp.zeros(shape, int) if not hasattr(fn, "low") else jnp.broadcast_to(jnp.asarray(fn.low), shape)


def _factor_name(plan: Plan) -> str:
    return "sum over " + ", ".join(plan.summed[:3]) + (" and others" if len(plan.summed) > 3 else "")


def _first(found: Recovered) -> Recovered:
    return jax.tree.map(lambda x: x[0], found)


def _signature(args: Any, kwargs: Any) -> Any:
    leaves, structure = jax.tree.flatten((args, kwargs))
    return structure, tuple((jnp.shape(x), str(jnp.result_type(x))) if _is_array(x) else repr(x) for x in leaves)


def _is_array(x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray)
