"""LeGrad: local expectation gradients (Titsias).

One pivot x ~ q serves all elements. For element e, with candidates v_k and weights ω_k under q(x_e | pa_e):

    ∇ ≈ Σ_k w_k · F_k · ∇ log q(v_k | pa_e),    F_k = f(x with x_e = v_k),
    w_k ∝ ω_k · q_others(x with x_e = v_k)      q_others: the other fixed factors, the rest of e's Markov blanket

An element that no other fixed site depends on has w = ω, and F_k − f(pivot) replaces F_k. Otherwise only the terms
that neither e nor its descendants touch may be dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient

from legrad.distributions import counts, elements, support
from legrad.estimators.alarms import require_accurate, warn_escaped
from legrad.estimators.base import Estimator, Score, draws, over_draws, require_positive, surrogate
from legrad.estimators.costs import Costs, descendants, fixed_parents
from legrad.estimators.element_share import MOST, Share, of_shares, shares
from legrad.estimators.exact_terms import NONE, Split, known_entropies, quieted, replaced, split
from legrad.estimators.exact_terms import errors as errors_of_terms
from legrad.estimators.score_function import score
from legrad.estimators.treatment import treatments
from legrad.model.problem import Evaluation, Noise, Problem
from legrad.model.sites import Draw, Factor
from legrad.singlesite import METHODS, single_site_totals, single_site_work
from legrad.singlesite.report import tell_methods, tell_terms

GRADIENTS = 10  # a quadrature that costs more gradients of the model than this is not the default
EVALUATIONS = 2  # the least cost of a gradient, in evaluations of f
BASELINE_DRAWS = 4  # of the costs of a single pivot
NEGLIGIBLE = 1 << 20  # numbers that a step computes in negligible time


class LocalExpectation(Estimator):
    """Local expectation gradients, for latents of any kind.

    Each scalar latent is summed over its support, or integrated by quadrature, with all other latents at a pivot.

    Args:
        num_pivots: the number of pivots averaged in one estimate.
        nodes: the number of quadrature nodes for a continuous element.
        continuous: "quadrature" treats continuous scalars locally where that is accurate and costs no more than about
            ten gradients of the model; "reparam" uses the reparameterization trick for all continuous scalars.
        method: how f is evaluated with one element changed; see `legrad.single_site`.
        sites: the treatment of some sites, by name: "local", "reparam" or "score".
        window: how many consecutive values represent the support of an unbounded count (a Poisson factor).
        exact_terms: whether terms of log p whose expectation over independent latents can be computed are replaced by
            it; with False all terms are sampled, as in the paper. `legrad.explain(model, guide)` lists the terms.
        element_fraction: the share of the elements of long sites that a step visits, drawn anew and scaled to all, at
            least 1/64: for latents that outnumber what a step can visit.

    Example:
        >>> svi = SVI(model, guide, Adam(1e-2), loss=legrad.LocalExpectation())

    References:
        Titsias (2015), "Local Expectation Gradients for Doubly Stochastic Variational Inference".
    """

    def __init__(
        self,
        num_pivots: int = 1,
        nodes: int = 5,
        continuous: str = "quadrature",
        method: str = "auto",
        sites: Mapping[str, str] | None = None,
        window: int = 64,
        exact_terms: bool = True,
        element_fraction: float = 1.0,
    ) -> None:
        require_positive(num_pivots=num_pivots, nodes=nodes, window=window)
        if not (isinstance(element_fraction, int | float) and 1 / MOST <= element_fraction <= 1):
            raise ValueError(f"element_fraction={element_fraction!r}: it must be between 1/{MOST} and 1")
        if continuous not in ("quadrature", "reparam"):
            raise ValueError(f'continuous={continuous!r}: it must be "quadrature" or "reparam"')
        if method not in METHODS:
            raise ValueError(f"method={method!r} is not known: choose one of {', '.join(METHODS)}")
        for name, choice in (sites or {}).items():
            if choice not in ("local", "reparam", "score"):
                raise ValueError(f'sites[{name!r}]={choice!r}: it must be "local", "reparam" or "score"')
        super().__init__(num_particles=num_pivots)
        self.num_pivots, self.nodes, self.continuous, self.method = num_pivots, nodes, continuous, method
        self.sites, self.window, self.exact_terms = dict(sites or {}), window, bool(exact_terms)
        self.element_fraction = float(element_fraction)

    def estimate(self, problem: Problem, key: jax.Array) -> jax.Array:
        """See `Estimator.estimate`."""
        value, scores, alarms = over_draws(partial(self._one, problem), draws(key, self.num_pivots))
        for name, mass in alarms.escaped.items():
            warn_escaped(name, mass)
        for name, change in alarms.inaccurate.items():
            require_accurate(name, change)
        return surrogate(value, scores, leave_one_out=self.num_pivots > 1)

    def _one(self, problem: Problem, noise: Noise) -> tuple[jax.Array, dict[str, Score], Alarms]:
        found = self.arrange(problem, noise)
        x, local, held, children = found.x, found.local, found.held, found.children
        evaluate = self.evaluator(problem, noise, found)
        here = evaluate(x, found.pivot)
        cuts = {n: self._cut(here.factors[n], children[n]) for n in local}
        chosen = shares({n: x[n] for n in local}, self.element_fraction, jax.random.fold_in(noise.plates, 1))
        cuts = {n: cut._replace(share=chosen.get(n)) for n, cut in cuts.items()}
        moving = self.evaluator(problem.stopped(), noise, found)
        changes = self.changes(here, moving, x, {n: cuts[n] for n in found.childless}, False)
        others = {n: cuts[n] for n in local if n not in found.childless}
        changes |= self.changes(here, moving, held, others, any(children.values()))
        value = here.total(stop=x)
        # a scored site would need the surrogates among its costs
        quiet = quieted(problem, found.pivot, noise, here, x, found.split) if len(local) == len(x) else None
        if quiet is not None:
            value = value + quiet.value
            for n, change in changes.items():
                taken, share = quiet.change(n, cuts[n].moved, x[n]), cuts[n].share
                changes[n] = change._replace(f=change.f - (taken if share is None else share.take(taken, 1)))

        scores, alarms = {}, Alarms({}, {})
        costs = Costs(held, found.parents, evaluate, found.exact)
        usual = self._usual_costs(problem, noise, found, costs)
        for n in x:
            factor = here.factors[n]
            if n not in local:
                scores[n] = score(n, here, costs)
                scores[n] = scores[n]._replace(cost=scores[n].cost - usual[n])
            elif not children[n]:
                scores[n] = _leaf_score(factor, cuts[n], changes[n])
            else:
                cost = costs.of(n, costs.values(here)) - usual[n]
                scores[n] = _blanket_score(factor, cuts[n], changes[n], cost)
                if cuts[n].check is not None:
                    alarms.inaccurate[n] = _inaccuracy(factor, cuts[n], changes[n])
            if n in local and cuts[n].kind == "window":
                alarms.escaped[n] = counts.escaped_mass(factor.elements.base, self.window)
        return value, scores, alarms

    def _usual_costs(self, problem: Problem, noise: Noise, found: Arranged, costs: Costs) -> dict[str, Any]:
        """Return the costs that elements have on average over draws of their own: a baseline for a single pivot.

        They are independent of the pivot, so the mean stays. A draw needs no element changed, and costs far less than
        a second pivot, whose costs would do the same. Several pivots have each other's.
        """
        names = [n for n in found.x if n not in found.local or found.children[n]]
        if self.num_pivots > 1 or not names:
            return dict.fromkeys(names, 0.0)
        stopped = problem.stopped()

        def one(of_draw: Noise) -> dict[str, jax.Array]:
            pivot = stopped.draw(of_draw)
            x = {n: stop_gradient(pivot[n].coordinate) for n in found.x}
            there = self.evaluator(stopped, of_draw, found._replace(pivot=pivot))(x, pivot)
            values = costs.values(there)
            return {n: costs.of(n, values) for n in names}

        others = Noise(jax.random.split(jax.random.fold_in(noise.sites, 1), BASELINE_DRAWS), noise.plates)
        # Any function of draws of their own is a baseline: where the model rules a draw out, it counts as nothing.
        found_costs = over_draws(one, others)
        return {n: jnp.mean(jnp.where(jnp.isfinite(c), c, 0.0), axis=0) for n, c in found_costs.items()}

    def evaluator(self, problem: Problem, noise: Noise, found: Arranged) -> Callable[..., Evaluation]:
        """Return f as a function of the fixed coordinates, or at those of a draw itself, with its exact terms."""

        def evaluate(x: dict[str, jax.Array], draw: Draw | None = None) -> Evaluation:
            if draw is None:
                here = problem.evaluate(x, noise, pivot=found.pivot, exact_entropy=found.exact)
            else:
                here = problem.evaluate_draw(draw, x, noise, exact_entropy=found.exact)
            return replaced(problem, found.pivot, noise, here, x, found.split, found.exact)

        return evaluate

    def term_errors(self, problem: Problem, key: jax.Array) -> dict[str, jax.Array]:
        """Estimate the relative errors of the exact terms that are summed over nodes; the others are exact."""
        noise = Noise(*jax.random.split(key))
        found = self.arrange(problem, noise)
        return errors_of_terms(problem, found.pivot, noise, found.x, found.split) if found.split.exact else {}

    def arrange(self, problem: Problem, noise: Noise) -> Arranged:
        """Draw a pivot, and decide how each of its sites is treated."""
        pivot = problem.draw(noise)
        graph = problem.parents(pivot, noise)
        terms = split(problem, pivot, noise, graph) if self.exact_terms else NONE._replace(sampled=tuple(pivot))
        found = self._arranged(problem, pivot, graph, self.sites, terms)
        costly = self._costly(problem, noise, found)
        if costly:
            found = self._arranged(problem, pivot, graph, self.sites | dict.fromkeys(costly, "reparam"), terms)
        tell_methods({n: self._method_of(n, found, costly) for n in pivot})
        tell_terms(terms.terms, terms.deterministic)
        return found

    def _method_of(self, name: str, found: Arranged, costly: Mapping[str, float]) -> str:
        """Say in words how a site is treated."""
        if name in found.split.done:
            return "exact"
        if name in costly:
            return (
                f"reparameterized: a quadrature would cost about {costly[name]:,.0f} gradients of the model "
                f'(sites={{"{name}": "local"}} uses one anyway)'
            )
        if name not in found.x:
            return "reparameterized"
        if name not in found.local:
            return "score function"
        return "summed" if found.pivot[name].fn.is_discrete else "quadrature"

    def _costly(self, problem: Problem, noise: Noise, found: Arranged) -> dict[str, float]:
        """Return the continuous sites that cost too much to integrate by default, with the cost in model gradients.

        The cost depends on shapes alone, and is known before the first step.
        """
        names = [n for n in found.childless if n not in self.sites and found.pivot[n].fn.has_rsample]
        nodes = {n: self.nodes * max(1, math.prod(jnp.shape(found.x[n]))) for n in names}
        names = [n for n in names if nodes[n] > GRADIENTS * EVALUATIONS]  # else even brute force costs less
        if not names or self.method == "brute":
            return {}
        model = found._replace(split=NONE._replace(sampled=tuple(found.pivot)))  # without the nodes of exact terms
        evaluate = self.evaluator(problem.stopped(), noise, model)
        work = single_site_work(
            lambda moved: evaluate(found.x | moved).terms(), {n: found.x[n] for n in names}, self.nodes
        )
        ratio = {n: w.changes / (EVALUATIONS * max(1, w.evaluation)) for n, w in work.items()}
        return {n: r for n, r in ratio.items() if r > GRADIENTS and work[n].changes > NEGLIGIBLE}

    def _arranged(
        self,
        problem: Problem,
        pivot: Draw,
        graph: Mapping[str, frozenset[str]],
        sites: Mapping[str, str],
        terms: Split,
    ) -> Arranged:
        choice = treatments(pivot, graph, self.continuous, sites)
        sampled = [n for n in pivot if choice[n] != "reparam" and n not in terms.done]
        x = {n: stop_gradient(pivot[n].coordinate) for n in sampled}
        local = {n: pivot[n].elements for n in x if choice[n] == "local"}
        # The entropy of a local factor is known given its parents: -log q at the pivot would only add noise.
        names = [*local, *(n for n in terms.free if n not in local)] if terms.exact else local
        exact = known_entropies(problem, pivot, names)

        # A continuous site that no fixed site depends on is recomputed from its noise when another site changes:
        # held at its value, it would be in that site's blanket, and a narrow factor there ruins the weights.
        needed = frozenset[str]().union(*fixed_parents(x, graph).values())
        childless = {n for n in local if pivot[n].fn.has_rsample and n not in needed}
        held = {n: z for n, z in x.items() if n not in childless}
        parents = fixed_parents(held, graph)
        children = {n: bool(after) for n, after in descendants(parents).items()} | dict.fromkeys(childless, False)
        return Arranged(pivot, x, local, exact, childless, held, parents, children, terms)

    def _cut(self, factor: Factor, has_children: bool) -> SiteCandidates:
        """Return the candidates of one site; in a finite support the pivot comes first, where f is known."""
        base, pivot = factor.elements.base, factor.coordinate
        values, weights, kind = support.must_have_candidates(base, self.nodes, self.window)
        common = support.common_values(base) if len(values) > 2 and self.method != "brute" else None
        if common is not None:
            # They include the pivot's own value, a wasted evaluation, but all elements have the same candidates.
            return SiteCandidates(common, weights, "common", None)
        if kind == "finite":
            at = jnp.argmax(values == pivot, axis=0)
            order = (at + jnp.arange(len(values)).reshape(-1, *(1,) * at.ndim)) % len(values)
            values, weights = (jnp.take_along_axis(a, order, axis=0) for a in (values, weights))
        # A candidate of weight zero may have log q = -inf, whose gradient is NaN: the pivot replaces it.
        values = jnp.where(weights > 0, values, pivot)
        check = None
        if kind == "quadrature" and has_children:
            check = support.must_have_candidates(base, self.nodes + 2, self.window)
        return SiteCandidates(values, weights, kind, check)

    def changes(
        self,
        here: Evaluation,
        evaluate: Callable[[dict[str, jax.Array]], Evaluation],
        fixed: dict[str, jax.Array],
        cuts: dict[str, SiteCandidates],
        with_log_q: bool,
    ) -> dict[str, Differences]:
        """Return f and log q with one element changed, minus their values at the pivot."""
        if not cuts:
            return {}

        def terms(there: Evaluation) -> tuple[Any, Any]:
            return there.terms(), {n: there.factors[n].log_prob() for n in fixed} if with_log_q else {}

        def run(x: dict[str, Any], candidates: dict[str, Any], whole: Callable[[Any], dict[str, Any]]) -> Any:
            return single_site_totals(
                lambda moved: terms(evaluate(fixed | whole(moved))),
                x,
                candidates,
                self.method,
                at_pivot=jax.tree.map(stop_gradient, terms(here)),
            )

        elements, moved = {n: fixed[n] for n in cuts}, {n: cut.moved for n, cut in cuts.items()}
        changes = of_shares(run, elements, moved, {n: cut.share for n, cut in cuts.items()})
        return {n: Differences(*change) for n, change in changes.items()}


class Arranged(NamedTuple):
    """A pivot, and how its sites are treated.

    Attributes:
        pivot: the guide's factors at the draw.
        x: the coordinates of the fixed sites, which are those that are not reparameterized.
        local: the elements of the local sites.
        exact: the local and free sites whose entropy is known given their parents.
        childless: the continuous local sites that no fixed site depends on.
        held: the coordinates that stay when another site changes: all of `x` but the childless sites.
        parents: the parents of each held site among the held sites.
        children: for each site of `x`, whether a fixed site depends on it.
        split: which terms are exact.
    """

    pivot: Draw
    x: dict[str, jax.Array]
    local: dict[str, elements.Scalar]
    exact: list[str]
    childless: set[str]
    held: dict[str, jax.Array]
    parents: dict[str, frozenset[str]]
    children: dict[str, bool]
    split: Split


class Alarms(NamedTuple):
    """What a compiled step watches, by site."""

    escaped: dict[str, jax.Array]
    inaccurate: dict[str, jax.Array]


class SiteCandidates(NamedTuple):
    """The candidates of a site.

    Attributes:
        values: the candidates, (K, *shape); in a "finite" support the pivot comes first. Those of a "common" support
            are constants that all elements share, (K, 1, ...).
        weights: the weights of the candidates, (K, *shape).
        kind: "finite", "common", "window" or "quadrature".
        check: a second quadrature rule, to compare with.
        share: the block of elements that the step visits; None for all.
    """

    values: Any
    weights: jax.Array
    kind: str
    check: support.Candidates | None
    share: Share | None = None

    def visited(self, array: jax.Array, lead: int = 1) -> jax.Array:
        """Return the visited elements of an array, with `lead` axes before those of the elements."""
        return array if self.share is None else self.share.take(array, lead)

    def counted(self, weights: jax.Array) -> jax.Array:
        """Return the weights of visited elements as they count for all."""
        return weights if self.share is None else self.share.counted(weights)

    @property
    def moved(self) -> jax.Array:
        """The candidates at which f must be evaluated; at the pivot's own value it is known."""
        if self.kind == "finite":
            return self.values[1:]
        return self.values if self.check is None else jnp.concatenate([self.values, self.check.values])


