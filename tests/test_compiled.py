"""Programs that were compiled once: a later fit finds them, and finds another where anything differs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import legrad
from legrad import _compiled
from legrad._compiled import jit, outcome

_compiled._options()  # compiles a program itself
COMPILED: list[float] = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **_: COMPILED.append(seconds) if event.endswith("backend_compile_duration") else None
)


def compilations(f):
    COMPILED.clear()
    f()
    return len(COMPILED)


def test_the_same_program_is_compiled_once():
    x = jnp.arange(7.0)
    assert compilations(lambda: jit(lambda x: jnp.sin(x) * 3)(x)) == 1
    assert compilations(lambda: jit(lambda x: jnp.sin(x) * 3)(x)) == 0


def test_a_number_that_the_function_closes_over_makes_another_program():
    x = jnp.arange(7.0)
    for c in (2.0, 3.0, np.full(7, 2.0), np.full(7, 3.0)):
        np.testing.assert_allclose(jit(lambda x, c=c: jnp.cos(x) * c)(x), c * np.cos(x), rtol=1e-6)


def test_results_have_the_names_and_types_of_their_own_function():
    x = jnp.arange(7.0)
    assert set(jit(lambda x: {"a": x + 1, "b": x})(x)) == {"a", "b"}
    assert set(jit(lambda x: {"c": x + 1, "d": x})(x)) == {"c", "d"}
    first, second = (jit(f)(1.0) for f in (lambda x: x + 1, lambda x: jnp.asarray(x, x.dtype) + jnp.ones(())))
    assert (first.aval.weak_type, second.aval.weak_type) == (True, False)


def test_functions_on_the_host_are_not_mixed_up():
    said = []
    for name in ("first", "second"):
        jit(lambda x, name=name: (jax.debug.callback(lambda v, name=name: said.append(name), x), x + 1)[1])(1.0)
    jax.effects_barrier()
    assert said == ["first", "second"]


def test_no_more_than_so_many_are_kept(monkeypatch):
    monkeypatch.setattr(_compiled, "_MOST", 3)
    for i in range(5):
        jit(lambda x, i=i: x + i)(jnp.ones(3))
    assert len(_compiled._KEPT) == 3


def test_outcome_computes_what_is_asked_for():
    x = jnp.arange(3.0)
    assert compilations(lambda: outcome(lambda x: ((x @ x, x)[1], 2.0), x)) == 0
    one, two = outcome(lambda x: (x + 1, 2.0), x)
    np.testing.assert_array_equal(one, x + 1)
    assert two == 2.0


def model(X, y):
    with numpyro.plate("features", X.shape[1]):
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", dist.Normal(X @ slope, 0.5), obs=y)


@pytest.mark.parametrize("settings", [{}, {"steps": 5}])
def test_a_second_fit_with_data_of_the_same_shapes_compiles_nothing(settings):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, 3)), rng.normal(size=30)
    guide = legrad.MeanField(model)
    first = legrad.fit(model, guide, args=(X, y), key=0, progress=False, **settings)
    found = []
    again = compilations(
        lambda: found.append(legrad.fit(model, guide, args=(X, 2 * y), key=1, progress=False, **settings))
    )
    assert again == 0
    assert not np.allclose(found[0].params["slope_loc"], first.params["slope_loc"])
