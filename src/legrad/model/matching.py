"""Checks that model and guide match: each latent of one must be a latent of the other, of the same shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from legrad.model.sites import sample_sites


def reject_mutable(trace: Mapping[str, Any], where: str) -> None:
    """Raise for mutable state, which is not carried between steps."""
    for name, site in trace.items():
        if site["type"] == "mutable":
            raise NotImplementedError(
                f"site '{name}' of the {where} is mutable state, which legrad does not carry between "
                "steps: use a module without running statistics (LayerNorm in place of BatchNorm)"
            )


def check_match(model: Mapping[str, Any], latents: Mapping[str, Any]) -> None:
    """Raise if the latents of a model and of its guide are not the same, naming the site and the remedy."""
    in_model = {name: site for name, site in sample_sites(model) if not site["is_observed"]}
    for name, site in in_model.items():
        if name in latents:
            continue
        if site["infer"].get("enumerate"):
            raise ValueError(
                f"latent site '{name}' of the model is marked for enumeration and is not in the guide: legrad does "
                "not sum it out of the model; give it a factor in the guide (legrad.MeanField does), where its "
                "expectation is taken exactly"
            )
        raise ValueError(
            f"latent site '{name}' of the model is missing from the guide: sample '{name}' in the guide, or use "
            "legrad.MeanField(model)"
        )
    for name, site in latents.items():
        if name not in in_model:
            if site["infer"].get("is_auxiliary", False):
                continue
            where = "is observed" if name in dict(sample_sites(model)) else "does not exist"
            raise ValueError(
                f"site '{name}' of the guide {where} in the model: rename it to a latent of the model "
                f"({', '.join(sorted(in_model)) or 'it has none'}), or mark it infer={{'is_auxiliary': True}}"
            )
        wanted, got = in_model[name]["fn"].shape(), jnp.shape(site["value"])
        if wanted != got:
            raise ValueError(
                f"site '{name}' has shape {wanted} in the model and {got} in the guide: give the guide's "
                "distribution the model's batch shape (plates, .expand) and event shape (.to_event)"
            )