class Differences(NamedTuple):
    """f and the bare log q of all fixed sites at the moved candidates, minus their values at the pivot."""

    f: jax.Array
    log_q: Any


def _leaf_score(factor: Factor, cut: SiteCandidates, change: Differences) -> Score:
    """Return the score of a site that no other fixed site depends on: w = ω, and all constants drop out."""
    values, weights = cut.moved, cut.weights[-len(cut.moved) :]
    log_q = cut.visited(_log_q(factor, values, weights))
    return Score(log_q, cut.counted(cut.visited(weights)), stop_gradient(change.f), None)


def _blanket_score(factor: Factor, cut: SiteCandidates, change: Differences, cost: jax.Array) -> Score:
    if cut.kind == "finite":
        change = jax.tree.map(lambda a: jnp.concatenate([jnp.zeros_like(a[:1]), a]), change)
    change = jax.tree.map(lambda a: a[: len(cut.values)], change)
    log_w = _log_weights(factor, cut, cut.values, cut.weights, change.log_q)
    weights = cut.counted(jnp.where(cut.visited(cut.weights) > 0, jax.nn.softmax(log_w, axis=0), 0.0))
    log_q = cut.visited(_log_q(factor, cut.values, cut.weights))
    return Score(log_q, stop_gradient(weights), stop_gradient(change.f), cut.visited(cost, 0))


