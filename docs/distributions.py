"""Writes docs/distributions.md from the tables of the package: `python docs/distributions.py`."""

from pathlib import Path

from numpyro.distributions import TransformedDistribution

from legrad.distributions.counts import COUNTS
from legrad.distributions.quadrature import QUADRATURE, REFUSED, THROUGH_BASE

PAGE = Path(__file__).with_suffix(".md")


def page() -> str:
    """The page's text."""
    lines = [
        "# Which distributions are treated locally",
        "",
        "This is about the *guide*: its factors decide how the gradient is taken. The model may contain anything.",
        "",
        "## Finite supports: summed exactly",
        "",
        "Bernoulli, Categorical, Binomial, DiscreteUniform, BetaBinomial and everything else that NumPyro can "
        "enumerate.",
        "",
        "## Counts without an upper end: a window",
        "",
        ", ".join(sorted(family.__name__ for family in COUNTS)) + ".",
        "",
        "`LocalExpectation(window=64)` consecutive values, centred on the mean. More than 1e-4 of the mass outside "
        "warns.",
        "",
        "## Continuous: quadrature",
        "",
        "Admitted where the gradients of E[x], E[x²] and the entropy are within 2% with the nodes below, which are "
        "what `nodes=5` stands for; asking for two more adds two. The last column says for which parameters that was "
        "checked (`tests/distributions/test_quadrature.py`). Outside of them `fit` and "
        "`result.diagnose` say so, and `legrad.quadrature_error` says by how much.",
        "",
        "| distribution | nodes | within 2% for |",
        "|---|---|---|",
    ]
    lines += [f"| {f.__name__} | {rule.nodes} | {rule.holds} |" for f, rule in sorted_by_name(QUADRATURE)]
    lines += [f"| {name} (through its base) | 5 | {holds} |" for name, holds in THROUGH_BASE.items()]
    lines += [
        "",
        "Transforms of these, elementwise and one-to-one, go through their base. Ends of a support that are traced "
        "(parameters, or arrays that reach a compiled function) are reparameterized: a score does not see them move.",
        "",
        "## Reparameterized instead",
        "",
        "| distribution | why |",
        "|---|---|",
    ]
    lines += [f"| {f.__name__} | {why}{instead(f)} |" for f, why in sorted_by_name(REFUSED)]
    lines += [
        "",
        "Distributions without scalar elements (MultivariateNormal, Dirichlet, flows) and those without a rule are "
        "reparameterized where NumPyro can; otherwise an error names the site and says what to choose.",
        "",
    ]
    return "\n".join(lines)


def instead(family) -> str:
    """What is left for a family that NumPyro cannot reparameterize."""
    if family.reparametrized_params or issubclass(family, TransformedDistribution):
        return ""
    return '; NumPyro cannot reparameterize it: choose `sites={"name": "score"}`'


def sorted_by_name(table):
    return sorted(table.items(), key=lambda item: item[0].__name__)


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"wrote {PAGE}")
