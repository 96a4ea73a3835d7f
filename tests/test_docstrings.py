"""The examples in docstrings run, with a small model and its data behind the names that they use.

An example that shows no output may print anything; one that shows output must print that.
"""

import doctest
import importlib
import pkgutil
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer import MCMC, NUTS, SVI
from numpyro.optim import Adam

import legrad

LONG = {"legrad.diagnostics.calibrate.calibrate"}


def examples():
    """Every docstring of the package that has examples."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    for info in pkgutil.walk_packages(legrad.__path__, "legrad."):
        if not info.name.endswith("__main__"):
            for test in finder.find(importlib.import_module(info.name), info.name):
                if test.examples:
                    yield pytest.param(test, id=test.name, marks=[pytest.mark.long] if test.name in LONG else [])


class AnyOutputUnlessShown(doctest.OutputChecker):
    def check_output(self, want, got, optionflags):
        return not want or super().check_output(want, got, optionflags)


@cache
def names():
    """What the examples call by name: data, a model with a continuous and a discrete latent, a guide, a fit."""
    rng = np.random.default_rng(0)
    X = np.linalg.qr(rng.normal(size=(2000, 2)))[0].astype(np.float32) * 40  # so that mean field is the posterior
    y = (X @ np.float32([1.0, -0.5]) + 0.5 * rng.normal(size=len(X))).astype(np.float32)
    key, w = jax.random.key(0), jnp.ones(2)

    def model(X=X, y=y):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        z = numpyro.sample("z", dist.Bernoulli(0.3).expand([2]).to_event(1))
        with numpyro.plate("rows", 2000, subsample_size=len(y)):
            numpyro.sample("y", dist.Normal(jnp.asarray(X) @ w + 0.01 * z.sum(), 0.5), obs=y)

    def mixture(y=y):
        mu = numpyro.sample("mu", dist.Normal(jnp.array([-1.0, 1.0]), 1.0).to_event(1))
        with numpyro.plate("rows", len(y)):
            z = numpyro.sample("z", dist.Bernoulli(0.5))
            numpyro.sample("y", dist.Normal(mu[z], 1.0), obs=y)

    guide = legrad.MeanField(model)
    optimizer = optax.adam(optax.cosine_decay_schedule(0.1, 500))
    result = legrad.fit(model, guide, args=(X, y), key=key, optimizer=optimizer, steps=500, progress=False)
    return {
        "MCMC": MCMC, "NUTS": NUTS, "SVI": SVI, "Adam": Adam, "X": X, "guide": guide, "jax": jax, "jnp": jnp,
        "key": key, "legrad": legrad, "mixture": mixture, "model": model, "np": np, "params": result.params,
        "result": result, "w": w, "y": y,
    }  # fmt: skip


def failures(example):
    """What doctest says about an example; nothing if it is right."""
    said = []
    doctest.DocTestRunner(AnyOutputUnlessShown()).run(example, out=said.append)
    return "".join(said)


@pytest.mark.parametrize("example", list(examples()))
def test_example(example, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with jax.enable_x64(False):
        example.globs.update({name: value for name, value in names().items() if name not in example.globs})
        np.save("X.npy", example.globs["X"])
        np.save("y.npy", example.globs["y"])
        said = failures(example)
    assert not said, said


@pytest.mark.parametrize("source", [">>> 1 + 1\n3", ">>> unknown"])
def test_a_wrong_example_is_found(source):
    assert failures(doctest.DocTestParser().get_doctest(source, {}, "wrong", None, 0))
