"""A fit on rows in a file, that can be killed and started again: minibatches, a checkpoint, a log, and a verdict.

    python examples/minibatches.py [FOLDER]

Which of 300,000 visitors bought something? The rows stay on disk and are read 500 at a time. Kill it, run it again
with the same folder, and it goes on where it was. The log is JSON lines (out/minibatches/log.jsonl); the second
callback shows how to write any other, here for TensorBoard if tensorboardX is installed.
"""

import sys
from pathlib import Path

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import legrad

ROWS, COLUMNS = 300_000, 8


def write(folder: Path) -> None:
    """The data, as a user would have them: two files of arrays."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, COLUMNS)).astype(np.float32)
    y = rng.random(ROWS) < 1 / (1 + np.exp(2.0 - X @ np.linspace(-0.5, 0.5, COLUMNS)))
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", y.astype(np.int32))


def model(X, y):
    bias = numpyro.sample("bias", dist.Normal(0.0, 2.0))
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([COLUMNS]).to_event(1))
    with numpyro.plate("visitors", ROWS, subsample_size=len(y)):  # scales the ELBO to all rows
        numpyro.sample("y", dist.Bernoulli(logits=bias + X @ w), obs=y)


def tensorboard(folder: Path) -> list:
    """A callback that writes scalars for TensorBoard, where tensorboardX is installed."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        return []
    writer = SummaryWriter(str(folder))
    return [lambda snapshot: writer.add_scalar("elbo", snapshot.elbo, snapshot.step)]


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "out/minibatches")
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "y.npy").exists():
        write(folder)
    X, y = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in "Xy")
    result = legrad.fit(
        model,
        legrad.MeanField(model),
        key=jax.random.key(0),
        data=legrad.Minibatches(X, y, size=500),
        estimator=legrad.Reparameterized(),
        stop=legrad.AutoStop(tolerance=0.5),  # half a posterior standard deviation: the posterior is narrow
        checkpoint=folder / "checkpoint",
        callback=[legrad.JsonLines(folder / "log.jsonl"), *tensorboard(folder / "tensorboard")],
        callback_every=500,
        progress=True,
    )
    print(result.status)
    print("weights", np.round(result.params["w_loc"], 3))
    result.plot(folder / "fit.png")
    result.save(folder / "fit.legrad")
    print(f"{folder}/fit.png, fit.legrad and log.jsonl are written")


if __name__ == "__main__":
    main()
