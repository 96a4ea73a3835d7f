"""The result of a fit: its parameters, its history, and what can be computed from them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.infer import Predictive

from legrad.diagnostics.corrected import corrected_sample
from legrad.diagnostics.diagnosis import Diagnosis, diagnose
from legrad.diagnostics.predict import predict
from legrad.diagnostics.psis import ElboEstimate, elbo_estimate, khat
from legrad.diagnostics.replay import user_model
from legrad.diagnostics.summary import Summary, summarize
from legrad.diagnostics.to_arviz import to_arviz
from legrad.estimators import LocalExpectation
from legrad.fitting import file_format
from legrad.fitting.plot import plot_fit
from legrad.fitting.plot_posterior import LEVELS
from legrad.fitting.quadrature_error import quadrature_concern
from legrad.fitting.recipe import made_again, recipe
from legrad.fitting.show import as_html, as_text
from legrad.fitting.stopping import Phase
from legrad.guides.gaussian import Cover
from legrad.guides.protocol import HeavyTails, WholePlates
from legrad.guides.structured import Structured
from legrad.marginal.marginalize import Marginal, marginalize
from legrad.model.frames import Names, in_the_order_of, names_by_size, unframed
from legrad.model.keys import Key, as_key
from legrad.model.parameters import require_same
from legrad.model.precision import as_double, in_double
from legrad.model.problem import Noise, Problem
from legrad.model.threads import one_at_a_time
from legrad.singlesite.report import Explanation, listening

_KIND = "result"


@dataclass(frozen=True, repr=False)
class FitResult:
    """A fitted guide.

    Attributes:
        params: the parameters of model and guide, constrained, by name.
        converged: whether `stop="auto"` found that more steps would change nothing; False for fixed steps.
        status: a sentence that says how the fit ended, and what to try next.
        elbo: the ELBO estimate of every step.
        steps: how many steps were taken.
        seconds: how long the fit took, compilation included.
        gradient_variance: for every step, an estimate of the variance of a component of the gradient: half the mean
            squared difference from the previous gradient.
        phases: with `stop="auto"`, one entry per step size: where it began and ended, and what was measured.
        error: the Monte Carlo error of the averaged parameters, in the unconstrained space; None if not averaged.
        restarts: with `restarts` > 1, the results of all starts; this result is the best of them.
        other_modes: indices into `restarts` of the starts that ended at another guide whose ELBO is not much worse.
        quadrature: a sentence on what more quadrature nodes would change, if that is more than 2% of the gradient.
        clock: rows of (steps done, seconds of running so far), one after each chunk of compiled steps; the first
            step's seconds are mostly compilation.
        problem: model, guide, parameters and data, from which the methods compute.
        estimator: the estimator that gave the gradients.
        optimizer_state: the state of the optimizer after the last step.
        how: for a fit without a guide, what was done, in one sentence.
        gradients: for a fit without steps, how many gradients it took: of the "model", and of the "objective".
        note: for a fit without a guide, where the steps started.
        double: whether weights are computed in double precision, whatever the program runs in.
        moments: for a fit without a guide, mean and Cholesky factor of the posterior's covariance in unconstrained
            space, by reweighted draws, or those of the components of a mixture, and their weights; draws that are
            weighed come from there.
        names: the names of columns and rows of data frames among the arguments.
    """

    params: dict[str, Any]
    converged: bool
    status: str
    elbo: np.ndarray
    steps: int
    seconds: float
    gradient_variance: np.ndarray = field(repr=False)
    phases: tuple[Phase, ...] = field(repr=False)
    error: dict[str, Any] | None = field(repr=False)
    clock: np.ndarray = field(repr=False)
    problem: Problem = field(repr=False)
    estimator: Any = field(repr=False)
    optimizer_state: Any = field(repr=False)
    restarts: tuple[FitResult, ...] = field(default=(), repr=False)
    other_modes: tuple[int, ...] = field(default=(), repr=False)
    quadrature: str = field(default="", repr=False)
    how: str = field(default="", repr=False)
    gradients: dict[str, int] = field(default_factory=dict, repr=False)
    double: bool = field(default=False, repr=False)
    moments: Cover | None = field(default=None, repr=False)
    note: str = field(default="", repr=False)
    names: tuple[Names, ...] = field(default=(), repr=False)

    def __repr__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        return as_html(self)

    @property
    def model(self) -> Callable[..., Any]:
        """The model, as its user wrote it."""
        return user_model(self.problem.model)

    @property
    def guide(self) -> Callable[..., Any]:
        """The guide."""
        return self.problem.guide

    @cached_property
    def method(self) -> str:
        """The estimator's name, and which latents it treats differently from its settings, and why.

        For a fit without a guide, a sentence that says what was done.
        """
        if self.how:
            return self.how
        if not isinstance(self.estimator, LocalExpectation):
            return self.estimator_name
        found = self._arrangement
        other = [f"{site} is {how}" for site, how in found.methods.items() if "would cost" in how]
        return "; ".join([self.estimator_name, *other, *([self.note] if self.note else [])])

    @property
    def deterministic(self) -> bool:
        """Whether no latent was sampled: all terms were exact, and only the subsampling of plates can add noise."""
        return isinstance(self.estimator, LocalExpectation) and self._arrangement.deterministic

    @cached_property
    def _arrangement(self) -> Explanation:
        """How `LocalExpectation` treats each latent and each term."""
        estimator, problem = self.estimator, self.problem

        def look(params: Any, key: jax.Array) -> None:
            at = replace(problem, params=params)
            estimator.arrange(at, Noise(*jax.random.split(key)))

        with listening() as found, one_at_a_time:
            jax.eval_shape(look, dict(problem.params), jax.random.key(0))
        return found

    @property
    def estimator_name(self) -> str:
        """The estimator's name."""
        return self.estimator if isinstance(self.estimator, str) else type(self.estimator).__name__

    def with_args(self, *args: Any, model: Callable[..., Any] | None = None, **kwargs: Any) -> FitResult:
        """Return the same fit with other arguments: held-out data, or all rows of a fit on minibatches.

        Args:
            args: the new positional arguments of model and guide.
            model: a model to use instead of the fitted one, such as one without subsampling.
            kwargs: the new keyword arguments of model and guide.
        """
        params = jax.tree.map(jnp.asarray, self.params)  # without the rows of the last minibatch
        if model is not None and isinstance(self.problem.model, Marginal):
            model = marginalize(model)
        runs = model or self.problem.model
        args, kwargs, _ = unframed(runs, in_the_order_of(self.names, runs, args), kwargs)
        other = replace(self.problem, params=params, args=args, kwargs=kwargs, model=runs)
        if isinstance(self.estimator, str) and not _can_run(self.problem):  # loaded without its arguments
            _require_same(self.params, other, "the file")
        return replace(self, problem=other)

    @one_at_a_time
    def sample(self, key: Key, num_samples: int | None = None, corrected: bool = False) -> dict[str, jax.Array]:
        """Draw from the fitted guide; returns for each latent an array with a leading axis of draws.

        Latents that `fit` summed out are drawn from their exact conditionals. If plates subsample, they are left out:
        `result.with_args` with the full data, and a model that takes all members, has them.

        Args:
            key: the random key; a whole number may stand for it if `num_samples` is given.
            num_samples: the number of draws; 1,000 if None.
            corrected: whether to resample the draws by their smoothed importance weights, which corrects what the
                guide cannot hold. Needs a k-hat of at most 0.7.
        """
        if num_samples is None and isinstance(key, int):
            raise TypeError(
                f"result.sample({key}): is {key} the random key, or the number of draws? Write "
                f"result.sample(jax.random.key(0), {key}) for {key} draws, or result.sample({key}, 1000) for a key"
            )
        key, num_samples = as_key(key), 1000 if num_samples is None else num_samples
        if corrected:
            found = self._precisely(lambda problem: corrected_sample(self._proposal(problem), key, num_samples))
            return self._with_summed({name: jnp.asarray(value) for name, value in found.items()}, key, num_samples)
        problem = self.problem
        if isinstance(problem.model, Marginal) and problem.model.is_exact(*problem.args, **problem.kwargs):
            return self._with_summed({}, key, num_samples)
        guide = problem.guide.whole if isinstance(problem.guide, WholePlates) else problem.guide
        params = jax.tree.map(jnp.asarray, self.params)  # a guide may look them up with a traced index
        draw = Predictive(guide, params=params, num_samples=num_samples, parallel=True)
        values = draw(key, *problem.args, **problem.kwargs)
        drawn = {name: value for name, value in values.items() if name not in self._auxiliary()}
        return self._with_summed(drawn, key, num_samples)

    def _with_summed(self, draws: dict[str, jax.Array], key: jax.Array, number: int) -> dict[str, jax.Array]:
        """Add the latents that were summed out, drawn from their exact conditionals, unless plates subsample."""
        model, problem = self.problem.model, self.problem
        if not isinstance(model, Marginal):
            return draws
        plan = model.plan(*problem.args, **problem.kwargs)
        if not plan.summed or plan.subsampled:
            return draws
        return draws | model.draw(jax.random.fold_in(key, 1), draws, number, *problem.args, **problem.kwargs)

    def _is_whole_and_heavy(self) -> bool:
        """Whether the fit has no guide of the user's, and all members of its plates."""
        guide, model, problem = self.problem.guide, self.problem.model, self.problem
        if isinstance(model, Marginal) and model.is_exact(*problem.args, **problem.kwargs):
            return True
        return isinstance(guide, Structured) and not guide.is_subsampled

    def _posterior_draws(self, key: jax.Array, number: int) -> tuple[dict[str, jax.Array], bool]:
        """Draw as well as can be: corrected by weights, if the fit has no guide of the user's, and they allow it."""
        if isinstance(self.problem.guide, Structured) and self._is_whole_and_heavy():
            try:
                return self.sample(key, number, corrected=True), True
            except ValueError:  # the weights cannot be trusted, or there are none
                pass
        return self.sample(key, number), False

    def _precisely(self, run: Callable[[Problem], Any]) -> Any:
        """Run a function of the problem; in double precision if the fit was made in it."""
        if not self.double:
            return run(self.problem)

        def precisely() -> Any:
            params, args, kwargs = as_double(
                (dict(self.problem.params), self.problem.args, dict(self.problem.kwargs))
            )
            return run(replace(self.problem, params=params, args=args, kwargs=kwargs))

        return in_double(precisely)

    def _proposal(self, problem: Problem) -> Problem:
        """Return the problem with a guide for draws that are weighed: with heavier tails, if the guide has them."""
        guide = problem.guide
        return replace(problem, guide=guide.proposal(self.moments)) if isinstance(guide, HeavyTails) else problem

    @one_at_a_time
    def _auxiliary(self) -> set[str]:
        with handlers.trace() as trace, handlers.seed(rng_seed=0), handlers.substitute(data=self.params):
            self.problem.guide(*self.problem.args, **self.problem.kwargs)
        return {
            name for name, site in trace.items() if site["type"] == "sample" and site["infer"].get("is_auxiliary")
        }

    def khat(self, key: Key, num_samples: int = 16_000) -> float:
        """Return the PSIS k-hat of the guide as a proposal for the posterior; warn if above 0.7."""
        return self._precisely(lambda problem: khat(self._proposal(problem), as_key(key), num_samples))

    def elbo_estimate(self, key: Key, n: int = 1000) -> ElboEstimate:
        """Estimate the ELBO with its standard error, and the importance-weighted bound, from `n` draws."""
        return self._precisely(lambda problem: elbo_estimate(problem, as_key(key), n))

    def diagnose(self, key: Key, n: int = 16_000) -> Diagnosis:
        """Check the fit for every known problem: convergence, other modes, quadrature, k-hat, reweighted moments."""
        key = as_key(key)
        heavy = isinstance(self.problem.guide, HeavyTails)
        by_size = names_by_size(self.names)
        found = self._precisely(lambda p: diagnose(p, key, n, self._proposal(p) if heavy else None, by_size))
        against = [] if self.converged else [f"the fit has not converged: {self.status}"]
        if self.other_modes:
            against.append(self._other_modes_flag())
        if quadrature := quadrature_concern(self, key):
            against.append(quadrature)
        return replace(found, flags=[*against, *found.flags])

    def _other_modes_flag(self) -> str:
        return (
            f"{len(self.other_modes)} of {len(self.restarts)} starts ended at another guide with an ELBO that is not "
            "much worse: the posterior has several modes (or exchangeable labels), of which the guide covers one, or "
            "these starts need more steps"
        )

    def summary(
        self,
        key: Key,
        n: int = 1000,
        *,
        quantiles: Sequence[float] = (0.05, 0.5, 0.95),
        coords: Mapping[str, Sequence[Any]] | None = None,
    ) -> Summary:
        """Summarize every latent: mean, sd and quantiles of numbers, probabilities of labels.

        After a fit without a guide, the draws are corrected by their importance weights, if those can be trusted.

        Elements are named by `coords`, else by the columns (or row names) of a data frame among the arguments that
        has as many, else by their position.

        Args:
            key: the random key.
            n: the number of draws from the guide.
            quantiles: the levels of the quantiles.
            coords: names of the members of a plate, by the plate's name; an axis without a plate is "site_dim_0".

        Example:
            >>> print(result.summary(0, quantiles=(0.1, 0.9)))
            >>> result.summary(0).to_pandas()
        """
        whole = self.with_args(*self.problem.args, **self.problem.kwargs)
        draws, corrected = self._posterior_draws(as_key(key), n)
        return replace(summarize(whole.problem, draws, quantiles, coords, self.names), corrected=corrected)

    def predict(
        self,
        key: Key,
        *new_args: Any,
        n: int = 1000,
        kwargs: Mapping[str, Any] | None = None,
        same: Collection[str] = (),
    ) -> dict[str, jax.Array]:
        """Draw every observed site from its posterior predictive distribution, for new data or for those of the fit.

        The values of observed arguments are not read: they may be None, or be left out at the end, if the model runs
        without them. A frame may have its columns in another order than in the fit.

        With new arguments, the latents of a plate that an observed site is in belong to the rows of the fit, and not
        to the new rows (also if there are as many): those of the new rows are drawn from their prior, given the
        latents that all rows share. So are the latents of a plate of another size, those without a plate whose shape
        is another one, and those inside a `scan` that has observed sites. All other latents are draws of the guide.
        `same` names plates whose members are those of the fit: groups that have been seen, with new rows. To let the
        data of new rows inform their latents, fit again with these rows.

        Args:
            key: the random key.
            new_args: the positional arguments of the model; none for the arguments of the fit.
            n: the number of draws.
            kwargs: keyword arguments of the model.
            same: the names of plates whose members are those of the fit.

        Returns:
            For each observed site an array with a leading axis of draws.

        Example:
            >>> y = result.predict(0, X)["y"]  # X: new rows, for a model (X, y)
            >>> y.mean(0), jnp.quantile(y, jnp.array([0.05, 0.95]), axis=0)
        """
        of_draws, of_sites = jax.random.split(as_key(key))
        fitted = self.with_args(*self.problem.args, **self.problem.kwargs).problem
        draws, _ = self._posterior_draws(of_draws, n)
        if not new_args and kwargs is None:
            return predict(fitted, draws, of_sites, None, None)
        ordered = in_the_order_of(self.names, self.model, new_args)
        args, more, _ = unframed(self.model, ordered, kwargs or {})
        return predict(fitted, draws, of_sites, args, more, same)

    def to_arviz(self, key: Key, num_samples: int = 1000, **names: Any) -> Any:
        """Return posterior, predictive and log-likelihood for ArviZ; `coords` and `dims` are those of ArviZ.

        Axes that `coords` leaves out are named by the columns (or row names) of a data frame among the arguments.
        After a fit without a guide, the draws are corrected by their importance weights, if those can be trusted.
        """
        # All members of plates, not those of the last minibatch.
        whole = self.with_args(*self.problem.args, **self.problem.kwargs)
        key = as_key(key)
        draws = self._posterior_draws(key, num_samples)[0] if self._is_whole_and_heavy() else None
        labels = names_by_size(self.names)
        return to_arviz(whole.problem, key, num_samples, draws=draws, labels=labels, **names)

    def plot(self, path: Any = None) -> Any:
        """Plot the fit on one page: the optimization, and the posterior next to it. Needs matplotlib.

        Args:
            path: the file to write the picture to; if None, the figure is only returned.
        """
        summary = None if _is_missing(self.guide) else self.summary(0, quantiles=LEVELS)
        return plot_fit(self, summary, path)

    def save(self, path: Any) -> None:
        """Save the result as a file of arrays and JSON, for `legrad.load`. Model, guide and data are not saved."""
        arrays: dict[str, np.ndarray] = {}
        numbers = self._described(arrays)
        numbers["restarts"] = [restart._described(arrays) for restart in self.restarts]
        numbers["elsewhere"] = list(self.other_modes)
        file_format.write(Path(path), _KIND, numbers, arrays)

    def _described(self, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
        trees = {name: getattr(self, name) for name in _ARRAYS}
        plain = {name: getattr(self, name) for name in _PLAIN}
        phases = [vars(phase) for phase in self.phases]
        trees = {name: file_format.described(tree, arrays) for name, tree in trees.items() if tree is not None}
        names = [one._asdict() for one in self.names]
        own = {"estimator": self.estimator_name, "names": names, "recipe": recipe(self.problem)}
        return plain | own | {"trees": trees, "phases": phases}


_PLAIN = ("converged", "status", "steps", "seconds", "quadrature", "how", "gradients", "double", "note")
_ARRAYS = ("params", "elbo", "gradient_variance", "error", "clock", "moments")


def load(
    path: Any,
    model: Callable[..., Any] | None = None,
    guide: Callable[..., Any] | None = None,
    *,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> FitResult:
    """Load a result that `result.save` wrote.

    Args:
        path: the path of the file.
        model: the model of the fit, for the methods that run it; a file holds no code.
        guide: the guide of the fit; leave it out for a fit without a guide, whose own is made again.
        args: positional arguments of model and guide.
        kwargs: keyword arguments of model and guide.

    Raises:
        ValueError: if the parameters of model and guide are not those of the file. Without the arguments of the
            fit, this is checked at `result.with_args(...)`.

    Example:
        >>> result.save("fit.legrad")
        >>> legrad.load("fit.legrad", model, guide, args=(X, y)).sample(key, 1000)
    """
    numbers, arrays = file_format.read(Path(path), _KIND)
    plain, given = model or _missing("model", path), guide or _missing("guide", path)
    args, kwargs, _ = unframed(plain, args, kwargs or {})

    def rebuilt(numbers: Mapping[str, Any], **more: Any) -> FitResult:
        trees = {name: file_format.undescribed(text, arrays) for name, text in numbers["trees"].items()}
        automatic = numbers.get("recipe") if model and not guide else None
        mine, its_guide = made_again(automatic, model) if automatic and model else (plain, given)
        kind = _kind_of_exact() if automatic and automatic["guide"] is None else FitResult
        return kind(
            **({"error": None, "moments": None} | trees),
            converged=numbers["converged"],
            status=numbers["status"],
            quadrature=numbers.get("quadrature", ""),
            how=numbers.get("how", ""),
            gradients=numbers.get("gradients", {}),
            double=numbers.get("double", False),
            note=numbers.get("note", ""),
            names=tuple(Names(n["argument"], n["axis"], tuple(n["values"])) for n in numbers.get("names", ())),
            steps=numbers["steps"],
            seconds=numbers["seconds"],
            phases=tuple(Phase(**phase) for phase in numbers["phases"]),
            problem=Problem(mine, its_guide, jax.tree.map(jnp.asarray, trees["params"]), args, dict(kwargs or {})),
            estimator=numbers["estimator"],
            optimizer_state=None,
            **more,
        )

    restarts = tuple(rebuilt(one) for one in numbers["restarts"])
    result = rebuilt(numbers, restarts=restarts, other_modes=tuple(numbers["elsewhere"]))
    if _can_run(result.problem):
        _require_same(result.params, result.problem, f"'{path}'")
    return result


def _kind_of_exact() -> type[FitResult]:
    from legrad.fitting.summed_out import ExactResult  # which is a FitResult itself

    return ExactResult


def _can_run(problem: Problem) -> bool:
    """Whether there is a guide, and the arguments are those of guide and model."""
    if _is_missing(problem.guide):
        return False
    try:
        for program in (problem.guide, problem.model):
            inspect.signature(program).bind(*problem.args, **problem.kwargs)
    except (TypeError, ValueError):
        return False
    return True


def _require_same(params: Mapping[str, Any], problem: Problem, file: str) -> None:
    model = None if _is_missing(problem.model) else problem.model
    require_same(params, model, problem.guide, problem.args, problem.kwargs, file)


def _is_missing(program: Any) -> bool:
    return bool(getattr(program, "missing", False))


def _missing(what: str, path: Any) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise ValueError(
            f"this result was loaded without its {what}, which is not saved in the file: "
            f"legrad.load({str(path)!r}, model, guide, args=...), or without the guide if the fit had none"
        )

    refuse.missing = True  # type: ignore[attr-defined]
    return refuse
