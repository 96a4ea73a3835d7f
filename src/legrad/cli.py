"""The command `legrad`: reads its arguments, and runs one of the commands in `legrad.commands`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import legrad
from legrad.commands import compare, fit, reproduce, select
from legrad.commands.output import INTERRUPTED, CommandError, fail, note


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.command is None:
        parser.print_help()
        return 0
    try:
        return given.run(given)
    except CommandError as error:
        return fail(str(error))
    except KeyboardInterrupt:
        note("\ninterrupted")
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="legrad", description="Local expectation gradients.")
    parser.add_argument("--version", action="version", version=f"legrad {legrad.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for command in (fit, compare, select, reproduce):
        command.add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
