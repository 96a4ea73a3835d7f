"""The order of the rows in an epoch: a shuffle that is seeded by the epoch.

Up to `LISTED` rows are shuffled as a list. More are permuted by a formula that takes no memory: a Feistel network on
pairs (a, b) of h bits each,

    (a, b) → (b, a xor hash(b, seed, epoch, round) mod 2^h),    four rounds,    2^2h the next power of 4 over the rows

which is applied again to what falls outside the rows (cycle walking), and so permutes the rows.
"""

from __future__ import annotations

import numpy as np

LISTED = 1 << 20
_ROUNDS = 4


class RowOrder:
    """The shuffles of all epochs.

    Args:
        rows: the number of rows.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._kept: tuple[tuple[int, int], np.ndarray] | None = None

    def at(self, seed: int, epoch: int, start: int, stop: int) -> np.ndarray:
        """Return the rows at some places of an epoch's order."""
        if self.rows > LISTED:
            return permuted(np.arange(start, stop), self.rows, seed, epoch)
        if self._kept is None or self._kept[0] != (seed, epoch):
            order = np.arange(self.rows, dtype=np.uint32)
            np.random.Generator(np.random.Philox(key=[seed, epoch])).shuffle(order)
            self._kept = ((seed, epoch), order)
        return self._kept[1][start:stop].astype(np.int64)


def permuted(places: np.ndarray, rows: int, seed: int, epoch: int) -> np.ndarray:
    """Return what a permutation of `rows` numbers, chosen by the seed and the epoch, maps some places to."""
    half = np.uint64(max(1, (int(rows - 1).bit_length() + 1) // 2))
    keys = np.random.Generator(np.random.Philox(key=[seed, epoch])).integers(0, 1 << 63, _ROUNDS, np.uint64)
    found = _network(places.astype(np.uint64), half, keys)
    outside = np.flatnonzero(found >= rows)
    while len(outside):
        found[outside] = _network(found[outside], half, keys)
        outside = outside[found[outside] >= rows]
    return found.astype(np.int64)


def _network(number: np.ndarray, half: np.uint64, keys: np.ndarray) -> np.ndarray:
    mask = (np.uint64(1) << half) - np.uint64(1)
    a, b = number >> half, number & mask
    for key in keys:
        a, b = b, a ^ (_hash(b ^ key) & mask)
    return (a << half) | b


def _hash(number: np.ndarray) -> np.ndarray:
    """Mix the bits of 64-bit numbers (the end of splitmix64)."""
    number = (number ^ (number >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ (number >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return number ^ (number >> np.uint64(31))
