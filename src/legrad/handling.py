"""Models and guides run in one thread at a time.

NumPyro keeps the handlers that are active in one list for all threads, so a statement of one thread would be handled
by those of another. Whatever runs a model or guide does so inside `alone`; compiled programs need not, and fits in
several threads take their steps at the same time.
"""

from __future__ import annotations

import threading
from contextlib import ContextDecorator

__all__ = ["alone"]


class _Alone(ContextDecorator):
    """`with alone:`, or `@alone` for a whole function; a thread that is inside may enter again."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


alone = _Alone()
