"""Poisson likelihoods of a log-rate: log p = y η − e^η − log y!, a part linear in the change and one that is not.

Taken apart, the first costs a product of matrices, and the second is summed in passing. With large weights the two
do not cancel, unlike the two parts of a Bernoulli.
"""

from __future__ import annotations

import jax.numpy as jnp

from legrad.singlesite.change import Change, Lazy, New, Piece
from legrad.singlesite.labelled import Labelled
from legrad.singlesite.rules.elementwise import nonlinear
from legrad.singlesite.rules.operand import Rule, Step


def poisson_log(step: Step) -> list[Change | None]:
    """Compute log p(value | log-rate), elementwise."""
    log_rate, value = step.operands
    site, change = step.site, log_rate.change
    if value.change is not None or not isinstance(change, Lazy) or change.values_known:
        return nonlinear(step)
    linear = [Piece(p.layout, (*p.factors, site.take(value.base, p.layout))) for p in change.pieces]
    layout = site.union(site.layouts(change), step.shape)
    new = site.as_new(change, log_rate.base, layout)
    minus_rate = New(layout, Labelled(-jnp.exp(new.data), new.axes))
    return [site.tidy([*linear, *site.as_lazy(minus_rate, -jnp.exp(log_rate.base)).pieces])]


RULES: dict[str, Rule] = {"legrad_poisson_log": poisson_log}
