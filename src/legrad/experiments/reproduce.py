"""Run the experiments in stages and write the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from legrad.experiments import datasets, gaussian, logistic, method, report, sbn, sbn_report
from legrad.experiments.section import Section
from legrad.experiments.stages import Results, Stage, Stages

EXPERIMENTS = ("gaussian", "logistic", "sbn")


@dataclass(frozen=True)
class Job:
    """One experiment that is ready to run."""

    name: str
    settings: Any
    stages: dict[str, Stage]
    data: Any
    section: Callable[[Results], Section]


@dataclass(frozen=True)
class Choice:
    """The settings that the user may choose.

    Attributes:
        quick: small sizes, on the digits that come with the install.
        data: a directory with the digits; None: LEGRAD_DATA, OpenML or the digits of the install.
        digits: the two digits of the logistic regression.
        layers: hidden layers of the belief net, from the pixels up.
    """

    quick: bool = False
    data: Path | None = None
    digits: tuple[int, int] = logistic.Settings.digits
    layers: tuple[int, ...] = sbn.Settings.layers

    def change(self, **chosen: Any) -> Choice:
        """Return the settings with the user's choices; None leaves a setting unchanged."""
        given: dict[str, Any] = {name: tuple(value) for name, value in chosen.items() if value is not None}
        return replace(self, **given)


def reproduce(
    which: str, out: Path, choice: Choice, *, fresh: bool = False, say: Callable[[str], None] = print
) -> Path:
    """Run one experiment or "all" and return the path of the report; finished stages of an earlier run are kept."""
    report.prepare(out)
    names = EXPERIMENTS if which == "all" else (which,)
    jobs = [_method(choice, which)]
    if "gaussian" in names:
        jobs.append(_gaussian(choice))
    if {"logistic", "sbn"} & {*names}:
        digits = datasets.mnist(choice.data, embedded=choice.quick and choice.data is None)
        say(f"data: {digits.source}")
        jobs += [make(choice, digits) for name, make in (("logistic", _logistic), ("sbn", _sbn)) if name in names]
    stages = Stages(out / "stages", sum(len(job.stages) for job in jobs), fresh, say)
    found = [stages.run(job.name, job.stages, job.settings, job.data) for job in jobs]
    say("drawing the figures and writing the report")
    sections = [job.section(results) for job, results in zip(jobs, found, strict=True)]
    command = _command(which, choice, digits=which in ("all", "logistic"), layers=which in ("all", "sbn"))
    return report.write(out, sections, command=command, quick=choice.quick, seconds=stages.seconds)


def _command(name: str, choice: Choice, *, digits: bool = False, layers: bool = False) -> str:
    """Return the command that repeats a run."""
    words = ["legrad", "reproduce", name]
    words += ["--quick"] if choice.quick else []
    words += ["--data", "DIR"] if choice.data is not None and name != "gaussian" else []
    words += ["--digits", *map(str, choice.digits)] if digits and choice.digits != Choice.digits else []
    words += ["--layers", *map(str, choice.layers)] if layers and choice.layers != Choice.layers else []
    return " ".join(words)


def _method(choice: Choice, which: str) -> Job:
    s = method.QUICK if choice.quick else method.Settings()
    command = _command("gaussian" if which == "all" else which, choice)
    return Job("method", s, method.stages(s), (), lambda found: method.section(s, found, command))


def _gaussian(choice: Choice) -> Job:
    s = gaussian.QUICK if choice.quick else gaussian.Settings()
    command = _command("gaussian", choice)
    return Job("gaussian", s, gaussian.stages(s), (), lambda found: gaussian.section(s, found, command))


def _logistic(choice: Choice, digits: datasets.Digits) -> Job:
    s = replace(logistic.QUICK if choice.quick else logistic.Settings(), digits=choice.digits)
    args = logistic.inputs(s, digits)
    command = _command("logistic", choice, digits=True)
    source = digits.source
    run = logistic.stages(s, args)
    return Job("logistic", s, run, args[:2], lambda found: logistic.section(s, found, source, args, command))


def _sbn(choice: Choice, digits: datasets.Digits) -> Job:
    s = sbn.QUICK if choice.quick else sbn.Settings()
    s = replace(s, layers=choice.layers, pivots=1 if len(choice.layers) == 1 else 2)
    Y = sbn.inputs(s, digits)
    command = _command("sbn", choice, layers=True)
    source = digits.source
    return Job("sbn", s, sbn.stages(s, Y), Y, lambda found: sbn_report.section(s, found, Y, source, command))
