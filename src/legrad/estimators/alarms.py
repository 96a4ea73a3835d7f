"""Alarms raised from inside a compiled step, so that an error that shows only in numbers is never silent."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient

ESCAPED = 1e-4  # mass outside a window above which to warn
QUADRATURE = 0.02  # largest acceptable relative change of a reweighted quadrature from K to K+2 nodes


def warn_escaped(site: str, mass: jax.Array) -> None:
    """Warn if a window of counts leaves out more than 1e-4 of a factor's mass."""
    _when(mass > ESCAPED, partial(_warn_escaped, site), mass)


def require_accurate(site: str, change: jax.Array) -> None:
    """Raise if a quadrature reweighted by the site's children is not accurate."""
    _when(~(change <= QUADRATURE), partial(_raise_inaccurate, site), change)


def _when(alarm: jax.Array, report: Any, number: jax.Array) -> None:
    number = stop_gradient(number)
    jax.lax.cond(jnp.any(alarm), lambda: jax.debug.callback(report, jnp.max(number)), lambda: None)


def _warn_escaped(site: str, mass: Any) -> None:
    if mass > ESCAPED:  # under vmap the report runs for every member
        warnings.warn(
            f"site '{site}': the window of counts leaves out {float(mass):.1e} of the factor's mass: "
            "use LocalExpectation(window=...) with a larger window",
            stacklevel=2,
        )


def _raise_inaccurate(site: str, change: Any) -> None:
    if not change <= QUADRATURE:
        raise ValueError(
            f"site '{site}': a quadrature reweighted by the site's children changes by {float(change):.1%} with two "
            f'more nodes: use LocalExpectation(sites={{"{site}": "reparam"}}), or more nodes'
        )
