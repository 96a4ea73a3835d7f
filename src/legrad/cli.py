"""The command `legrad`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import legrad


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.command is None:
        parser.print_help()
        return 0
    return _reproduce(given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="legrad", description="Local expectation gradients.")
    parser.add_argument("--version", action="version", version=f"legrad {legrad.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    run = commands.add_parser(
        "reproduce",
        help="run the experiments of the paper and write a report",
        description="Run the experiments of the paper (Titsias, 2015) and write a report: index.html with every "
        "figure and claim, and results.json with the same numbers. Interrupted, it keeps the finished stages; the "
        "same command goes on from there.",
    )
    run.add_argument("experiment", choices=["gaussian", "logistic", "sbn", "all"], help="which experiment")
    run.add_argument(
        "--out", type=Path, default=Path("out/reproduce"), metavar="DIR", help="the report's folder (%(default)s)"
    )
    run.add_argument("--quick", action="store_true", help="small sizes, on the digits that come with the install")
    run.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="a directory with MNIST's IDX files, plain or gzipped, or with mnist/ that holds them; if not given, "
        "LEGRAD_DATA, else OpenML, else the 5,000 digits that come with the install",
    )
    run.add_argument(
        "--digits", type=_digit, nargs=2, metavar="D", help="the two digits of the logistic regression (1 6)"
    )
    run.add_argument(
        "--layers",
        type=_units,
        nargs="+",
        metavar="N",
        help="hidden layers of the belief net, from the pixels up (200)",
    )
    run.add_argument("--fresh", action="store_true", help="run all stages anew, also those of an earlier run")
    return parser


def _digit(text: str) -> int:
    if text not in tuple("0123456789"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a digit: give one from 0 to 9")
    return int(text)


def _units(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of units: give a whole number of at least 1")
    return int(text)


def _reproduce(given: argparse.Namespace) -> int:
    try:
        from legrad.experiments.datasets import DataError
        from legrad.experiments.reproduce import Choice, reproduce
        from legrad.experiments.stages import StageError
    except ImportError as error:
        return _fail(f"{error}: the experiments need more packages: pip install 'legrad[experiments]'")
    if given.digits and given.digits[0] == given.digits[1]:
        return _fail(f"--digits {given.digits[0]} {given.digits[1]}: give two different digits")
    for flag, needed in (("data", ("logistic", "sbn")), ("digits", ("logistic",)), ("layers", ("sbn",))):
        if getattr(given, flag) is not None and given.experiment not in ("all", *needed):
            return _fail(f"--{flag} says nothing to the experiment {given.experiment!r}: leave it out")
    choice = Choice(quick=given.quick, data=given.data)
    choice = choice.change(digits=given.digits, layers=given.layers)
    begun = time.perf_counter()
    try:
        path = reproduce(given.experiment, given.out, choice, fresh=given.fresh, say=_say)
    except KeyboardInterrupt:
        again = "the same command without --fresh" if given.fresh else "the same command"
        _say(f"\ninterrupted: finished stages are kept in {given.out}; {again} goes on from there")
        return 130
    except (DataError, StageError, OSError, ImportError) as error:
        return _fail(str(error))
    _say(f"report: {path.resolve()} (this run took {time.perf_counter() - begun:.0f} s)")
    return 0


def _say(line: str) -> None:
    print(line, flush=True)


def _fail(message: str) -> int:
    print(f"legrad: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
