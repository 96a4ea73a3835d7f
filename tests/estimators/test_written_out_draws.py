"""A few draws of the score function are written out one after the other, where no latent depends on another."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import legrad
from catalogue import named
from legrad.estimators import score_function
from legrad.estimators.base import draws
from legrad.estimators.score_function import Several
from legrad.model.problem import Noise, Problem

PROBS = jnp.array([0.2, 0.7])


def model():
    numpyro.sample("z", dist.Bernoulli(0.5).expand([2]).to_event(1))


def guide(probs=PROBS):
    numpyro.sample("z", dist.Bernoulli(probs).to_event(1))


@pytest.mark.parametrize(
    ("name", "number", "written_out"),
    [("categorical", 2, True), ("categorical", 9, False), ("chain", 2, False), ("normal_guide", 2, False)],
)
def test_which_draws_are_written_out(monkeypatch, name, number, written_out):
    row, asked = named(name), []

    def watched(*args):
        asked.append(args)
        return over_draws(*args)

    over_draws = score_function.over_draws
    monkeypatch.setattr(score_function, "over_draws", watched)
    loss = lambda p: legrad.ScoreFunction(number, "leave_one_out").loss(
        jax.random.key(0), p, row.model, row.guide, *row.args
    )
    jax.eval_shape(jax.grad(loss), row.params)
    assert written_out == (not asked)


def follow(each):
    """Whether two draws, as functions of a key, come as often as the guide says, and independently."""
    number = 1 << 14
    z = np.asarray(jax.jit(jax.vmap(each))(jax.random.split(jax.random.key(1), number)))
    p = np.asarray(PROBS)
    seen = [z[:, 0].mean(0), z[:, 1].mean(0), z.prod(axis=1).mean(0), z.prod(axis=2).mean(0)]
    expected = [p, p, p**2, np.repeat(p.prod(), 2)]
    return all(
        (np.abs(s - e) <= 5 * np.sqrt(e * (1 - e) / number)).all() for s, e in zip(seen, expected, strict=True)
    )


def several(key):
    noise, found = draws(key, 2), Several(2)
    Problem(model, guide, {}, ()).draw(Noise(noise.sites[0], noise.plates), found)
    return jnp.stack([values["z"] for values in found.draws()])


def test_draws_follow_the_guide():
    assert follow(several)


@pytest.mark.parametrize("mistake", [lambda z: z[:1].repeat(2, axis=0), lambda z: z[:, :1].repeat(2, axis=1)])
def test_draws_that_do_not_follow_it_are_noticed(mistake):
    assert not follow(lambda key: mistake(several(key)))
