"""A result in a few lines, as text and as HTML for notebooks."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

if TYPE_CHECKING:
    from legrad.fitting.result import FitResult

_PARAMETERS = 8
_NEXT = "result.summary(key), result.diagnose(key), result.predict(key), result.plot()"


def as_text(result: FitResult) -> str:
    """Return a few lines: how the fit ended, its ELBO and time, and the shapes of its parameters."""
    return "\n".join(f"{name:<10}  {value}" for name, value in _facts(result))


def as_html(result: FitResult) -> str:
    """Return the same as a small table."""
    rows = "".join(
        f"<tr><th scope='row' style='text-align:left'>{escape(name)}</th>"
        f"<td style='text-align:left'>{escape(value)}</td></tr>"
        for name, value in _facts(result)
    )
    return f"<table class='legrad-result'><tbody>{rows}</tbody></table>"


def _facts(result: FitResult) -> list[tuple[str, str]]:
    how = f"{result.steps:,} step{'s' * (result.steps != 1)} in {result.seconds:.1f} s"
    finite = result.elbo[np.isfinite(result.elbo)]
    recent = finite[-min(100, max(1, len(finite) // 10)) :]
    over = f" (mean of the last {len(recent):,} steps)" if len(recent) > 1 else ""
    elbo = f"ELBO {recent.mean():,.4g}{over}, " if len(recent) else ""
    return [
        ("FitResult", f"{elbo}{how}"),
        ("status", result.status),
        ("parameters", _parameters(result.params)),
        ("next", _NEXT),
    ]


def _parameters(params: dict[str, Any]) -> str:
    words = [f"{name} {_shape(value)}" for name, value in list(params.items())[:_PARAMETERS]]
    more = len(params) - len(words)
    return ", ".join(words) + (f" and {more} more" if more else "")


def _shape(value: Any) -> str:
    leaves = jax.tree.leaves(value)
    if len(leaves) == 1:
        return str(tuple(np.shape(leaves[0])))
    return f"({sum(np.size(leaf) for leaf in leaves):,} numbers in {len(leaves)} arrays)"
