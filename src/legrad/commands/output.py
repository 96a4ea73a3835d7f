"""What commands share: failures with their exit codes, lines for people, and results for programs.

Exit codes: 0 done; 1 wrong input; 2 wrong usage (argparse); 3 done, but the fit should not be trusted;
130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

DONE, WRONG, DOUBTFUL, INTERRUPTED = 0, 1, 3, 130


class CommandError(Exception):
    """Input that a command cannot use: the message names the file, row or column, and the fix."""


def say(line: str) -> None:
    """Print a line for people at once."""
    print(line, flush=True)


def note(line: str) -> None:
    """Print a line beside the results, to standard error."""
    print(line, file=sys.stderr, flush=True)


def fail(message: str) -> int:
    """Print what is wrong, and return the exit code."""
    note(f"legrad: {message}")
    return WRONG


def folder(path: Path) -> Path:
    """Make the folder of the results."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"--out {path}: {error.strerror or error}; choose another folder") from error
    return path


def as_json(results: dict[str, Any]) -> str:
    """Return results as JSON; a number that is not finite is null."""
    return json.dumps(_plain(results), indent=2, allow_nan=False)


def _plain(x: Any) -> Any:
    if isinstance(x, dict):
        return {str(key): _plain(value) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return [_plain(value) for value in x]
    if isinstance(x, np.ndarray | np.generic):
        return _plain(x.tolist())
    if isinstance(x, float) and not math.isfinite(x):
        return None
    return x


def common(parser: argparse.ArgumentParser, out: str) -> None:
    """Add the options that all commands share."""
    parser.add_argument(
        "--out", type=Path, default=Path(out), metavar="DIR", help="the results' folder (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="the random seed (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print the results as JSON instead of text")
    parser.add_argument("--quiet", action="store_true", help="show no progress bar")


def progress(given: argparse.Namespace, label: str) -> str | bool:
    """Return the label of the progress bar; False without one."""
    return False if given.quiet or not sys.stderr.isatty() else label
