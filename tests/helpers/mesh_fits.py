"""Fits on several devices and in several processes; JAX fixes their number at its start, so each runs as a script.

python mesh_fits.py WHAT DEVICES PROCESSES PROCESS PORT OUT names...    with WHAT one of these, or several with commas

fits        fits of the models of these names, or of all: OUT.npz
programs    the collectives of a step: OUT.programs.json
errors      the messages of wrong meshes: OUT.errors.json
killed      a long fit with a checkpoint; names: [steps], its number of steps
quick       makes the others notice a lost process sooner than they do by themselves
"""

import inspect
import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

ROWS = 48


def models():
    """The models by name: model, guide, arguments, names of the parameters of members."""
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    import legrad

    rng = np.random.default_rng(0)
    X, bits = rng.normal(size=(ROWS, 5)), rng.integers(0, 2, (ROWS, 6)).astype(float)
    spins = rng.normal(size=(ROWS, 8)) + 0.5

    def sbn(y):
        W = numpyro.param("W", 0.1 * jnp.asarray(np.random.default_rng(1).normal(size=(3, 6))))
        with numpyro.plate("images", len(y)):
            h = numpyro.sample("h", dist.Bernoulli(0.5 * jnp.ones(3)).to_event(1))
            numpyro.sample("y", dist.Bernoulli(logits=h @ W).to_event(1), obs=y)

    def sbn_guide(y):
        V = numpyro.param("V", jnp.zeros((6, 3)))
        with numpyro.plate("images", len(y)):
            numpyro.sample("h", dist.Bernoulli(logits=y @ V).to_event(1))

    def logistic(X, y):
        w = numpyro.sample("w", dist.Normal(jnp.zeros(5), 1.0).to_event(1))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)

    def spike(X, y):
        with numpyro.plate("columns", 5):
            z, b = numpyro.sample("z", dist.Bernoulli(0.2)), numpyro.sample("b", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(X @ (z * b), 0.5), obs=y)

    def mixture(y):
        mu = numpyro.sample("mu", dist.Normal(jnp.asarray([0.0, 3.0, 6.0]), 5.0).to_event(1))
        with numpyro.plate("points", len(y)):
            z = numpyro.sample("z", dist.Categorical(jnp.full(3, 1 / 3)))
            numpyro.sample("y", dist.Normal(mu[z], 1.0), obs=y)

    def ising(y):
        with numpyro.plate("rows", y.shape[0], dim=-2), numpyro.plate("columns", y.shape[1], dim=-1):
            z = numpyro.sample("z", dist.Bernoulli(0.5))
            numpyro.sample("y", dist.Normal(2.0 * z - 1.0, 1.0), obs=y)
        s = 2.0 * z - 1.0
        numpyro.factor("pairs", 0.3 * (jnp.sum(s[1:] * s[:-1]) + jnp.sum(s[:, 1:] * s[:, :-1])))

    y = rng.normal(size=ROWS)
    return {
        "sbn": (sbn, sbn_guide, (bits,), ()),
        "logistic": (logistic, legrad.MeanField(logistic), (X, bits[:, 0]), ()),
        "spike": (spike, legrad.MeanField(spike, init={"b": 0.5}), (X, X[:, 0] + 0.1 * y), ()),
        "mixture": (mixture, legrad.MeanField(mixture), (3.0 * bits[:, 0] + y,), ("z_logits",)),
        "ising": (ising, legrad.MeanField(ising), (spins,), ("z_logits",)),
    }


def estimators():
    """LocalExpectation, with exact terms and without where it has them."""
    import legrad

    if "exact_terms" not in inspect.signature(legrad.LocalExpectation).parameters:
        return {"": legrad.LocalExpectation()}
    return {f"exact={on}": legrad.LocalExpectation(exact_terms=on) for on in (False, True)}


def mesh(number=None):
    """A mesh of some of the devices, or of all."""
    import jax

    devices = jax.devices() if number is None else jax.devices()[:number]
    return jax.make_mesh((len(devices),), ("data",), devices=devices)


def fits(out, names):
    """Fit each model on 1, 2 and 8 of the devices of one process, or on all devices of several."""
    import jax
    import optax

    import legrad

    found, known = {}, models()
    counts = (None, 2, 8) if jax.process_count() == 1 and jax.device_count() > 1 else (jax.device_count(),)
    for name in names or known:
        model, guide, args, _ = known[name]
        for label, estimator in estimators().items():
            for number in counts:
                result = legrad.fit(
                    model, guide, args=args, key=3, steps=8, mesh=None if number is None else mesh(number),
                    estimator=estimator, optimizer=optax.sgd(1e-3), progress=False,
                )  # fmt: skip
                draw = result.sample(jax.random.key(1), 2)
                found |= {f"{name}{label} {number} {k}": v for k, v in result.params.items()}
                found[f"{name}{label} {number} elbo"] = result.elbo
                found |= {f"{name}{label} {number} draw {k}": np.asarray(v) for k, v in draw.items()}
    np.savez(f"{out}.npz", **found)


COLLECTIVE = re.compile(r"= (.*?) (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\(")


def program_text(model, guide, args, **settings):
    """The text of the compiled steps of a fit."""
    import jax.numpy as jnp

    import legrad
    from legrad.fitting.host_loop import HostLoop

    class Found(Exception):
        pass

    def run(self, now):
        p, ends = self.program, jnp.asarray(np.minimum(4, now.limits), jnp.int32)
        raise Found(p._advance.lower(now.state, p.keys, ends, p.feed.load(0)).compile().as_text())

    before, HostLoop.run = HostLoop.run, run
    try:
        legrad.fit(model, guide, args=args, key=3, steps=8, progress=False, **settings)
    except Found as found:
        return found.args[0]
    finally:
        HostLoop.run = before


