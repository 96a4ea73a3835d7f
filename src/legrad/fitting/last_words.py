"""A message that is shown if this process ends without a chance to say it: killed, or aborted by a library.

A small process waits at the end of a pipe. If the pipe closes and nothing was written to it, it prints the message to
the standard error that it shares with this process.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress

_WAIT = "import sys; sys.stdin.buffer.read() or sys.stderr.write(sys.argv[1] + chr(10))"


class LastWords:
    """A message that another process prints if this one ends before `keep` is called."""

    def __init__(self, message: str) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        with suppress(OSError):  # without a process of its own the message is not shown; the fit goes on
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _WAIT, message],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C ends the fit, which then says so itself
            )

    def keep(self) -> None:
        """Keep the message to oneself: this process says how it ends."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(OSError, ValueError):
            process.communicate(b"kept", timeout=5)
