"""How each latent of a guide is treated: locally, by reparameterization, or by its score.

Finite supports and counts are local. A continuous scalar is local if no fixed site depends on it: a quadrature
reweighted by a narrow child is far off. Every other latent is reparameterized, or raises an error with the remedy.
"""

from __future__ import annotations

from collections.abc import Mapping

from legrad.distributions import support
from legrad.estimators.costs import descendants
from legrad.model.sites import Factor


def treatments(
    pivot: Mapping[str, Factor],
    parents: Mapping[str, frozenset[str]],
    continuous: str,
    choices: Mapping[str, str],
) -> dict[str, str]:
    """Return a treatment ("local", "reparam" or "score") for each latent of the guide.

    Args:
        pivot: the guide's factors.
        parents: the parents of each latent, as `Problem.parents` returns them.
        continuous: "quadrature" or "reparam", the default for continuous scalars.
        choices: the user's choices, by site.
    """
    for name in choices:
        if name not in pivot:
            raise ValueError(f"sites names '{name}', which is not a latent of the guide: it has {', '.join(pivot)}")
    after, chosen = descendants(parents), {}
    for name in reversed(list(pivot)):
        factor = pivot[name]
        if name in choices:
            chosen[name] = _check(factor, choices[name])
        else:
            children = any(chosen.get(n) != "reparam" for n in after[name])
            chosen[name] = _default(factor, children, continuous)
    chosen = {name: chosen[name] for name in pivot}
    _check_scan(pivot, chosen)
    return chosen


def _is_local(factor: Factor) -> bool:
    return factor.scalar is not None and support.is_admitted(factor.scalar.base)


def _default(factor: Factor, has_children: bool, continuous: str) -> str:
    if factor.fn.is_discrete:
        return _check(factor, "local")
    if continuous == "quadrature" and _is_local(factor) and not has_children:
        return "local"
    return _check(factor, "reparam")


def _check(factor: Factor, choice: str) -> str:
    name, family = factor.name, factor.family
    if choice == "local" and not _is_local(factor):
        if factor.scalar is None:
            cause, remedy = "has no scalar elements", "or split it into scalar sites"
        else:
            cause, remedy = (
                "has no table of candidates",
                "or use a distribution that docs/distributions.md lists",
            )
        other = "reparam" if factor.fn.has_rsample else "score"
        raise ValueError(
            f"site '{name}' of the guide is {family}, which {cause}: use "
            f'LocalExpectation(sites={{"{name}": "{other}"}}), {remedy}'
        )
    if choice == "reparam" and not factor.fn.has_rsample:
        kind = "discrete" if factor.fn.is_discrete else "not reparameterizable"
        other = "local" if _is_local(factor) else "score"
        raise ValueError(
            f"site '{name}' of the guide is {family}, which is {kind}: use "
            f'LocalExpectation(sites={{"{name}": "{other}"}})'
        )
    return choice


def _check_scan(pivot: Mapping[str, Factor], chosen: Mapping[str, str]) -> None:
    """Raise if fixed and recomputed sites share a `scan`, where fixing one site shifts the noise of another."""
    inside = {name: chosen[name] for name, factor in pivot.items() if factor.in_scan}
    fixed = [name for name, choice in inside.items() if choice != "reparam"]
    moving = [name for name, choice in inside.items() if choice == "reparam"]
    if fixed and moving:
        raise ValueError(
            f"sites '{fixed[0]}' and '{moving[0]}' share a scan of the guide, one of them reparameterized: use "
            f'LocalExpectation(sites={{"{moving[0]}": "score"}}), or sample them outside scan'
        )
