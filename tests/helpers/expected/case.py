"""What a generated program is made of: latents with their priors, a guide for them, and terms that see them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from expected.dense import MOST, POINTS, Dense

Values = dict[str, Any]
Term = Callable[[Values], None]
CLOSED, BY_QUADRATURE = 1e-9, 1e-6


@dataclass(frozen=True)
class Case:
    """A program, where it is looked at, and how exact its exact terms must be.

    Attributes:
        name: of the family, and the seed.
        model: a NumPyro model of `args`.
        guide: its guide.
        params: parameters of both.
        args: arguments of both; the program itself holds no arrays that decide its structure.
        tolerance: relative; larger where a quadrature takes part.
        points: of the dense grid, for each continuous element.
    """

    name: str
    model: Callable[..., Any]
    guide: Callable[..., Any]
    params: dict[str, jax.Array]
    args: tuple[Any, ...]
    tolerance: float = CLOSED
    points: int | None = None

    def expected(self) -> tuple[jax.Array, Values]:
        """Return the negative ELBO and its gradient."""
        return Dense(self.model, self.guide, self.params, self.args, self.points)(self.params)


@dataclass(frozen=True)
class Latent:
    """A latent of a generated program.

    Attributes:
        kind: "binary", "choice", "count", "normal", "joint" (a multivariate Normal site) or "positive".
        shape: of its value.
        settings: of its prior.
        plated: whether its axis is a plate, else an event.
        above: the latent that its factor in the guide depends on.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    settings: dict[str, Any]
    plated: bool = True
    above: str | None = None

    @property
    def discrete(self) -> bool:
        return self.kind in ("binary", "choice", "count")

    def sample(self, law: dist.Distribution) -> jax.Array:
        """Make the statement, in plates or with the axes as events."""
        axes = len(self.shape)
        if self.kind == "joint" or not self.plated:
            return numpyro.sample(self.name, law if self.kind == "joint" else law.to_event(axes))
        with ExitStack() as stack:
            for dim, size in enumerate(reversed(self.shape)):
                stack.enter_context(numpyro.plate(f"{self.name}_{dim}", size, dim=-dim - 1))
            return numpyro.sample(self.name, law)

    def prior(self) -> dist.Distribution:
        s = self.settings
        if self.kind == "binary":
            probs = jax.nn.sigmoid(numpyro.param("prior", 0.0)) if s.get("learned") else s["probs"]
            law = dist.Bernoulli(probs=jnp.broadcast_to(probs, self.shape))
        elif self.kind == "choice":
            law = dist.Categorical(probs=jnp.broadcast_to(s["probs"], (*self.shape, s["K"])))
        elif self.kind == "count":
            law = dist.Binomial(s["total"], jnp.broadcast_to(s["probs"], self.shape))
        elif self.kind == "joint":
            law = dist.MultivariateNormal(jnp.zeros(self.shape), scale_tril=s["root"])
        elif self.kind == "positive":
            law = dist.Gamma(jnp.full(self.shape, 2.0), 1.5)
        else:
            law = dist.Normal(jnp.full(self.shape, s["loc"]), s["scale"])
        return law

    def factor(self, above: jax.Array | None) -> dist.Distribution:
        """Return the distribution of the guide, with a slope in the mean of the latent above, if there is one."""
        shift: Any = 0.0
        if above is not None:
            shift = numpyro.param(f"{self.name}_slope", 0.0) * jnp.mean(above.astype(float))
        if self.kind == "binary":
            return dist.Bernoulli(logits=self.param("logits") + shift)
        if self.kind == "choice":
            return dist.Categorical(
                logits=self.param("logits", self.settings["K"]) + shift * jnp.arange(3.0)[-self.settings["K"] :]
            )
        if self.kind == "count":
            return dist.Binomial(self.settings["total"], logits=self.param("logits") + shift)
        scale = jnp.exp(self.param("log_scale"))
        if self.kind == "positive":
            if self.settings["gamma"]:
                return dist.Gamma(3.0 + jnp.exp(self.param("loc") + shift), scale)
            return dist.LogNormal(self.param("loc") + shift, scale)
        if self.kind == "joint" and self.settings["whole"]:
            root = jnp.diag(scale) + jnp.tril(self.param("below", *self.shape), -1)
            return dist.MultivariateNormal(self.param("loc") + shift, scale_tril=root)
        law = dist.Normal(self.param("loc") + shift, scale)
        return law.to_event(1) if self.kind == "joint" else law

    def param(self, what: str, *more: int) -> jax.Array:
        return numpyro.param(f"{self.name}_{what}", jnp.zeros((*self.shape, *more)))


