"""`legrad reproduce`: the experiments of the paper, and their report."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from legrad.commands.output import DONE, INTERRUPTED, CommandError, say


def add(commands: Any) -> None:
    """Add the command to the parser."""
    run_ = commands.add_parser(
        "reproduce",
        help="run the experiments of the paper and write a report",
        description="Run the experiments of the paper (Titsias, 2015) and write a report: index.html with every "
        "figure and claim, and results.json with the same numbers. Interrupted, it keeps the finished stages; the "
        "same command goes on from there.",
    )
    run_.add_argument("experiment", choices=["gaussian", "logistic", "sbn", "all"], help="which experiment")
    run_.add_argument(
        "--out", type=Path, default=Path("out/reproduce"), metavar="DIR", help="the report's folder (%(default)s)"
    )
    run_.add_argument("--quick", action="store_true", help="small sizes, on the digits that come with the install")
    run_.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="a directory with MNIST's IDX files, plain or gzipped, or with mnist/ that holds them; if not given, "
        "LEGRAD_DATA, else OpenML, else the 5,000 digits that come with the install",
    )
    run_.add_argument(
        "--digits", type=_digit, nargs=2, metavar="D", help="the two digits of the logistic regression (1 6)"
    )
    run_.add_argument(
        "--layers",
        type=_units,
        nargs="+",
        metavar="N",
        help="hidden layers of the belief net, from the pixels up (200)",
    )
    run_.add_argument("--fresh", action="store_true", help="run all stages anew, also those of an earlier run")
    run_.set_defaults(run=run)


def _digit(text: str) -> int:
    if text not in tuple("0123456789"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a digit: give one from 0 to 9")
    return int(text)


def _units(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of units: give a whole number of at least 1")
    return int(text)


def run(given: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    try:
        from legrad.experiments.datasets import DataError
        from legrad.experiments.reproduce import Choice, reproduce
        from legrad.experiments.stages import StageError
    except ImportError as error:
        raise CommandError(
            f"{error}: the experiments need more packages: pip install 'legrad[experiments]'"
        ) from error
    if given.digits and given.digits[0] == given.digits[1]:
        raise CommandError(f"--digits {given.digits[0]} {given.digits[1]}: give two different digits")
    for flag, needed in (("data", ("logistic", "sbn")), ("digits", ("logistic",)), ("layers", ("sbn",))):
        if getattr(given, flag) is not None and given.experiment not in ("all", *needed):
            raise CommandError(f"--{flag} says nothing to the experiment {given.experiment!r}: leave it out")
    choice = Choice(quick=given.quick, data=given.data)
    choice = choice.change(digits=given.digits, layers=given.layers)
    begun = time.perf_counter()
    try:
        path = reproduce(given.experiment, given.out, choice, fresh=given.fresh, say=say)
    except KeyboardInterrupt:
        again = "the same command without --fresh" if given.fresh else "the same command"
        say(f"\ninterrupted: finished stages are kept in {given.out}; {again} goes on from there")
        return INTERRUPTED
    except (DataError, StageError, OSError, ImportError) as error:
        raise CommandError(str(error)) from error
    say(f"report: {path.resolve()} (this run took {time.perf_counter() - begun:.0f} s)")
    return DONE
