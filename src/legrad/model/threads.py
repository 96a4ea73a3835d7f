"""A lock that lets models and guides run in one thread at a time.

NumPyro keeps the active handlers in one list for all threads, so a statement of one thread would be handled by the
handlers of another. Code that runs a model or guide does so inside `one_at_a_time`; compiled programs need no lock,
so fits in several threads take their steps at the same time.
"""

from __future__ import annotations

import threading
from contextlib import ContextDecorator

__all__ = ["one_at_a_time"]


class _OneAtATime(ContextDecorator):
    """The lock, for `with one_at_a_time:` or `@one_at_a_time`; a thread that holds the lock may enter again."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


one_at_a_time = _OneAtATime()
