"""`marginalize`: a model without the discrete latents that can be summed out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import handlers
from numpyro.primitives import Messenger

from legrad import _compat
from legrad.distributions.finite import enumerate_values
from legrad.distributions.unwrap import unwrap
from legrad.marginal.eliminate import Elimination
from legrad.marginal.evaluate import Support, tables
from legrad.marginal.factors import Factors, collect
from legrad.marginal.table import CannotSum
from legrad.marginal.windows import WINDOW, is_unbounded, located
from legrad.model.sites import sample_sites, site_log_prob
from legrad.model.threads import one_at_a_time
from legrad.trace.concrete import read

LIMIT = 4096


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


@dataclass(frozen=True)
class _Plan:
    """What is summed for arguments of one shape: names of sites, and why others are not."""

    summed: tuple[str, ...]
    touched: frozenset[str]  # sites whose terms depend on a summed one
    hidden: frozenset[str]  # deterministic sites that do
    shapes: dict[str, tuple[int, ...]]  # of all latents
    kept: dict[str, str]  # discrete sites that stay latents, with the reason


class Marginal:
    """A NumPyro model without the discrete latents that can be summed out; see `marginalize`."""

    def __init__(self, model: Callable[..., Any], sites: Sequence[str] | None, limit: int, window: int) -> None:
        self.model, self.sites, self.limit, self.window = model, sites, limit, window
        self._plans: dict[Any, _Plan] = {}
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
        found = self._sum(plan, _values(trace), args, kwargs)
        numpyro.factor(_factor_name(plan), found.total)
        return returned

    def summed(self, *args: Any, **kwargs: Any) -> tuple[str, ...]:
        """Return the names of the sites that are summed out, for these arguments of the model."""
        return self.plan(*args, **kwargs).summed

    def recover(
        self, key: jax.Array, draws: Mapping[str, Any], *args: Any, most_likely: bool = False, **kwargs: Any
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
            return _first(self._recovered(plan, {}, jax.random.split(key, 1), most_likely, args, kwargs))
        name = next(iter(given))
        lead = given[name].shape[: given[name].ndim - len(plan.shapes[name])]
        flat = {k: v.reshape(-1, *v.shape[len(lead) :]) for k, v in given.items()}
        count = math.prod(lead)
        found = self._recovered(plan, flat, jax.random.split(key, count), most_likely, args, kwargs)
        return jax.tree.map(lambda x: x.reshape(*lead, *x.shape[1:]), found)

    def _recovered(self, plan: _Plan, given: Any, keys: Any, most_likely: bool, args: Any, kwargs: Any) -> Recovered:
        def one(item: tuple[Any, Any]) -> Recovered:
            values, key = item

            def total(offsets: Any) -> Any:
                return self._sum(plan, values, args, kwargs, offsets).total

            zero = {name: jnp.zeros(shape) for name, shape in self._table_shapes(plan, values, args, kwargs).items()}
            probabilities = jax.grad(total)(zero)
            found = self._sum(plan, values, args, kwargs, best=most_likely)
            chosen = found.draw(key)
            drawn, support, shares = {}, {}, {}
            for name in plan.summed:
                index, s = chosen[name], found.supports[name]
                every = jnp.broadcast_to(s.values, (s.size, *s.shape)).reshape(s.size, s.count)
                drawn[name] = every[index, jnp.arange(s.count)].reshape(s.shape)
                shares[name] = jnp.moveaxis(probabilities[name].reshape(s.size, *s.shape), 0, -1)
                support[name] = jnp.moveaxis(every.reshape(s.size, *s.shape), 0, -1)
            return Recovered(drawn, shares, support)

        run = jax.jit(lambda items: jax.lax.map(one, items, batch_size=min(64, len(keys))))
        return run((given, keys))

    def _table_shapes(self, plan: _Plan, values: Any, args: Any, kwargs: Any) -> dict[str, tuple[int, int]]:
        found = jax.eval_shape(lambda: self._sum(plan, values, args, kwargs).factors.potentials)
        return {name: found[name].shape for name in plan.summed}

    # --- the sum --------------------------------------------------------------------------------------------

    def _sum(
        self,
        plan: _Plan,
        values: dict[str, Any],
        args: Any,
        kwargs: Any,
        offsets: Mapping[str, Any] | None = None,
        best: bool = False,
    ) -> Elimination:
        """Sum the terms that depend on the summed sites, at given values of everything else."""
        terms = _Terms(self.model, args, kwargs, plan, values)
        sites = terms.sites({name: jnp.zeros(plan.shapes[name], int) for name in plan.summed})
        supports, scales, start = {}, {}, 0
        for name in plan.summed:
            supports[name], scales[name] = _support(sites[name], start, self.window)
            start += supports[name].count
        if any(is_unbounded(sites[name]) for name in plan.summed):
            supports = located(lambda s: self._factors(terms, s)[0], supports, sites)
        factors, supports = self._factors(terms, supports)
        for name, offset in (offsets or {}).items():
            factors.potentials[name] = factors.potentials[name] + offset
        return Elimination(factors, supports, scales, self.limit, best)

    def _factors(self, terms: _Terms, supports: dict[str, Support]) -> tuple[Factors, dict[str, Support]]:
        """Return the factors, and the supports with those of elements whose value is given."""
        try:
            found = tables(terms, supports, self.limit)
        except CannotSum:
            found = tables(terms, supports, self.limit, share=False)
        every = supports | found.given
        dtype = jnp.result_type(float, *(table.values for table in found.tables))
        return collect(found.tables, every, found.potentials, dtype), every

    # --- what is summed -------------------------------------------------------------------------------------

    def plan(self, *args: Any, **kwargs: Any) -> _Plan:
        """Find out what can be summed, once for each shape of the arguments."""
        key = _signature(args, kwargs)
        if key not in self._plans:
            self._plans[key] = self._make_plan(args, kwargs)
        return self._plans[key]

    def _make_plan(self, args: Any, kwargs: Any) -> _Plan:
        trace, depends = _look(self.model, args, kwargs)
        latents = {name: site for name, site in sample_sites(trace) if not site["is_observed"]}
        shapes = {name: jnp.shape(site["value"]) for name, site in latents.items()}
        discrete = [name for name, site in latents.items() if _is_discrete(site)]
        wanted = discrete if self.sites is None else list(self.sites)
        for name in wanted:
            if name not in latents:
                known = ", ".join(f"'{other}'" for other in discrete) or "it has none"
                raise ValueError(f"the model has no latent site '{name}' to sum out; its discrete latents: {known}")
            if name not in discrete:
                raise ValueError(
                    f"site '{name}' is continuous ({_family(latents[name])}) and cannot be summed out: name discrete "
                    f"sites ({', '.join(discrete) or 'the model has none'}), or leave `sites` out"
                )
        kept: dict[str, str] = {}
        for name in list(wanted):
            try:
                _support(latents[name], 0, self.window)
            except ValueError as error:
                self._keep(name, str(error), wanted, kept)
        while True:
            plan = _plan_for(wanted, trace, depends, shapes, kept)
            if not wanted:
                return plan
            try:
                values = {name: site["value"] for name, site in latents.items() if name not in wanted}
                extra = {name: site["value"] for name, site in trace.items() if site["type"] in ("param", "plate")}
                jax.eval_shape(lambda p=plan, v=values | extra: self._sum(p, v, args, kwargs).total)
                return plan
            except CannotSum as error:
                name, reason = _blame(error, plan)
                self._keep(name, reason, wanted, kept)

    def _keep(self, name: str, reason: str, wanted: list[str], kept: dict[str, str]) -> None:
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

    def __init__(self, plan: _Plan) -> None:
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


class _Terms:
    """The terms of a model as a function of the summed sites, at given values of everything else."""

    def __init__(self, model: Any, args: Any, kwargs: Any, plan: _Plan, values: Mapping[str, Any]) -> None:
        self.model, self.args, self.kwargs, self.plan, self.values = model, args, kwargs, plan, dict(values)

    def __call__(self, summed: Mapping[str, Any]) -> dict[str, Any]:
        """Return the terms that depend on the summed sites."""
        wanted = self.plan.touched.union(self.plan.summed)
        return {name: site_log_prob(site) for name, site in self.sites(summed).items() if name in wanted}

    @one_at_a_time
    def sites(self, summed: Mapping[str, Any]) -> dict[str, Any]:
        """Run the model, hidden from the handlers outside; return its sample statements."""
        data = {**self.values, **summed}
        with (
            handlers.block(),
            handlers.trace() as trace,
            handlers.seed(rng_seed=0),
            handlers.substitute(data=data),
        ):
            self.model(*self.args, **self.kwargs)
        sites = dict(sample_sites(trace))
        for name, site in sites.items():
            if not site["is_observed"] and name not in data:
                raise ValueError(
                    f"site '{name}' appeared in this run of the model and not in the first one: a model that is "
                    "summed must have the same sites in every run; keep data-dependent branches out of it"
                )
        for name in self.plan.summed:
            if name not in sites:
                raise ValueError(
                    f"site '{name}' was in the first run of the model and is missing in this one: a model that is "
                    "summed must have the same sites in every run"
                )
        return sites


def _values(trace: Mapping[str, Any]) -> dict[str, Any]:
    """Return what must be given to run a model again: latents, parameters, members of plates."""
    return {
        name: site["value"]
        for name, site in trace.items()
        if site["type"] in ("param", "plate") or (site["type"] == "sample" and not site["is_observed"])
    }


def _support(site: Any, start: int, window: int) -> tuple[Support, Any]:
    """Return the candidates of a site, and the scale of its elements."""
    bare = unwrap(site["fn"]).bare
    shape = tuple(jnp.shape(site["value"]))
    if is_unbounded(site):
        values = jnp.arange(window).reshape(-1, *(1,) * len(shape))
    else:
        if bare.event_dim:
            raise ValueError(f"{type(bare).__name__} has values that are not single numbers")
        base = bare.expand(shape) if bare.batch_shape != shape and not hasattr(bare, "total_count") else bare
        values, _ = enumerate_values(base if len(base.batch_shape) == len(shape) else base.expand(shape))
        numbers = read(values)  # a number that is known when the program is traced can be compared with others
        values = values if numbers is None else np.asarray(numbers, jax.dtypes.canonicalize_dtype(numbers.dtype))
        values = values.reshape(values.shape[0], *(1,) * (len(shape) + 1 - values.ndim), *values.shape[1:])
    scale = site["scale"]
    if scale is None:
        return Support(values, shape, start), 1.0
    if np.ndim(scale):
        scale = jnp.reshape(scale, jnp.shape(scale) + (1,) * (site["fn"].event_dim - bare.event_dim))
        scale = jnp.broadcast_to(scale, shape).reshape(-1)
    return Support(values, shape, start), scale


def _is_discrete(site: Any) -> bool:
    support = site["fn"].support
    return bool(support is not None and support.is_discrete)


def _family(site: Any) -> str:
    return type(unwrap(site["fn"]).bare).__name__


def _first_value(msg: dict[str, Any]) -> Any:
    fn = msg["fn"]
    shape = fn.shape(msg["kwargs"].get("sample_shape", ()))
    return jnp.zeros(shape, int) if not hasattr(fn, "low") else jnp.broadcast_to(jnp.asarray(fn.low), shape)


def _factor_name(plan: _Plan) -> str:
    return "sum over " + ", ".join(plan.summed[:3]) + (" and others" if len(plan.summed) > 3 else "")


def _first(found: Recovered) -> Recovered:
    return jax.tree.map(lambda x: x[0], found)


def _signature(args: Any, kwargs: Any) -> Any:
    leaves, structure = jax.tree.flatten((args, kwargs))
    return structure, tuple((jnp.shape(x), str(jnp.result_type(x))) if _is_array(x) else repr(x) for x in leaves)


def _is_array(x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray)


def _plan_for(wanted: list[str], trace: Any, depends: Any, shapes: Any, kept: dict[str, str]) -> _Plan:
    summed = set(wanted)
    touched = {
        name
        for name, seen in depends.items()
        if name not in summed and trace[name]["type"] == "sample" and seen & summed
    }
    hidden = {name for name, seen in depends.items() if trace[name]["type"] == "deterministic" and seen & summed}
    return _Plan(tuple(wanted), frozenset(touched), frozenset(hidden), dict(shapes), dict(kept))


def _blame(error: CannotSum, plan: _Plan) -> tuple[str, str]:
    """Return the site with the most elements among those that meet, and the reason with their names."""
    starts, start = {}, 0
    for name in plan.summed:
        starts[name] = start
        start += math.prod(plan.shapes[name])
    names, sites = [], []
    for element in dict.fromkeys(error.elements):
        for name in plan.summed:
            local = element - starts[name]
            if 0 <= local < math.prod(plan.shapes[name]):
                shape = plan.shapes[name]
                place = ", ".join(str(int(i)) for i in np.unravel_index(local, shape)) if shape else ""
                names.append(f"{name}[{place}]" if place else name)
                sites.append(name)
    site = max(sites or plan.summed, key=lambda name: math.prod(plan.shapes[name]))
    return site, (f"{' and '.join(names[:2])} meet: " if len(names) > 1 else "") + error.reason


@one_at_a_time
def _look(model: Any, args: Any, kwargs: Any) -> tuple[dict[str, Any], dict[str, set[str]]]:
    """Run a model once; return its trace, and for each site the discrete latents that it depends on."""
    from numpyro.ops.provenance import eval_provenance

    with handlers.block(), handlers.trace() as trace, handlers.seed(rng_seed=0), _Feasible():
        model(*args, **kwargs)
    latents = {name: site for name, site in sample_sites(trace) if not site["is_observed"] and _is_discrete(site)}
    rest = {k: v for k, v in _values(trace).items() if k not in latents}

    def program(**given: Any) -> dict[str, Any]:  # run a second time, with the discrete latents given
        with (
            handlers.block(),
            handlers.trace() as inner,
            handlers.seed(rng_seed=0),
            handlers.substitute(data={**rest, **given}),
        ):
            model(*args, **kwargs)
        found = {name: site_log_prob(site) for name, site in sample_sites(inner)}
        changed = sorted(set(trace) ^ set(inner))
        if changed:
            raise ValueError(
                f"site '{changed[0]}' is in one run of the model and not in the next: a model that is summed must "
                "have the same sites in every run; keep what it does independent of global state"
            )
        return found | {name: site["value"] for name, site in inner.items() if site["type"] == "deterministic"}

    depends = eval_provenance(program, **{name: site["value"] for name, site in latents.items()}) if latents else {}
    return trace, {name: set(seen) for name, seen in depends.items()}


class _Feasible(Messenger):
    """Give continuous latents any value inside their support: improper ones cannot be drawn."""

    def __init__(self) -> None:
        super().__init__(None)

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] != "sample" or msg["value"] is not None or _is_discrete(msg):
            return
        shape = msg["fn"].shape(msg["kwargs"].get("sample_shape", ()))
        try:
            msg["value"] = msg["fn"].support.feasible_like(jnp.zeros(shape))
        except NotImplementedError:
            return
