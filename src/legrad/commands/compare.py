"""`legrad compare`: the estimators that suit a model, side by side, after a short fit."""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import legrad
from legrad.commands import page
from legrad.commands.fit import arguments, count, data_options, explained, guide_of
from legrad.commands.output import DONE, CommandError, as_json, common, folder, note, progress, say
from legrad.commands.program import load
from legrad.diagnostics.compare import Comparison

ESTIMATORS = {
    "LeGrad": lambda: legrad.LocalExpectation(),
    "ReGrad": lambda: legrad.Reparameterized(),
    "DisARM": lambda: legrad.DisARM(),
    "LdGrad": lambda: legrad.ScoreFunction(),
    "leave-one-out": lambda: legrad.ScoreFunction(num_samples=16, baseline="leave_one_out"),
}


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "compare",
        help="compare estimators on a model",
        description="Fit a model for some steps, then measure the variance, bias and time of the gradients of "
        "several estimators there. Estimators that cannot treat the model are left out, with the reason.",
    )
    parser.add_argument("model", help="the model, as FILE.py:FUNCTION")
    data_options(parser)
    parser.add_argument("--guide", default="meanfield", metavar="GUIDE", help="meanfield, or FILE.py:FUNCTION")
    parser.add_argument(
        "--estimators", nargs="+", choices=list(ESTIMATORS), default=list(ESTIMATORS), help="which ones (all)"
    )
    parser.add_argument("--steps", type=count, default=200, metavar="N", help="steps of the fit (%(default)s)")
    parser.add_argument("--draws", type=count, default=200, metavar="N", help="gradients of each (%(default)s)")
    common(parser, "out/compare")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    model = load(given.model)
    bound = arguments(given, model)
    guide = guide_of(given, model) or legrad.Structured(model)
    out = folder(given.out)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", legrad.FitWarning)
        result = explained(
            lambda: legrad.fit(
                model, guide, kwargs=bound.kwargs, key=given.seed, steps=given.steps, progress=progress(given, "fit")
            ),
            given.model,
        )
    rows: dict[str, Any] = {}
    refused: dict[str, str] = {}
    for name in given.estimators:
        one = {name: ESTIMATORS[name]()}
        try:  # one gradient of each: those that cannot treat the guide say so
            legrad.compare(model, guide, result.params, one, key=given.seed, draws=2, kwargs=bound.kwargs)
        except (ValueError, NotImplementedError) as error:
            refused[name] = str(error)
        else:
            rows |= one
    if not rows:
        raise CommandError(f"{given.model}: no estimator can treat it: {'; '.join(refused.values())}")
    table = explained(
        lambda: legrad.compare(
            model, guide, result.params, rows, key=given.seed, draws=max(2, given.draws), kwargs=bound.kwargs
        ),
        given.model,
    )
    found = _write(table, refused, out, given, bound.words)
    if given.json:
        print(as_json(found))
    else:
        say(str(table))
        say("\n".join(f"left out: {name}: {reason}" for name, reason in refused.items()))
        say(f"page: {(out / 'index.html').resolve()}")
    return DONE


def _write(
    table: Comparison, refused: dict[str, str], out: Any, given: argparse.Namespace, words: str
) -> dict[str, Any]:
    found = {
        "command": "compare",
        "model": given.model,
        "estimators": {
            name: {"variance": r.variance, "bias_z": r.bias_z, "seconds": r.seconds, "efficiency": r.efficiency}
            for name, r in table.rows.items()
        },
        "left_out": refused,
        "draws": table.draws,
        "version": legrad.__version__,
    }
    page.write(out / "result.json", as_json(found))
    page.write(out / "compare.md", f"{table.to_markdown(per_parameter=True)}\n")
    pictures = ""
    try:
        pictures = page.picture(table.plot(out / "compare.png"), "variance, time and efficiency of each estimator")
    except ImportError as error:
        note(f"no plots: {error}")
    best = max(table.rows, key=lambda name: table[name].efficiency)
    lead = f"{best} is the most efficient here: the largest 1 / (variance × seconds) after {given.steps:,} steps."
    lines = table.to_markdown().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    left_out = "\n".join(f"{name}: {reason}" for name, reason in refused.items())
    sections = {
        "Estimators": page.table(cells[0], cells[2:]),
        "Pictures": pictures,
        "Left out": page.lines(left_out) if left_out else "",
    }
    facts = [words, f"{table.draws} gradients of each", f"legrad {legrad.__version__}"]
    page.write(out / "index.html", page.page(f"Estimators on {given.model}", lead, None, facts, sections))
    return found
