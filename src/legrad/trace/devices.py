"""Which axes are cut across devices, while a program is traced for a mesh.

A program is the same on any number of devices. Where one of two equal forms keeps each device to its own part of an
axis, a rule asks `parts` how many parts the axis has, and takes that form.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager


class _Cut(threading.local):
    """The sizes of the axes that are cut, and the number of parts."""

    def __init__(self) -> None:
        self.sizes: frozenset[int] = frozenset()
        self.devices = 1


_CUT = _Cut()


@contextmanager
def cut_across(devices: int, sizes: Collection[int]) -> Iterator[None]:
    """Declare that the axes of these sizes are cut across devices, while a program is traced."""
    before = _CUT.devices, _CUT.sizes
    _CUT.devices, _CUT.sizes = devices, frozenset(sizes)
    try:
        yield
    finally:
        _CUT.devices, _CUT.sizes = before


def devices() -> int:
    """Return across how many devices the program is cut; 1 without a mesh."""
    return _CUT.devices


def parts(size: int) -> int:
    """Return into how many parts an axis of this size is cut; 1 if it is not."""
    return _CUT.devices if size in _CUT.sizes and size % _CUT.devices == 0 else 1
