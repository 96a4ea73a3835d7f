"""Timing of calls that take turns, so that a busy machine affects all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

_ROUNDS = 7


def interleaved_seconds(
    calls: Mapping[str, Callable[[], Any]], rounds: int = _ROUNDS, least: float = 0.02
) -> dict[str, float]:
    """Return the median seconds of each compiled call; in every round each call runs for about `least` seconds."""
    repeats = {}
    for name, call in calls.items():
        jax.block_until_ready(call())
        begun = time.perf_counter()
        jax.block_until_ready(call())
        repeats[name] = max(1, int(least / max(time.perf_counter() - begun, 1e-6)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            begun = time.perf_counter()
            for _ in range(repeats[name]):
                jax.block_until_ready(call())
            times[name].append((time.perf_counter() - begun) / repeats[name])
    return {name: float(np.median(t)) for name, t in times.items()}
