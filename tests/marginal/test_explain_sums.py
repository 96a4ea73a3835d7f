"""`legrad.explain(model)`: what is summed and what it costs; who meets where in what is not."""

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.contrib.control_flow import scan

import legrad
from legrad import _compat

Y = jnp.array([0.3, -1.0, 1.4, 0.8])


def line_of(function, text):
    """Return "file.py:line" of the line of a function that holds a text."""
    with open(function.__code__.co_filename) as file:
        lines = file.read().splitlines()
    first = function.__code__.co_firstlineno
    return next(f"test_explain_sums.py:{i}" for i in range(first, len(lines) + 1) if text in lines[i - 1])


def switches(y):
    with numpyro.plate("switches", 20):
        on = numpyro.sample("on", dist.Bernoulli(0.5))
    with numpyro.plate("points", 4):
        z = numpyro.sample("z", dist.Categorical(jnp.array([0.2, 0.3, 0.5])))
        numpyro.sample("y", dist.Normal(jnp.sin(on.sum()) + z, 1.0), obs=y)


def correlated(y):
    w = numpyro.sample("w", dist.Bernoulli(0.5).expand([13]).to_event(1))
    numpyro.sample("seen", dist.MultivariateNormal(1.0 * w, 0.5 + 0.5 * jnp.eye(13)), obs=jnp.zeros(13))


def hmm(y):
    table = jnp.array([[0.9, 0.1], [0.2, 0.8]])

    def step(z, seen):
        z = numpyro.sample("z", dist.Categorical(table[z]))
        numpyro.sample("y", dist.Normal(z, 1.0), obs=seen)
        return z, None

    scan(step, 0, y)


def lattice(y):
    w = numpyro.sample("w", dist.Bernoulli(0.5).expand([16, 16]).to_event(2))
    numpyro.factor("links", 0.1 * ((w[1:] * w[:-1]).sum() + (w[:, 1:] * w[:, :-1]).sum()))


def test_a_site_that_is_summed_has_its_cost():
    z = legrad.explain(switches, args=(Y,)).of("z")
    assert z.summed
    assert (z.elements, z.values) == (4, 3)
    assert sum(w.numbers for w in z.work) == 12


def test_a_site_that_is_not_has_two_elements_their_line_and_the_cost():
    found = legrad.explain(switches, args=(Y,))
    on = found.of("on")
    assert not on.summed
    assert on.obstacle.elements[:2] == ("on[0]", "on[1]")
    assert on.obstacle.values == 2**20
    assert line_of(switches, "on.sum()") in on.obstacle.where
    assert "on[0] and on[1]" in str(found)
    assert "1,048,576" in str(found)
    assert "limit=" in str(found)


def test_elements_that_meet_in_a_density_are_put_to_its_statement():
    where = legrad.explain(correlated, args=(Y,)).of("w").obstacle.where
    assert "'seen'" in where
    assert line_of(correlated, '"seen"') in where


@pytest.mark.long
def test_elements_that_depend_on_each_other_in_many_factors_are_found_in_one_of_them():
    w = legrad.explain(lattice, args=(Y,)).of("w")
    assert not w.summed
    assert len(w.obstacle.elements) > 1
    assert "'links'" in w.obstacle.where


def test_a_chain_costs_its_steps_times_pairs_of_states():
    z = legrad.explain(hmm, args=(jnp.zeros(50),)).of("z")
    assert z.summed
    assert "chain" in str(z)
    assert 49 * 4 <= sum(w.numbers for w in z.work) <= 51 * 4


def test_a_vector_is_not_summed():
    def model(y):
        numpyro.sample("counts", dist.Multinomial(3, jnp.array([0.5, 0.5])))

    assert "Multinomial" in str(legrad.explain(model, args=(Y,)).of("counts").obstacle)


def test_a_model_without_discrete_latents():
    def model(y):
        numpyro.sample("mu", dist.Normal(0.0, 1.0))

    assert "no discrete latent" in str(legrad.explain(model, args=(Y,)))


def test_a_folder_may_have_the_name_of_a_library():
    assert _compat.users_line("/home/ada/legrad/numpyro/model.py", 12) == "model.py:12"
    assert not any(_compat.users_line(file, 12) for file in (legrad.__file__, dist.__file__, _compat.os.__file__))
