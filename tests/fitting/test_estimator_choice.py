"""`estimator="auto"`: who is asked, who is taken, and that a fit that goes on stays with it."""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import optax
import pytest

import legrad
from legrad.fitting import estimator_choice as choice
from legrad.model.problem import Problem

KEY = jax.random.key(0)


def binary():
    z = numpyro.sample("z", dist.Bernoulli(0.3).expand([4]).to_event(1))
    numpyro.sample("y", dist.Normal(z.sum(), 1.0), obs=2.0)


def counts():
    z = numpyro.sample("z", dist.Categorical(jnp.ones(3) / 3))
    numpyro.sample("y", dist.Normal(z, 1.0), obs=2.0)


def continuous():
    z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
    numpyro.sample("y", dist.Normal(z.sum(), 1.0), obs=2.0)


def mixed():
    z = numpyro.sample("z", dist.Bernoulli(0.3))
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(m + z, 1.0), obs=2.0)


def chain():
    """Its own guide: one unit after the other."""
    first = numpyro.sample("first", dist.Bernoulli(0.3))
    numpyro.sample("second", dist.Bernoulli(0.2 + 0.5 * first))


def names(model):
    guide = chain if model is chain else legrad.MeanField(model)
    params = {} if model is chain else legrad.fit(model, guide, key=KEY, steps=1, progress=False).params
    return [repr(c).removeprefix("legrad.").split("(")[0] for c in choice.candidates(Problem(model, guide, params))]


@pytest.mark.parametrize(
    ("model", "wanted"),
    [
        (binary, ["LocalExpectation", "DisARM"]),
        (counts, ["LocalExpectation"]),
        (continuous, ["LocalExpectation", "Reparameterized"]),
        (mixed, ["LocalExpectation", "LocalExpectation", "DisARM"]),
        (chain, ["LocalExpectation", "LocalExpectation", "DisARM"]),
    ],
)
def test_who_is_asked(model, wanted):
    assert names(model) == wanted


@pytest.mark.parametrize(("slow", "wanted"), [("0", "DisARM"), ("1", "LocalExpectation"), (None, "LocalExpectation")])
def test_the_fastest_way_is_taken(slow, wanted, monkeypatch):
    """With a clock that says what it is told; in doubt the first."""
    monkeypatch.setattr(choice, "_seconds", lambda runs, *_: {n: 1e9 if n == slow else 1.0 for n in runs})
    monkeypatch.setattr(choice, "CLEARLY", 1.2 if slow else 1e9)
    result = legrad.fit(binary, legrad.MeanField(binary), key=KEY, estimator="auto", steps=3, progress=False)
    assert result.method == wanted


def test_noise_decides_between_equally_fast_ones(monkeypatch):
    """Who is as soon at the ELBO, and has less variance, is better."""
    monkeypatch.setattr(choice, "LATE", 1e9)
    monkeypatch.setattr(choice, "_seconds", lambda runs, *_: dict.fromkeys(runs, 1.0))
    monkeypatch.setattr(choice, "candidates", lambda problem: [legrad.ScoreFunction(), legrad.LocalExpectation()])
    result = legrad.fit(binary, legrad.MeanField(binary), key=KEY, estimator="auto", steps=3, progress=False)
    assert result.method == "LocalExpectation"


def test_who_comes_late():
    """By the time to 90% of what each gained; nothing is known of one that gained nothing, or less than its error."""
    seen = {
        "0": [(0.0, 0.0), (2.0, 4.0), (4.0, 6.0)],
        "1": [(0.0, 0.0), (2.0, 6.0), (4.0, 6.0)],
        "2": [(0.0, 0.0), (1.0, 1.0), (4.0, -float("inf"))],
        "3": [(0.0, 0.0), (4.0, -1.0)],
        "4": [(0.0, 0.0), (4.0, 0.1)],
    }
    courses = {name: choice.Course(None, [choice.Look(*look, 0.1) for look in looks]) for name, looks in seen.items()}
    late = choice._lateness(courses)
    assert late == pytest.approx({"0": (2 + 2 * 0.7) / 1.8, "1": 1.0, "2": 0.9 / 0.3, "3": 1.0, "4": 1.0})


def test_one_is_always_left(monkeypatch):
    """Curves that cross: each is late somewhere."""
    monkeypatch.setattr(choice, "_seconds", lambda runs, *_: dict.fromkeys(runs, 1.0))
    monkeypatch.setattr(choice, "_lateness", lambda courses: dict.fromkeys(courses, 2.0))
    result = legrad.fit(binary, legrad.MeanField(binary), key=KEY, estimator="auto", steps=3, progress=False)
    assert result.method == "LocalExpectation"


def test_cheap_steps_win_while_noise_costs_little(monkeypatch):
    """The first takes 10 times as long for a step: it is out, however little noise it has."""
    monkeypatch.setattr(choice, "_seconds", lambda runs, *_: {n: 10.0 if n == "0" else 1.0 for n in runs})
    monkeypatch.setattr(choice, "_noise", lambda draws: {n: 1.0 if n == "0" else 1e6 for n in draws})
    result = legrad.fit(continuous, legrad.MeanField(continuous), key=KEY, estimator="auto", steps=3, progress=False)
    assert result.method == "Reparameterized"


def test_a_fit_that_goes_on_stays_with_its_estimator(tmp_path, monkeypatch):
    def run(slow, steps):
        monkeypatch.setattr(choice, "_seconds", lambda runs, *_: {n: 1e9 if n == slow else 1.0 for n in runs})
        return legrad.fit(binary, legrad.MeanField(binary), key=KEY, estimator="auto", optimizer=optax.adam(0.1),
                          steps=steps, checkpoint=tmp_path, checkpoint_every=5, progress=False)  # fmt: skip

    first = run("0", 10)
    assert first.method == "DisARM"
    assert run("1", 20).method == "DisARM"


def test_an_unknown_name_is_refused():
    with pytest.raises(TypeError, match="or 'auto'"):
        legrad.fit(binary, legrad.MeanField(binary), key=KEY, estimator="best")
