"""Check that the fast tests catch deliberate faults.

    python tools/faults.py [--only sign,mask]

Small faults are put into the package one at a time, each in a temporary copy. For each, the fast tests of the
folder that mirrors the changed file run until the first failure. Prints the table of CONTRIBUTING.md; exits with 1 if
a fault survives.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Fault(NamedTuple):
    """A wrong line in the place of a right one, and the test files that should notice."""

    name: str
    what: str
    file: str
    right: str
    wrong: str
    tests: tuple[str, ...]


FAULTS = (
    Fault(
        "sign",
        "the antithetic sign of DisARM is flipped",
        "estimators/disarm.py",
        "(1 - 2 * y[name])",
        "(2 * y[name] - 1)",
        ("estimators/test_catalogue.py", "estimators/test_catalogue_draws.py"),
    ),
    Fault(
        "weights",
        "the blanket's factors are dropped from the weights of the candidates",
        "estimators/local_expectation.py",
        "jnp.log(safe) + stop_gradient(log_q) - own",
        "jnp.log(safe)",
        ("estimators/test_catalogue.py",),
    ),
    Fault(
        "baseline",
        "the leave-one-out baseline includes the draw itself",
        "estimators/base.py",
        "(jnp.sum(cost, axis=0, keepdims=True) - cost) / (len(cost) - 1)",
        "jnp.sum(cost, axis=0, keepdims=True) / len(cost)",
        ("estimators/test_catalogue.py", "estimators/test_estimators.py"),
    ),
    Fault(
        "window",
        "the mass outside a window of counts begins one count late",
        "distributions/counts.py",
        "(base, start + window)",
        "(base, start + window + 1)",
        ("distributions/test_support.py",),
    ),
    Fault(
        "quadrature",
        "the nodes of a quadrature have equal weights",
        "distributions/quadrature.py",
        "z, weights = np.polynomial.hermite_e.hermegauss(count)\n",
        "z, weights = np.polynomial.hermite_e.hermegauss(count)\n    weights = np.ones_like(weights)\n",
        ("distributions/test_quadrature.py",),
    ),
    Fault(
        "scale",
        "the scale of a plate is not applied to log q",
        "model/sites.py",
        "self.counts(self.scale * term)",
        "self.counts(term)",
        ("model/test_problem.py",),
    ),
    Fault(
        "mask",
        "a masked datum counts",
        "model/sites.py",
        "return terms if mask is None else jnp.where(mask, terms, 0.0)",
        "return terms",
        ("model/test_problem.py",),
    ),
    Fault(
        "independence",
        "a running sum is taken to see only its own position",
        "trace/dependence.py",
        "x = _form(x)[0].accumulate(x, axis=axis)",
        "x = x.copy()",
        ("trace/test_dependence.py",),
    ),
    Fault(
        "change",
        "a running sum does not change at the changed position itself",
        "singlesite/rules/reductions.py",
        "jnp.less_equal if reverse else jnp.greater_equal",
        "jnp.less if reverse else jnp.greater",
        ("singlesite/test_programs.py", "singlesite/rules/test_rules.py"),
    ),
    Fault(
        "restore",
        "a resumed fit forgets how far its current phase of steps has been examined",
        "fitting/stopping.py",
        'numbers["length"], numbers["look"], **trees',
        'numbers["length"], **trees',
        ("fitting/test_stopping.py", "fitting/test_checkpoint.py"),
    ),
    Fault(
        "stopping",
        "a fit stops although the last phase moved the guide by more than the tolerance",
        "fitting/stopping.py",
        "if left > settings.tolerance or worth:",
        "if worth:",
        ("fitting/test_stopping.py",),
    ),
)


def main() -> int:
    """Try the faults, print the table, and return 1 if one survives."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names of faults, separated by commas")
    only = [name for name in parser.parse_args().only.split(",") if name]
    survived = 0
    print("| file | fault | caught by |\n|---|---|---|", flush=True)
    for fault in FAULTS:
        if only and fault.name not in only:
            continue
        caught = try_fault(fault)
        survived += caught is None
        print(f"| `{fault.file}` | {fault.what} | {f'`{caught}`' if caught else '**nothing**'} |", flush=True)
    return 1 if survived else 0


def try_fault(fault: Fault) -> str | None:
    """Put a fault into a copy of the package and return the first test that fails; None if all pass."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for part in ("src", "tests", "benchmarks"):
            shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        path = copy / "src" / "legrad" / fault.file
        text = path.read_text()
        if text.count(fault.right) != 1:
            raise SystemExit(f"{fault.name}: {fault.file} has {text.count(fault.right)} places with {fault.right!r}")
        path.write_text(text.replace(fault.right, fault.wrong))
        command = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-m", "not long", "-p", "no:cacheprovider"]
        run = subprocess.run(
            [*command, "-rfE", *(f"tests/{test}" for test in fault.tests)],
            cwd=copy,
            env=os.environ | {"PYTHONPATH": str(copy / "src")},
            capture_output=True,
            text=True,
        )
    if run.returncode == 0:
        return None
    failed = re.search(r"^FAILED tests/(\S+)", run.stdout, re.MULTILINE)
    if run.returncode != 1 or failed is None:
        raise SystemExit(f"{fault.name}: the tests did not run\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
    return failed.group(1)


if __name__ == "__main__":
    sys.exit(main())
