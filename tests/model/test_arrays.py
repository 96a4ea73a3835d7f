"""Arrays among a model's arguments: where they lie."""

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from legrad.model.arrays import automatic


def test_data_on_a_mesh_with_explicit_axes_are_those_on_one_with_automatic_axes():
    axis = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Explicit,))
    x = jax.device_put(np.arange(4.0), NamedSharding(axis, PartitionSpec("data")))
    whole, (part, word) = automatic((np.ones(2), (x, "text")))
    assert part.sharding.mesh.axis_types == (AxisType.Auto,)
    assert part.sharding.spec == x.sharding.spec
    np.testing.assert_array_equal(part, x)
    assert word == "text"
    assert isinstance(whole, np.ndarray)
    assert automatic(part) is part
