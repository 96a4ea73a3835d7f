"""A fit on several devices: which axis is cut across them, and where each array of the fit lives.

One plate is cut, the one whose sites hold most numbers (with minibatches, that of the rows). Of every array, the
first axis that is as long as the plate is cut along the mesh axis:

    data of the plate's members, parameters of its members, their optimizer state     P(None, ..., axis, ...)
    all else                                                                          P(), a copy on each device

JAX's partitioner does the rest: each device treats its own members, and what is shared is summed over devices. The
program is that of one device, and so are its random numbers; only the order of sums differs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from numpyro import handlers
from numpyro.infer import init_to_sample

from legrad.fitting.processes import resharded
from legrad.model.arrays import split_arrays
from legrad.model.log_density import LogDensity
from legrad.model.sites import sample_sites
from legrad.model.threads import one_at_a_time
from legrad.trace.devices import cut_across


class Members(NamedTuple):
    """What is cut: a plate, or a leading axis where there is no plate.

    Attributes:
        name: the name for messages.
        size: how many members there are.
        part: how many of them a step takes.
        numbers: how many numbers the sites of the plate hold.
        dim: the plate's axis.
    """

    name: str
    size: int
    part: int
    numbers: int = 0
    dim: int = 0


@dataclass(frozen=True)
class DeviceCut:
    """A mesh, and what is cut along its axis.

    Attributes:
        mesh: the devices, with axes of type Auto.
        axis: the axis of the mesh.
        members: what is cut.
    """

    mesh: Mesh
    axis: str
    members: Members

    @property
    def devices(self) -> int:
        """The number of devices."""
        return int(self.mesh.size)

    @property
    def is_plain(self) -> bool:
        """Whether the mesh is the device that a fit without a mesh takes."""
        return list(self.mesh.devices.flat) == jax.devices()[:1] and jax.process_count() == 1

    def sharding(self, shape: tuple[int, ...], lead: int = 0) -> NamedSharding:
        """Return where an array of a shape lives; its first `lead` axes are never cut."""
        sizes = {self.members.size, self.members.part}
        for a, n in enumerate(shape[lead:], lead):
            if n in sizes and n % self.devices == 0:
                return NamedSharding(self.mesh, PartitionSpec(*[None] * a, self.axis))
        return NamedSharding(self.mesh, PartitionSpec())

    def place(self, value: Any, lead: int = 0) -> jax.Array:
        """Return an array on the devices of the mesh; a process reads only the part that its devices hold."""
        if isinstance(value, jax.Array) and not value.is_fully_addressable:
            return value  # it is spread over processes already
        return put(value, self.sharding(np.shape(value), lead))

    def place_state(self, state: Any, lead: int) -> Any:
        """Return the state of a fit on the devices; the arrays of each start have `lead` axes for the starts."""
        return self._state(state, lead, lambda x, sharding: put(x, sharding))

    def keep(self, state: Any) -> Any:
        """Return the state of one start, inside a compiled step, on the devices where it was."""
        return self._state(state, 0, jax.lax.with_sharding_constraint)

    def _state(self, state: Any, lead: int, put: Callable[[Any, NamedSharding], Any]) -> Any:
        here = NamedSharding(self.mesh, PartitionSpec())

        def cut(tree: Any, more: int = 0) -> Any:
            return jax.tree.map(lambda x: put(x, self.sharding(np.shape(x), lead + more)), tree)

        blocks = state.blocks
        if blocks is not None:
            blocks = jax.tree.map(lambda x: put(x, here), blocks)._replace(
                mean=cut(state.blocks.mean, 1), squares=cut(state.blocks.squares, 1)
            )
        copies = {name: put(getattr(state, name), here) for name in ("step", "rate", "elbo", "noise", "failed")}
        return state._replace(
            unconstrained=cut(state.unconstrained), memory=cut(state.memory), gradient=cut(state.gradient),
            blocks=blocks, **copies,
        )  # fmt: skip

    def batches(
        self, read: Callable[[np.ndarray], tuple[np.ndarray, ...]], rows: np.ndarray
    ) -> tuple[jax.Array, ...]:
        """Return minibatches, each device with its part of every step's rows; a process reads those of its devices.

        Args:
            read: reads rows by their numbers.
            rows: the row numbers, (step, row).
        """
        sharding = NamedSharding(self.mesh, PartitionSpec(None, self.axis))
        here = sharding.addressable_devices_indices_map(rows.shape)
        read_here = [[jax.device_put(x, device) for x in read(rows[at])] for device, at in here.items()]
        return tuple(
            jax.make_array_from_single_device_arrays((*rows.shape, *parts[0].shape[2:]), sharding, list(parts))
            for parts in zip(*read_here, strict=True)
        )

    def copies(self, value: Any) -> jax.Array:
        """Return an array as a copy on each device."""
        return put(value, NamedSharding(self.mesh, PartitionSpec()))

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Tell the rules of `singlesite` which axes are cut, while a program is traced."""
        with cut_across(self.devices, {self.members.size, self.members.part}):
            yield


def put(value: Any, sharding: NamedSharding) -> Any:
    """Return an array where a sharding says; the processes of a fit all have the value, and take their parts."""
    if isinstance(value, jax.Array) and value.sharding.is_equivalent_to(sharding, value.ndim):
        return value
    if sharding.is_fully_addressable:
        return jax.device_put(value, sharding)
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        data = put(jax.random.key_data(value), sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(value))
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        return resharded(value, sharding)
    value = np.asarray(value)
    dtype = jnp.result_type(value)
    return jax.make_array_from_callback(value.shape, sharding, lambda part: np.asarray(value[part], dtype))