def programs(out, names):
    """List the collectives of a step of each model on 8 devices, as (kind, result)."""
    import jax

    jax.config.update("jax_disable_most_optimizations", False)
    known = models()
    found = {}
    for name in names or known:
        model, guide, args, _ = known[name]
        for label, estimator in estimators().items():
            text = program_text(model, guide, args, mesh=mesh(), estimator=estimator)
            found[f"{name} {label}"] = [(kind, shapes) for shapes, kind in COLLECTIVE.findall(text)]
    Path(f"{out}.programs.json").write_text(json.dumps(found))


def errors(out, names):
    """The messages of fits on meshes that do not suit them."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    import legrad

    def model(y, size=None, total=None):
        m = numpyro.sample("m", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", total or len(y), subsample_size=size) as at:
            numpyro.sample("y", dist.Normal(m, 1.0), obs=y if size is None or total else y[at])

    def batches(size):
        return {"data": legrad.Minibatches(np.zeros(64), size=size), "kwargs": {"size": size, "total": 64}}

    guide, y = legrad.MeanField(model), jnp.zeros(16)
    found = {}
    if jax.process_count() > 1:
        here = [d for d in jax.devices() if d.process_index == 0]
        rows = np.zeros(16 if jax.process_index() == 0 else 24)
        calls = {
            "shapes": {"args": (rows,), "mesh": mesh()},
            "process without": {"args": (y,), "mesh": jax.make_mesh((len(here),), ("data",), devices=here)},
        }
    else:
        calls = {
            "divides nothing": {"args": (jnp.zeros(15),), "mesh": mesh(8)},
            "few members": {"args": (jnp.zeros(4),), "mesh": mesh(8)},
            "subsample": {"args": (y, 4), "mesh": mesh(8)},
            "minibatch": {**batches(4), "mesh": mesh(8)},
            "minibatch divides": {**batches(12), "mesh": mesh(8)},
            "two axes": {"args": (y,), "mesh": jax.make_mesh((4, 2), ("data", "model"))},
            "no mesh": {"args": (y,), "mesh": 8},
        }  # fmt: skip
    for name, settings in calls.items():
        steps: list[int] = []
        try:
            legrad.fit(model, guide, key=0, steps=2, progress=False, callback=steps.append, **settings)
            found[name] = "no error"
        except (ValueError, TypeError) as error:
            found[name] = f"{type(error).__name__}: {error}"
    Path(f"{out}.errors.json").write_text(json.dumps(found))


def parts(out, names):
    """Fits to data that lie in parts on meshes of both kinds of axes; how far they are from the fit to whole data."""
    import jax
    import optax
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    import legrad

    model, guide, args, _ = models()["mixture"]
    settings = {"key": 3, "steps": 4, "optimizer": optax.sgd(1e-3), "progress": False}
    alone = legrad.fit(model, guide, args=args, **settings).params
    found = {}
    for kind in (AxisType.Auto, AxisType.Explicit):
        axis = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(kind,))
        given = tuple(jax.device_put(x, NamedSharding(axis, PartitionSpec("data"))) for x in args)
        for of_fit in ({"mesh": axis}, {}):
            params = legrad.fit(model, guide, args=given, **of_fit, **settings).params
            apart = [np.abs(np.asarray(params[name]) - value).max() for name, value in alone.items()]
            found[f"{kind.name} {len(of_fit)}"] = float(max(apart))
    Path(f"{out}.parts.json").write_text(json.dumps(found))


def quick(out, names):
    """Notice a lost process sooner than by default: tests wait for it."""
    from legrad.fitting import lost_process

    lost_process.SILENT, lost_process.EVERY, lost_process.GRACE = 15.0, 1.0, 2.0


def killed(out, names):
    """A fit of many steps with a checkpoint; it prints its progress, and writes its result."""
    import optax

    import legrad

    steps = int(names[0]) if names else 100_000
    model, guide, args, _ = models()["mixture"]
    result = legrad.fit(
        model, guide, args=args, key=3, steps=steps, mesh=mesh(), optimizer=optax.sgd(1e-4), progress=False,
        checkpoint=f"{out}.fit", checkpoint_every=100, callback_every=100,
        callback=lambda snapshot: time.sleep(0.05) or print(snapshot.step, flush=True),
    )  # fmt: skip
    np.savez(f"{out}.npz", **result.params)


def start(what, out, names=(), *, devices=1, processes=1, process=0, port=0):
    """Start this script as a process."""
    command = [sys.executable, __file__, what, *map(str, (devices, processes, process, port)), str(out), *names]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ.copy())


def start_all(what, out, names=(), *, processes, devices=1):
    """Start this script as several processes of one fit; each writes a file of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    of_all = {"devices": devices, "processes": processes, "port": port}
    outs = [out if "killed" in what else f"{out}-{i}" for i in range(processes)]
    return [start(what, outs[i], names, process=i, **of_all) for i in range(processes)]


def finish(processes, seconds=600):
    """Wait for processes; return their exit codes, what they printed as errors, and the last number they printed."""
    try:
        printed, said = zip(*(process.communicate(timeout=seconds) for process in processes), strict=True)
    finally:
        for process in processes:
            process.kill()
    numbers = [int(line) for text in printed for line in text.splitlines() if line.isdigit()]
    return [process.returncode for process in processes], list(said), max(numbers, default=0)


def main():
    what, devices, processes, process, port, out, *names = sys.argv[1:]
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    import jax

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_disable_most_optimizations", True)
    if int(processes) > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{port}", int(processes), int(process))
    for part in what.split(","):
        globals()[part](out, names)


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("ignore")
    main()
