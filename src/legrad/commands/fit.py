"""`legrad fit`: a model from a file, data from a table; a summary, plots, a page, netCDF and a checkpoint."""

from __future__ import annotations

import argparse
import csv
import io
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import legrad
from legrad.commands import page
from legrad.commands.output import (
    DONE,
    DOUBTFUL,
    INTERRUPTED,
    CommandError,
    as_json,
    common,
    folder,
    note,
    progress,
    say,
)
from legrad.commands.program import Bound, bind, load, required
from legrad.commands.table import FORMATS, Table, read_table
from legrad.diagnostics.summary import Summary
from legrad.fitting.automatic import prepared, solvable
from legrad.fitting.host_loop import INTERRUPTED as WAS_INTERRUPTED

_DRAWS = 4000


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "fit",
        help="fit a model to a table",
        description="Fit a NumPyro model to a table, and write its summary, plots and one page that holds them. "
        "Columns become the model's arguments by their names. A fit that was interrupted resumes by the same "
        "command. Exit codes: 0 converged; 1 wrong input; 2 wrong usage; 3 the fit should not be trusted as it is; "
        "130 interrupted.",
    )
    parser.add_argument("model", help="the model, as FILE.py:FUNCTION")
    data_options(parser)
    parser.add_argument(
        "--guide",
        default="auto",
        metavar="GUIDE",
        help="auto (a Gaussian with correlations; discrete latents get factors), meanfield, or FILE.py:FUNCTION",
    )
    parser.add_argument("--steps", type=count, metavar="N", help="the largest number of steps")
    parser.add_argument("--restarts", type=count, metavar="N", help="how many starts to fit")
    common(parser, "out/fit")
    parser.set_defaults(run=run)


def data_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the data of a model."""
    parser.add_argument("--data", type=Path, metavar="FILE", help=f"the table: {FORMATS}")
    parser.add_argument(
        "--arg",
        action="append",
        default=[],
        metavar="X=A,B",
        help="give the argument X the columns A and B as a matrix; X=* takes all columns that are not used otherwise",
    )
    parser.add_argument("--drop", action="append", default=[], metavar="COLUMN", help="leave a column out")
    parser.add_argument("--drop-missing", action="store_true", help="leave out rows that lack a value")


def count(text: str) -> int:
    """Read a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a count: give a whole number of at least 1")
    return int(text)


def table_of(given: argparse.Namespace, path: Path) -> Table:
    """Read the table of a command, without what is to be left out."""
    table = read_table(path).without(given.drop)
    if given.drop_missing:
        table, lost = table.complete()
        note(f"{lost} rows lack a value and are left out")
    return table


def arguments(given: argparse.Namespace, model: Callable[..., Any]) -> Bound:
    """Return the model's arguments from the table of a command; none without a table."""
    if given.data is None:
        if given.arg or given.drop or given.drop_missing:
            raise CommandError("--arg and --drop say something about a table: name it with --data FILE")
        needed = required(model)
        if needed:
            raise CommandError(
                f"the model {given.model} takes {', '.join(needed)}: name a table with these columns, --data FILE"
            )
        return Bound({}, (), "no data")
    return bind(model, table_of(given, given.data), given.arg)


