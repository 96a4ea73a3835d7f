"""Runs rows of a table one at a time, each in a process of its own with limited CPU time, and keeps what it prints.

A script that is called with `--one NAME` prints lines of JSON that begin with `ROW `, of which the last counts. What
did not finish, or crashed, is a row too: it says so under "failed", or under "unfinished" if it printed a row before.
Every row has "others", the cores that other processes used:

    others = (busy time of all cores − CPU time of the row's process) / elapsed time
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

MARK = "ROW "
PATIENCE = 4  # times the limit, on the clock: a busy machine may give a process little of its time


def say(row: dict[str, Any]) -> None:
    """Print a row for the process that waits for it."""
    print(MARK + json.dumps(row), flush=True)


def row(script: str, name: str, limit: float) -> dict[str, Any]:
    """The row that the script prints for a name, or what went wrong; the limit is in CPU seconds, of all cores."""
    begun, busy, own = time.perf_counter(), _busy(), _own()
    command = [sys.executable, script, "--one", name]
    most = int(limit), int(limit) + 5
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE * limit,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, most),
        )  # fmt: skip
        out, wrong = done.stdout, ""
        if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
            wrong = f"did not finish in {limit:.0f} s of CPU"
        elif done.returncode:
            wrong = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    except subprocess.TimeoutExpired as error:
        out, wrong = (error.stdout or b"").decode(), f"did not finish in {PATIENCE * limit:.0f} s"
    printed = [line.removeprefix(MARK) for line in out.splitlines() if line.startswith(MARK)]
    found = json.loads(printed[-1]) if printed else {"failed": wrong}
    if printed and wrong:
        found["unfinished"] = wrong
    others = max(0.0, (_busy() - busy) - (_own() - own)) / (time.perf_counter() - begun)
    return found | {"others": others}


def kept(file: Path, name: str) -> dict[str, Any]:
    """The row of that name in a file of results; an empty one if there is none."""
    return json.loads(file.read_text())["rows"].get(name, {}) if file.exists() else {}


def keep(file: Path, name: str, row: Any, versions: dict[str, str]) -> None:
    """Add a row to a file of results, in the place of an earlier one of that name."""
    results = json.loads(file.read_text()) if file.exists() else {"rows": {}}
    results["versions"] = versions
    results["rows"][name] = row
    file.write_text(json.dumps(results, indent=1) + "\n")


def _busy() -> float:
    """Seconds that all cores have been busy for since the machine started."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    user, nice, system = map(int, stat.read_text().split("\n", 1)[0].split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def _own() -> float:
    """CPU seconds of this process and of those it waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)
