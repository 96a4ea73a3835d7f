"""The catalogue: one row a problem, which every estimator that can treat it must pass against the exact gradient.

A row's exact negative ELBO is `Exact()` on `exact_args` where the guide is discrete, and a closed form (or a dense
Gauss-Hermite rule) where it is not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

import legrad

ALL = ("local", "score", "leave_one_out", "disarm", "reparam")
DISCRETE = ("local", "score", "leave_one_out")
BINARY = (*DISCRETE, "disarm")
CONTINUOUS = ("local", "score", "leave_one_out", "reparam")


@dataclass(frozen=True)
class Row:
    name: str
    model: Callable[..., Any]
    guide: Callable[..., Any]
    params: dict[str, Any]
    args: tuple[Any, ...] = ()
    estimators: tuple[str, ...] = DISCRETE
    exact: Callable[[dict[str, Any]], Any] | None = None  # closed-form negative ELBO of the params
    exact_args: tuple[Any, ...] | None = None  # arguments without subsampling
    local: dict[str, Any] = field(default_factory=dict)  # settings of LocalExpectation

    def loss(self, params: dict[str, Any]) -> Any:
        if self.exact is not None:
            return self.exact(params)
        args = self.args if self.exact_args is None else self.exact_args
        return legrad.Exact().loss(jax.random.key(0), params, self.model, self.guide, *args)


ROWS: list[Row] = []


def row(**settings: Any) -> Callable[[Callable[[], tuple]], None]:
    """Enter a row; the decorated function returns (model, guide, params)."""

    def enter(make: Callable[[], tuple]) -> None:
        model, guide, params = make()
        params = {name: jnp.asarray(value, float) for name, value in params.items()}
        ROWS.append(Row(make.__name__, model, guide, params, **settings))

    return enter
