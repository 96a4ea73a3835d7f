"""Problems of the peers table for Pyro, and the SBN for Storchastic. Sites and parameters have the JAX side's names.

Pyro's enumeration needs one site for each binary latent, so each problem has that form too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import pyro
import pyro.distributions as dist
import storch
import torch
from torch import Tensor
from torch.nn.functional import softplus

Tensors = Mapping[str, Tensor]


class Pair(NamedTuple):
    """A Pyro model and guide, which take no arguments."""

    model: Callable[[], None]
    guide: Callable[[], None]


def sbn(start: Tensors, y: Tensor, infer: dict) -> Pair:
    """A layer of binary latents for each image, and a linear inference network."""

    def model() -> None:
        prior, W, b = (pyro.param(name, start[name]) for name in ("prior", "W", "b"))
        with pyro.plate("images", len(y)):
            h = pyro.sample("h", dist.Bernoulli(logits=prior).to_event(1))
            pyro.sample("y", dist.Bernoulli(logits=h @ W + b).to_event(1), obs=y)

    def guide() -> None:
        V, c = (pyro.param(name, start[name]) for name in ("V", "c"))
        with pyro.plate("images", len(y)):
            pyro.sample("h", dist.Bernoulli(logits=y @ V + c).to_event(1), infer=infer)

    return Pair(model, guide)


def sbn_each(start: Tensors, y: Tensor, infer: dict) -> Pair:
    """The same with a site for each latent of an image."""

    def model() -> None:
        prior, W, b = (pyro.param(name, start[name]) for name in ("prior", "W", "b"))
        with pyro.plate("images", len(y)):
            logits = b
            for k in range(len(prior)):
                h = pyro.sample(f"h_{k}", dist.Bernoulli(logits=prior[k]))
                logits = logits + h[..., None] * W[k]
            pyro.sample("y", dist.Bernoulli(logits=logits).to_event(1), obs=y)

    def guide() -> None:
        V, c = (pyro.param(name, start[name]) for name in ("V", "c"))
        logits = y @ V + c
        with pyro.plate("images", len(y)):
            for k in range(len(c)):
                pyro.sample(f"h_{k}", dist.Bernoulli(logits=logits[:, k]), infer=infer)

    return Pair(model, guide)


def spike_and_slab(start: Tensors, X: Tensor, y: Tensor, infer: dict) -> Pair:
    """Sparse linear regression: which features matter, and how much."""
    n, p = X.shape

    def model() -> None:
        with pyro.plate("features", p):
            gamma = pyro.sample("gamma", dist.Bernoulli(0.1))
            beta = pyro.sample("beta", dist.Normal(0.0, 1.0))
        with pyro.plate("data", n):
            pyro.sample("y", dist.Normal(X @ (gamma * beta), 1.0), obs=y)

    def guide() -> None:
        logits, loc, log_scale = (pyro.param(name, start[name]) for name in ("logits", "loc", "log_scale"))
        with pyro.plate("features", p):
            pyro.sample("gamma", dist.Bernoulli(logits=logits), infer=infer)
            pyro.sample("beta", dist.Normal(loc, torch.exp(log_scale)))

    return Pair(model, guide)


def spike_and_slab_each(start: Tensors, X: Tensor, y: Tensor, infer: dict) -> Pair:
    """The same with a site for each feature."""
    n, p = X.shape

    def model() -> None:
        mean = torch.zeros(n)
        for j in range(p):
            gamma = pyro.sample(f"gamma_{j}", dist.Bernoulli(0.1))
            beta = pyro.sample(f"beta_{j}", dist.Normal(0.0, 1.0))
            mean = mean + (gamma * beta)[..., None] * X[:, j]
        pyro.sample("y", dist.Normal(mean, 1.0).to_event(1), obs=y)

    def guide() -> None:
        logits, loc, log_scale = (pyro.param(name, start[name]) for name in ("logits", "loc", "log_scale"))
        for j in range(p):
            pyro.sample(f"gamma_{j}", dist.Bernoulli(logits=logits[j]), infer=infer)
            pyro.sample(f"beta_{j}", dist.Normal(loc[j], torch.exp(log_scale[j])))

    return Pair(model, guide)


def ising(start: Tensors, field: Tensor, infer: dict) -> Pair:
    """A grid of spins that like to be equal, each in a field of its own."""
    n = len(field)

    def model() -> None:
        with pyro.plate("columns", n, dim=-1), pyro.plate("rows", n, dim=-2):
            z = pyro.sample("z", dist.Bernoulli(0.5))
        s = 2.0 * z - 1.0
        pairs = (s[1:] * s[:-1]).sum() + (s[:, 1:] * s[:, :-1]).sum()
        pyro.factor("energy", 0.3 * pairs + (field * s).sum())

    def guide() -> None:
        logits = pyro.param("logits", start["logits"])
        with pyro.plate("columns", n, dim=-1), pyro.plate("rows", n, dim=-2):
            pyro.sample("z", dist.Bernoulli(logits=logits), infer=infer)

    return Pair(model, guide)


def ising_each(start: Tensors, field: Tensor, infer: dict) -> Pair:
    """The same with a site for each spin and a factor for each pair."""
    n = len(field)

    def model() -> None:
        s = {}
        for i in range(n):
            for j in range(n):
                s[i, j] = 2.0 * pyro.sample(f"z_{i}_{j}", dist.Bernoulli(0.5)) - 1.0
                pyro.factor(f"field_{i}_{j}", field[i, j] * s[i, j])
                for side, other in (("up", (i - 1, j)), ("left", (i, j - 1))):
                    if other in s:
                        pyro.factor(f"{side}_{i}_{j}", 0.3 * s[i, j] * s[other])

    def guide() -> None:
        logits = pyro.param("logits", start["logits"])
        for i in range(n):
            for j in range(n):
                pyro.sample(f"z_{i}_{j}", dist.Bernoulli(logits=logits[i, j]), infer=infer)

    return Pair(model, guide)


def storchastic_sbn(params: Tensors, y: Tensor, method: storch.method.Method) -> Tensor:
    """The mean negative ELBO of an image; its gradient is left in `.grad` of the parameters."""
    images = storch.denote_independent(y, 0, "images")
    logits = images @ params["V"] + params["c"]
    # By probabilities, from whose gradient RELAX learns; times 1.0, as DisARM's samples are boolean.
    h = method(torch.distributions.Bernoulli(probs=torch.sigmoid(logits))) * 1.0
    out = h @ params["W"] + params["b"]
    log_p = (images * out - softplus(out)).sum(-1) + (h * params["prior"] - softplus(params["prior"])).sum(-1)
    log_q = (h * logits - softplus(logits)).sum(-1)
    storch.add_cost(log_q - log_p, "negative ELBO")
    return storch.backward()


def conditional_sample(hard: Tensor, probs: Tensor, bernoulli: bool, temperature: Tensor) -> Tensor:
    """z̃ given b, as Storchastic's function of this place should have it.

    Storchastic 0.3.7 has log p + log(1 + p) where the logit log p − log(1 − p) belongs.
    """
    assert bernoulli
    tiny = torch.finfo(probs.dtype).eps
    probs = probs.expand_as(hard).clamp(tiny, 1 - tiny)
    v = torch.rand_like(probs)
    u = torch.where(hard == 1, v * probs + (1 - probs), v * (1 - probs)).clamp(tiny, 1 - tiny)
    return torch.sigmoid((torch.logit(probs) + torch.logit(u)) / temperature)