def guide_of(given: argparse.Namespace, model: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return the guide that a command names; None for the automatic one."""
    if given.guide == "auto":
        return None
    return legrad.MeanField(model) if given.guide == "meanfield" else load(given.guide, "--guide")


def explained(run: Callable[[], Any], what: str) -> Any:
    """Run a part of a command; what it raises is a failure of the command, in one line."""
    try:
        return run()
    except (CommandError, KeyboardInterrupt):
        raise
    except Exception as error:  # whatever a user's model raises
        raise CommandError(f"{what}: {error}" if str(error) else f"{what}: {type(error).__name__}") from error


def run(given: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    begun = time.perf_counter()
    model = load(given.model)
    bound = arguments(given, model)
    guide = guide_of(given, model)
    out = folder(given.out)
    if not given.json:
        say(f"data: {bound.words}")
    settings: dict[str, Any] = {} if given.restarts is None else {"restarts": given.restarts}
    if guide is not None or given.steps is not None or not _solvable(model, bound):
        settings |= {"steps": given.steps, "stop": "auto", "checkpoint": out / "checkpoint"}
        settings["progress"] = progress(given, "fit")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", legrad.FitWarning)  # the status says the same
        result = explained(
            lambda: legrad.fit(model, guide, kwargs=bound.kwargs, key=given.seed, **settings), given.model
        )
    result = replace(result, names=bound.names)
    if not given.json:
        say(f"{result.status}\n")
        say("summary, diagnosis and plots ...")
    found = explained(lambda: write(result, out, given, bound, begun), given.model)
    if given.json:
        print(as_json(found))
    else:
        say(f"{result.summary(given.seed, _DRAWS)}\n")
        say("\n".join(f"- {flag}" for flag in found["flags"]) or "no problem found")
        say(f"\npage: {(out / 'index.html').resolve()}")
    if WAS_INTERRUPTED in result.status:
        note(f"interrupted: the same command goes on from {out / 'checkpoint'}")
        return INTERRUPTED
    return DONE if found["ok"] else DOUBTFUL


def _solvable(model: Callable[..., Any], bound: Bound) -> bool:
    """Whether a fit without a guide takes no steps, so that there is nothing to resume."""
    try:
        ready = prepared(model, (), bound.kwargs, True)
        if isinstance(ready, legrad.Marginal) and ready.is_exact(**bound.kwargs):
            return True
        return solvable(legrad.Structured(ready), (), bound.kwargs)
    except Exception:  # whatever a user's model raises: the fit will raise it again, and explain it
        return False


def write(
    result: legrad.FitResult, out: Path, given: argparse.Namespace, bound: Bound, begun: float
) -> dict[str, Any]:
    """Write all files of a fit; return what `result.json` holds."""
    key = given.seed
    summary = result.summary(key, _DRAWS)
    flags, khat, diagnosis = _diagnosed(result, key)
    files = ["index.html", "summary.csv", "result.json", "fit.legrad"]
    result.save(out / "fit.legrad")
    page.write(out / "summary.csv", as_csv(summary))
    pictures = ""
    try:
        figure = result.plot(out / "fit.png")
        pictures = page.picture(figure, "the optimization, and the posterior of each latent")
        files.append("fit.png")
    except ImportError as error:
        note(f"no plots: {error}")
    try:
        result.to_arviz(key, 1000).to_netcdf(str(out / "posterior.nc"))
        files.append("posterior.nc")
    except ImportError as error:
        note(f"no netCDF file: {error}")
    except (ValueError, TypeError) as error:  # no backend of xarray, or a posterior that cannot be exported
        note(f"no netCDF file: {error}")
    found = {
        "command": "fit",
        "model": given.model,
        "data": None if given.data is None else str(given.data),
        "status": result.status,
        "converged": result.converged,
        "ok": not flags,
        "flags": flags,
        "khat": khat,
        "elbo": float(result.elbo[-1]) if len(result.elbo) else None,
        "steps": result.steps,
        "seconds": time.perf_counter() - begun,
        "method": result.method,
        "summary": summary.rows(),
        "files": files,
        "version": legrad.__version__,
    }
    page.write(out / "result.json", as_json(found))
    facts = [f"model {given.model}", bound.words, f"{result.steps:,} steps", f"{found['seconds']:.1f} s",
             f"legrad {legrad.__version__}"]  # fmt: skip
    sections = {
        "The fit and the posterior": pictures,
        "Summary": f"<div class='scroll'>{summary._repr_html_()}</div>",
        "Diagnosis": page.lines(diagnosis),
        "How it was fitted": page.lines(result.method),
    }
    html = page.page(f"Fit of {given.model}", result.status, not flags, facts, sections)
    page.write(out / "index.html", html)
    return found


def _diagnosed(result: legrad.FitResult, key: int) -> tuple[list[str], float | None, str]:
    """Return the flags, k-hat and the text of a diagnosis; the reason if there is none."""
    try:
        found = result.diagnose(key, _DRAWS)
    except ValueError as error:
        flags = [] if result.converged else [f"the fit has not converged: {result.status}"]
        return flags, None, f"not diagnosed: {error}"
    return found.flags, found.khat, str(found)


def as_csv(summary: Summary) -> str:
    """Return a summary as CSV, one line for each element."""
    rows = summary.rows()
    columns = list(dict.fromkeys(column for row in rows for column in row))
    held = io.StringIO()
    writer = csv.DictWriter(held, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return held.getvalue()
