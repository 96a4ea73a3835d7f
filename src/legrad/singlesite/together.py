"""Conditions that all members of a batch decide together: with one for each member, `vmap` runs both branches."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap


@custom_vmap
def all_of(condition: jax.Array) -> jax.Array:
    """Return a condition that holds for a batch if it holds for all members."""
    return condition


@all_of.def_vmap
def _all(size: int, batched: list[bool], condition: jax.Array) -> tuple[jax.Array, bool]:
    return all_of(jnp.all(condition)), False


@custom_vmap
def any_of(condition: jax.Array) -> jax.Array:
    """Return a condition that holds for a batch if it holds for any member."""
    return condition


@any_of.def_vmap
def _any(size: int, batched: list[bool], condition: jax.Array) -> tuple[jax.Array, bool]:
    return any_of(jnp.any(condition)), False