def _log_q(factor: Factor, values: Any, weights: jax.Array) -> jax.Array:
    """Return log q of the candidates; a value that the factor excludes would give −∞, and 0 · −∞ is NaN."""
    return jnp.where(weights > 0, factor.elements.coordinate_log_prob(values), 0.0)


def _log_weights(factor: Factor, cut: SiteCandidates, values: Any, weights: jax.Array, log_q: jax.Array) -> jax.Array:
    """Return log ω_k + log q_others(v_k), up to a constant: log q of all sites minus that of the element itself."""
    own = stop_gradient(factor.elements.log_prob(values) - factor.elements.log_prob(factor.coordinate))
    own, weights = cut.visited(own), cut.visited(weights)
    safe = jnp.where(weights > 0, weights, 1.0)
    return jnp.where(weights > 0, jnp.log(safe) + stop_gradient(log_q) - own, -jnp.inf)


def _inaccuracy(factor: Factor, cut: SiteCandidates, change: Differences) -> jax.Array:
    """Return how much the mass, mean and variance of the reweighted quadrature change from K to K+2 nodes."""
    K = len(cut.weights)
    centre = jnp.sum(cut.weights * cut.values, axis=0)
    spread = jnp.sqrt(jnp.sum(cut.weights * (cut.values - centre) ** 2, axis=0))

    def moments(values: jax.Array, weights: jax.Array, log_q: jax.Array) -> jax.Array:
        log_w = _log_weights(factor, cut, values, weights, log_q)
        w, u = jax.nn.softmax(log_w, axis=0), cut.visited((values - centre) / spread)
        mean = jnp.sum(w * u, axis=0)
        return jnp.stack([jax.nn.logsumexp(log_w, axis=0), mean, jnp.sum(w * (u - mean) ** 2, axis=0)])

    fewer = moments(cut.values, cut.weights, change.log_q[:K])
    assert cut.check is not None
    more = moments(cut.check.values, cut.check.weights, change.log_q[K:])
    return jnp.max(jnp.abs(fewer - more))
