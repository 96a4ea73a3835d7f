"""A process of a fit that is lost ends the others with an error that says so, instead of a hang.

A collective waits for every process. If one is gone, the connection may break, and the collective raises; or nothing
happens at all. So a thread of every process writes a sign of life to the key-value store of `jax.distributed`, and
reads the others':

    no news from a process for `SILENT` seconds, or no store    the fit cannot go on: say so, and end this process
    a process says that its fit raised an error                 the same, a little later: this process may raise, too

JAX itself ends a process at once, from a thread that Python cannot stop, when the process that coordinates all is
gone. What to do next is then said by a small process that reads a pipe to this one (`last_words`).
"""

from __future__ import annotations

import atexit
import itertools
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax

from legrad import _compat
from legrad.fitting.last_words import LastWords
from legrad.fitting.processes import joined

SILENT = 40.0  # seconds without a sign of life
EVERY = 4.0  # seconds between two signs of life
GRACE = 10.0  # seconds that a process may take to raise an error that another has raised
_BROKEN = (
    "gloo", "nccl", "connection", "peer", "socket", "network", "unavailable", "heartbeat", "deadline_exceeded",
    "coordination", "aborted", "timed out", "timeout",
)  # fmt: skip
_STATUS = re.compile(r"(UNKNOWN|INTERNAL|UNAVAILABLE|ABORTED|CANCELLED|DEADLINE_EXCEEDED|FAILED_PRECONDITION): ")
_FITS = itertools.count()


class ProcessLostError(RuntimeError):
    """Another process of the fit is gone, so that the fit cannot go on."""


@contextmanager
def ends_together(checkpoint: Any = None) -> Iterator[None]:
    """Run a fit, or a part of it, that all processes take part in; with one process, do nothing.

    Args:
        checkpoint: the folder of the fit's checkpoints, for the message.
    """
    client = _compat.coordination_client() if jax.process_count() > 1 else None
    if client is None:
        yield
        return
    signs = _Signs(client, f"legrad/fit {next(_FITS)}", checkpoint)
    try:
        with joined():
            yield
    except BaseException as error:
        # At its end Python would wait for all processes, and some may never come.
        atexit.register(signs.leave)
        broken = broken_connection(error)
        signs.close(f"failed: {type(error).__name__}: {error}")
        if broken is not None:
            raise ProcessLostError(signs.message("another process is gone", broken)) from error
        raise
    signs.close("done")
    signs.last_words.keep()


def broken_connection(error: BaseException | None) -> BaseException | None:
    """Return what a collective raised for want of another process: an error, or one that it came from; else None."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        text = str(error)
        from_xla = isinstance(error, jax.errors.JaxRuntimeError) or _STATUS.match(text)  # or a ValueError of `jit`
        if from_xla and any(word in text.lower() for word in _BROKEN):
            return error
        error = error.__cause__ or error.__context__
    return None


class _Signs:
    """The signs of life of the processes of one fit."""

    def __init__(self, client: Any, place: str, checkpoint: Any) -> None:
        self.client, self.place, self.checkpoint = client, place, checkpoint
        self._closed = threading.Event()
        gone = "JAX or a signal ended it; another process may be gone, and the lines above then say which"
        self.last_words = LastWords(f"legrad: {self.message(gone)}")
        self._thread = threading.Thread(target=self._watch, name="legrad-signs", daemon=True)
        self._thread.start()

    def close(self, word: str) -> None:
        """Stop watching, and tell the others how this process ended."""
        self._closed.set()
        self._thread.join(EVERY)
        try:
            self._write(word)
        except Exception:  # the store is gone: the others see that by themselves
            return

    def leave(self) -> None:
        """End the process, unless all others have ended this fit, too: they may be raising the same error."""
        self.last_words.keep()  # Python has shown the error by now; until then JAX may end the process first
        until = time.monotonic() + GRACE
        try:
            while not all(sign.startswith(("failed", "done")) for sign in self._read().values()):
                if time.monotonic() > until:
                    _exit()
                time.sleep(0.2)
        except Exception:  # the process that holds the store is gone
            _exit()

    def message(self, what: str, cause: Any = "") -> str:
        """Return the words of the error."""
        again = "run the same command again; give checkpoint= a folder so that a fit resumes"
        if self.checkpoint is not None:
            again = (
                f"run the same command again, on as many processes as there are: it resumes from '{self.checkpoint}'"
            )
        why = f" ({str(cause).splitlines()[0][:200]})" if str(cause) else ""
        return f"process {jax.process_index()} of {jax.process_count()} ends its fit, since {what}{why}: {again}"

    def _write(self, word: str) -> None:
        self.client.key_value_set(f"{self.place}/{jax.process_index()}", word, allow_overwrite=True)

    def _read(self) -> dict[int, str]:
        found = {int(key.rsplit("/", 1)[1]): value for key, value in self.client.key_value_dir_get(self.place)}
        return {i: found.get(i, "") for i in range(jax.process_count()) if i != jax.process_index()}

    def _watch(self) -> None:
        begun, beats = time.monotonic(), itertools.count()
        heard = {i: ("", begun) for i in range(jax.process_count())}
        while not self._closed.wait(EVERY):
            what, patience = "the process that coordinates all is gone", 0.0
            try:
                self._write(str(next(beats)))
                signs, now = self._read(), time.monotonic()
                heard |= {i: (sign, now) for i, sign in signs.items() if sign != heard[i][0]}
                silent = [i for i in signs if now - heard[i][1] > SILENT and signs[i] != "done"]
                failed = [i for i in signs if signs[i].startswith("failed")]
                if not silent and not failed:
                    continue
                what = f"process {silent[0]} has given no sign of life for {SILENT:.0f} seconds" if silent else ""
                if failed:
                    what, patience = f"process {failed[0]} {signs[failed[0]]}", GRACE
            except Exception as error:  # whatever the client raises, there is no store any more
                what, patience = f"{what} ({str(error).splitlines()[0][:200]})", GRACE
            if self._closed.wait(patience):
                return
            print(f"legrad: {self.message(what)}", file=sys.stderr)
            self.last_words.keep()
            _exit()


def _exit() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
