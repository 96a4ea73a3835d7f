"""The terms of a model, as a function of the discrete sites that are summed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpyro import handlers

from legrad.marginal.plan import Plan
from legrad.model.sites import sample_sites, site_log_prob
from legrad.model.threads import one_at_a_time


class Terms:
    """The terms of a model as a function of the summed sites, at given values of everything else."""

    def __init__(self, model: Any, args: Any, kwargs: Any, plan: Plan, values: Mapping[str, Any]) -> None:
        self.model, self.args, self.kwargs, self.plan, self.values = model, args, kwargs, plan, dict(values)

    def __call__(self, summed: Mapping[str, Any]) -> dict[str, Any]:
        """Return the terms that depend on the summed sites."""
        wanted = self.plan.touched.union(self.plan.summed)
        return {name: site_log_prob(site) for name, site in self.sites(summed).items() if name in wanted}

    @one_at_a_time
    def sites(self, summed: Mapping[str, Any]) -> dict[str, Any]:
        """Run the model, hidden from the handlers outside; return its sample statements."""
        data = {**self.values, **summed}
        with (
            handlers.block(),
            handlers.trace() as trace,
            handlers.seed(rng_seed=0),
            handlers.substitute(data=data),
        ):
            self.model(*self.args, **self.kwargs)
        sites = dict(sample_sites(trace))
        for name, site in sites.items():
            if not site["is_observed"] and name not in data:
                raise ValueError(
                    f"site '{name}' appeared in this run of the model and not in the first one: a model that is "
                    "summed must have the same sites in every run; keep data-dependent branches out of it"
                )
        for name in self.plan.summed:
            if name not in sites:
                raise ValueError(
                    f"site '{name}' was in the first run of the model and is missing in this one: a model that is "
                    "summed must have the same sites in every run"
                )
        return sites
