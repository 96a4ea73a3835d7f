"""What is summed for arguments of one shape, and what stays a latent: found by running the model."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.ops.provenance import eval_provenance
from numpyro.primitives import Messenger

from legrad import _compat
from legrad.distributions.finite import enumerate_values
from legrad.distributions.unwrap import unwrap
from legrad.marginal.evaluate import Support
from legrad.marginal.table import CannotSum
from legrad.marginal.windows import is_unbounded
from legrad.model.sites import sample_sites, site_log_prob
from legrad.model.threads import one_at_a_time
from legrad.trace.concrete import read


@dataclass(frozen=True)
class Obstacle:
    """Why a site stays a latent.

    Attributes:
        reason: why, in words.
        elements: the elements that meet, by name.
        where: the line of the user's model where they do.
        values: how many joint values the sum would have; None if unknown.
    """

    reason: str
    elements: tuple[str, ...] = ()
    where: str = ""
    values: int | None = None

    def __str__(self) -> str:
        met = f"{' and '.join(self.elements[:2])} meet {self.where}".rstrip() + ": " if len(self.elements) > 1 else ""
        cost = "" if self.values is None else f", a sum over {in_words(self.values)} joint values"
        return f"{met}{self.reason}{cost}"


def in_words(number: int) -> str:
    """Write a number out, or its power of ten."""
    return f"{number:,}" if number < 10**15 else f"about 10^{math.floor(math.log10(number))}"


@dataclass(frozen=True)
class Plan:
    """What is summed for arguments of one shape.

    Attributes:
        summed: the sites that are summed.
        touched: the sites whose terms depend on a summed one.
        hidden: the deterministic sites that do.
        shapes: the shapes of all latents.
        kept: the discrete sites that stay latents, with the reason.
        lines: the lines of the model that make its sites, such as "model.py:12".
        subsampled: whether a plate takes some of its members at a time.
    """

    summed: tuple[str, ...]
    touched: frozenset[str]
    hidden: frozenset[str]
    shapes: dict[str, tuple[int, ...]]
    kept: dict[str, Obstacle] = field(default_factory=dict)
    lines: dict[str, str] = field(default_factory=dict)
    subsampled: bool = False


@dataclass(frozen=True)
class Run:
    """One run of a model: its trace, the discrete latents that each site depends on, and the lines of its sites."""

    trace: dict[str, Any]
    depends: dict[str, set[str]]
    lines: dict[str, str]

    @property
    def latents(self) -> dict[str, Any]:
        """The sites that are sampled and not observed."""
        return {name: site for name, site in sample_sites(self.trace) if not site["is_observed"]}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the latents."""
        return {name: jnp.shape(site["value"]) for name, site in self.latents.items()}


def plan_for(wanted: list[str], run: Run, kept: dict[str, Obstacle]) -> Plan:
    """Make the plan that sums some sites."""
    summed = set(wanted)

    def depending(kind: str) -> frozenset[str]:
        names = (n for n, seen in run.depends.items() if n not in summed and seen & summed)
        return frozenset(n for n in names if run.trace[n]["type"] == kind)

    plates = [site for site in run.trace.values() if site["type"] == "plate"]
    subsampled = any(len(site["value"]) < site["args"][0] for site in plates)
    touched, hidden = depending("sample"), depending("deterministic")
    return Plan(tuple(wanted), touched, hidden, run.shapes, dict(kept), run.lines, subsampled)


def obstacle(error: CannotSum, plan: Plan) -> tuple[str, Obstacle]:
    """Return the site with the most elements among those that meet, and why it cannot be summed."""
    starts, start = {}, 0
    for name in plan.summed:
        starts[name] = start
        start += math.prod(plan.shapes[name])
    names, sites = [], []
    for element in dict.fromkeys(error.elements):
        for name in plan.summed:
            local, shape = element - starts[name], plan.shapes[name]
            if 0 <= local < math.prod(shape):
                place = ", ".join(str(int(i)) for i in np.unravel_index(local, shape)) if shape else ""
                names.append(f"{name}[{place}]" if place else name)
                sites.append(name)
    site = max(sites or plan.summed, key=lambda name: math.prod(plan.shapes[name]))
    if error.line:
        where = f"at {error.line}" + (f" ({error.primitive})" if error.primitive else "")
    elif error.term:
        line = plan.lines.get(error.term, "")
        where = f"in the density of '{error.term}'" + (f" at {line}" if line else "")
    else:
        where = ""
    return site, Obstacle(error.reason, tuple(names), where, error.values)


@one_at_a_time
def look(model: Any, args: Any, kwargs: Any) -> Run:
    """Run a model to see its sites, and which discrete latents each depends on."""
    lines = _Lines()
    with handlers.block(), handlers.trace() as trace, handlers.seed(rng_seed=0), _Feasible(), lines:
        model(*args, **kwargs)
    latents = {name: site for name, site in sample_sites(trace) if not site["is_observed"] and is_discrete(site)}
    rest = {k: v for k, v in given_values(trace).items() if k not in latents}

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
    return Run(trace, {name: set(seen) for name, seen in depends.items()}, lines.found)


class _Feasible(Messenger):
    """Give continuous latents any value inside their support: improper ones cannot be drawn."""

    def __init__(self) -> None:
        super().__init__(None)

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] != "sample" or msg["value"] is not None or is_discrete(msg):
            return
        shape = msg["fn"].shape(msg["kwargs"].get("sample_shape", ()))
        try:
            msg["value"] = msg["fn"].support.feasible_like(jnp.zeros(shape))
        except NotImplementedError:
            return


class _Lines(Messenger):
    """Note the user's line that makes each site."""

    def __init__(self) -> None:
        super().__init__(None)
        self.found: dict[str, str] = {}

    def process_message(self, msg: dict[str, Any]) -> None:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and msg["type"] == "sample" and msg["name"] not in self.found:
            if line := _compat.users_line(frame.f_code.co_filename, frame.f_lineno):
                self.found[msg["name"]] = line
            frame = frame.f_back


def given_values(trace: Mapping[str, Any]) -> dict[str, Any]:
    """Return what must be given to run a model again: latents, parameters, members of plates."""
    return {
        name: site["value"]
        for name, site in trace.items()
        if site["type"] in ("param", "plate") or (site["type"] == "sample" and not site["is_observed"])
    }


def support_of(site: Any, start: int, window: int) -> tuple[Support, Any]:
    """Return the candidates of a site, and the scale of its elements."""
    bare = unwrap(site["fn"]).bare
    shape = tuple(jnp.shape(site["value"]))
    values: Any
    if is_unbounded(site):
        values = jnp.arange(window).reshape(-1, *(1,) * len(shape))
    else:
        if bare.event_dim:
            raise ValueError(f"{type(bare).__name__} has values that are not single numbers")
        base = bare.expand(shape) if bare.batch_shape != shape and not hasattr(bare, "total_count") else bare
        values = _enumerated(base if len(base.batch_shape) == len(shape) else base.expand(shape))
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


def _enumerated(law: Any) -> Any:
    """Return the values of a finite support, as numbers if they do not depend on what is being traced."""
    try:
        with jax.ensure_compile_time_eval():
            return enumerate_values(law)[0]
    except jax.errors.UnexpectedTracerError:
        return enumerate_values(law)[0]


def is_discrete(site: Any) -> bool:
    """Say whether a site's values are discrete."""
    support = site["fn"].support
    return bool(support is not None and support.is_discrete)


def family(site: Any) -> str:
    """Return the name of a site's distribution."""
    return type(unwrap(site["fn"]).bare).__name__
