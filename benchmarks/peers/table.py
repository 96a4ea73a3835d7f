"""What users would pick instead: gradient variance, seconds, efficiency, seconds to an ELBO, on the same problems.

    python benchmarks/peers/table.py [--only NAMES] [--quick] [--out FILE]      (make bench)

Everything runs in one process and the methods take turns. Variance and seconds are of the same compiled program at
the same parameters; efficiency is 1 / (variance × seconds). Writes docs/results/peers.json, from which docs/peers.py
makes the page; `torch_peers.py` writes docs/results/peers_torch.json, for libraries that need an environment of
their own.
"""

from __future__ import annotations

import argparse
import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpyro
from data import sources
from estimators import LEGRAD, Method, methods, sentence
from limits import BIASED, limits
from measure import Draws, Gradients, in_turns
from problems import PROBLEMS
from race import automatic, inside_compiled, race
from row import Peer
from tqdm import tqdm

import legrad

OUT = Path(__file__).parents[2] / "docs" / "results" / "peers.json"


@dataclass(frozen=True)
class Effort:
    """How much is measured: draws of a gradient, rounds of timing, draws of an ELBO, steps of the compiled share."""

    least_draws: int = 30
    most_draws: int = 200
    budget: float = 1.5
    rounds: int = 5
    turn: float = 0.15
    elbo_draws: int = 16
    share_steps: int = 200


QUICK = Effort(most_draws=60, budget=0.3, rounds=3, turn=0.02, share_steps=40)


def row(peer: Peer, effort: Effort, tell: Any = lambda _: None) -> dict[str, Any]:
    """All that is measured on one problem."""
    programs, running, refused = _compiled(peer, tell)
    tell(f"{peer.name}: variance")
    guide = peer.guide_parameters()
    draws = {n: p.draws(guide, effort.least_draws, effort.most_draws, effort.budget) for n, p in programs.items()}
    tell(f"{peer.name}: seconds")
    calls = {name: (lambda steps, p=p: p.last(p.key, steps)) for name, p in programs.items()}
    took = in_turns(calls, effort.rounds, effort.turn)
    found: dict[str, dict[str, Any]] = {}
    for name, d in draws.items():
        variance = d.variance()
        found[name] = {
            "variance": variance,
            "seconds": took[name],
            "efficiency": 1 / (max(variance, 1e-30) * took[name]),
            "draws": d.number,
            "bias_z": d.bias_z(draws[LEGRAD]),
            "compiling": programs[name].compiled,
            **{f"variance of {label}": d.variance(names) for label, names in peer.focus.items()},
        }
    for name, z in _wrong(found, programs, draws, effort).items():
        refused[name] = f"it runs, but its gradient is wrong: {z:.0f} standard errors from LeGrad's"
        del found[name], running[name]
    for name, finish in race(peer, running, took, effort, tell).items():
        found[name]["to_elbo"] = finish._asdict()
    tell(f"{peer.name}: estimator='auto'")
    return {
        "title": peer.title,
        "steps": peer.steps,
        "rate": peer.rate,
        "parameters": sum(draws[LEGRAD].mean[n].size for n in guide),
        "estimators": found,
        "refused": refused,
        "auto": automatic(peer),
        "compiled_share": inside_compiled(peer, effort.share_steps) if peer.name == "sbn_random" else None,
    }


def _wrong(found: Any, programs: dict[str, Gradients], draws: dict[str, Draws], effort: Effort) -> dict[str, float]:
    """The methods whose mean is not LeGrad's, by standard errors; a second set of draws has to say so, too."""
    wrong = {}
    for name in [n for n, r in found.items() if not r["bias_z"] < BIASED]:
        again = programs[name].draws(draws[name].names, 4 * effort.least_draws, 4 * effort.most_draws, 4.0, seed=1)
        z = again.bias_z(draws[LEGRAD])
        found[name]["bias_z"] = z
        if not z < BIASED:
            wrong[name] = z
    return wrong


def _compiled(peer: Peer, tell: Any) -> tuple[dict[str, Gradients], dict[str, Method], dict[str, str]]:
    """The programs that there are, their methods, and the reasons of those that cannot run."""
    programs, running, refused = {}, {}, {}
    for name, make in methods(peer).items():
        tell(f"{peer.name}: compiling {name}")
        try:
            running[name] = make()
            programs[name] = Gradients(peer, running[name])
        except Exception as error:  # whatever stops a library is what the table says of it
            if name == LEGRAD:
                raise
            running.pop(name, None)
            refused[name] = sentence(error)
    return programs, running, refused


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the table of docs/peers.md.")
    parser.add_argument("--only", default=",".join(PROBLEMS), help="names of problems, with commas")
    parser.add_argument("--quick", action="store_true", help="small problems, little effort: a trial of the program")
    parser.add_argument("--out", type=Path, help="the JSON file; rows that it has and that are not run again stay")
    options = parser.parse_args()
    out = options.out or (Path("out/peers_quick.json") if options.quick else OUT)
    out.parent.mkdir(parents=True, exist_ok=True)
    effort = QUICK if options.quick else Effort()
    warnings.filterwarnings("ignore", module="numpyro|funsor")
    rows = json.loads(out.read_text())["rows"] if out.exists() else {}
    for name in (bar := tqdm(options.only.split(","))):
        bar.set_description(name)
        rows[name] = row(PROBLEMS[name](small=options.quick), effort, bar.set_description)
        _tell(rows[name])
        rows = {n: rows[n] for n in PROBLEMS if n in rows}
        text = {
            "versions": {m.__name__: m.__version__ for m in (jax, numpyro, legrad)},
            "quick": options.quick,
            "data": sources(options.quick),
            "effort": vars(effort),
            "limits": limits(rows),
            "rows": rows,
        }
        out.write_text(json.dumps(text, indent=1) + "\n")
        jax.clear_caches()
    for limit in limits(rows):
        figure = "not reached" if limit["figure"] is None else f"{limit['figure']:,.3g}"
        holds = "yes" if limit["holds"] else "NO"
        print(f"{limit['problem']:15} {limit['what']:48} {figure:>12} ({limit['limit']})  holds {holds}")


def _tell(row: dict[str, Any]) -> None:
    tqdm.write(row["title"])
    for name, r in sorted(row["estimators"].items(), key=lambda item: -item[1]["efficiency"]):
        fit = r.get("to_elbo")
        to = (
            ""
            if fit is None
            else "> 10x"
            if fit["seconds"] is None
            else f"{fit['seconds']:.3g} s, {fit['steps']} steps"
        )
        tqdm.write(
            f"  {name:34} variance {r['variance']:9.3g}  ms {1e3 * r['seconds']:8.3g}  1/(vs) {r['efficiency']:9.3g} "
            f" z {r['bias_z']:4.1f} of {r['draws']:3}  to ELBO: {to}"
        )
    tqdm.write(f"  estimator='auto' chooses {row['auto']}")
    for name, why in row["refused"].items():
        tqdm.write(f"  {name:34} {why}")


if __name__ == "__main__":
    main()