def cut_of(
    mesh: Any,
    model: Callable[..., Any],
    guide: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    minibatch: tuple[int, int] | None,
) -> DeviceCut:
    """Return what is cut across a mesh, and how; raise if a mesh does not suit the model's plates.

    Args:
        mesh: the mesh that the user gave.
        model: the model.
        guide: the guide.
        args: the positional arguments that are the same for all steps.
        kwargs: the keyword arguments that are the same for all steps.
        minibatch: the number of rows of all minibatches and of one, if there are minibatches.
    """
    mesh, axis = _checked(mesh)
    if minibatch is None:
        members = _members(model, guide, args, kwargs, mesh.size)
    else:
        rows, size = minibatch
        members = Members(f"minibatches of {size} of {rows} rows", rows, size)
    _check_size(mesh, axis, members, minibatch is not None)
    return DeviceCut(mesh, axis, members)


def _checked(mesh: Any) -> tuple[Mesh, str]:
    """Return the mesh with axes of type Auto, and the name of the only axis that is longer than 1."""
    if not isinstance(mesh, Mesh):
        raise TypeError(
            f"mesh={mesh!r} is a {type(mesh).__name__}, not a mesh of devices: pass "
            f"mesh=jax.make_mesh(({jax.device_count()},), ('data',))"
        )
    long = [name for name, size in mesh.shape.items() if size > 1]
    if len(long) > 1:
        raise ValueError(
            f"the mesh has {len(long)} axes, {dict(mesh.shape)}: a fit is cut along one. Pass "
            f"mesh=jax.make_mesh(({mesh.size},), ('{long[0]}',))"
        )
    absent = set(range(jax.process_count())) - {device.process_index for device in mesh.devices.flat}
    if absent:
        raise ValueError(
            f"the mesh has too few devices, {mesh.size} of {jax.device_count()}: process {min(absent)} of "
            f"{jax.process_count()} has none in it. Pass mesh=jax.make_mesh(({jax.device_count()},), ('data',))"
        )
    axis = (long or list(mesh.axis_names))[0]
    return Mesh(mesh.devices.reshape(-1), (axis,), axis_types=(AxisType.Auto,)), str(axis)


@one_at_a_time
def _members(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    devices: int,
) -> Members:
    """Return the plate that is cut: that whose sites hold most numbers; of several, one that the devices divide."""
    arrays, rebuild = split_arrays((args, dict(kwargs)), lambda x: x)
    trace: dict[str, Any] = {}
    program = guide if isinstance(model, LogDensity) else model

    def run(arrays: list[Any]) -> int:
        again, named = rebuild(arrays)
        seeded = handlers.substitute(handlers.seed(program, 0), substitute_fn=init_to_sample)
        with handlers.block():
            trace.update(handlers.trace(seeded).get_trace(*again, **named))
        return 0

    jax.eval_shape(run, arrays)
    found = []
    for name, site in trace.items():
        if site["type"] == "plate":
            size, part = site["args"]
            inside = [s for _, s in sample_sites(trace) if name in (f.name for f in s["cond_indep_stack"])]
            numbers = sum(math.prod(np.shape(s["value"])) for s in inside)
            dims = [f.dim for s in inside for f in s["cond_indep_stack"] if f.name == name]
            found.append(Members(f"plate '{name}'", size, part or size, numbers, min(dims, default=0)))
    if not found:
        shapes = [(f"argument {i}", np.shape(x)) for i, x in enumerate(arrays) if np.ndim(x)]
        shapes += [(f"site '{n}'", np.shape(s["value"])) for n, s in sample_sites(trace) if np.ndim(s["value"])]
        found = [Members(f"the first axis of {n}", shape[0], shape[0], math.prod(shape)) for n, shape in shapes]
    if not found:
        raise ValueError("mesh: the model has neither a plate nor an array that could be cut: leave mesh= out")
    return max(found, key=lambda m: (m.numbers, m.size % devices == 0, m.size, -m.dim))


def _check_size(mesh: Mesh, axis: str, members: Members, minibatch: bool) -> None:
    """Raise if the devices do not divide what is cut."""
    devices, n = int(mesh.size), members.part if minibatch else members.size
    fits = max(d for d in range(1, min(devices, members.part) + 1) if n % d == 0)
    smaller = f"a mesh of {fits} device{'s' if fits > 1 else ''}, jax.make_mesh(({fits},), ('{axis}',))"
    if members.part < devices:
        what = f"{members.name} takes {members.part} members" if not minibatch else members.name
        more = f"size={devices} or more" if minibatch else f"subsample_size={devices} or more"
        how = f"{what} a step" if members.part < members.size else f"{members.name} has {members.size} members"
        raise ValueError(
            f"{how}, fewer than the {devices} devices of mesh axis '{axis}': take {smaller}"
            + (f", or {more}" if members.part < members.size else "")
        )
    if n % devices:
        other = f"size={n - n % devices}" if minibatch else f"{n - n % devices} members (or mask {-n % devices} more)"
        raise ValueError(
            f"mesh axis '{axis}' of {devices} devices does not divide {members.name}"
            + ("" if minibatch else f" of {n} members")
            + f": take {other}, or {smaller}"
        )


def as_host(value: Any) -> Any:
    """Return the array behind an argument as planning reads it: in JAX's precision, and not yet on a device."""
    if isinstance(value, jax.Array):
        return value
    return np.asarray(value, jnp.result_type(value))