@dataclass
class Builder:
    """Collects latents and terms while a family makes a program; `rng` decides everything that is left open."""

    rng: np.random.Generator
    latents: dict[str, Latent] = field(default_factory=dict)
    terms: list[Term] = field(default_factory=list)
    data: dict[str, jax.Array] = field(default_factory=dict)
    tolerance: float = CLOSED
    points: int | None = None
    statements: int = 0

    def latent(self, letter: str, kind: str, *shape: int, **settings: Any) -> str:
        """Declare a latent and return its name; two families of one program share those of the same shape."""
        name = "_".join([letter, *map(str, shape)])
        if name not in self.latents:
            plated = bool(self.rng.integers(2))
            self.latents[name] = Latent(name, kind, shape, settings, plated)
        return name

    def binary(self, *shape: int, learned: bool = False) -> str:
        probs = self.rng.uniform(0.2, 0.8, shape if self.rng.integers(2) else ())
        return self.latent("z", "binary", *shape, probs=probs, learned=learned)

    def choice(self, n: int, K: int) -> str:
        return self.latent("c", "choice", n, K=K, probs=self.rng.dirichlet(np.full(K, 3.0)))

    def count(self, n: int, total: int) -> str:
        return self.latent("k", "count", n, total=total, probs=self.rng.uniform(0.2, 0.8, n))

    def normal(self, *shape: int, name: str = "x") -> str:
        loc, scale = 0.3 * self.rng.normal(), self.rng.uniform(0.7, 1.5)
        return self.latent(name, "normal", *shape, loc=loc, scale=scale)

    def joint(self, d: int, whole: bool = True) -> str:
        root = np.linalg.cholesky(np.eye(d) + 0.3 * np.ones((d, d)))
        return self.latent("w", "joint", d, root=root, whole=whole)

    def positive(self, *shape: int, gamma: bool) -> str:
        return self.latent("t", "positive", *shape, gamma=gamma)

    def array(self, name: str, value: Any) -> str:
        """Keep an array of data under a name that is not taken; return the name."""
        name = f"{name}_{len(self.data)}"
        self.data[name] = jnp.asarray(value)
        return name

    def matrix(self, *shape: int, zeros: bool = True) -> str:
        """Return the name of a matrix of data, some of whose entries may be zero."""
        A = self.rng.normal(size=shape)
        if zeros and self.rng.integers(2):
            A = np.where(self.rng.random(shape) < 0.4, 0.0, A)
        return self.array("A", A)

    def factor(self) -> Callable[[Any], None]:
        """Return a statement that adds a number to the log-density."""
        name, scale = f"factor_{self._number()}", float(self.rng.choice([1.0, 1.0, 2.5]))

        def add(value: Any) -> None:
            with numpyro.handlers.scale(scale=scale):
                numpyro.factor(name, value)

        return add

    def observed(self, *shape: int, plate: bool = True) -> Callable[[dist.Distribution, Any], None]:
        """Return a statement of data: in a plate or as an event, with a mask or a scale, or none of these."""
        name, kind = f"y_{self._number()}", int(self.rng.integers(5)) if plate else 1
        mask = jnp.asarray(self.rng.random(shape) < 0.6)

        def observe(law: dist.Distribution, y: Any) -> None:
            if kind == 0:
                numpyro.sample(name, law.mask(mask), obs=y)
            elif kind == 1:
                numpyro.sample(name, law, obs=y)
            elif kind == 2:
                with numpyro.handlers.scale(scale=2.5):
                    numpyro.sample(name, law.expand(shape).to_event(len(shape)), obs=y)
            else:
                with ExitStack() as stack:
                    for dim, size in enumerate(reversed(shape)):
                        stack.enter_context(numpyro.plate(f"{name}_{dim}", size, dim=-dim - 1))
                    if kind == 3:
                        stack.enter_context(numpyro.handlers.mask(mask=mask))
                    numpyro.sample(name, law, obs=y)

        return observe

    def _number(self) -> int:
        self.statements += 1
        return self.statements

    def size(self) -> int:
        """Return how many points the dense grid would have; none for more than three continuous elements."""
        continuous, total = 0, 1
        for site in self.latents.values():
            n = int(np.prod(site.shape))
            if site.discrete:
                total *= {"binary": 2, "choice": site.settings.get("K"), "count": site.settings.get("total", 0) + 1}[
                    site.kind
                ] ** n
            else:
                continuous += n
        return (
            total * (POINTS[continuous] if self.points is None else self.points) ** continuous
            if continuous <= 3
            else MOST + 1
        )

    def case(self, name: str, parents: bool) -> Case:
        """Return the program, its guide and parameters; with `parents`, one factor depends on an earlier latent."""
        latents = dict(self.latents)
        if parents and len(latents) > 1:
            first, second = list(latents)[:2]
            latents[second] = Latent(**{**vars(latents[second]), "above": first})
        terms = list(self.terms)

        def model(data: Values) -> None:
            values = {n: site.sample(site.prior()) for n, site in latents.items()}
            for term in terms:
                term({**data, **values})

        def guide(data: Values) -> None:
            values: Values = {}
            for n, site in latents.items():
                values[n] = site.sample(site.factor(None if site.above is None else values[site.above]))

        args = (dict(self.data),)
        params = {}
        for n, shape in jax.eval_shape(lambda: declared(guide, args) | declared(model, args)).items():
            spread = 0.25 if "scale" in n or "below" in n else 0.6
            params[n] = jnp.asarray(spread * self.rng.normal(size=shape.shape))
        return Case(name, model, guide, params, args, self.tolerance, self.points)


def declared(program: Callable[..., Any], args: tuple[Any, ...]) -> Values:
    """Return the parameters that a program declares."""
    with numpyro.handlers.seed(rng_seed=0), numpyro.handlers.trace() as trace:
        program(*args)
    return {n: site["value"] for n, site in trace.items() if site["type"] == "param"}
